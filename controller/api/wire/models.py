"""Wire models of the control API: what `-o json` prints and what the dashboard draws.

The compatibility rules are those of `base`.
"""

from enum import StrEnum
from typing import Literal

from pydantic import ConfigDict, Field

from controller.api.wire.autoscale import AutoscaleStatus
from controller.api.wire.base import AnswerModel, OrderModel, WireModel
from controller.api.wire.holding import HeldPlaceStatus, HeldStatus, KeptForStatus
from controller.api.wire.overload import KeyStatus, RefusedStatus
from controller.api.wire.replays import ReplaysStatus
from controller.api.wire.rolling_models import EngineChangeStatus, RollingReport


class ClusterState(StrEnum):
    STARTING = "starting"
    READY = "ready"
    DEGRADED = "degraded"
    STOPPING = "stopping"
    FAILED = "failed"


class InstanceState(StrEnum):
    """`stalled` answers nothing at present; `failed` could not start and is not retried;
    `stopping` serves no more, as the cluster is being stopped."""

    STARTING = "starting"
    ACTIVE = "active"
    DRAINING = "draining"
    STALLED = "stalled"
    RESTARTING = "restarting"
    FAILED = "failed"
    STOPPING = "stopping"


class QueueHeadStatus(WireModel):
    """`why` it waits: batch-full, memory, fragmented or next-step (docs/metrics.md)."""

    request_id: str
    level: str
    demand_blocks: int
    waited_s: float
    """Since it arrived at its frontend."""
    evicted: bool
    evicted_for_s: float | None = None
    """Since it lost its blocks, if it did; null too for one that ended a moment ago."""
    why: str = ""


class EmulationStatus(WireModel):
    """How well an emulated engine has kept its profile's time: the time that its steps should have
    taken, the time that they took, and how many ended more than 5% late."""

    profile_time_s: float
    wall_time_s: float
    num_late_steps: int


class MoveStatus(WireModel):
    """A move under way, as its source sees it; `state` and `stage` as in docs/metrics.md."""

    migration_id: str
    request_id: str
    from_instance_id: str
    to_instance_id: str
    state: str
    stage: int
    num_blocks_copied: int
    num_blocks: int
    reason: str = ""
    age_s: float


class EndedMoveStatus(WireModel):
    """A move that is over. `why`: the reason, in words, if the request did not move. The downtime
    is known once the request has its next token; one that waited for memory has none."""

    migration_id: str
    request_id: str
    from_instance_id: str
    to_instance_id: str
    outcome: str
    why: str = ""
    reason: str = ""
    ended_s: float
    num_blocks: int
    num_bytes: int
    downtime_s: float | None = None


class DrainStatus(WireModel):
    """The drain of an instance. `removes`: the instance is removed once it is empty; `restarts`:
    its process is replaced then."""

    drain_id: str
    num_requests_left: int
    num_moved: int
    deadline_s: float | None = None
    """Seconds since the epoch."""
    on_deadline: Literal["keep", "abort"] = "keep"
    safe_to_delete: bool = False
    removes: bool = False
    restarts: bool = False
    evacuates: bool = False
    """The instance is removed at the deadline, whatever is left there."""


