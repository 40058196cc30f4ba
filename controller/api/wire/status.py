"""Wire models of a cluster's status, which `status -o json` prints and the dashboard draws; of the
progress of a stop; and of the findings of `doctor`. A figure of an instance is a field of
`InstanceStatus`.

The compatibility rules are those of `controller.api.wire`; docs/metrics.md has codes and units.
Times are seconds since the epoch unless the name says for how long.
"""

from enum import StrEnum
from typing import Literal

from pydantic import ConfigDict, Field, JsonValue

from controller.api.wire import AnswerModel, OrderModel, WireModel


class ClusterState(StrEnum):
    STARTING = "starting"
    READY = "ready"
    DEGRADED = "degraded"
    STOPPING = "stopping"
    FAILED = "failed"


class InstanceState(StrEnum):
    """A `stalled` instance does not answer at present. A `failed` instance could not start and is
    not tried again. A `stopping` instance serves no more, as the cluster is being stopped."""

    STARTING = "starting"
    ACTIVE = "active"
    DRAINING = "draining"
    STALLED = "stalled"
    RESTARTING = "restarting"
    FAILED = "failed"
    STOPPING = "stopping"


class AttachedStatus(WireModel):
    """A server that somebody else started, on which the requests of an instance run."""

    url: str
    kind: Literal["vllm", "sglang", "llamacpp", "openai"]
    model: str
    """The model's name in the server's own API."""
    max_model_len: int
    capacity_tokens: int
    """How many tokens its KV cache holds."""


class QueueHeadStatus(WireModel):
    """The first request of an instance's queue. `why`: the reason why it waits, which is
    batch-full, memory, fragmented or next-step (docs/metrics.md)."""

    request_id: str
    level: str
    demand_blocks: int
    waited_s: float
    """The time since the request arrived at its frontend."""
    evicted: bool
    evicted_for_s: float | None = None
    """The time since the request was evicted; null if it was not, or if the eviction ended a moment
    ago."""
    why: str = ""


class EmulationStatus(WireModel):
    """How well an emulated engine kept its profile's time: the time that its steps should have
    taken, the time that they took, and how many steps ended more than 5% late."""

    profile_time_s: float
    wall_time_s: float
    num_late_steps: int


class DrainStatus(WireModel):
    """The drain of an instance. `removes`: the instance is removed once it is empty. `restarts`:
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
    """The instance is removed at the deadline, whatever requests it still has."""
    why: str = ""
    """The reason that was given; of a notice, `notice: ` and what says so."""


class NoticeStatus(WireModel):
    """A notice: instances have to be gone by a given moment. `node`: their machine, which will be
    taken away; empty if only the process of one instance is ended. `leaves_at_s`: the moment, in
    seconds since the epoch. New instances are not started on the machine."""

    node: str
    why: str
    leaves_at_s: float
    instance_ids: tuple[str, ...] = ()
    """The instances that have to go, and are not gone yet."""
    takes_endpoint: bool = False
    """Whether the endpoint and the controller are on this machine: they end with it."""


class KeptForStatus(WireModel):
    """The held request for which an instance is kept free, and the blocks that the instance
    lacks."""

    request_id: str
    level: str
    demand_blocks: int
    lacking_blocks: int
    waited_s: float


class MemberStatus(WireModel):
    """The fields that instances and frontends have in common."""

    id: str
    state: InstanceState
    detail: str = ""
    incarnation: int
    num_restarts: int = 0
    node: str = ""
    pid: int | None = None
    up_s: float | None = None


class InstanceStatus(MemberStatus):
    """One instance. Figures of its load are null until its first report."""

    model: str = ""
    """The name of its model, if the cluster serves several."""
    generation: int | None = None
    """The generation of the process's engine arguments: 0 for the arguments of the cluster's start;
    null until it is known."""
    fingerprint: str = ""
    """Named parts of the engine. Requests move between two instances if all parts are the same;
    docs/migration.md says which of them may differ. Empty if the engine moves no requests, and
    until it is built."""
    attached: AttachedStatus | None = None
    """The server to which the instance is attached; null for an instance of the cluster's own."""
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
    """The headroom of each level that runs here and keeps one, before the headroom is cut to the
    memory that requests may use."""
    num_unreported_reqs: int = 0
    kv_cache_usage: float | None = None
    fill_blocks: int | None = None
    """The blocks that running prefills will still take."""
    queued_demand_blocks: int | None = None
    """The demand of all requests in the instance's queue."""
    queue_head: QueueHeadStatus | None = None
    num_evictions: int | None = None
    num_prompt_tokens: int | None = None
    num_cached_tokens: int | None = None
    num_prompt_tokens_last_minute: int | None = None
    num_cached_tokens_last_minute: int | None = None
    num_fetched_tokens: int | None = None
    num_fetched_tokens_last_minute: int | None = None
    num_loaded_tokens: int | None = None
    num_loaded_tokens_last_minute: int | None = None
    corrupt_links: tuple[str, ...] = ()
    """The instances from which this one fetches nothing for now, because KV blocks that it copied
    from there arrived changed (docs/metrics.md)."""
    backlog_s: float | None = None
    num_moves_in: int | None = None
    num_moves_out: int | None = None
    num_replays_in: int = 0
    """Requests that were lost with other instances and go on here."""
    num_replays_out: int = 0
    """Requests that were lost with this instance and have had no token since."""
    step_time_s: float | None = None
    step_limit_s: float | None = None
    """How long a step may take that computes prompts while requests decode; 0: any time, or it is
    not known yet."""
    num_steps: int | None = None
    busy_s: float | None = None
    """The time that these steps took, including the gaps between steps that followed each other."""
    cpu_cores: float | None = None
    emulation: EmulationStatus | None = None
    ttft_p99_s: float | None = None
    ttft_p99_by_level_s: dict[str, float] = Field(default_factory=dict)
    age_s: float | None = None
    drain: DrainStatus | None = None
    kept_for: KeptForStatus | None = None
    """The held request for which the instance is kept free."""
    closed_by: tuple[str, ...] = ()
    """Why the instance gets no new requests, or no moves (docs/metrics.md); empty while it gets
    both."""


