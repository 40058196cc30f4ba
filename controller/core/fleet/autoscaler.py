"""The machine of auto-scaling: when the load is looked at, and how a decision is carried out.

The rule (`decide`) says from the load how many instances are added, which instance is removed, or
which instance stays although it was to be removed. In mode `on` this is done; in a dry run, or
while an operator's own scale holds auto-scaling, it is only reported. The states of a check:

    RESTING     no check is under way; with mode `off` for good, else until the next one is due
    LOOKING     the load is being looked at
    CLEARING    instances that could not start are removed before others are launched in their
                place, as they may keep a GPU
    ACTING      instances are launched, or one is drained, or one stays

    RESTING   Ticked        -> LOOKING if a check is due
    LOOKING   LoadSeen      -> CLEARING, ACTING; RESTING if nothing is to be done, or it cannot be
    CLEARING  ScaleDone     -> ACTING; RESTING while the failed ones still exist
    ACTING    NoRoom        -> ACTING with one fewer; RESTING if not even one has room
    ACTING    ScaleDone     -> RESTING
    either    ScaleRefused  -> RESTING
    any       Ticked        -> as from RESTING: whoever was to answer did not come to it

An answer that comes after its check is over changes nothing. The spec has all that a new controller
needs in order to go on: the settings, the hold, the instances that were launched, and the drains of
instances that are removed.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from controller.core.fleet.cluster_spec import ScaleHold
from controller.core.fleet.outlook import (
    NOTHING_KNOWN,
    TARGET_MARGIN,
    WINDOW_S,
    ClusterLoad,
    Estimate,
    InstanceStarts,
    Outlook,
    RecentLatencies,
    Target,
)
from controller.core.load.snapshot import InstanceSnapshot
from controller.core.record.event_log import EventKind, Number
from controller.core.settings import RELEASE, AutoscaleConfig

# -- the rule --------------------------------------------------------------------------------------
#
# One check, from the load to a decision and why, in words.
#
#     up      while F_scale < x, where instances that are starting count as empty: as many are
#             added as bring it back to x, at most `max_added`. Below the minimum, all that are
#             missing are added at once
#     down    one instance is removed if F_scale without its memory, but with its requests, is still
#             above y, or if there is no request at all; above the maximum, at once. It is the one
#             with the fewest running requests, ties by id
#     keep    if instances are wanted while an earlier down still drains its instance, that instance
#             stays instead, as it needs no start
#
# While each instance would compute prompts for longer than `up_above_backlog_s`, on average,
# instances are added as well, and none is removed unless the others would need at most half of it.
#
# With targets for TTFT or TPOT, instances are also added while the estimate for the next minute
# misses a target: as many as bring it there, unless more would not help. An instance is removed
# only if all targets would hold without it, with a margin.
#
# F_scale must have been out of its range for the persistence time. While an earlier action is
# pending, no other is decided. As x <= y, a constant load never leads to both an up and a down.


BACKLOG_MARGIN = 0.5
"""An instance is removed only if the backlog without it is at most this share of
`up_above_backlog_s`, as a longer one would soon call for the instance again."""


class ScaleReason(StrEnum):
    BELOW_MINIMUM = "below_minimum"
    ABOVE_MAXIMUM = "above_maximum"
    LOW_FREENESS = "low_freeness"
    """F_scale is below x."""
    LONG_BACKLOG = "long_backlog"
    """The instances would compute prompts for longer than `up_above_backlog_s`."""
    HIGH_FREENESS = "high_freeness"
    """F_scale would be above y even with one instance less."""
    NO_TRAFFIC = "no_traffic"
    """No request runs or waits."""
    TTFT_TARGET = "ttft_target"
    """The estimated TTFT is above its target."""
    TPOT_TARGET = "tpot_target"
    OUT_OF_REACH = "out_of_reach"
    """An estimate is above its target, and more instances would not help."""
    TARGET_NEEDS_IT = "target_needs_it"
    """One instance could go, but a target would not hold with its margin."""
    IN_RANGE = "in_range"
    PENDING = "pending"
    """An earlier action is not over yet."""
    LOW_LATELY = "low_lately"
    """More instances are wanted, but the persistence time is not over yet."""
    HIGH_LATELY = "high_lately"
    """One instance could be removed, but the persistence time is not over yet."""
    AT_MINIMUM = "at_minimum"
    """One instance could be removed, but the minimum is reached."""
    AT_MAXIMUM = "at_maximum"
    """More instances are wanted, but the maximum is reached."""
    START_FAILED = "start_failed"
    """More instances are wanted, but an instance failed to start a short time ago."""


@dataclass(frozen=True, slots=True)
class ScaleState:
    """What one check passes on to the next check. Times are in seconds, by the caller's clock."""

    next_check_s: float
    low_since_s: float | None = None
    """Since when every check has found that more instances are wanted."""
    high_since_s: float | None = None
    """Since when every check has found that one instance less would be enough."""

    @staticmethod
    def first(config: AutoscaleConfig, now_s: float) -> "ScaleState":
        return ScaleState(now_s + config.first_check_after_s)


