"""What the machines of source and destination share: a table of rules, and the events and
instructions that both sides have.

A rule says for a state and an event which states may follow and what is done. An event without a
rule raises and changes nothing, so the tables also name what a network brings late, to ignore it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, TypeVar

from controller.core.migration.protocol import IllegalMoveError, MoveMessage, Verb
from controller.core.value import value

State = TypeVar("State", bound=StrEnum)
Trigger = Verb | type
"""A message triggers a rule by its verb, any other event by its type."""


@dataclass(frozen=True, slots=True)
class Rule(Generic[State]):
    """`act(machine, event)` returns the instructions, and the next state where `to` has several."""

    to: tuple[State, ...]
    act: Callable[[Any, Any], Any]


Table = Mapping[tuple[State, Trigger], Rule[State]]


# -- Events and instructions of both sides ------------------------------------------------


@value
class StageCopied:
    stage: int


@value
class StageLost:
    """The stage's bytes will not come: the copy failed, or the receiver let go of the blocks as it
    was told to."""

    stage: int
    code: str


@value
class Say:
    """To the other side of the move."""

    message: MoveMessage


@value
class CancelCopy:
    """Of the stage under way."""


@value
class SetRank:
    """Change the request's rank, wherever the request is on this engine."""

    rank: int


def trigger_of(event: object) -> Trigger:
    return event.verb if isinstance(event, MoveMessage) else type(event)


def follow(table: Table[State], state: State, machine: object, event: object) -> Any:
    """(next state, instructions). Raises IllegalMoveError."""
    # As `trigger_of`, without its call: simulations come here a hundred thousand times.
    trigger = event.verb if type(event) is MoveMessage else type(event)
    try:
        rule = table[state, trigger]
    except KeyError:
        raise IllegalMoveError(f"{event} in state {state}") from None
    to = rule.to
    if len(to) == 1:
        return to[0], rule.act(machine, event)
    state, instructions = rule.act(machine, event)
    if state not in to:
        raise AssertionError(f"{event} led to {state}, which its rule does not name")
    return state, instructions
