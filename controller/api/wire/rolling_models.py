"""Wire models of rolling restarts. The compatibility rules are those of `base`; times are seconds
since the epoch unless the name says for how long."""

from pydantic import Field, JsonValue

from controller.api.settings.bounds import MAX_DEADLINE_S, MAX_INSTANCES
from controller.api.wire.base import OrderModel, Reason, Revision

MAX_ENGINE_ARGS = 64


class RollingRequest(OrderModel):
    """Restarts all instances, one after the other. At the deadline of one, its restart is given up,
    and with it the rest; what is left on it stays where it runs."""

    at_once: int = Field(default=1, ge=0, le=MAX_INSTANCES)
    """How many may be away at a time; 0: as many as the others can hold."""
    deadline_s: float | None = Field(default=None, gt=0, le=MAX_DEADLINE_S)
    """How long emptying one instance may take. None: any time."""
    start_timeout_s: float = Field(default=600.0, gt=0, le=MAX_DEADLINE_S)
    """How long a new process may take until it serves."""
    dry_run: bool = False
    force: bool = False
    """Even if no other instance serves meanwhile: new requests are held then."""
    engine_args: dict[str, JsonValue] = Field(default_factory=dict, max_length=MAX_ENGINE_ARGS)
    """Engine arguments that every instance gets, by their Python names; null: as the cluster was
    started. The others stay as they are."""
    reason: Reason = ""
    if_revision: Revision = None


class RollingStopRequest(OrderModel):
    """No other instance is restarted. One that is being emptied keeps its process; one whose
    process has ended gets its next one all the same."""

    dry_run: bool = False
    reason: Reason = ""
    if_revision: Revision = None


class RollingDismissRequest(OrderModel):
    """A rolling restart that is over is not shown in the status any more."""

    dry_run: bool = False
    reason: Reason = ""
    if_revision: Revision = None
