"""Runs commands; a cluster's status and its run state, as commands find them."""

import pytest
from _pytest.capture import CaptureResult

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
)
from llumctl.app import run
from tools.synthetic_cluster import instance, run_state_of

TOKEN = "right"


class Cli:
    """Runs `llumctl` in this process and returns what it printed: `out` and `err`."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str, code: int = 0) -> CaptureResult[str]:
        assert run(list(arguments)) == code, arguments
        return self._capsys.readouterr()

    def out(self, *arguments: str) -> str:
        """What a command printed that succeeded and had nothing else to say."""
        printed = self(*arguments)
        assert printed.err == ""
        return printed.out


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


def facts(text: str) -> dict[str, str]:
    """The first block of what a command prints: a name and a value on each line."""
    lines = text.split("\n\n")[0].splitlines()
    return {name: value.strip() for name, _, value in (line.partition("  ") for line in lines)}


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
