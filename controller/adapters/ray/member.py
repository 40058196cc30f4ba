"""The Ray actor that every process of the cluster is.

The actor runs one role (an async function named by `module:function`) on an event loop of its own
thread. The role's end, by return or by error, ends the process; Ray then starts it again
(`max_restarts=-1`), and the new process has nothing but the role's arguments. A process that dies
again and again before it serves waits longer each time, and is given up in the end: then the role
is told why (`Start.failure`), reports it and does nothing more. Ray only starts, places and
restarts processes: no data goes through it.
"""

import importlib
import logging
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import ray

from controller.adapters.ray import log_rotation, ray_starts
from controller.adapters.ray.end_notice import EndNotice
from controller.adapters.ray.ray_starts import Start
from controller.runtime import log_records

log = logging.getLogger(__name__)


class RayMember:
    """`run` names the cluster's run."""

    def __init__(
        self, member_id: str, role: str, arguments: dict[str, Any], log_dir: str, run: str
    ) -> None:
        log_file = Path(log_dir) / f"{member_id}.log"
        _log_to(log_file)
        log_rotation.keep_small(log_file)
        start = ray_starts.begin(log_file, run, EndNotice())
        if ray.is_initialized():  # a test makes members without Ray
            start.on_success = ray.get_runtime_context().current_actor.rest.remote
        threading.current_thread().name = member_id
        threading.Thread(
            target=_run_role, args=(role, arguments, start), name=f"{member_id}-loop", daemon=True
        ).start()

    def pid(self) -> int:
        return os.getpid()

    def rest(self) -> None:
        """Blocks the process's main thread for ever. Ray wakes it a hundred times a second to look
        for tasks and signals: 0.006 cores, half of what an idle instance takes. Each member calls
        it for itself once it serves; from then on it answers no other call. Python handles signals
        all the same."""
        threading.Event().wait()


def _run_role(role: str, arguments: dict[str, Any], start: Start) -> None:
    import uvloop

    if delay_s := start.delay_s:
        log.info("the last start failed: waiting %.1f s before this one", delay_s)
        time.sleep(delay_s)
    module, _, function = role.partition(":")
    status = 1
    try:
        run = getattr(importlib.import_module(module), function)
        uvloop.run(run(**arguments, start=start))
        status = 0
    except BaseException as error:
        log.exception("%s ended", role)
        start.failed(f"{type(error).__name__}: {error}")
    finally:
        logging.shutdown()
        os._exit(status)


def _log_to(path: Path) -> None:
    """Sends all output of this process, that of libraries too, to the file."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, sys.stdout.fileno())
    os.dup2(descriptor, sys.stderr.fileno())
    os.close(descriptor)
    log_records.install()
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
        force=True,
    )
