"""What an operator is asked before orders are given.

The operator either agrees to a plan or makes a choice. A plan is for one order, for several orders
about all marked rows, or for the order that takes an operation back. A choice is a priority, a
destination, or a mode of auto-scaling.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from functools import partial
from typing import Any, Protocol

from controller.api.client import ControlClient
from controller.api.errors import LlumctlError
from controller.api.operations import table
from controller.api.operations.on_cluster import Autoscale
from controller.api.operations.on_requests import (
    Migrate,
    MigrateRequest,
    PriorityRequest,
    SetPriority,
)
from controller.api.operations.order import Order, Plan
from controller.api.text.quantities import time_of_day
from controller.api.text.status_words import no_requests, ranked
from controller.api.wire.status import AutoscaleStatus, ClusterStatus, InstanceState
from tui import drawing
from tui.actions import Target

AnyOrder = Order[Any, Any]

MAX_ESTIMATES = 20
"""For how many marked requests, at most, the controller is asked what moving them would take; and
for how many requests and destinations together it is asked in advance."""
_MODES = {
    "off": "instances come and go by hand only",
    "dry-run": "it decides, and only says what it would do",
    "on": "instances come and go with the load",
}
MODES = tuple(_MODES)


@dataclass(frozen=True, slots=True)
class Together:
    """Orders that the operator gave at once. Each of them is sent and logged by itself."""

    orders: tuple[AnyOrder, ...]


class Asked(Protocol):
    """Something that is done only after its plan was shown and the operator agreed."""

    @property
    def question(self) -> str:
        """`Drain i-7?`"""

    @property
    def word(self) -> str:
        """The word on the button that gives the order."""

    def plan(self, client: ControlClient) -> Plan[Any]: ...


@dataclass(frozen=True, slots=True)
class Several:
    """Asks about all of `orders` in one dialog, which has first a line about each, then the
    details. An order that is refused is named and left out; the others can still be given."""

    orders: Sequence[AnyOrder]
    things: str
    """What the orders are about, in the plural: `instances`."""

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
    """Takes back an operation of the audit log, whoever did it. `entry_id`: the id of the
    operation; empty for the last operation. The plan is made for a revision of the cluster. If the
    cluster has a different revision by then, nothing is undone."""

    entry_id: str = ""
    zone: tzinfo | None = None

    @property
    def question(self) -> str:
        return f"Take {self.entry_id} back?" if self.entry_id else "Take the last operation back?"

    @property
    def word(self) -> str:
        return "Undo"

    def plan(self, client: ControlClient) -> Plan[AnyOrder]:
        """What taking the operation back would do. Raises NotFoundError if there is no such
        operation, and RefusedError if it cannot be taken back; the error says why."""
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


@dataclass(frozen=True, slots=True)
class Estimate:
    """What an order would take, according to a dry run, or why the order cannot be carried out."""

    text: str
    possible: bool = True


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the choices. `estimate` is asked for when the cursor comes to the choice; the choice
    cannot be taken before the estimate has come."""

    name: str
    text: str
    order: AnyOrder | Together
    estimate: Callable[[ControlClient], Estimate] | None = None


@dataclass(frozen=True, slots=True)
class Choices:
    """`num_asked`: for how many choices, from the first one on, the estimates are asked for before
    the cursor comes there. Then the cursor begins at the first choice that is possible."""

    question: str
    choices: tuple[Choice, ...]
    num_asked: int = 1


def levels(targets: Sequence[Target], status: ClusterStatus) -> Choices:
    """The priority levels, the highest first."""
    return Choices(
        f"Which priority for {_those(targets)}?",
        tuple(
            Choice(
                level.name,
                f"rank {level.rank}",
                Together(
                    tuple(
                        SetPriority(each.request_id, PriorityRequest(level=level.name))
                        for each in targets
                    )
                ),
            )
            for level in ranked(status.levels)
        ),
    )


def destinations(targets: Sequence[Target], status: ClusterStatus) -> Choices:
    """The instances that serve, the freest first. An instance that already has all of the requests
    is left out."""
    sources = {each.instance_id for each in targets}
    models = {status.model_of(each) for each in sources}
    found = [
        item
        for item in status.instances
        if {item.model} == models
        and sources != {item.id}
        and item.state is InstanceState.ACTIVE
        and not no_requests(item)
    ]
    found.sort(key=lambda item: -(item.freeness_steps or 0.0))
    where = next(iter(sources)) if len(sources) == 1 else "where they are"
    return Choices(
        f"Move {_those(targets)} from {where or 'where it is'} to?",
        tuple(
            Choice(
                item.id,
                f"freeness {drawing.number(item.freeness_steps)},"
                f" {drawing.number(item.num_free_blocks)} blocks free",
                Together(moves := _moves(targets, item.id)),
                partial(estimate, moves),
            )
            for item in found
        ),
        max(1, MAX_ESTIMATES // len(targets)),
    )


CHOICES: Mapping[str, Callable[[Sequence[Target], ClusterStatus], Choices]] = {
    "priority": levels,
    "migrate": destinations,
}
"""What the operator chooses, for each kind of order about requests."""


def estimate(moves: Sequence[Migrate], client: ControlClient) -> Estimate:
    """What all of the moves would take, and why some of them cannot be made."""
    plans = [(each, each.plan(client)) for each in moves[:MAX_ESTIMATES]]
    can = sum(plan.order is not None for _, plan in plans)
    if len(moves) == 1:
        return Estimate(plans[0][1].lines[0], possible=can > 0)
    texts = [f"{each.request_id} {plan.lines[0]}" for each, plan in plans]
    if len(moves) > len(plans):
        texts.append(f"and {len(moves) - len(plans)} more")
    return Estimate(f"{can} of {len(plans)} can: {'; '.join(texts)}", possible=can > 0)


def modes(status: ClusterStatus, model: str) -> Choices:
    """The modes, with a note next to the present one. `model`: the model to scale; empty if the
    status is of one."""
    of_model = status.of_model(model)
    found = status.autoscale if of_model is None else of_model.autoscale
    orders = {mode: Autoscale.to_mode(mode).at(status.revision).on(model) for mode in _MODES}
    return Choices(
        f"Auto-scaling of {model}?" if model else "Auto-scaling?",
        tuple(
            Choice(mode, text + _beside(mode, found), orders[mode]) for mode, text in _MODES.items()
        ),
    )


def _beside(mode: str, status: AutoscaleStatus) -> str:
    if mode != status.mode:
        return ""
    return "; now" if status.held is None else "; now, and held by an operator's scale"


def _moves(targets: Sequence[Target], to: str) -> tuple[Migrate, ...]:
    wanted = MigrateRequest(to=to)
    return tuple(Migrate(each.request_id, wanted) for each in targets if each.instance_id != to)


def _those(targets: Sequence[Target]) -> str:
    """`r1`, or `2 requests (r1, r2)`."""
    ids = [each.request_id for each in targets]
    return ids[0] if len(ids) == 1 else f"{len(ids)} requests ({', '.join(ids)})"
