"""Every state with every event: both machines are led through all that can happen to them.

From the beginning on, each event is tried in each situation found so far (a state, and all that the
machine remembers except the times), until no new situation is found. So the assertions hold in
every possible situation, up to two stages and two changes of priority.
"""

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import Any

import pytest

from controller.core.migration import destination as dst
from controller.core.migration import source as src
from controller.core.migration.destination import DestinationMove, DestinationState
from controller.core.migration.protocol import (
    FROM_SOURCE,
    CancelCopy,
    IllegalMoveError,
    MoveMessage,
    Rule,
    Say,
    StageCopied,
    StageLost,
    Trigger,
    Verb,
    trigger_of,
)
from controller.core.migration.source import SourceMove, SourceState

TIMES = ("_since_s", "_said_s", "_heard_s", "_timing", "_clock")
NOW_S = 1.0


@dataclass
class Walk:
    """What was seen: (state, event) by (next state, instructions), or None where it raised."""

    situations: list[Any] = field(default_factory=list)
    steps: dict[tuple[StrEnum, Trigger], list[tuple[StrEnum, list[Any]] | None]] = field(
        default_factory=dict
    )


def _remembers(machine: Any) -> Any:
    """Comparable, and the same for two machines that will do the same."""

    def frozen(value: Any) -> Any:
        return tuple(sorted(value.items())) if isinstance(value, dict) else value

    return tuple(
        (name, frozen(value)) for name, value in vars(machine).items() if name not in TIMES
    )


def _copy_of(machine: Any) -> Any:
    twin = copy(machine)
    for name, value in vars(machine).items():
        if isinstance(value, dict):
            setattr(twin, name, dict(value))
    return twin


def _walk(
    machine: Any, events: Callable[[Any], Iterator[object]], bound: Callable[[Any], bool]
) -> Walk:
    walk = Walk()
    known = {_remembers(machine)}
    ahead = [machine]
    while ahead:
        before = ahead.pop()
        walk.situations.append(before)
        for event in events(before):
            after = _copy_of(before)
            seen = walk.steps.setdefault((before.state, trigger_of(event)), [])
            try:
                instructions = after.handle(event, NOW_S)
            except IllegalMoveError:
                assert _remembers(after) == _remembers(before), "refused, but changed"
                seen.append(None)
                continue
            seen.append((after.state, instructions))
            after.check()
            if bound(after) and _remembers(after) not in known:
                known.add(_remembers(after))
                ahead.append(after)
    return walk


def _source_events(machine: SourceMove) -> Iterator[object]:
    yield from (src.StagePlanned(5, last=False), src.StagePlanned(7, last=True))
    yield src.StagePlanned(7, last=True, copy_time_s=1000.0)
    yield from (src.CannotMove("in_prefill"), src.RequestSuspended(), src.RequestOutgrew())
    yield from (StageCopied(machine.stage), StageLost(machine.stage, "transfer"))
    yield from (src.RequestEnded("finished"), src.RequestEvicted(), src.PriorityChanged(1))
    yield from (src.DestinationDied(), src.MoveCancelled("drain_cancelled"), src.TimedOut())
    yield src.TookTooLong()
    yield from (src.EpochFenced(), src.AlreadyMoved())
    for verb in sorted(frozenset(Verb) - FROM_SOURCE):
        yield MoveMessage(verb, machine.stage, hop=1)
    yield MoveMessage(Verb.PRE_ALLOCATED, machine.stage - 1)
    yield MoveMessage(Verb.PRIORITY_SET, machine.stage, change=1)


def _destination_events(machine: DestinationMove) -> Iterator[object]:
    yield from (dst.Reserved(1), dst.NotReserved("no_blocks"))
    yield from (StageCopied(machine.stage), StageLost(machine.stage, "transfer"))
    yield from (dst.CommitApplied(), dst.CommitNotApplied("not_applied"))
    yield from (dst.SourceDied(), dst.ClientLeft(), dst.OwnerAsked(), dst.LeaseExpired())
    yield dst.OwnerConfirmed()
    for verb in sorted(FROM_SOURCE):
        yield MoveMessage(verb, machine.stage, 5, hop=1, rank=1, change=1)
    yield MoveMessage(Verb.PRE_ALLOC, machine.stage + 1, 7)


