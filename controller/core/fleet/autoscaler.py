"""Auto-scaling: when the load is looked at, and what comes of a decision.

The rule (scale_rule.py) says from the load how many instances more there are to be, which one goes,
or which one stays that was to go. That is done in mode `on`, and only told in a dry run or while an
operator's own scale holds it. Of a check under way:

    RESTING     none is: with mode `off` for good, else until the next one is due
    LOOKING     the load is being looked at
    CLEARING    instances that could not start go before others are launched in their place, as
                they may keep a GPU
    ACTING      instances are launched, one is drained, or kept

    RESTING   Ticked        -> LOOKING if a check is due
    LOOKING   LoadSeen      -> CLEARING, ACTING; RESTING if nothing is to be done, or it cannot be
    CLEARING  ScaleDone     -> ACTING; RESTING while those that failed are still there
    ACTING    NoRoom        -> ACTING with one fewer; RESTING if not even one has room
    ACTING    ScaleDone     -> RESTING
    either    ScaleRefused  -> RESTING
    any       Ticked        -> as from RESTING: whoever was to answer did not come to it

An answer that comes later than that changes nothing. All that a controller needs in order to go on
after another one is in the spec: the settings, the hold, the instances that were launched, and the
drains of those that go.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from controller.core.fleet.instance_starts import InstanceStarts
from controller.core.fleet.outlook import WINDOW_S, ClusterLoad, RecentLatencies
from controller.core.fleet.scale_rule import ScaleDecision, ScaleReason, ScaleState, decide, why
from controller.core.load.snapshot import InstanceSnapshot
from controller.core.operations.cluster_spec import ScaleHold
from controller.core.record.event_log import EventKind, Number
from controller.core.settings import AutoscaleConfig

ACTOR = "auto-scaling"
"""Whose drains and launches they are."""
RELEASE = "llumctl autoscale on"


# -- what it is told -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SettingsChanged:
    """`start_timeout_s`: an instance that does not serve for so long counts as one that cannot
    start."""

    config: AutoscaleConfig
    start_timeout_s: float


@dataclass(frozen=True, slots=True)
class Ticked:
    """How instances stand now. Live several times a second, else starts are measured coarsely."""

    planned: Collection[str]
    """Instances that are to stay, whether they serve or not."""
    serving: Mapping[str, float]
    """The instances that serve, also if they stall or drain, and for how long the process of each
    had run at its last Hello, in seconds."""
    gave_up: Collection[str]
    """Instances whose process says that it cannot start."""
    num_schedulable: int


@dataclass(frozen=True, slots=True)
class LeavingInstance:
    """A drain after which its instance goes. `cannot_start`: it is one that failed."""

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
    """M of an instance that starts."""
    num_held: int = 0
    held_demand_blocks: int = 0
    recent: RecentLatencies | None = None
    """What clients saw lately, where that is known; whether it is settled is decided here."""
    leaving: Sequence[LeavingInstance] = ()
    restarting: Collection[str] = ()
    """Instances that an operator restarts: they are back soon, and no reason to launch others."""
    fenced: Collection[str] = ()
    """Instances that hang: nobody knows when they come back."""
    hold: ScaleHold | None = None
    rolling: bool = False
    """Whether a rolling restart goes on."""


@dataclass(frozen=True, slots=True)
class ScaleDone:
    """What was ordered is carried out, or begun. `added`: the new instances. `going`: all that are
    on their way out by now."""

    added: Sequence[str] = ()
    going: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class NoRoom:
    """For as many as were to be launched; nothing changed."""

    why: str


@dataclass(frozen=True, slots=True)
class ScaleRefused:
    """Nothing changed."""

    why: str


@dataclass(frozen=True, slots=True)
class HoldBegan:
    """An operator's own scale wins from now on; the spec has it."""

    cause_id: str
    hold: ScaleHold


@dataclass(frozen=True, slots=True)
class HoldEnded:
    cause_id: str
    actor: str


Event = (
    SettingsChanged | Ticked | LoadSeen | ScaleDone | NoRoom | ScaleRefused | HoldBegan | HoldEnded
)


# -- what it asks for ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LookAtLoad:
    """`LoadSeen` is the answer."""


@dataclass(frozen=True, slots=True)
class Launch:
    """So many instances. The answer to this one and the next two: ScaleDone, ScaleRefused or, to
    this one, NoRoom."""

    check: "Check"
    number: int


@dataclass(frozen=True, slots=True)
class Drain:
    """These instances, which go once they are empty. `forced`: even if none serves beside them."""

    check: "Check"
    instance_ids: Sequence[str]
    forced: bool = False


@dataclass(frozen=True, slots=True)
class Keep:
    """The instance stays, which drains in order to go."""

    check: "Check"
    instance_id: str


@dataclass(frozen=True, slots=True)
class Tell:
    """An event for the journal."""

    kind: EventKind
    cause_id: str
    reason: str
    numbers: Mapping[str, Number]
    instance_id: str | None = None
    actor: str = ACTOR


Instruction = LookAtLoad | Launch | Drain | Keep | Tell


