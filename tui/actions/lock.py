"""Why nothing can be changed now: the one place that decides it."""

from controller.api.text.quantities import duration
from tui.state import DashboardState


def why_locked(
    state: DashboardState,
    now_s: float,
    status_every_s: float,
    *,
    read_only: str = "",
    frozen: str = "",
    replays: bool = False,
) -> str:
    """Empty if actions are allowed. `read_only` and `frozen` say why the operator, or who started
    the dashboard, wants no changes now."""
    if replays:
        return "this is a replay: there is no cluster to change"
    if read_only:
        return read_only
    if frozen:
        return frozen
    if state.stopped is not None:
        return "the cluster has stopped"
    age_s = state.age_s(now_s)
    if age_s is None:
        return "nothing is known of the cluster yet"
    if state.is_stale(now_s, status_every_s):
        return f"what the screen shows is {duration(age_s)} old"
    return ""
