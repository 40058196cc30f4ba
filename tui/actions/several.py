"""Several orders that are agreed to at once: one for each marked row."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from controller.api.errors import LlumctlError
from tui.actions.order import Plan, Planned, Together
from tui.actions.own import Run

if TYPE_CHECKING:
    from controller.api.client import ControlClient


@dataclass(frozen=True, slots=True)
class Several:
    """Asks about all of `orders` in one dialog: first a line about each, then the details. One that
    is refused is named and left out, and the others can be had."""

    orders: Sequence[Planned]
    things: str
    """`instances`."""

    @property
    def word(self) -> str:
        return self.orders[0].word

    @property
    def question(self) -> str:
        if len(self.orders) == 1:
            return self.orders[0].question
        return f"{self.word} {len(self.orders)} {self.things}?"

    def plan(self, client: "ControlClient") -> Plan:
        summaries: list[str] = []
        details: dict[str, None] = {}
        plans: list[Plan] = []
        for each in self.orders:
            try:
                found = each.plan(client)
            except LlumctlError as error:
                summaries.append(f"not {each.title}: {error.message}")
                continue
            summaries.append(found.lines[0])
            details.update(dict.fromkeys(found.lines[1:]))
            plans.append(found)
        given = [found.order for found in plans if found.order is not None]
        orders = tuple(order for order in given if not isinstance(order, Together | Run))
        names = [found.name_to_type for found in plans if found.name_to_type]
        return Plan((*summaries, *details), Together(orders) if orders else None, *names[:1])