class FrontendStatus(MemberStatus):
    num_live_reqs: int = 0
    ttft_p99_s: float | None = None
    ttft_p99_by_level_s: dict[str, float] = Field(default_factory=dict)
    tpot_p99_s: float | None = None
    age_s: float | None = None


class LevelStatus(WireModel):
    """A priority level, and its figures over all instances. Higher ranks go first."""

    name: str
    rank: int
    target_load_tokens: int | None = None
    num_running_reqs: int = 0
    num_waiting_reqs: int = 0
    headroom_blocks: int = 0
    ttft_p99_s: float | None = None
    """The figure of the worst frontend."""
    target_ttft_s: float | None = None
    target_tpot_s: float | None = None
    when_late: str = "serve"
    goodput: float | None = None
    """The share of the requests that ended in the last minute and kept these targets; None without
    a target or such a request."""


class MoveStatus(WireModel):
    """A move under way, as its source sees it. docs/metrics.md explains `state` and `stage`."""

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
    is known once the request has its next token. It stays null if the request had to wait for
    memory meanwhile, because then the move was not the reason of the gap."""

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


class HeldPlaceStatus(WireModel):
    """A held request. `place`: 1 goes first. `why` (the reason why the request waits) and
    `overtaken_by` (which requests may go ahead of it) are codes. `instance_id`: the instance that
    is kept for the request, or else the instance that lacks the fewest blocks, with
    `lacking_blocks`. `num_overtaken`: how many requests went ahead while this one was the first.
    Blocks are null while no instance has told the size of a block, or no instance takes
    requests."""

    place: int
    why: str
    demand_blocks: int | None = None
    instance_id: str | None = None
    lacking_blocks: int | None = None
    overtaken_by: str = ""
    num_overtaken: int = 0


class HeldHeadStatus(HeldPlaceStatus):
    """The first of all held requests, or the oldest. `waited_s`: the time since the request came to
    its frontend."""

    request_id: str
    frontend_id: str
    level: str
    rank: int
    waited_s: float


class HeldStatus(WireModel):
    """All requests that the controller holds. `oldest_wait_s`: how long the one that arrived first
    has waited, of those that somebody waits for (not `background`); `oldest` describes this
    request, if it is not the head."""

    num_by_level: dict[str, int] = Field(default_factory=dict)
    demand_blocks: int | None = None
    oldest_wait_s: float
    head: HeldHeadStatus
    oldest: HeldHeadStatus | None = None


class RefusedStatus(WireModel):
    """The refused requests of one reason and priority level."""

    reason: str
    level: str
    num_refused: int
    """The number since this controller started."""
    num_refused_last_minute: int


class KeyStatus(WireModel):
    """The requests of one API key, at all frontends."""

    key: str
    """The first 12 digits of the key's SHA-256."""
    num_live_reqs: int
    num_tokens_last_minute: int
    num_refused: int
    """How many requests exceeded one of the key's limits since this controller started."""