@dataclass(frozen=True, slots=True)
class ScaleDecision:
    """What a check decided. At most one of `num_added`, `removed_id` and `kept_id` is set."""

    reason: ScaleReason
    num_requests: int
    """How many requests run, are queued on an instance, or wait at the controller."""
    freeness_steps: float
    """F_scale of the instances that are schedulable now."""
    freeness_started_steps: float
    """F_scale with the instances that start counted as empty; it is compared with x."""
    freeness_less_steps: float | None
    """F_scale without the memory of the instance that would be removed next; it is compared with y.
    None without a schedulable instance."""
    backlog_s: float = 0.0
    """How long each instance would compute prompts, on average, with those that start."""
    num_added: int = 0
    removed_id: str | None = None
    kept_id: str | None = None
    """The instance that drains in order to be removed, and stays after all."""
    estimate: Estimate = NOTHING_KNOWN
    """The estimate for the next minute, once the instances that are starting serve."""
    estimate_less: Estimate = NOTHING_KNOWN
    """The estimate for the next minute with one instance less."""
    missed: Target | None = None
    """The target that `estimate` misses. If it misses none: the target that `estimate_less` misses
    with its margin."""

    @property
    def change(self) -> int:
        """By how many instances the decision changes the cluster; -1: one less."""
        return self.num_added + (self.kept_id is not None) - (self.removed_id is not None)

    @property
    def deed(self) -> str:
        """The decision in short: `add 2`, `remove i-3` or `keep i-3`; empty if nothing is to be
        done."""
        if self.num_added:
            return f"add {self.num_added}"
        if self.removed_id is not None:
            return f"remove {self.removed_id}"
        return "" if self.kept_id is None else f"keep {self.kept_id}"


def decide(
    config: AutoscaleConfig, state: ScaleState, load: ClusterLoad, now_s: float
) -> tuple[ScaleDecision | None, ScaleState]:
    """Decides one check. Returns the decision, and the state for the next check. Before
    `state.next_check_s` it returns None and the same state."""
    if now_s < state.next_check_s:
        return None, state
    victim = _victim(load)
    less = None if victim is None else load.freeness(-victim.capacity_blocks)
    idle = load.num_requests == 0
    outlook = Outlook(config, load)
    short = load.freeness_started() < config.up_below_steps or _is_behind(config, load)
    low = not idle and (short or outlook.helps())
    spare = less is not None and (idle or _may_spare(config, load, less))
    high = spare and (idle or outlook.missed_with_one_less() is None)
    state = ScaleState(
        now_s + config.check_interval_s,
        _since(state.low_since_s, now_s) if low else None,
        _since(state.high_since_s, now_s) if high else None,
    )
    reason, change = _choose(config, state, load, outlook, now_s)
    missed = None if idle else outlook.missed()
    if reason is ScaleReason.IN_RANGE and missed is not None:
        reason = ScaleReason.OUT_OF_REACH
    elif reason is ScaleReason.IN_RANGE and spare and not high:
        reason, missed = ScaleReason.TARGET_NEEDS_IT, outlook.missed_with_one_less()
    decision = ScaleDecision(
        reason,
        load.num_requests,
        load.freeness(),
        load.freeness_started(),
        less,
        load.backlog_s(),
        estimate=outlook.estimate(0),
        estimate_less=outlook.estimate_less(),
        missed=missed,
    )
    if change > 0 and load.leaving_id is not None:
        decision = replace(decision, kept_id=load.leaving_id)
    elif change > 0:
        decision = replace(decision, num_added=change)
    elif change < 0 and victim is not None:
        decision = replace(decision, removed_id=victim.instance_id)
    return decision, state


