"""Auto-scaling of the running cluster: looks at the load when a check is due, has the core decide,
and carries it out as an operator's scale is carried out.

    off       looks at nothing
    dry-run   decides, and says what would be done
    on        does it; while an operator's own scale holds it, until that is released, as dry-run

All that a controller needs in order to go on after another one is in the spec: the settings, the
hold, the instances that were launched, and the drains of those that go.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from controller.api.errors import LlumctlError
from controller.core.fleet.autoscale_config import AutoscaleConfig
from controller.core.fleet.autoscaler import ScaleDecision, ScaleReason, ScaleState, decide, why
from controller.core.operations.cluster_spec import DrainOrder, ScaleHold
from controller.core.operations.scaling import planned_instances
from controller.core.record.event_log import EventKind, Number
from controller.ports.launcher import Launcher
from controller.runtime.controller.operations.cluster_load import LoadWatch
from controller.runtime.controller.operations.drains import OperationRefusedError
from controller.runtime.controller.operations.operated_cluster import OperatedCluster
from controller.runtime.controller.operations.scaling import Scaling
from controller.runtime.controller.operations.starts import Starts
from controller.runtime.live_config import LiveAutoscale

log = logging.getLogger(__name__)

ACTOR = "auto-scaling"
RELEASE = "llumctl autoscale on"
_WANTED_IN_VAIN = (ScaleReason.AT_MAXIMUM, ScaleReason.START_FAILED, ScaleReason.OUT_OF_REACH)


class Outcome(StrEnum):
    NOTHING = "nothing"
    """Nothing was to be done."""
    DONE = "done"
    WOULD = "would"
    """It would have been done, but for the dry run or an operator's scale."""
    BLOCKED = "blocked"
    """It was to be done, and could not."""


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


class _NotNowError(Exception):
    """What was decided cannot be done now."""