AutoscaleMode = Literal["off", "dry-run", "on"]
AutoscaleOutcome = Literal["nothing", "done", "would", "blocked"]


class AutoscaleCheck(WireModel):
    """One check of the load. `reason` is a code (docs/metrics.md), `why` the same in words. `deed`:
    the decision, such as `add 2` or `remove i-3`; empty if nothing was to be done. `outcome`:
    whether the decision was carried out, would have been carried out (but for a dry run or an
    operator's scale), or could not be carried out."""

    cause_id: str
    time_s: float
    """Seconds since the epoch."""
    reason: str
    why: str
    deed: str = ""
    outcome: AutoscaleOutcome
    num_wanted: int
    """How many instances there should be."""
    num_requests: int
    freeness_steps: float
    """F_scale of the instances that serve."""
    freeness_started_steps: float
    """F_scale with the instances that start, which count as empty."""
    freeness_less_steps: float | None = None
    """F_scale without the memory of the instance that would be removed next."""
    backlog_s: float = 0.0
    """How long each instance would compute prompts, on average."""
    ttft_s: float | None = None
    """The P99 time to first token that is estimated for the next minute."""
    tpot_s: float | None = None
    added: tuple[str, ...] = ()
    removed: str | None = None
    kept: str | None = None


class AutoscaleHoldStatus(WireModel):
    """An operator's own scale, which wins over auto-scaling until it is released. `since_s`:
    seconds since the epoch."""

    actor: str
    num_instances: int
    since_s: float


class AutoscaleStatus(WireModel):
    """`num_instances`: planned instances that can start. `last_change`: the last check that decided
    to have more or fewer instances."""

    mode: AutoscaleMode
    held: AutoscaleHoldStatus | None = None
    min_instances: int
    max_instances: int
    target_ttft_s: float | None = None
    target_tpot_s: float | None = None
    num_instances: int
    num_wanted: int | None = None
    """How many instances the last check wanted; null before the first check."""
    cold_start_s: float | None = None
    """The time from an instance's launch until it serves: the median of the last launches."""
    next_check_in_s: float | None = None
    last: AutoscaleCheck | None = None
    last_change: AutoscaleCheck | None = None
    num_checks_by_reason: dict[str, int] = Field(default_factory=dict)
    """The numbers since this controller started."""


class AutoscaleReport(AutoscaleStatus, AnswerModel):
    """The status of auto-scaling as an answer of its own."""


class ReplayStatus(WireModel):
    """A replay under way. `state`: placing (no instance has the request yet) or computing."""

    request_id: str
    from_instance_id: str
    to_instance_id: str | None = None
    state: Literal["placing", "computing"]
    reason: str = ""
    """Why the instance is gone."""
    num_tokens: int
    """How many tokens are computed again."""
    pause_s: float
    """How long the client has waited so far."""


class EndedReplayStatus(WireModel):
    """A replay that is over. `outcome`: replayed, dispatched_again or failed. `code`: why the
    request could not be replayed."""

    request_id: str
    from_instance_id: str
    to_instance_id: str | None = None
    outcome: str
    code: str = ""
    reason: str = ""
    num_tokens: int
    pause_s: float | None = None
    """Null if the request had no token before the loss, or never had one again."""
    ended_s: float


class SavedStatus(WireModel):
    """How many requests left an instance, or were lost with it, in one way and for one reason."""

    way: str
    reason: str
    num_saved: int


