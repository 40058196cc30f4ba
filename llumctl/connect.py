"""Finds the controller of a cluster by the cluster's name."""

from typing import TYPE_CHECKING

from controller.api.errors import NotRunningError

if TYPE_CHECKING:
    from controller.api.client import ControlClient
    from controller.api.state.run_state import RunState

DEFAULT_TIMEOUT_S = 5.0


def client(cluster: str, timeout_s: float = DEFAULT_TIMEOUT_S) -> "ControlClient":
    """Reads the run state anew each time: a cluster started again has another token.

    Raises NotRunningError.
    """
    state = running(cluster)
    from controller.api.client import ControlClient

    return ControlClient(state.control_url, state.control_token, timeout_s)


def running(cluster: str) -> "RunState":
    """Raises NotRunningError."""
    from controller.api.state import run_state

    state = run_state.load(cluster)
    if state is None:
        from controller.api.state.last_stop import last_stop

        stop = last_stop(cluster)
        told = "" if stop is None else f": it was stopped at {stop.words()}"
        others = [f"llumctl status --cluster {name}" for name in run_state.clusters()]
        raise NotRunningError(
            f"cluster {cluster} is not running{told}",
            "      or      ".join(["llumctl up", *others[:3]]),
        )
    return state
