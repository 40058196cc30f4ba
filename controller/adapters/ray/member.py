"""The Ray actor that every process of the cluster is.

It runs one role (an async function named by `module:function`) on an event loop of its own
thread. The role's end, by return or by error, ends the process; Ray then starts it again
(`max_restarts=-1`), and the role must cope with finding nothing but its arguments.
Ray is used to start, place and restart processes and for nothing else: no data goes
through it.
"""

import importlib
import logging
import os
import sys
import threading
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)


class RayMember:
    def __init__(self, member_id: str, role: str, arguments: dict[str, Any], log_dir: str) -> None:
        _log_to(Path(log_dir) / f"{member_id}.log")
        threading.current_thread().name = member_id
        threading.Thread(
            target=_run_role, args=(role, arguments), name=f"{member_id}-loop", daemon=True
        ).start()

    def pid(self) -> int:
        return os.getpid()


def _run_role(role: str, arguments: dict[str, Any]) -> None:
    import uvloop

    module, _, function = role.partition(":")
    status = 1
    try:
        run = getattr(importlib.import_module(module), function)
        uvloop.run(run(**arguments))
        status = 0
    except BaseException:
        log.exception("%s ended", role)
    finally:
        logging.shutdown()
        os._exit(status)


def _log_to(path: Path) -> None:
    """All output of this process, that of libraries too, goes to its own file."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, sys.stdout.fileno())
    os.dup2(descriptor, sys.stderr.fileno())
    os.close(descriptor)
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
        force=True,
    )