class ReplaysStatus(WireModel):
    """`under_way` has the oldest replays and `ended` the newest; the numbers count all. `saved`
    counts since this controller started, without the ways that did not happen."""

    under_way: tuple[ReplayStatus, ...] = ()
    ended: tuple[EndedReplayStatus, ...] = ()
    num_replaying: int = 0
    num_replayed_last_minute: int = 0
    num_not_replayed_last_minute: int = 0
    saved: tuple[SavedStatus, ...] = ()

    @property
    def lately(self) -> bool:
        """Whether there is a replay, or was one within the last minute."""
        return bool(
            self.num_replaying or self.num_replayed_last_minute or self.num_not_replayed_last_minute
        )


RollingState = Literal["none", "going", "done", "stopped", "failed"]


class PlannedRestart(WireModel):
    """What the restart of one instance would take, as if it were the only one."""

    instance_id: str
    num_requests: int = 0
    num_blocks: int = 0
    num_cannot_move: int = 0
    """Requests that no instance can take now; the restart waits for them."""
    estimate_s: float | None = None
    """The time until the instance would be empty; null if nothing is known to estimate it from."""


class RestartTurn(WireModel):
    """One restart under way. `state`: as in the report of a drain."""

    instance_id: str
    began_s: float
    state: str = ""
    num_requests_left: int = 0
    num_moved: int = 0


class RestartedInstance(WireModel):
    """`took_s`: the time from the beginning of the instance's turn until the new process served."""

    instance_id: str
    took_s: float


class AdapterStatus(WireModel):
    """A LoRA adapter that clients may name."""

    name: str
    number: int
    path: str
    digest: str
    """The SHA-256 of its files."""
    rank: int
    loaded_on: tuple[str, ...] = ()
    """The instances that have it."""
    failed_on: dict[str, str] = Field(default_factory=dict)
    """The instances that cannot use it, each with the reason."""
    in_use_on: tuple[str, ...] = ()
    """The instances with requests that have it."""


class EngineChangeStatus(WireModel):
    """One set of engine arguments. `args`: the arguments, by name, that replace the arguments of
    the cluster's start. `instances`: the instances whose next process starts with them."""

    generation: int
    """0: the arguments of the cluster's start."""
    args: dict[str, JsonValue] = Field(default_factory=dict)
    instances: tuple[str, ...] = ()
    is_clusters: bool = False
    """Whether new instances get these arguments."""


class RollingReport(AnswerModel):
    """The last rolling restart. `state`: none (there was none); going; done; stopped (by an
    operator); failed (`failed_id` could not be restarted; `why` says why). `left`: the instances
    whose restart has not begun, in turn."""

    rolling_id: str = ""
    state: RollingState = "none"
    why: str = ""
    failed_id: str = ""
    waits: str = ""
    """Why the restart of the next instance must wait, if the reason is not just that another
    instance is being restarted."""
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
    """The restarts that a dry run plans, in turn."""
    cold_start_s: float | None = None
    """How long the last instances took from their launch until they served; null if that is not
    known."""
    engine_args: dict[str, JsonValue] = Field(default_factory=dict)
    """The arguments with which every instance starts, instead of the arguments of the cluster's
    start."""
    changes_engine: bool = False
    """In a plan: whether some instance has different engine arguments now."""
    dismissed: bool = False
    """Whether an operator has removed the rolling restart from the status after its end."""
    dry_run: bool = False
    changes: bool = False
    revision: int = 0

    @property
    def num_instances(self) -> int:
        return len(self.left) + len(self.under_way) + len(self.done)


class VerdictOrder(WireModel):
    """What helps most. `deed`: add, restart, logs, drain, moves-on, move, look or wait
    (docs/metrics.md). `target`: the member or the request that it is about, if it is about one.
    `to`: the instance to which a request moves. `expected`: what it does, in words."""

    deed: str
    target: str = ""
    expected: str = ""
    to: str = ""
    model: str = ""
    """The model that it is about, if the status is of several."""


class VerdictStatus(WireModel):
    """How the cluster is. `word`: ok, recovering, slow, unbalanced, fragmented, short of memory,
    overloaded, degraded, starting or stopping (docs/metrics.md). `severity`: quiet, warn or bad.
    `since_s`: seconds since the epoch. `about`: the member that is the cause, if one is. `order`:
    null if nothing is wrong."""

    word: str
    severity: str = "warn"
    since_s: float
    why: str
    about: str = ""
    order: VerdictOrder | None = None


