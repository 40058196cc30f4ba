"""What an operator chooses from before an order is given: priorities, destinations, modes of
auto-scaling."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from controller.api.client import ControlClient
from controller.api.operations.on_cluster import Autoscale
from controller.api.operations.on_requests import (
    Migrate,
    MigrateRequest,
    PriorityRequest,
    SetPriority,
)
from controller.api.text.status_words import no_requests, ranked
from controller.api.wire.status import AutoscaleStatus, ClusterStatus, InstanceState
from tui import drawing
from tui.actions.asking import AnyOrder, Together
from tui.actions.target import Target

MAX_ESTIMATES = 20
"""Marked requests of which the controller is asked what moving them would take."""
_MODES = {
    "off": "instances come and go by hand only",
    "dry-run": "it decides, and only says what it would do",
    "on": "instances come and go with the load",
}
MODES = tuple(_MODES)


@dataclass(frozen=True, slots=True)
class Estimate:
    """What an order would take, by the control API's dry run, or why it cannot be carried out."""

    text: str
    possible: bool = True


@dataclass(frozen=True, slots=True)
class Choice:
    """`estimate`: asked while the cursor is on the choice, and before it can be taken."""

    name: str
    text: str
    order: AnyOrder | Together
    estimate: Callable[[ControlClient], Estimate] | None = None


@dataclass(frozen=True, slots=True)
class Choices:
    question: str
    choices: tuple[Choice, ...]


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
    """The instances that serve and do not have all of the requests, the freest first."""
    sources = {each.instance_id for each in targets}
    found = [
        item
        for item in status.instances
        if sources != {item.id} and item.state is InstanceState.ACTIVE and not no_requests(item)
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
    )


CHOICES: Mapping[str, Callable[[Sequence[Target], ClusterStatus], Choices]] = {
    "priority": levels,
    "migrate": destinations,
}
"""By the kind of an order about requests that says what is chosen."""


def estimate(moves: Sequence[Migrate], client: ControlClient) -> Estimate:
    """What all of the moves would take; why not, for those that cannot be made."""
    plans = [(each, each.plan(client)) for each in moves[:MAX_ESTIMATES]]
    can = sum(plan.order is not None for _, plan in plans)
    if len(moves) == 1:
        return Estimate(plans[0][1].lines[0], possible=can > 0)
    texts = [f"{each.request_id} {plan.lines[0]}" for each, plan in plans]
    if len(moves) > len(plans):
        texts.append(f"and {len(moves) - len(plans)} more")
    return Estimate(f"{can} of {len(plans)} can: {'; '.join(texts)}", possible=can > 0)


def modes(status: AutoscaleStatus, revision: int) -> Choices:
    """The present mode is named. `revision`: the cluster's that is on the screen."""
    return Choices(
        "Auto-scaling?",
        tuple(
            Choice(mode, text + _beside(mode, status), Autoscale.to_mode(mode).at(revision))
            for mode, text in _MODES.items()
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
