"""What `up` says while it waits: which processes it waits for, and how long."""

import os
from pathlib import Path

from controller.adapters.ray.ray_starts import failure_of
from controller.api.wire.status import ClusterStatus, FrontendStatus, InstanceState, InstanceStatus
from controller.main.machine.ray_logs import session_logs

FIRST_WORD_S = 5.0
# Each further word comes when 1.5 times the time so far has passed.
FACTOR = 1.5
BUSY = 2.0
"""Processes that want to run, for each core. A start by itself has about one."""


class Patience:
    """Says now and then what `up` waits for, less often the longer it takes."""

    def __init__(self, began_s: float) -> None:
        self._began_s = began_s
        self._next_s = FIRST_WORD_S

    def word(self, now_s: float, what: str) -> str:
        """The next message; empty if it is too early for one."""
        waited_s = now_s - self._began_s
        if waited_s < self._next_s:
            return ""
        self._next_s = waited_s * FACTOR
        return f"waiting for {what}, {waited_s:.0f} s"


def awaited(status: ClusterStatus | None, log_dir: Path, run: str, temp_dir: str) -> str:
    """The members that do not serve yet; without a status the controller, or Ray before it."""
    if status is not None:
        members: list[InstanceStatus | FrontendStatus] = [*status.instances, *status.frontends]
        absent = [m for m in members if m.state != InstanceState.ACTIVE]
        return ", ".join(f"{m.id} ({m.detail})" if m.detail else m.id for m in absent) or "a report"
    reason, _ = failure_of(log_dir, "controller", run)
    if reason:
        return f"the controller (its last start failed: {reason})"
    if (log_dir / "controller.log").exists():
        return "the controller"
    logs = session_logs(temp_dir)
    if (logs / "raylet.out").exists():
        return "Ray, whose node joins its head and starts the controller's process"
    if (logs / "gcs_server.out").exists():
        return "Ray, whose head comes up"
    return "Ray"


def load() -> str:
    """How busy the machine is, if that explains a slow start; else empty."""
    running, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    return f"a load of {running:.0f} on {cores} cores" if running > BUSY * cores else ""
