"""What `up` says while it waits: for whom, and for how long."""

from pathlib import Path

from controller.adapters.ray.starts import failure_of
from controller.api.wire.models import ClusterStatus, FrontendStatus, InstanceState, InstanceStatus

FIRST_WORD_S = 5.0
# Each further word comes after half as long again as all before.
FACTOR = 1.5


class Patience:
    """Says now and then what is waited for, the rarer the longer it takes."""

    def __init__(self, began_s: float) -> None:
        self._began_s = began_s
        self._next_s = FIRST_WORD_S

    def word(self, now_s: float, what: str) -> str:
        """Empty if it is too early for another one."""
        waited_s = now_s - self._began_s
        if waited_s < self._next_s:
            return ""
        self._next_s = waited_s * FACTOR
        return f"waiting for {what}, {waited_s:.0f} s"


def awaited(status: ClusterStatus | None, log_dir: Path, run: str) -> str:
    """Who has to come yet. Without a status it is the controller, or Ray before it."""
    if status is not None:
        members: list[InstanceStatus | FrontendStatus] = [*status.instances, *status.frontends]
        absent = [m for m in members if m.state != InstanceState.ACTIVE]
        return ", ".join(f"{m.id} ({m.detail})" if m.detail else m.id for m in absent) or "a report"
    reason, _ = failure_of(log_dir, "controller", run)
    if reason:
        return f"the controller (its last start failed: {reason})"
    return "the controller" if (log_dir / "controller.log").exists() else "Ray"