class InstanceStatus(WireModel):
    """One instance. Load figures are null until it has reported for the first time."""

    id: str
    state: InstanceState
    detail: str = ""
    incarnation: int
    num_restarts: int = 0
    node: str = ""
    pid: int | None = None
    up_s: float | None = None
    generation: int | None = None
    """Of its process's engine arguments: 0 for those of the cluster's start; null until known."""
    freeness_steps: float | None = None
    virtual_usage_blocks: int | None = None
    headroom_blocks: int | None = None
    block_size: int | None = None
    num_total_blocks: int | None = None
    num_free_blocks: int | None = None
    watermark_blocks: int | None = None
    max_running_reqs: int | None = None
    num_running_reqs: int | None = None
    num_running_by_level: dict[str, int] = Field(default_factory=dict)
    num_waiting_reqs: int | None = None
    num_waiting_by_level: dict[str, int] = Field(default_factory=dict)
    headroom_by_level_blocks: dict[str, int] = Field(default_factory=dict)
    """Levels that run here and keep a headroom; before it is cut to what requests may use."""
    num_unreported_reqs: int = 0
    kv_cache_usage: float | None = None
    queue_head: QueueHeadStatus | None = None
    num_evictions: int | None = None
    num_moves_in: int | None = None
    num_moves_out: int | None = None
    num_replays_in: int = 0
    """Requests that were lost with other instances, and go on here."""
    num_replays_out: int = 0
    """Requests that were lost with this instance, and have no token since."""
    step_time_s: float | None = None
    num_steps: int | None = None
    busy_s: float | None = None
    """What these steps took, with what lay between steps that followed each other."""
    cpu_cores: float | None = None
    emulation: EmulationStatus | None = None
    ttft_p99_s: float | None = None
    ttft_p99_by_level_s: dict[str, float] = Field(default_factory=dict)
    age_s: float | None = None
    drain: DrainStatus | None = None
    kept_for: KeptForStatus | None = None
    """The held request for which the instance is kept free."""
    closed_by: tuple[str, ...] = ()
    """Why it gets no new requests, or no moves (docs/metrics.md); empty while it is open."""


class FrontendStatus(WireModel):
    id: str
    state: InstanceState
    detail: str = ""
    incarnation: int
    num_restarts: int = 0
    node: str = ""
    pid: int | None = None
    up_s: float | None = None
    num_live_reqs: int = 0
    ttft_p99_s: float | None = None
    ttft_p99_by_level_s: dict[str, float] = Field(default_factory=dict)
    tpot_p99_s: float | None = None
    age_s: float | None = None


class LevelStatus(WireModel):
    """A priority level, higher ranks go first; and what there is of it on all instances."""

    name: str
    rank: int
    target_load_tokens: int | None = None
    num_running_reqs: int = 0
    num_waiting_reqs: int = 0
    headroom_blocks: int = 0
    ttft_p99_s: float | None = None
    """Of the worst frontend."""


class ClusterStatus(AnswerModel):
    cluster: str
    state: ClusterState
    detail: str = ""
    revision: int = 0
    """Counts the changes of the cluster's spec."""
    model: str
    policy: str
    engine: str = "vllm"
    endpoint_url: str
    time_s: float = 0.0
    """When the controller made this status: seconds since the epoch."""
    uptime_s: float
    """Since this controller started."""
    cluster_uptime_s: float
    """Since `up` began."""
    num_held_reqs: int
    held: HeldStatus | None = None
    """Null if nothing is held."""
    autoscale: AutoscaleStatus
    refused: tuple[RefusedStatus, ...] = ()
    """By reason and level; none of those that did not happen."""
    keys: tuple[KeyStatus, ...] = ()
    """Of at most 100 API keys, those that used the most tokens in the last minute."""
    levels: tuple[LevelStatus, ...] = ()
    last_event: str = ""
    """Position of the newest event."""
    moves: tuple[MoveStatus, ...] = ()
    """Moves under way."""
    queued_moves: tuple[MoveStatus, ...] = ()
    """Moves by hand that wait until the source and the destination may begin another."""
    ended_moves: tuple[EndedMoveStatus, ...] = ()
    """The last moves that ended, the newest first."""
    replays: ReplaysStatus = ReplaysStatus()
    """Requests that were lost with an instance, and how requests were saved."""
    engine_changes: tuple[EngineChangeStatus, ...] = ()
    """Engine arguments that a rolling restart has changed, and which instances have them."""
    rolling: RollingReport | None = None
    """The last rolling restart, also when it is over; null if there was none."""
    num_migrated_last_minute: int = 0
    num_failed_moves_last_minute: int = 0
    instances: tuple[InstanceStatus, ...]
    frontends: tuple[FrontendStatus, ...]