def _victim(load: ClusterLoad) -> InstanceSnapshot | None:
    return min(
        load.schedulable, key=lambda each: (each.num_running, each.instance_id), default=None
    )


def _is_behind(config: AutoscaleConfig, load: ClusterLoad, num_more: int = 0) -> bool:
    """Whether the instances, with `num_more` further ones, would compute prompts for too long."""
    return 0.0 < config.up_above_backlog_s < load.backlog_s(num_more)


def _may_spare(config: AutoscaleConfig, load: ClusterLoad, freeness_less_steps: float) -> bool:
    """Whether the other instances have room and time enough without one of them. Those that are
    starting do not count, as a start may fail."""
    if freeness_less_steps <= config.down_above_steps:
        return False
    most_s = config.up_above_backlog_s * BACKLOG_MARGIN
    return not config.up_above_backlog_s or load.backlog_s(-1 - load.num_starting) <= most_s


def _choose(
    config: AutoscaleConfig, state: ScaleState, load: ClusterLoad, outlook: Outlook, now_s: float
) -> tuple[ScaleReason, int]:
    """The reason, and by how many instances the cluster changes (-1: one less)."""
    if load.action_pending:
        return ScaleReason.PENDING, 0
    num_serving = len(load.schedulable)
    num_coming = num_serving + load.num_starting
    if load.leaving_id is not None:
        is_short = num_coming < config.min_instances
        return _keep(config, state, _up_reason(config, load, outlook), now_s, is_short=is_short)
    if num_coming < config.min_instances:
        num_missing = config.min_instances - num_coming
        return _more(config, load, now_s, ScaleReason.BELOW_MINIMUM, num_missing)
    # An instance that is starting may take long, or fail. So it is no reason to remove an instance
    # that serves.
    may_remove = num_serving > config.min_instances
    if may_remove and num_coming + load.num_unavailable > config.max_instances:
        return ScaleReason.ABOVE_MAXIMUM, -1
    if state.low_since_s is not None:
        if now_s < state.low_since_s + config.up_persistence_s:
            return ScaleReason.LOW_LATELY, 0
        reason = _up_reason(config, load, outlook)
        return _more(config, load, now_s, reason, _num_wanted(config, load, outlook))
    if state.high_since_s is not None:
        if not may_remove:
            return ScaleReason.AT_MINIMUM, 0
        if now_s < state.high_since_s + config.down_persistence_s:
            return ScaleReason.HIGH_LATELY, 0
        return ScaleReason.HIGH_FREENESS if load.num_requests else ScaleReason.NO_TRAFFIC, -1
    return ScaleReason.IN_RANGE, 0


def _keep(
    config: AutoscaleConfig, state: ScaleState, reason: ScaleReason, now_s: float, *, is_short: bool
) -> tuple[ScaleReason, int]:
    if is_short:
        return ScaleReason.BELOW_MINIMUM, 1
    low_since_s = state.low_since_s
    if low_since_s is not None and now_s >= low_since_s + config.up_persistence_s:
        return reason, 1
    return ScaleReason.PENDING, 0


def _up_reason(config: AutoscaleConfig, load: ClusterLoad, outlook: Outlook) -> ScaleReason:
    """Why more instances are wanted, if any are."""
    if load.freeness_started() < config.up_below_steps:
        return ScaleReason.LOW_FREENESS
    if _is_behind(config, load):
        return ScaleReason.LONG_BACKLOG
    missed = outlook.missed()
    return ScaleReason.TPOT_TARGET if missed is Target.TPOT else ScaleReason.TTFT_TARGET


def _num_wanted(config: AutoscaleConfig, load: ClusterLoad, outlook: Outlook) -> int:
    """The fewest instances with which F_scale is x again, the backlog is short enough and the
    estimates meet their targets, as far as more instances help; at most `max_added`."""
    for num_added in range(1, config.max_added):
        enough = load.freeness_started(num_added) >= config.up_below_steps
        enough = enough and not _is_behind(config, load, num_added)
        if enough and not outlook.helps(num_added):
            return num_added
    return config.max_added


