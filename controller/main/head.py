"""The head process: it starts Ray (or joins one) and the controller. Then it keeps the endpoint's
listening socket for the frontends and two sockets for the controller, and owns Ray if it started
it.

`up` runs it as `python -P -m controller.main.head ENDPOINT CONTROL PLAN_FILE` in the state folder,
never in a user's folder: Ray puts its driver's working folder first in every worker's `sys.path`,
and a `controller.py` there would be imported instead of ours. ENDPOINT and CONTROL are descriptors
of sockets that `up` has bound. The head outlives `up`; SIGTERM from `down` closes its sockets and
ends Ray.
"""

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from controller.adapters.listener import HEAD, Keeper, keeper_path
from controller.adapters.ray import log_rotation
from controller.adapters.ray.ray_launcher import launch_actor
from controller.main.machine import controller_ports, temp_folder
from controller.main.plan import ClusterPlan
from controller.main.roles import bind_host
from controller.runtime import log_records

# llumctl puts nothing into the object store; this is about Ray's minimum.
OBJECT_STORE_BYTES = 80_000_000
BIRTH_POLL_S = 0.5
RAY_PARTS = ("gcs_server", "raylet")
"""Names of the processes of Ray without which a node does not start."""
HEAD_LOG = "head.log"
"""In the folder of logs; `up` sends this process's output there."""


def main(endpoint: int, control: int, plan_file: str) -> None:
    log_records.install()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    plan = ClusterPlan.model_validate_json(Path(plan_file).read_text(encoding="utf-8"))
    log_rotation.keep_small(Path(plan.log_dir) / HEAD_LOG)
    os.chdir(plan.state_dir)
    listening, control_socket = socket.socket(fileno=endpoint), socket.socket(fileno=control)
    for each in (listening, control_socket):
        each.set_inheritable(False)  # Ray's processes would keep the port
    keepers = [Keeper(listening, keeper_path(plan.listener_dir, HEAD))]
    import ray

    table = plan.settings.cluster
    if table.ray_address:
        ray.init(address=table.ray_address, namespace=plan.namespace, log_to_driver=False)
    else:
        with _ended_with_ray():
            ray.init(
                namespace=plan.namespace,
                include_dashboard=False,
                log_to_driver=False,
                object_store_memory=OBJECT_STORE_BYTES,
                _temp_dir=str(Path(plan.temp_dir) / temp_folder.RAY),
            )
        _end_log_monitor()
    if stop.is_set():
        return
    inbox = controller_ports.bound_apart(bind_host(plan))
    keepers += controller_ports.keep(plan, control_socket, inbox)
    plan = plan.model_copy(update={"members_port": inbox.getsockname()[1]})
    controller = launch_actor(
        plan.namespace,
        "controller",
        "controller.main.roles:controller",
        {"plan_json": plan.model_dump_json()},
        plan.log_dir,
        node_id=ray.get_runtime_context().get_node_id(),
    )
    _watch_birth(controller, stop)
    logging.info("controller launched on Ray at %s", ray.get_runtime_context().gcs_address)
    stop.wait()
    for keeper in keepers:
        keeper.close()
    ray.shutdown()


@contextlib.contextmanager
def _ended_with_ray() -> Iterator[None]:
    """Ends this process if a part of Ray ends in the block: `ray.init` would wait for a dead raylet
    as long as for a slow one, which is for as long as `up` waits."""
    import psutil

    started = threading.Event()

    def watch() -> None:
        while not started.wait(BIRTH_POLL_S):
            for child in psutil.Process().children():
                with contextlib.suppress(psutil.Error):  # helpers of Ray end while one looks
                    # Ray waits for these processes only when it ends them: a dead one is a zombie.
                    if child.name() in RAY_PARTS and child.status() == psutil.STATUS_ZOMBIE:
                        logging.error("Ray could not start: its %s ended", child.name())
                        os._exit(1)

    threading.Thread(target=watch, name="ray watch", daemon=True).start()
    try:
        yield
    finally:
        started.set()


def _end_log_monitor() -> None:
    """Ray's log monitor sends what workers print to drivers, and this driver does not listen. The
    process takes 90 MB, and polls. `ray.init` cannot start a Ray without it."""
    import ray._private.worker

    ray._private.worker._global_node.kill_log_monitor(check_alive=False)


def _watch_birth(controller: Any, stop: threading.Event) -> None:
    """Waits until the controller's process runs. Ends this process if Ray gives the actor up, as
    it does without a restart when the actor cannot be made. A later death is in the controller's
    own log."""
    import ray

    born = controller.pid.remote()
    while not stop.is_set():
        done, _ = ray.wait([born], timeout=BIRTH_POLL_S)
        if done:
            try:
                ray.get(born)
            except ray.exceptions.ActorUnavailableError:
                logging.info("the controller died and is started again")
            except ray.exceptions.ActorDiedError as error:
                why = " ".join(str(error).split())[:500]
                sys.exit(f"the controller could not be launched: {why}")
            return


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