class Autoscaling:
    def __init__(
        self,
        cluster: OperatedCluster,
        scaling: Scaling,
        launcher: Launcher,
        epoch: str,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._cluster = cluster
        self._scaling = scaling
        self._launcher = launcher
        self._epoch = epoch
        self._wall_clock = wall_clock
        self.starts = Starts(cluster)
        self._watch = LoadWatch(cluster, self.starts, ACTOR)
        self.last: Check | None = None
        """The last check since the mode or a setting changed."""
        self.last_change: Check | None = None
        """The last check that decided to have more or fewer."""
        self.counts: Counter[ScaleReason] = Counter()
        """Checks of each reason since this controller started."""
        self._live = LiveAutoscale()
        self._state: ScaleState | None = None
        self._told: tuple[object, ...] = ()
        """What was told last and goes on."""

    @property
    def next_check_in_s(self) -> float | None:
        if self._state is None:
            return None
        return max(0.0, self._state.next_check_s - self._cluster.now_s())

    @property
    def num_planned(self) -> int:
        """Instances that are there or start: those that cannot start do not count."""
        planned = set(planned_instances(self._cluster.keeper.spec))
        return len(planned - set(self.starts.failed))

    @property
    def held(self) -> ScaleHold | None:
        """The operator's scale that wins, if auto-scaling is on or in a dry run."""
        if self._cluster.live.autoscale.mode == "off":
            return None
        return self._cluster.keeper.spec.autoscale_hold

    def hold(self, actor: str, num_instances: int) -> ScaleHold | None:
        """What an operator's scale puts into the spec; None where nothing is to be held, as
        auto-scaling is off."""
        if self._cluster.live.autoscale.mode == "off":
            return None
        return ScaleHold(actor, num_instances, self._wall_clock())

    def hold_planned(self, cause_id: str, actor: str) -> None:
        """An operator keeps an instance that was to go: as many as are planned now are to stay."""
        if hold := self.hold(actor, self._scaling.num_planned):
            keeper = self._cluster.keeper
            keeper.change(keeper.spec.held_by(hold))
            self.tell_held(cause_id, hold)

    def would_hold(self, num_instances: int) -> bool:
        """Whether an operator's scale to so many changes what is held."""
        held = self.held
        is_same = held is not None and held.num_instances == num_instances
        return self._cluster.live.autoscale.mode != "off" and not is_same

    def tick(self) -> None:
        live = self._cluster.live.autoscale
        self.starts.look(live.start_timeout_s)
        self._watch.look()
        now_s = self._cluster.now_s()
        if live != self._live:
            self._live, self._state, self.last, self._told = live, None, None, ()
        if live.mode == "off":
            return
        if self._state is None:
            self._state = ScaleState.first(live.config, now_s)
        if now_s >= self._state.next_check_s:
            self._check(now_s)

    # -- inside --------------------------------------------------------------------------

    def _check(self, now_s: float) -> None:
        assert self._state is not None
        config = replace(self._live.config, cold_start_s=self.starts.cold_start_s)
        decision, self._state = decide(
            config, self._state, self._watch.load(self._wall_clock()), now_s
        )
        assert decision is not None, "a check came too early"
        self.counts[decision.reason] += 1
        number = sum(self.counts.values())
        change = decision.num_added + (decision.kept_id is not None)
        change -= decision.removed_id is not None
        check = Check(
            f"autoscale-{self._epoch}-{number}",
            self._wall_clock(),
            decision,
            Outcome.NOTHING,
            why(decision, config),
            num_wanted=self.num_planned + change,
        )
        if change:
            check = self._act(check)
            self.last_change = check
        elif decision.reason in _WANTED_IN_VAIN:
            check = replace(check, outcome=Outcome.BLOCKED)
        self.last = check
        self._tell(check, config)

    def _act(self, check: Check) -> Check:
        if self._live.mode != "on" or self.held is not None:
            return replace(check, outcome=Outcome.WOULD)
        try:
            added = self._carry_out(check)
        except (LlumctlError, OperationRefusedError, _NotNowError) as error:
            log.warning("%s: %s", check.cause_id, error)
            return replace(check, outcome=Outcome.BLOCKED, why=f"{check.why}; {error}")
        except Exception as error:  # of Ray, for one: the next check tries it again
            log.exception("%s could not be carried out", check.cause_id)
            return replace(check, outcome=Outcome.BLOCKED, why=f"{check.why}; {error!r:.200}")
        return replace(check, outcome=Outcome.DONE, added=added)

    def _carry_out(self, check: Check) -> tuple[str, ...]:
        """The ids of new instances. Raises OperationRefusedError, LlumctlError and _NotNowError:
        nothing more changed then."""
        decision, scaling = check.decision, self._scaling
        rolling = self._cluster.keeper.spec.rolling
        if rolling is not None and rolling.goes:
            raise _NotNowError("it waits for the rolling restart to end")
        target, agreed = scaling.num_planned, None
        if decision.num_added:
            self._remove_failed(check)
            target += self._with_room(decision.num_added)
        elif decision.kept_id is not None:
            target += 1
        elif decision.removed_id is not None:
            target, agreed = target - 1, (decision.removed_id,)
        plan = scaling.plan(target, force=False, agreed=agreed)
        if decision.kept_id is not None and plan.undrained != (decision.kept_id,):
            raise _NotNowError(f"{decision.kept_id} is gone already")
        return scaling.carry_out(plan, self._order(check))

    def _with_room(self, num_added: int) -> int:
        """As many of these as Ray has room for. Raises _NotNowError if there is none."""
        for number in range(num_added, 1, -1):
            if not self._launcher.no_room(number):
                return number
        if why_not := self._launcher.no_room(1):
            raise _NotNowError(f"there is no room for one more: {why_not}")
        return 1

    def _remove_failed(self, check: Check) -> None:
        """Instances that could not start go before others are launched in their place, as they may
        keep a GPU. Raises _NotNowError while any are on their way out."""
        scaling, failed = self._scaling, sorted(self.starts.failed)
        if failed:
            target = scaling.num_planned - len(failed)
            if target < 1:
                raise _NotNowError("no instance could start")
            plan = scaling.plan(target, force=True, agreed=failed)
            scaling.carry_out(plan, self._order(check))
        going = [each for each in self._cluster.keeper.spec.drains.values() if each.removes]
        if going:
            names = ", ".join(each.instance_id for each in going)
            raise _NotNowError(f"first {names} goes, which could not start")

    def _order(self, check: Check) -> DrainOrder:
        return DrainOrder(check.cause_id, "", check.time_s, actor=ACTOR, reason=check.why)

    # -- what is said --------------------------------------------------------------------

    def _tell(self, check: Check, config: AutoscaleConfig) -> None:
        """An event for each change, and one when something begins that would be done or cannot."""
        decision = check.decision
        if check.outcome is Outcome.NOTHING:
            if decision.reason is ScaleReason.IN_RANGE:
                self._told = ()
            return
        told = (check.outcome, decision.reason, decision.num_added)
        if check.outcome is not Outcome.DONE and told == self._told:
            return
        self._told = told if check.outcome is not Outcome.DONE else ()
        numbers: dict[str, Number] = {
            "num_wanted": check.num_wanted,
            "num_requests": decision.num_requests,
            "cluster_freeness_steps": round(decision.freeness_steps, 1),
        }
        if decision.num_added:
            numbers["num_added"] = len(check.added) or decision.num_added
            numbers["cold_start_s"] = config.cold_start_s
        kind = {
            Outcome.DONE: EventKind.AUTOSCALED,
            Outcome.WOULD: EventKind.AUTOSCALE_PLANNED,
            Outcome.BLOCKED: EventKind.AUTOSCALE_BLOCKED,
        }[check.outcome]
        self._cluster.journal.autoscale(
            kind,
            check.cause_id,
            f"{deed(decision)}: {check.why}" if deed(decision) else check.why,
            numbers,
            instance_id=decision.removed_id or decision.kept_id,
            actor=ACTOR,
        )

    def tell_held(self, cause_id: str, hold: ScaleHold) -> None:
        self._cluster.journal.autoscale(
            EventKind.AUTOSCALE_HELD,
            cause_id,
            f"an operator's scale wins until it is released: {RELEASE}",
            {"num_wanted": hold.num_instances},
            actor=hold.actor,
        )

    def tell_released(self, cause_id: str, actor: str) -> None:
        self._cluster.journal.autoscale(
            EventKind.AUTOSCALE_RELEASED, cause_id, "auto-scaling decides again", {}, actor=actor
        )


def deed(decision: ScaleDecision) -> str:
    """`add 2`, `remove i-3`, `keep i-3`; empty where nothing is to be done."""
    if decision.num_added:
        return f"add {decision.num_added}"
    if decision.removed_id is not None:
        return f"remove {decision.removed_id}"
    return "" if decision.kept_id is None else f"keep {decision.kept_id}"