@cache
def _source_walk() -> Walk:
    return _walk(
        SourceMove(hop=0, now_s=0.0),
        _source_events,
        lambda machine: machine.stage <= 2 and machine.num_rank_changes <= 2,
    )


@cache
def _destination_walk() -> Walk:
    machine = DestinationMove(0.0)
    machine.start(MoveMessage(Verb.PRE_ALLOC, 0, 5))
    return _walk(machine, _destination_events, lambda machine: machine.stage <= 2)


@dataclass(frozen=True)
class Machine:
    walk: Callable[[], Walk]
    table: Mapping[tuple[Any, Trigger], Rule[Any]]
    over: tuple[Any, ...]

    @property
    def states(self) -> set[Any]:
        return set(type(self.over[0]))


each_machine = pytest.mark.parametrize(
    "machine",
    [
        pytest.param(Machine(_source_walk, src.TABLE, src.OVER), id="source"),
        pytest.param(Machine(_destination_walk, dst.TABLE, dst.OVER), id="destination"),
    ],
)


def _each_step(walk: Walk) -> Iterator[tuple[StrEnum, Trigger, StrEnum, list[Any]]]:
    for (state, trigger), seen in walk.steps.items():
        for step in seen:
            if step is not None:
                yield state, trigger, *step


@each_machine
def test_each_pair_has_a_rule_or_raises_and_changes_nothing(machine: Machine) -> None:
    steps = machine.walk().steps
    all_triggers = {trigger for _, trigger in steps}
    assert {trigger for _, trigger in machine.table} <= all_triggers, "an event that was not tried"
    assert steps.keys() == {
        (state, trigger) for state in machine.states for trigger in all_triggers
    }
    for pair, seen in steps.items():
        assert (pair in machine.table) == all(step is not None for step in seen), pair
        assert (pair not in machine.table) == all(step is None for step in seen), pair


@each_machine
def test_each_target_of_each_rule_is_reached_and_no_other(machine: Machine) -> None:
    reached = {(state, trigger, to) for state, trigger, to, _ in _each_step(machine.walk())}
    assert reached == {
        (state, trigger, to) for (state, trigger), rule in machine.table.items() for to in rule.to
    }


@each_machine
def test_each_state_is_reached_and_leads_to_an_end(machine: Machine) -> None:
    assert {each.state for each in machine.walk().situations} == machine.states
    ending = set(machine.over)
    while (
        grown := {state for (state, _), rule in machine.table.items() if ending & set(rule.to)}
        - ending
    ):
        ending |= grown
    assert ending == machine.states


@each_machine
def test_what_is_over_stays_over_and_what_is_ignored_changes_nothing(machine: Machine) -> None:
    """But that a destination drops what another one turned out to own. When a move is over, only
    messages are left to send, except at the side that owns the request."""
    words = (Say, src.TellLost, dst.TellFrontend)
    ignored = {pair for pair, rule in machine.table.items() if rule.act.__name__ == "_ignore"}
    assert len(ignored) > 10
    for state, trigger, to, instructions in _each_step(machine.walk()):
        if state in machine.over and to is not state:
            assert (state, trigger) == (DestinationState.COMMITTED, Verb.ABORT)
        if (state, trigger) in ignored:
            assert (to, instructions) == (state, [])
        if state in machine.over and state is not DestinationState.COMMITTED:
            assert all(isinstance(each, words) for each in instructions), (state, trigger)