class Event(WireModel):
    """Something that happened; docs/metrics.md has the kinds and causes.

    `position` is the event's place in the controller's log. It is empty in a request's history,
    which travels with the request and outlives the controller.
    """

    position: str = ""
    kind: str
    time_s: float
    cause_id: str
    reason: str = ""
    instance_id: str | None = None
    incarnation: int | None = None
    frontend_id: str | None = None
    request_id: str | None = None
    level: str | None = None
    actor: str | None = None
    numbers: dict[str, float | int | None] = Field(default_factory=dict)
    labels: dict[str, str] = Field(default_factory=dict)
    """Further names: `from` and `to` of a move, the `policy` of a dispatch."""


class EventPage(AnswerModel):
    """`missed`: events between the wanted position and the first one here that the controller has
    forgotten; null if it cannot tell, as it has restarted since."""

    events: tuple[Event, ...]
    next_position: str
    missed: int | None = 0


class RequestState(StrEnum):
    """`evicted` ran before and waits to run again; the last three are final."""

    DISPATCHING = "dispatching"
    WAITING = "waiting"
    RUNNING = "running"
    EVICTED = "evicted"
    FINISHED = "finished"
    ABORTED = "aborted"
    FAILED = "failed"


LIVE_STATES = (
    RequestState.RUNNING,
    RequestState.EVICTED,
    RequestState.WAITING,
    RequestState.DISPATCHING,
)
"""The order in which requests are listed; ended requests come behind, the last one first."""
ENDED_STATES = (RequestState.FINISHED, RequestState.ABORTED, RequestState.FAILED)


class RequestStatus(WireModel):
    """One sequence. `id` is llumctl's, `client_id` the client's; `parent_id` is set if one client
    request became several (`n` > 1)."""

    id: str
    client_id: str
    parent_id: str | None = None
    state: RequestState
    level: str
    frontend_id: str
    instance_id: str | None = None
    arrival_time_s: float
    age_s: float
    """Since the request arrived; for an ended request, from its arrival to its end."""
    ttft_s: float | None = None
    num_prompt_tokens: int
    num_output_tokens: int
    num_evictions: int = 0
    num_moves: int = 0
    num_replays: int = 0
    """How often it was lost with its instance and went on elsewhere."""
    not_replayable: str = ""
    """The code of why it cannot go on elsewhere, or not once it has tokens (docs/reliability.md);
    empty: it can."""
    movable: bool | None = None
    """Null if the request is on no instance, or if its instance was not asked or did not answer."""
    why_not_movable: str | None = None
    """A reason code (docs/metrics.md)."""
    finish_reason: str | None = None
    held: HeldPlaceStatus | None = None
    """Of a request that the controller holds: its place there."""


class RequestList(AnswerModel):
    """`num_matching` counts all matches; requests of `silent_frontends`, which did not answer, are
    missing."""

    requests: tuple[RequestStatus, ...]
    num_matching: int
    silent_frontends: tuple[str, ...] = ()


class RequestDetail(RequestStatus, AnswerModel):
    """`num_forgotten`: events that are missing in the middle of the history."""

    history: tuple[Event, ...] = ()
    num_forgotten: int = 0


class RequestName(AnswerModel):
    """The request that a reference names: orders take its whole id."""

    request_id: str
    client_id: str = ""


class MemberLog(AnswerModel):
    """The last lines of a member's log, as it wrote them: who shows them makes them harmless."""

    member_id: str
    lines: tuple[str, ...]


class StopRequest(OrderModel):
    """Stops the cluster. With `drain`, live requests may finish within `grace_s`. Unlike those of
    other orders, unknown fields are ignored: a later `llumctl down` must stop this cluster, too."""

    model_config = ConfigDict(extra="ignore")

    drain: bool = True
    grace_s: float = Field(default=30.0, ge=0)


class StopProgress(AnswerModel):
    stopped: bool
    num_live_reqs: int


class ErrorBody(WireModel):
    """The body of every answer that is not 2xx. `hint` is the next command to try."""

    code: str
    message: str
    hint: str = ""
