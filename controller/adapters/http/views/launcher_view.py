"""What operators are told while no process can be started or ended."""

from controller.adapters.http.errors import ApiError
from controller.ports.processes import LauncherLoss

CANNOT_RESTART = "no other process could be started"
RESTART = "llumctl down, then llumctl up"


def without_launcher(loss: LauncherLoss) -> str:
    """For a status: what is wrong, what it means, and what helps."""
    ends = ""
    if loss.ends_after_s is not None:
        ends = f", and after {_duration(loss.ends_after_s)} without it all processes end"
    return (
        f"{loss.what} ({_duration(loss.for_s)}): what runs goes on, but no process is started or"
        f" ended{ends}; when clients can wait: {RESTART}"
    )


def while_stopping(num_live_reqs: int, loss: LauncherLoss | None) -> str:
    return f"{num_live_reqs} requests live" + ("" if loss is None else f"; {loss.what}")


def refuse_without_launcher(loss: LauncherLoss | None, what: str) -> None:
    """Raises ApiError if `what` would wait for a launcher that is lost."""
    if loss is not None:
        raise ApiError(503, "ray_lost", f"{loss.what}: {what}", f"when clients can wait: {RESTART}")


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
