"""Wire models of rolling restarts. The compatibility rules are those of `base`; times are seconds
since the epoch unless the name says for how long."""

from typing import Literal

from pydantic import Field, JsonValue

from controller.api.settings.bounds import MAX_DEADLINE_S, MAX_INSTANCES
from controller.api.wire.base import AnswerModel, OrderModel, Reason, Revision, WireModel

RollingState = Literal["none", "going", "done", "stopped", "failed"]
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


class PlannedRestart(WireModel):
    """What the restart of one instance would take, as if it were the only one."""

    instance_id: str
    num_requests: int = 0
    num_blocks: int = 0
    num_cannot_move: int = 0
    """Requests that no instance can take now; they are waited for."""
    estimate_s: float | None = None
    """Until it would be empty; null if nothing is known from which to estimate it."""


class RestartTurn(WireModel):
    """One restart under way. `state`: as of a drain."""

    instance_id: str
    began_s: float
    state: str = ""
    num_requests_left: int = 0
    num_moved: int = 0


class RestartedInstance(WireModel):
    """`took_s`: from the beginning of its turn until the new process served."""

    instance_id: str
    took_s: float


class EngineChangeStatus(WireModel):
    """One set of engine arguments. `args`: those that stand in place of the cluster's start's, by
    name. `instances`: whose next process starts with them."""

    generation: int
    """0: as the cluster was started."""
    args: dict[str, JsonValue] = Field(default_factory=dict)
    instances: tuple[str, ...] = ()
    is_clusters: bool = False
    """New instances get them."""


class RollingReport(AnswerModel):
    """The last rolling restart. `state`: none (there was none); going; done; stopped (by an
    operator); failed (`failed_id` could not be restarted; `why` says why). `left`: instances whose
    restart has not begun, in turn."""

    rolling_id: str = ""
    state: RollingState = "none"
    why: str = ""
    failed_id: str = ""
    waits: str = ""
    """Why the next one must wait, if that is not for its turn."""
    left: tuple[str, ...] = ()
    under_way: tuple[RestartTurn, ...] = ()
    done: tuple[RestartedInstance, ...] = ()
    at_once: int = 1
    deadline_s: float | None = None
    start_timeout_s: float | None = None
    began_s: float | None = None
    ended_s: float | None = None
    actor: str = ""
    reason: str = ""
    plan: tuple[PlannedRestart, ...] = ()
    """Of a dry run, in turn."""
    cold_start_s: float | None = None
    """How long the last instances took from their launch until they served; null if not known."""
    engine_args: dict[str, JsonValue] = Field(default_factory=dict)
    """Arguments with which every instance starts in place of those of the cluster's start."""
    changes_engine: bool = False
    """Of a plan: some instance has other arguments."""
    dismissed: bool = False
    """It is over, and an operator wants to read no more of it."""
    dry_run: bool = False
    changes: bool = False
    revision: int = 0

    @property
    def num_instances(self) -> int:
        return len(self.left) + len(self.under_way) + len(self.done)