class SplitStatus(WireModel):
    """A model that answers requests which name another one, or this one, by weight. `num_reqs`: how
    many it got since the weights were set, as far as frontends remember."""

    model: str
    weight: float
    num_reqs: int


class MirrorStatus(WireModel):
    """A model that gets copies of a model's requests. The counts are since the rule was set, as far
    as frontends remember. The means are over the compared requests, of which the original and the
    copy finished; null without any."""

    model: str
    percent: float
    num_copies: int
    num_left_out: int
    """Requests without a copy, because a frontend had too many requests."""
    num_failed: int
    """Copies that were refused or failed, while the original finished."""
    num_compared: int
    tokens: float | None = None
    """Output tokens of an original."""
    copy_tokens: float | None = None
    ttft_s: float | None = None
    copy_ttft_s: float | None = None
    latency_s: float | None = None
    copy_latency_s: float | None = None


class ModelStatus(WireModel):
    """One of the models of a cluster that serves several. `num_running_reqs`, `num_waiting_reqs`:
    on its instances; `num_held_reqs`: at the controller."""

    name: str
    num_serving: int
    """How many of its instances take requests."""
    num_running_reqs: int
    num_waiting_reqs: int
    num_held_reqs: int
    tokens_per_s: float | None = None
    ttft_p99_s: float | None = None
    autoscale: AutoscaleStatus
    """It has the number of planned instances, too."""
    rolling: RollingReport | None = None
    split: tuple[SplitStatus, ...] = ()
    """The models that answer the requests which name this one; empty: it answers them all."""
    mirrors: tuple[MirrorStatus, ...] = ()
    """The models that get copies of the requests that it serves."""
    verdict: VerdictStatus | None = None


class AlarmStatus(WireModel):
    """An alarm about a member or the cluster. Times are seconds since the epoch. `ended_s`: null
    while it is raised."""

    subject: str
    text: str
    since_s: float
    ended_s: float | None = None


class ClusterStatus(AnswerModel):
    cluster: str
    state: ClusterState
    detail: str = ""
    verdict: VerdictStatus | None = None
    """Null in the first second of a controller."""
    alarms: tuple[AlarmStatus, ...] = ()
    """The alarms that are raised, the oldest first, and then the last ones that ended, the newest
    first."""
    revision: int = 0
    """The number of changes of the cluster's spec; of several models, of all their specs."""
    model: str
    """The name of the model; of several models all names."""
    models: tuple[ModelStatus, ...] = ()
    """The models of a cluster that serves several; empty with one. The other fields are then about
    all of them together."""
    policy: str
    engine: str = "vllm"
    endpoint_url: str
    time_s: float = 0.0
    """When the controller made this status: seconds since the epoch."""
    uptime_s: float
    """The time since this controller started."""
    cluster_uptime_s: float
    """The time since `up` began."""
    num_held_reqs: int
    held: HeldStatus | None = None
    """Null if nothing is held."""
    autoscale: AutoscaleStatus
    refused: tuple[RefusedStatus, ...] = ()
    """Refused requests by reason and level, without pairs that did not happen."""
    keys: tuple[KeyStatus, ...] = ()
    """The API keys, at most 100, that used the most tokens in the last minute."""
    levels: tuple[LevelStatus, ...] = ()
    last_event: str = ""
    """The position of the newest event."""
    moves: tuple[MoveStatus, ...] = ()
    """Moves under way."""
    queued_moves: tuple[MoveStatus, ...] = ()
    """Moves by hand that wait until the source and the destination may begin another move."""
    ended_moves: tuple[EndedMoveStatus, ...] = ()
    """The last moves that ended, the newest first."""
    replays: ReplaysStatus = ReplaysStatus()
    """Requests that were lost with an instance, and how requests were saved."""
    engine_changes: tuple[EngineChangeStatus, ...] = ()
    """Engine arguments that a rolling restart has changed, and which instances have them."""
    rolling: RollingReport | None = None
    """The last rolling restart, even if it is over; null if there was none."""
    adapters: tuple[AdapterStatus, ...] = ()
    """The LoRA adapters, in the order in which they were loaded."""
    num_migrated_last_minute: int = 0
    num_failed_moves_last_minute: int = 0
    tokens_per_s: float | None = None
    """The output tokens of the last minute, for each second; null in the first second of a
    controller."""
    tokens_per_instance_hour: float | None = None
    split: tuple[SplitStatus, ...] = ()
    """As in `models`; empty if the status is about several models."""
    mirrors: tuple[MirrorStatus, ...] = ()
    notices: tuple[NoticeStatus, ...] = ()
    """The notices that stand, the earliest first."""
    instances: tuple[InstanceStatus, ...]
    frontends: tuple[FrontendStatus, ...]

    def of_model(self, name: str) -> ModelStatus | None:
        return next((each for each in self.models if each.name == name), None)

    def model_of(self, instance_id: str) -> str:
        """The model of an instance, if there are several; empty if none is known."""
        return next((each.model for each in self.instances if each.id == instance_id), "")


