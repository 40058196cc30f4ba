"""Helpers of the command-line tests: a controller of a few lines, a cluster's status, a run."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from controller.api.state import run_state
from controller.api.state.audit import AuditLog
from controller.api.state.run_state import RunState
from controller.api.wire.status import (
    AutoscaleStatus,
    ClusterState,
    ClusterStatus,
    FrontendStatus,
    InstanceState,
    InstanceStatus,
    QueueHeadStatus,
)
from tools.synthetic_cluster import run_state_of

TOKEN = "right"


def instance(
    id_: str = "i-0", state: InstanceState = InstanceState.ACTIVE, **fields: Any
) -> InstanceStatus:
    known: dict[str, Any] = {
        "incarnation": 3,
        "num_restarts": 2,
        "node": "n1",
        "pid": 77,
        "freeness_steps": 520.6,
        "virtual_usage_blocks": 97,
        "headroom_blocks": 11,
        "block_size": 16,
        "num_total_blocks": 102,
        "num_free_blocks": 52,
        "watermark_blocks": 2,
        "num_running_reqs": 4,
        "num_waiting_reqs": 1,
        "kv_cache_usage": 0.494,
        "queue_head": QueueHeadStatus(
            request_id="r1", level="high", demand_blocks=118, waited_s=3.21, evicted=False
        ),
        "num_evictions": 9,
        "step_time_s": 0.00725,
        "num_steps": 1000,
        "age_s": 0.41,
    }
    return InstanceStatus(id=id_, state=state, **(known | fields))


def cluster(
    *instances: InstanceStatus, state: ClusterState = ClusterState.READY, detail: str = ""
) -> ClusterStatus:
    frontend = FrontendStatus(id="f-0", state=InstanceState.ACTIVE, incarnation=1, age_s=0.2)
    return ClusterStatus(
        cluster="default",
        state=state,
        detail=detail,
        model="embedded",
        policy="llumnix",
        endpoint_url="http://127.0.0.1:8000",
        uptime_s=185,
        cluster_uptime_s=7385,
        num_held_reqs=0,
        autoscale=AutoscaleStatus(mode="off", min_instances=1, max_instances=16, num_instances=1),
        instances=instances or (instance(),),
        frontends=(frontend,),
    )


def remember(control_url: str, *, token: str = TOKEN, name: str = "default") -> RunState:
    """Leaves the run state that `up` would."""
    state = run_state_of(control_url, token, name)
    run_state.save(state)
    return state


def stop(actor: str, *, name: str = "default") -> None:
    """Leaves what `down` would."""
    AuditLog(run_state.state_path(name)).write(
        actor=actor, action="down: drain", target=f"cluster {name}", outcome="done", cause_id="d"
    )
    run_state.remove(name)


@contextmanager
def controller(status: ClusterStatus, *, hangs: bool = False) -> Iterator[str]:
    """Serves one status to who has the token; yields its URL."""
    release = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if hangs:
                release.wait(30)
                return
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                self.answer(401, {"code": "no_token", "message": "bad token", "hint": "look"})
            elif self.path != "/v1/status":
                self.answer(404, {"code": "not_found", "message": "no such path"})
            else:
                self.answer(200, json.loads(status.model_dump_json()))

        def answer(self, code: int, body: dict[str, Any]) -> None:
            raw = json.dumps(body).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        release.set()
        server.shutdown()
        server.server_close()
        thread.join()
