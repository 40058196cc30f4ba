"""What an operator is asked before orders are given: one, several for all marked rows, or the one
that takes an operation back."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import tzinfo
from typing import Any, Protocol

from controller.api.client import ControlClient
from controller.api.errors import LlumctlError
from controller.api.operations import table
from controller.api.operations.order import Order, Plan
from controller.api.text.quantities import time_of_day

AnyOrder = Order[Any, Any]


@dataclass(frozen=True, slots=True)
class Together:
    """Orders that the operator gave at once: each is sent, and logged, as one of its own."""

    orders: tuple[AnyOrder, ...]


class Asked(Protocol):
    """What is agreed to only after its plan was shown."""

    @property
    def question(self) -> str:
        """`Drain i-7?`"""

    @property
    def word(self) -> str:
        """What the button that gives the order says."""

    def plan(self, client: ControlClient) -> Plan[Any]: ...


@dataclass(frozen=True, slots=True)
class Several:
    """Asks about all of `orders` in one dialog: first a line about each, then the details. One that
    is refused is named and left out, and the others can be had."""

    orders: Sequence[AnyOrder]
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

    def plan(self, client: ControlClient) -> Plan[Together]:
        summaries: list[str] = []
        details: dict[str, None] = {}
        plans: list[Plan[AnyOrder]] = []
        for each in self.orders:
            try:
                found = each.plan(client)
            except LlumctlError as error:
                summaries.append(f"not {each.title}: {error.message}")
                continue
            summaries.append(found.lines[0])
            details.update(dict.fromkeys(found.lines[1:]))
            plans.append(found)
        orders = tuple(found.order for found in plans if found.order is not None)
        names = [found.name_to_type for found in plans if found.name_to_type]
        return Plan((*summaries, *details), Together(orders) if orders else None, *names[:1])


@dataclass(frozen=True, slots=True)
class TakeBack:
    """Takes back an operation that the audit log has, whoever did it. `entry_id`: the operation's;
    empty: the last one that was done. What is found to be undoable at a revision is undone at that
    one, or nothing is."""

    entry_id: str = ""
    zone: tzinfo | None = None

    @property
    def question(self) -> str:
        return f"Take {self.entry_id} back?" if self.entry_id else "Take the last operation back?"

    @property
    def word(self) -> str:
        return "Undo"

    def plan(self, client: ControlClient) -> Plan[AnyOrder]:
        """Raises RefusedError that says why the operation cannot be taken back."""
        done = client.operations(table.MAX_LISTED)
        entry = table.chosen(done, self.entry_id)
        assert entry.undo is not None
        found = table.taking_back(entry.undo).plan(client)
        because = f" ({entry.reason})" if entry.reason else ""
        lines = [f"{time_of_day(entry.time_s, self.zone)} {entry.actor}{because}:"]
        lines += [f"  {action}" for action in entry.actions]
        lines += [f"It is taken back by: {table.words(entry.undo)}", *found.lines]
        order = found.order and table.because(found.order.at(done.revision), entry)
        return Plan(tuple(lines), order, found.name_to_type)