def _more(
    config: AutoscaleConfig, load: ClusterLoad, now_s: float, reason: ScaleReason, num_wanted: int
) -> tuple[ScaleReason, int]:
    failed_s = load.last_failed_start_s
    if failed_s is not None and now_s < failed_s + config.retry_failed_start_s:
        return ScaleReason.START_FAILED, 0
    num_in_all = len(load.schedulable) + load.num_starting + load.num_unavailable
    num_added = min(num_wanted, config.max_instances - num_in_all)
    return (reason, num_added) if num_added > 0 else (ScaleReason.AT_MAXIMUM, 0)


def _since(since_s: float | None, now_s: float) -> float:
    return now_s if since_s is None else since_s


# -- in words ------------------------------------------------------------------------------


def why(decision: ScaleDecision, config: AutoscaleConfig) -> str:
    """The reason for the decision, as a phrase for people, for example `the cluster has 85 steps,
    fewer than 160` (F_scale and its lower bound)."""
    started, less = decision.freeness_started_steps, decision.freeness_less_steps
    low = f"the cluster has {started:.0f} steps, fewer than {config.up_below_steps:.0f}"
    behind = (
        f"each instance would compute prompts for {decision.backlog_s:.1f} s,"
        f" longer than {config.up_above_backlog_s:g}"
    )
    high = "no request runs or waits"
    if decision.num_requests and less is not None:
        high = (
            f"with one instance less the cluster has {less:.0f} steps,"
            f" more than {config.down_above_steps:.0f}"
        )
    match decision.reason:
        case ScaleReason.BELOW_MINIMUM:
            return f"fewer than {config.min_instances} serve or start"
        case ScaleReason.ABOVE_MAXIMUM:
            return f"there are more than {config.max_instances}"
        case ScaleReason.LOW_FREENESS:
            return low
        case ScaleReason.LONG_BACKLOG:
            return behind
        case ScaleReason.HIGH_FREENESS | ScaleReason.NO_TRAFFIC:
            return high
        case ScaleReason.TTFT_TARGET | ScaleReason.TPOT_TARGET:
            return _missed(decision, config)
        case ScaleReason.OUT_OF_REACH:
            return f"{_missed(decision, config)}, and more instances would not help"
        case ScaleReason.TARGET_NEEDS_IT:
            return f"{high}, but {_less(decision, config)}"
        case ScaleReason.IN_RANGE:
            return "the load is within the range"
        case ScaleReason.PENDING:
            return "an earlier action is not over"
        case ScaleReason.LOW_LATELY:
            lately = _missed(decision, config)
            if started < config.up_below_steps:
                lately = low
            elif 0.0 < config.up_above_backlog_s < decision.backlog_s:
                lately = behind
            return f"{lately}, but not for {config.up_persistence_s:g} s yet"
        case ScaleReason.HIGH_LATELY:
            return f"{high}, but not for {config.down_persistence_s:g} s yet"
        case ScaleReason.AT_MINIMUM:
            return f"{high}, but {config.min_instances} is the minimum"
        case ScaleReason.AT_MAXIMUM:
            return f"more are wanted, but {config.max_instances} is the maximum"
        case ScaleReason.START_FAILED:
            return (
                "more are wanted, but an instance could not start in the last"
                f" {config.retry_failed_start_s:g} s"
            )


def _missed(decision: ScaleDecision, config: AutoscaleConfig) -> str:
    """The missed target as a phrase for people, for example `the P99 TTFT of the next minute is
    estimated at 3.1 s, and 2 s is the target`."""
    target = decision.missed
    if target is None:
        return "a target is missed"
    return (
        f"the P99 {target.upper()} of the next minute is estimated at"
        f" {decision.estimate.of(target) or 0.0:.3g} s,"
        f" and the target is {_wanted_s(target, config):g} s"
    )


def _less(decision: ScaleDecision, config: AutoscaleConfig) -> str:
    target = decision.missed
    found_s = None if target is None else decision.estimate_less.of(target)
    if target is None or found_s is None:
        return "the latencies of the last minute are those of a different number of instances"
    return (
        f"its P99 {target.upper()} is estimated at {found_s:.3g} s, more than"
        f" {100 * TARGET_MARGIN:.0f}% of the target of {_wanted_s(target, config):g} s"
    )


def _wanted_s(target: Target, config: AutoscaleConfig) -> float:
    wanted_s = config.target_ttft_s if target is Target.TTFT else config.target_tpot_s
    return 0.0 if wanted_s is None else wanted_s


# -- the machine -----------------------------------------------------------------------------------

