"""Which model gives an instance to another one, where several models share GPUs.

Each model is scaled by its own load. If one wants another instance and there is no room for it, a
model that can do without one gives it: of those above their minimum whose load would not ask for
the instance back, the one that would be freest without it. One instance goes at a time; the model
that was short starts its own once the room is there, at its next check.

    SharesSeen -> Give   while a model is short, and no instance is on its way out
"""

from collections.abc import Sequence
from dataclasses import dataclass

from controller.core.fleet.autoscaler import Check, Outcome

PAUSE_S = 30.0
"""How long after an instance was given no other one is: the room has to be seen, and used."""


@dataclass(frozen=True, slots=True)
class ModelNow:
    """A model, as auto-scaling sees it. `last`: its latest check. `num_leaving`: instances that
    drain in order to be removed. `up_below_steps`: below this freeness it wants more instances."""

    name: str
    num_planned: int
    min_instances: int
    up_below_steps: float
    last: Check | None
    num_leaving: int = 0
    is_automatic: bool = True
    """Whether auto-scaling may change it: it is on, and no operator's scale holds it."""

    @property
    def is_short(self) -> bool:
        """Whether it was to get instances and there was no room."""
        last = self.last
        return (
            self.is_automatic
            and last is not None
            and last.outcome is Outcome.BLOCKED
            and last.decision.num_added > 0
        )

    @property
    def spare_steps(self) -> float | None:
        """Its freeness with one instance less; None if it cannot do without one."""
        last = self.last
        if not self.is_automatic or last is None or self.num_planned <= self.min_instances:
            return None
        less = last.decision.freeness_less_steps
        is_rising = last.decision.change > 0
        return None if less is None or is_rising or less <= self.up_below_steps else less


@dataclass(frozen=True, slots=True)
class SharesSeen:
    models: Sequence[ModelNow]


@dataclass(frozen=True, slots=True)
class Give:
    """Remove one instance of the model `name`, so that `to` has room."""

    name: str
    to: str


class Shares:
    def __init__(self) -> None:
        self._gave: tuple[Give, float] | None = None
        """The last instance that was given, and when."""

    def handle(self, event: SharesSeen, now_s: float) -> list[Give]:
        short = next((each for each in event.models if each.is_short), None)
        if short is None or any(each.num_leaving for each in event.models):
            return []
        if self._gave is not None and now_s - self._gave[1] < PAUSE_S:
            return []
        spare = {
            each.name: steps
            for each in event.models
            if each is not short and (steps := each.spare_steps) is not None
        }
        if not spare:
            return []
        give = Give(max(spare, key=lambda name: spare[name]), short.name)
        self._gave = give, now_s
        return [give]

    def view(self) -> Give | None:
        """The last instance that was given."""
        return None if self._gave is None else self._gave[0]

    def check(self) -> None:
        """Raises AssertionError if an invariant is broken."""
        assert self._gave is None or self._gave[0].name != self._gave[0].to