class StopRequest(OrderModel):
    """Stops the cluster. With `drain`, live requests may finish within `grace_s`. Unlike in orders,
    unknown fields are ignored, because a newer `llumctl down` must be able to stop this cluster."""

    model_config = ConfigDict(extra="ignore")

    drain: bool = True
    grace_s: float = Field(default=30.0, ge=0)


class StopProgress(AnswerModel):
    stopped: bool
    num_live_reqs: int


class CheckResult(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Check(WireModel):
    """One finding of `doctor`. `cure` is empty if there is nothing to do."""

    name: str
    result: CheckResult
    what: str
    cure: str = ""


class KindTrial(WireModel):
    """How requests of one kind fared when they moved. `tokens`: whether a moved request said the
    same as an unmoved one; `unsteady` if two unmoved ones differ as well, or the moved one differed
    before it moved, so that the move is not shown to be the reason; `unknown` if nothing can be
    compared. `what`: the finding in words; empty if there is nothing to say."""

    kind: str
    result: CheckResult
    num_moves: int = 0
    """How many moves succeeded."""
    tokens: Literal["equal", "differ", "unsteady", "unknown"] = "unknown"
    num_tokens: int = 0
    """How many tokens of the moved request were compared."""
    first_difference: int | None = None
    """The index of the first token that differs, of all tokens of the output."""
    kv_equal: bool | None = None
    """Whether the digests of the KV blocks agreed on both sides; null if none was taken."""
    num_digests: int = 0
    """How many moves compared digests."""
    num_equal_blocks: int = 0
    """How many blocks were the same on both sides, over all moves that compared digests."""
    downtime_median_s: float | None = None
    """Of moves without digests, which take time. Null for requests that waited."""
    downtime_worst_s: float | None = None
    step_s: float | None = None
    """The median time of the destination's steps that made the first tokens after the moves."""
    what: str = ""


class SlowdownTrial(WireModel):
    """How much longer the engines' steps took while a request moved to and fro beside other
    streams."""

    slowdown: float
    """0.05: the steps took 5% longer in the mean."""
    step_s: float
    """The mean step while nothing moved."""
    quickest_step_s: float
    slowest_step_s: float
    """The least and the largest mean of several times in which nothing moved. If they are far
    apart, the machine does other work, and `slowdown` says little."""
    num_streams: int
    """How many other streams there were."""
    num_moves: int
    move_s: float
    """The median time of a move."""
    moving_share: float
    """The share of the time during which a move was under way; in the rest the client waited for
    an answer."""
    num_tokens: int
    """The length of the request that moved, at the beginning."""


class EngineTrial(WireModel):
    """What `doctor --engine` found. `problem`: why no request can move at all, or what went wrong
    beside the moves; empty if nothing did. `facts`: versions, device, sizes, by name."""

    result: CheckResult
    problem: str = ""
    kinds: tuple[KindTrial, ...] = ()
    slowdown: SlowdownTrial | None = None
    """Null if it was not measured."""
    facts: dict[str, str] = Field(default_factory=dict)


class DoctorReport(AnswerModel):
    """`engine`: null without `--engine`, and if a check failed, so that no engine was started."""

    checks: tuple[Check, ...]
    engine: EngineTrial | None = None