ACTOR = "auto-scaling"
"""The actor that the log names for drains and launches of auto-scaling."""
WARM_S = 10.0
"""How much longer an instance that is removed stays at most, once it is empty, to hand what it has
cached over to the others. It goes once nothing is left: after 2 s if it had 320,000 tokens."""


# -- events -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SettingsChanged:
    """`start_timeout_s`: an instance that does not serve after this time counts as failed."""

    config: AutoscaleConfig
    start_timeout_s: float


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed; the event says how the instances are now. A live cluster sends it several
    times a second, so that the time of starts is measured well."""

    planned: Collection[str]
    """The planned instances (those that are to stay), whether they serve or not."""
    serving: Mapping[str, float]
    """For each instance that serves, even if it stalls or drains: how many seconds its process had
    run at its last Hello."""
    gave_up: Collection[str]
    """The instances whose process says that it cannot start."""
    num_schedulable: int


@dataclass(frozen=True, slots=True)
class LeavingInstance:
    """A drain after which its instance is removed. `cannot_start`: the instance has failed."""

    instance_id: str
    actor: str
    cannot_start: bool = False


@dataclass(frozen=True, slots=True)
class LoadSeen:
    """The answer to `LookAtLoad`. `wall_s`: seconds since the epoch."""

    wall_s: float
    schedulable: Sequence[InstanceSnapshot]
    block_size: int
    new_capacity_blocks: int
    """M, in blocks, of an instance that would be launched now."""
    num_waiting: int = 0
    waiting_demand_blocks: int = 0
    waiting_work_s: float = 0.0
    """How long one instance would compute the prompts of the requests that wait."""
    recent: RecentLatencies | None = None
    """The latencies of clients lately, where they are known; this machine decides whether they are
    settled."""
    leaving: Sequence[LeavingInstance] = ()
    restarting: Collection[str] = ()
    """Instances that an operator restarts. They are back soon, so no others are launched for
    them."""
    fenced: Collection[str] = ()
    """Instances that hang; it is not known when they will serve again."""
    hold: ScaleHold | None = None
    rolling: bool = False
    """Whether a rolling restart is under way."""


@dataclass(frozen=True, slots=True)
class ScaleDone:
    """The order was carried out, or has begun. `added`: the new instances. `going`: all instances
    that are being removed by now."""

    added: Sequence[str] = ()
    going: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class NoRoom:
    """There is no room for all the instances that were to be launched. Nothing changed."""

    why: str


@dataclass(frozen=True, slots=True)
class ScaleRefused:
    """The order was refused, and nothing changed."""

    why: str


@dataclass(frozen=True, slots=True)
class HoldBegan:
    """An operator scaled the cluster. From now on the operator's scale, which is in the spec, takes
    precedence over auto-scaling."""

    cause_id: str
    hold: ScaleHold


@dataclass(frozen=True, slots=True)
class HoldEnded:
    cause_id: str
    actor: str


Event = (
    SettingsChanged | Ticked | LoadSeen | ScaleDone | NoRoom | ScaleRefused | HoldBegan | HoldEnded
)


# -- instructions ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LookAtLoad:
    """Look at the load. `LoadSeen` is the answer."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Launch this number of instances. The answer to `Launch`, `Drain` and `Keep` is ScaleDone or
    ScaleRefused. The answer to `Launch` may also be NoRoom."""

    check: "Check"
    number: int


@dataclass(frozen=True, slots=True)
class Drain:
    """Drain these instances, which are removed once they are empty. `forced`: they are drained even
    if no other instance serves."""

    check: "Check"
    instance_ids: Sequence[str]
    forced: bool = False


@dataclass(frozen=True, slots=True)
class Keep:
    """Let the instance stay, which drains in order to be removed."""

    check: "Check"
    instance_id: str


@dataclass(frozen=True, slots=True)
class Tell:
    """Write an event into the journal."""

    kind: EventKind
    cause_id: str
    reason: str
    numbers: Mapping[str, Number]
    instance_id: str | None = None
    actor: str = ACTOR


Instruction = LookAtLoad | Launch | Drain | Keep | Tell


# -- what people see -------------------------------------------------------------------------


class Outcome(StrEnum):
    NOTHING = "nothing"
    """Nothing was to be done."""
    DONE = "done"
    WOULD = "would"
    """The decision was not carried out because of the dry run, or because of an operator's scale.
    """
    BLOCKED = "blocked"
    """The decision was to be carried out, but something prevented that."""


_TOLD_AS = {
    Outcome.DONE: EventKind.AUTOSCALED,
    Outcome.WOULD: EventKind.AUTOSCALE_PLANNED,
    Outcome.BLOCKED: EventKind.AUTOSCALE_BLOCKED,
}
_WANTED_IN_VAIN = (ScaleReason.AT_MAXIMUM, ScaleReason.START_FAILED, ScaleReason.OUT_OF_REACH)


@dataclass(frozen=True, slots=True)
class Check:
    """One look at the load, and its outcome. `time_s`: seconds since the epoch. `why`: the reason
    in words, with what prevented the decision."""

    cause_id: str
    time_s: float
    decision: ScaleDecision
    outcome: Outcome
    why: str
    added: tuple[str, ...] = ()
    num_wanted: int = 0
    """How many instances there should be according to the decision."""


@dataclass(frozen=True, slots=True)
class AutoscaleView:
    num_planned: int
    """How many instances exist or start; instances that cannot start do not count."""
    next_check_in_s: float | None
    """In how many seconds the next check is due; None with mode `off`."""
    cold_start_s: float | None
    last: Check | None
    """The latest check since the mode or a setting changed."""
    last_change: Check | None
    """The latest check that decided to have more or fewer instances."""
    num_checks: Mapping[ScaleReason, int]
    """How many checks had each reason since this machine began."""


# -- the machine ---------------------------------------------------------------------------


class Phase(StrEnum):
    RESTING = "resting"
    LOOKING = "looking"
    CLEARING = "clearing"
    ACTING = "acting"


class Autoscaler:
    """`handle` takes an event and returns what to do; the other methods change nothing. Times are
    in seconds, of any monotonic clock, except for times named `wall_s`. `epoch` makes the ids of
    checks differ from those of an earlier controller."""

    def __init__(self, epoch: str, settings: SettingsChanged) -> None:
        self.phase = Phase.RESTING
        self.starts = InstanceStarts()
        self._epoch = epoch
        self._settings = settings
        self._state: ScaleState | None = None
        """The state that the latest check left for the next one; None with mode `off`, and before
        the first tick since the settings changed."""
        self._planned: frozenset[str] = frozenset()
        self._num_schedulable = -1
        self._settled_since_s = 0.0
        """Since when this number of instances is schedulable."""
        self._check: Check | None = None
        """The check that is being carried out: set exactly in CLEARING and ACTING."""
        self._num_asked = 0
        """How many instances are to be launched: from 1 to the number that the check under way
        decided; 0 if the check adds none."""
        self._last: Check | None = None
        self._last_change: Check | None = None
        self._num_checks: Counter[ScaleReason] = Counter()
        self._told: tuple[object, ...] = ()
        """The latest report, as long as it is still true; else empty."""

    def handle(self, event: Event, now_s: float) -> list[Instruction]:
        match event:
            case Ticked():
                return self._tick(event, now_s)
            case LoadSeen() if self.phase is Phase.LOOKING:
                return self._decide(event, now_s)
            case ScaleDone() if self.phase is Phase.CLEARING:
                return self._launch(event.going)
            case ScaleDone() if self._check is not None:
                done = replace(self._check, outcome=Outcome.DONE, added=tuple(event.added))
                return self._end(done)
            case NoRoom() if self._check is not None and self.phase is Phase.ACTING:
                return self._launch_fewer(self._check, event.why)
            case ScaleRefused() if self._check is not None:
                return self._block(self._check, event.why)
            case SettingsChanged():
                self._change_settings(event)
            case HoldBegan(cause_id, hold):
                why = f"an operator's scale takes precedence until it is released: {RELEASE}"
                numbers: dict[str, Number] = {"num_wanted": hold.num_instances}
                return [Tell(EventKind.AUTOSCALE_HELD, cause_id, why, numbers, actor=hold.actor)]
            case HoldEnded(cause_id, actor):
                why = "auto-scaling decides again"
                return [Tell(EventKind.AUTOSCALE_RELEASED, cause_id, why, {}, actor=actor)]
        return []

    # -- questions ---------------------------------------------------------------------------

    def view(self, planned: Collection[str], now_s: float) -> AutoscaleView:
        """What the machine shows. `planned`: the planned instances as they are now."""
        next_s = self.next_check_s
        return AutoscaleView(
            num_planned=len(set(planned) - set(self.starts.failed)),
            next_check_in_s=None if next_s is None else max(0.0, next_s - now_s),
            cold_start_s=self.starts.cold_start_s,
            last=self._last,
            last_change=self._last_change,
            num_checks=dict(self._num_checks),
        )

    @property
    def next_check_s(self) -> float | None:
        return None if self._state is None else self._state.next_check_s

    def held(self, hold: ScaleHold | None) -> ScaleHold | None:
        """The spec's hold, if it takes precedence over auto-scaling."""
        return None if self._settings.config.mode == "off" else hold

    def hold_for(self, actor: str, num_instances: int, wall_s: float) -> ScaleHold | None:
        """The hold that an operator's scale makes in the spec; None if auto-scaling is off."""
        return self.held(ScaleHold(actor, num_instances, wall_s))

    def would_hold(self, num_instances: int, hold: ScaleHold | None) -> bool:
        """Whether an operator's scale to `num_instances` changes the hold. `hold`: the hold that is
        in the spec now."""
        is_same = hold is not None and hold.num_instances == num_instances
        return self._settings.config.mode != "off" and not is_same

    def load(self, seen: LoadSeen, now_s: float) -> ClusterLoad:
        """What a check bases its decision on: the load that was seen, and the instances as they
        were at the latest tick."""
        starts, failed = self.starts, set(self.starts.failed)
        ids = {each.instance_id for each in seen.schedulable}
        coming = {*starts.starting, *seen.restarting} & self._planned - failed - {*seen.fenced}
        unavailable = self._planned - ids - coming - failed
        # The removal of an instance that could not start does not delay anything.
        leaving = [each for each in seen.leaving if not each.cannot_start]
        is_own = len(leaving) == 1 and leaving[0].actor == ACTOR
        launched = bool(starts.launched)
        recent = seen.recent
        if recent is not None:
            settled = now_s - self._settled_since_s >= WINDOW_S
            recent = replace(recent, settled=settled)
        return ClusterLoad(
            seen.schedulable,
            seen.block_size,
            seen.new_capacity_blocks,
            num_waiting=seen.num_waiting,
            waiting_demand_blocks=seen.waiting_demand_blocks,
            waiting_work_s=seen.waiting_work_s,
            num_starting=len(coming),
            num_unavailable=len(unavailable),
            action_pending=launched or (bool(leaving) and not is_own),
            leaving_id=leaving[0].instance_id if is_own and not launched else None,
            last_failed_start_s=starts.last_failed_s,
            recent=recent,
        )

    def check(self, now_s: float) -> None:
        """Raises AssertionError if an invariant is broken."""
        self.starts.check(now_s)
        is_under_way = self.phase in (Phase.CLEARING, Phase.ACTING)
        assert (self._check is not None) == is_under_way, "a check is under way, or is not"
        assert self._state is not None or self.phase is not Phase.LOOKING, "a look without a state"
        assert self._settings.config.mode != "off" or self._state is None, "it is off, and checks"
        if self._check is not None:
            decision = self._check.decision
            assert decision.change, "nothing is to be done, and is being done"
            assert bool(self._num_asked) == bool(decision.num_added)
            assert self._num_asked <= decision.num_added, "more are launched than was decided"
        if self.phase is Phase.CLEARING:
            assert self._num_asked, "failed ones go only for others"
        for each in (self._last, self._last_change):
            if each is not None and each.outcome in (Outcome.DONE, Outcome.WOULD):
                assert each.decision.change, "what changes nothing was done"
            if each is not None and each.outcome is Outcome.NOTHING:
                assert not each.decision.change, "a decision was forgotten"
        assert self._last_change is None or self._last_change.decision.change
        assert not self._told or self._told[0] in (Outcome.WOULD, Outcome.BLOCKED)

    # -- inside --------------------------------------------------------------------------

    def _change_settings(self, settings: SettingsChanged) -> None:
        """Takes new settings. A change that is under way goes on; the checks begin anew."""
        if settings != self._settings:
            self._settings, self._state = settings, None
            self._last, self._told = None, ()
            if self.phase is Phase.LOOKING:
                self.phase = Phase.RESTING

    def _tick(self, event: Ticked, now_s: float) -> list[Instruction]:
        timeout_s = self._settings.start_timeout_s
        self.starts.look(event.planned, event.serving, event.gave_up, timeout_s, now_s)
        self._planned = frozenset(event.planned)
        if event.num_schedulable != self._num_schedulable:
            self._num_schedulable, self._settled_since_s = event.num_schedulable, now_s
        self.phase, self._check, self._num_asked = Phase.RESTING, None, 0
        if self._settings.config.mode == "off":
            return []
        if self._state is None:
            self._state = ScaleState.first(self._settings.config, now_s)
        if now_s < self._state.next_check_s:
            return []
        self.phase = Phase.LOOKING
        return [LookAtLoad()]

    def _decide(self, seen: LoadSeen, now_s: float) -> list[Instruction]:
        config, state = self._settings.config, self._state
        assert state is not None, "a look without a state"
        decision, self._state = decide(config, state, self.load(seen, now_s), now_s)
        assert decision is not None, "a check came too early"
        self._num_checks[decision.reason] += 1
        number = sum(self._num_checks.values())
        check = Check(
            f"autoscale-{self._epoch}-{number}",
            seen.wall_s,
            decision,
            Outcome.NOTHING,
            why(decision, config),
            num_wanted=len(self._planned - set(self.starts.failed)) + decision.change,
        )
        if not decision.change:
            if decision.reason in _WANTED_IN_VAIN:
                check = replace(check, outcome=Outcome.BLOCKED)
            return self._end(check)
        if self._settings.config.mode != "on" or seen.hold is not None:
            return self._end(replace(check, outcome=Outcome.WOULD))
        if seen.rolling:
            return self._block(check, "it waits for the rolling restart to end")
        self._check, self._num_asked = check, decision.num_added
        if decision.num_added:
            return self._clear(check, [each.instance_id for each in seen.leaving])
        self.phase = Phase.ACTING
        if decision.kept_id is not None:
            return [Keep(check, decision.kept_id)]
        assert decision.removed_id is not None
        return [Drain(check, (decision.removed_id,))]

    def _clear(self, check: Check, going: Sequence[str]) -> list[Instruction]:
        failed = sorted(self.starts.failed)
        if not failed:
            return self._launch(going)
        if len(failed) >= len(self._planned):
            return self._block(check, "no instance could start")
        self.phase = Phase.CLEARING
        return [Drain(check, tuple(failed), forced=True)]

    def _launch(self, going: Sequence[str]) -> list[Instruction]:
        assert self._check is not None
        if going:
            names = ", ".join(going)
            return self._block(self._check, f"first {names} goes, which could not start")
        self.phase = Phase.ACTING
        return [Launch(self._check, self._num_asked)]

    def _launch_fewer(self, check: Check, why_not: str) -> list[Instruction]:
        if self._num_asked <= 1:
            return self._block(check, f"there is no room for one more: {why_not}")
        self._num_asked -= 1
        return [Launch(check, self._num_asked)]

    def _block(self, check: Check, why_not: str) -> list[Instruction]:
        blocked = replace(check, outcome=Outcome.BLOCKED, why=f"{check.why}; {why_not}")
        return self._end(blocked)

    def _end(self, check: Check) -> list[Instruction]:
        """Ends the check. Returns an event if the decision was carried out. A decision that is
        blocked, or that was not to be carried out, makes one event when that begins, and none while
        it lasts."""
        self.phase, self._check, self._num_asked = Phase.RESTING, None, 0
        self._last, decision = check, check.decision
        if decision.change:
            self._last_change = check
        if check.outcome is Outcome.NOTHING:
            if decision.reason is ScaleReason.IN_RANGE:
                self._told = ()
            return []
        told = (check.outcome, decision.reason, decision.num_added)
        if check.outcome is not Outcome.DONE and told == self._told:
            return []
        self._told = told if check.outcome is not Outcome.DONE else ()
        numbers: dict[str, Number] = {
            "num_wanted": check.num_wanted,
            "num_requests": decision.num_requests,
            "cluster_freeness_steps": round(decision.freeness_steps, 1),
        }
        if decision.num_added:
            numbers["num_added"] = len(check.added) or decision.num_added
            numbers["cold_start_s"] = self.starts.cold_start_s
        return [
            Tell(
                _TOLD_AS[check.outcome],
                check.cause_id,
                f"{decision.deed}: {check.why}" if decision.deed else check.why,
                numbers,
                instance_id=decision.removed_id or decision.kept_id,
            )
        ]