def test_who_may_decode_it_is_decided_by_the_last_rule_before_the_end() -> None:
    """A suspended request is resumed, released or ended once; other requests never are."""
    stopped = (SourceState.SUSPENDED, *src.IN_DOUBT)
    for state, _, to, instructions in _each_step(_source_walk()):
        kinds = [type(each) for each in instructions]
        assert kinds.count(src.Release) == (to is SourceState.MIGRATED and state in src.IN_DOUBT)
        if state in stopped:
            assert kinds.count(src.Resume) == (to is SourceState.RESUMED)
        assert kinds.count(src.Close) == (to in src.OVER and state not in src.OVER)
        assert kinds.count(src.Unpin) == (to in src.OVER and state not in src.OVER)


def test_only_the_frontend_or_a_refusal_gives_a_request_in_doubt_back() -> None:
    for state, trigger, to, _ in _each_step(_source_walk()):
        if state in src.IN_DOUBT and to is SourceState.RESUMED:
            assert trigger in (src.EpochFenced, Verb.REFUSED)


def test_the_destination_frees_what_it_holds_once_and_never_under_the_receivers_hands() -> None:
    for state, trigger, to, instructions in _each_step(_destination_walk()):
        kinds = [type(each) for each in instructions]
        freed = to is DestinationState.ABORTED and state not in dst.OVER
        if state is DestinationState.APPLYING and trigger is dst.CommitApplied:
            assert kinds.count(dst.Drop) == freed
        else:
            assert kinds.count(dst.Free) == freed
        receiving = state is DestinationState.RECEIVING
        if receiving and to is DestinationState.FREEING:
            assert kinds[0] is CancelCopy


def test_who_was_refused_or_told_that_it_did_not_move_is_never_told_otherwise() -> None:
    """Once REFUSED or `TellFrontend(False)` was said, no situation that follows commits."""
    final = {DestinationState.FREEING, DestinationState.ABORTED}
    for _, _, to, instructions in _each_step(_destination_walk()):
        refused = any(
            isinstance(each, Say) and each.message.verb is Verb.REFUSED for each in instructions
        )
        disowned = dst.TellFrontend(False, 0) in instructions or (
            dst.TellFrontend(False, 1) in instructions
        )
        if refused or disowned:
            assert to in final
    for (state, _), rule in dst.TABLE.items():
        assert state not in final or set(rule.to) <= final


def test_a_death_leaves_nothing_to_be_repeated() -> None:
    """Who is dead answers nothing: what waits for its answer would wait for ever. A destination
    waits for the frontend instead, whose client may be gone."""
    for machine in _destination_walk().situations:
        after = _copy_of(machine)
        after.handle(dst.SourceDied(), NOW_S)
        if after.state is DestinationState.COMMITTED:
            assert after.is_final or dst.TellFrontend(True, 1) in after.tick(NOW_S + 1)
            for said in (dst.OwnerConfirmed(), dst.ClientLeft()):
                answered = _copy_of(after)
                answered.handle(said, NOW_S)
                assert answered.is_final


def test_a_source_that_only_seems_dead_does_not_keep_the_frontend_from_being_asked() -> None:
    """It repeats COMMIT as often as the destination would repeat its question. The frontend may not
    have heard the first one."""
    commit = MoveMessage(Verb.COMMIT, 1, hop=1)
    committed = 0
    for machine in _destination_walk().situations:
        after = _copy_of(machine)
        after.handle(dst.SourceDied(), NOW_S)
        if after.state is DestinationState.COMMITTED and not after.is_final:
            committed += 1
            said = [*after.handle(commit, NOW_S + 1), *after.tick(NOW_S + 1)]
            assert said.count(dst.TellFrontend(True, 1)) == 1
    assert committed


def test_each_source_move_that_is_over_can_be_forgotten() -> None:
    """Once all is confirmed, or the destination is dead."""
    for machine in _source_walk().situations:
        if machine.over:
            after = _copy_of(machine)
            after.handle(src.DestinationDied(), NOW_S)
            assert after.forgettable(NOW_S + 1000)