# -- what it shows -------------------------------------------------------------------------


class Outcome(StrEnum):
    NOTHING = "nothing"
    """Nothing was to be done."""
    DONE = "done"
    WOULD = "would"
    """It would have been done, but for the dry run or an operator's scale."""
    BLOCKED = "blocked"
    """It was to be done, and could not."""


_TOLD_AS = {
    Outcome.DONE: EventKind.AUTOSCALED,
    Outcome.WOULD: EventKind.AUTOSCALE_PLANNED,
    Outcome.BLOCKED: EventKind.AUTOSCALE_BLOCKED,
}
_WANTED_IN_VAIN = (ScaleReason.AT_MAXIMUM, ScaleReason.START_FAILED, ScaleReason.OUT_OF_REACH)


@dataclass(frozen=True, slots=True)
class Check:
    """One look at the load, and what came of it. `time_s`: seconds since the epoch. `why`: in
    words; of what was blocked also by what."""

    cause_id: str
    time_s: float
    decision: ScaleDecision
    outcome: Outcome
    why: str
    added: tuple[str, ...] = ()
    num_wanted: int = 0
    """Instances that are to be there by the decision."""


@dataclass(frozen=True, slots=True)
class AutoscaleView:
    num_planned: int
    """Instances that are there or start: those that cannot start do not count."""
    next_check_in_s: float | None
    """None with mode `off`."""
    cold_start_s: float | None
    last: Check | None
    """The last check since the mode or a setting changed."""
    last_change: Check | None
    """The last check that decided to have more or fewer."""
    num_checks: Mapping[ScaleReason, int]
    """Of each reason, since this machine began."""


# -- the machine ---------------------------------------------------------------------------


class Phase(StrEnum):
    RESTING = "resting"
    LOOKING = "looking"
    CLEARING = "clearing"
    ACTING = "acting"


class Autoscaler:
    """`handle` takes an event and returns what is to be done; the other methods change nothing.
    Times are seconds of any one monotonic clock, but for those that are named `wall_s`. `epoch`
    keeps the ids of checks apart from those of an earlier controller."""

    def __init__(self, epoch: str, settings: SettingsChanged) -> None:
        self.phase = Phase.RESTING
        self.starts = InstanceStarts()
        self._epoch = epoch
        self._settings = settings
        self._state: ScaleState | None = None
        """None with mode `off`, and before the first tick since the settings changed."""
        self._planned: frozenset[str] = frozenset()
        self._num_schedulable = -1
        self._settled_since_s = 0.0
        """Since when so many are schedulable."""
        self._check: Check | None = None
        """The one that is being carried out: in CLEARING and ACTING, and only there."""
        self._num_asked = 0
        """How many instances are to be launched: from 1 to as many as the check under way decided,
        0 if it adds none."""
        self._last: Check | None = None
        self._last_change: Check | None = None
        self._num_checks: Counter[ScaleReason] = Counter()
        self._told: tuple[object, ...] = ()
        """What was told last, and goes on; empty: nothing does."""

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
                why = f"an operator's scale wins until it is released: {RELEASE}"
                numbers: dict[str, Number] = {"num_wanted": hold.num_instances}
                return [Tell(EventKind.AUTOSCALE_HELD, cause_id, why, numbers, actor=hold.actor)]
            case HoldEnded(cause_id, actor):
                why = "auto-scaling decides again"
                return [Tell(EventKind.AUTOSCALE_RELEASED, cause_id, why, {}, actor=actor)]
        return []

    # -- asked ---------------------------------------------------------------------------

    def view(self, planned: Collection[str], now_s: float) -> AutoscaleView:
        """`planned`: as in `Ticked`, by now."""
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
        """The operator's scale that wins, of the one in the spec."""
        return None if self._settings.config.mode == "off" else hold

    def hold_for(self, actor: str, num_instances: int, wall_s: float) -> ScaleHold | None:
        """What an operator's scale puts into the spec; None where nothing is to be held, as
        auto-scaling is off."""
        return self.held(ScaleHold(actor, num_instances, wall_s))

    def would_hold(self, num_instances: int, hold: ScaleHold | None) -> bool:
        """Whether an operator's scale to so many changes what is held. `hold`: the spec's."""
        is_same = hold is not None and hold.num_instances == num_instances
        return self._settings.config.mode != "off" and not is_same

    def load(self, seen: LoadSeen, now_s: float) -> ClusterLoad:
        """What a check decides by: what was seen, as instances stood at the last tick."""
        starts, failed = self.starts, set(self.starts.failed)
        ids = {each.instance_id for each in seen.schedulable}
        coming = {*starts.starting, *seen.restarting} & self._planned - failed - {*seen.fenced}
        unavailable = self._planned - ids - coming - failed
        # One that could not start, and goes, holds nothing up.
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
            num_held=seen.num_held,
            held_demand_blocks=seen.held_demand_blocks,
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
        """What is under way goes on; checks begin anew."""
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
        """The check is over: an event for each change, and one when something begins that would be
        done or cannot."""
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
