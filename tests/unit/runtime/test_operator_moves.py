"""Moves as the controller orders them: sources and frontends played by the test."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from controller.core.emptying.by_hand import MAX_TIMED_PATIENCE_S, Attempt, MoveByHand
from controller.core.load.closed import Closed
from controller.core.load.snapshot import InstanceRef
from controller.core.migration.move_records import (
    DESTINATION_DIED,
    MovePlan,
    MoveRecord,
    StageRecord,
)
from controller.core.record.event_log import EventKind, LoggedEvent
from controller.core.scheduler_events import ClosedBy, InstanceRemoved
from controller.runtime.controller import queries as calls
from controller.runtime.controller.operations.operator_moves import OperatorMoves
from controller.runtime.controller.queries import REFUSALS_PATIENCE_S
from controller.runtime.messages.members import EventsReported
from controller.runtime.messages.move_messages import (
    MoveAnswered,
    MoveAsked,
    MoveRefusalAsked,
    MoveRefusalsAnswered,
)
from tests.unit.runtime.controller_bed import Bed
from tests.unit.runtime.fakes import FakeNetwork, settle, virtual_time

ORDER = MoveByHand("r", "i-0", 4, "by hand")
PATIENCE_S = 60.0


pytestmark = virtual_time


@pytest.fixture
async def bed(network: FakeNetwork) -> Bed:
    return await Bed.serving(network, num_instances=3)


def ordered(
    bed: Bed, to: str | None = None, order: MoveByHand = ORDER, patience_s: float = PATIENCE_S
) -> "asyncio.Task[Sequence[Attempt]]":
    operator_moves: OperatorMoves = bed.controller.operator_moves
    return asyncio.create_task(
        operator_moves.move(order, to, operator_moves.machine.next_migration_id(), patience_s)
    )


def record_of(asked: MoveAsked, outcome: str = "migrated", code: str = "") -> MoveRecord:
    stages = (StageRecord(4, 4096, 0.01),)
    destination = asked.order.destination.instance_id
    ids = (asked.order.migration_id, asked.order.request_id, "i-0", destination)
    return MoveRecord(*ids, asked.order.reason, outcome, code, 60, 0, 0.05, stages)


async def asked_of(bed: Bed, instance_id: str = "i-0") -> MoveAsked:
    return await bed.peers[instance_id].receive(MoveAsked)


def answers(bed: Bed, asked: MoveAsked, outcome: str = "migrated", code: str = "") -> None:
    record = record_of(asked, outcome, code)
    bed.says("i-0", MoveAnswered(asked.query_id, code, record=record))


def tells_downtime(bed: Bed, migration_id: str) -> None:
    numbers = {"downtime_s": 0.024, "step_time_s": 0.02, "excess_s": 0.004}
    event = LoggedEvent(EventKind.MIGRATED, 1.0, migration_id, request_id="r", numbers=numbers)
    bed.says("f-0", EventsReported("f-0", 1, 0, (event,)))


async def test_a_move_to_an_instance_that_was_named(bed: Bed) -> None:
    moving = ordered(bed, "i-2", replace(ORDER, verify_kv=True))
    asked = await asked_of(bed)
    assert asked.order.destination == InstanceRef("i-2", 1, "mem://i-2")
    assert (asked.order.request_id, asked.order.reason) == ("r", "by hand")
    assert (asked.order.verify_kv, asked.dry_run) == (True, False)
    answers(bed, asked)
    await settle()
    tells_downtime(bed, asked.order.migration_id)
    (attempt,) = await moving
    assert (attempt.outcome, attempt.code, attempt.destination_id) == ("migrated", "", "i-2")
    assert (attempt.downtime_s, attempt.step_time_s, attempt.excess_s) == (0.024, 0.02, 0.004)
    assert attempt.record == record_of(asked)
    log = bed.controller.operator_moves.log
    assert [move.downtime_s for move in log.recent] == [0.024]
    assert log.typical_excess_s() == 0.004


@pytest.mark.parametrize(
    ("told_after_s", "waits_s"), [(-1.0, 0.0), (3.08, 3.08), (None, MAX_TIMED_PATIENCE_S)]
)
async def test_the_downtime_is_told_before_the_source_answers_or_later_or_never(
    bed: Bed, told_after_s: float | None, waits_s: float
) -> None:
    moving, asked = ordered(bed), await asked_of(bed)
    if told_after_s == -1.0:
        tells_downtime(bed, asked.order.migration_id)
        await settle()
    answers(bed, asked)
    began_s = asyncio.get_running_loop().time()
    if told_after_s is not None and told_after_s > 0:
        await asyncio.sleep(told_after_s)
        tells_downtime(bed, asked.order.migration_id)
    (attempt,) = await moving
    told = None if told_after_s is None else 0.024
    assert (attempt.outcome, attempt.downtime_s) == ("migrated", told)
    assert bed.controller.operator_moves.log.recent[0].downtime_s == told
    waited_s = asyncio.get_running_loop().time() - began_s
    assert waited_s == pytest.approx(waits_s, abs=0.2)


@pytest.mark.parametrize("code", ["no_answer", "no_blocks", DESTINATION_DIED])
async def test_another_is_tried_where_the_destination_failed(bed: Bed, code: str) -> None:
    await bed.reports("i-2", free=40, num_running=1)
    moving = ordered(bed)
    first = await asked_of(bed)
    answers(bed, first, "kept", code)
    second = await asked_of(bed)
    destinations = [each.order.destination.instance_id for each in (first, second)]
    assert destinations == ["i-1", "i-2"], "the freest first"
    assert first.order.migration_id != second.order.migration_id
    answers(bed, second)
    attempts = await moving
    assert [(each.outcome, each.code) for each in attempts] == [("kept", code), ("migrated", "")]
    cooling, now_s = bed.controller.operator_moves.cooling, bed.controller.now_s()
    cools = cooling.remaining_s("i-1", now_s, ORDER.source_id) > 0
    assert cools == (code != "no_blocks"), "a full one is not at fault"
    for_all = cooling.remaining_s("i-1", now_s) > 0
    assert for_all == (code == DESTINATION_DIED), "its source may be at fault"


@pytest.mark.parametrize("code", ["too_many_moves", "in_prefill"])
async def test_a_move_that_the_source_refuses_is_asked_for_again_if_it_may_begin_soon(
    bed: Bed, code: str
) -> None:
    moving = ordered(bed)
    first = await asked_of(bed)
    bed.says("i-0", MoveAnswered(first.query_id, code))
    if code == "in_prefill":
        (attempt,) = await moving
        assert (attempt.outcome, attempt.code, attempt.record) == ("refused", code, None)
        assert not bed.controller.operator_moves.log.recent
        return
    second = await asked_of(bed)
    assert second.order.migration_id != first.order.migration_id
    assert second.order.destination == first.order.destination
    answers(bed, second, "kept", "evicted")
    assert [each.outcome for each in await moving] == ["kept"], "the request is the reason"


async def test_moves_at_the_same_time_wait_for_their_turn(bed: Bed) -> None:
    """Six were refused, though two would have been over in a moment."""
    operator_moves = bed.controller.operator_moves
    limit = bed.controller.live.rescheduling.max_moves
    wanted = [replace(ORDER, request_id=f"r{number}") for number in range(limit + 3)]
    moving = [ordered(bed, "i-1", order) for order in wanted]
    asked = [await asked_of(bed) for _ in range(limit)]
    await settle()
    assert bed.peers["i-0"].received(MoveAsked) == []
    operator_moves.machine.max_moves += 1
    operator_moves.look()
    asked.append(await asked_of(bed))
    for each in asked:
        answers(bed, each)
    rest = [await asked_of(bed), await asked_of(bed)]
    assert [each.order.request_id for each in rest] == ["r5", "r6"]
    for each in rest:
        answers(bed, each)
    outcomes = [attempts[-1].outcome for attempts in await asyncio.gather(*moving)]
    assert outcomes == ["migrated"] * len(wanted)
    assert operator_moves.machine.waiting == ()


async def test_a_move_whose_turn_does_not_come_says_so(bed: Bed) -> None:
    bed.controller.operator_moves.machine.max_moves = 1
    first = ordered(bed, "i-1")
    asked = await asked_of(bed)
    late = ordered(bed, "i-1", replace(ORDER, request_id="r2"), patience_s=3.0)
    of_the_dead = ordered(bed, "i-2", replace(ORDER, request_id="r3"))
    (attempt,) = await late
    assert (attempt.outcome, attempt.code) == ("refused", "no_turn")
    assert attempt.queued_s == pytest.approx(3.0, abs=0.2)
    bed.network.lose("mem://i-2")
    answers(bed, asked)
    assert [each.code for each in await of_the_dead] == [DESTINATION_DIED]
    await first


@pytest.mark.parametrize("gone", ["i-1", "i-0", ""])
async def test_what_is_removed_or_closed_just_before_the_source_is_asked(
    bed: Bed, gone: str
) -> None:
    """Its turn has come, and the question goes out a moment later."""
    bed.controller.operator_moves.machine.max_moves = 1
    moving = ordered(bed, "i-1")
    await asyncio.sleep(0)
    event = InstanceRemoved(gone) if gone else ClosedBy("i-1", frozenset({Closed.CORDONED}))
    bed.controller.handle(event)
    (attempt,) = await moving
    code = {"i-0": "source_died", "i-1": DESTINATION_DIED, "": "closed"}[gone]
    assert (attempt.outcome, attempt.code) == ("refused", code)


async def test_a_question_that_cannot_be_asked_ends_its_order(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator_moves = bed.controller.operator_moves
    operator_moves.machine.max_moves = 1
    with monkeypatch.context() as patched:
        patched.setattr(operator_moves, "ask_source", None)
        (attempt,) = await ordered(bed, "i-1")
    assert (attempt.outcome, attempt.code) == ("refused", "not_asked")
    again = ordered(bed, "i-1")
    answers(bed, await asked_of(bed))
    assert [each.outcome for each in await again] == ["migrated"], "its place is free again"


@pytest.mark.parametrize("has_moved", [True, False])
async def test_a_source_that_dies_is_not_waited_for(bed: Bed, has_moved: bool) -> None:
    moving = ordered(bed)
    asked = await asked_of(bed)
    bed.network.lose("mem://i-0")
    if has_moved:
        await settle()
        tells_downtime(bed, asked.order.migration_id)
    (attempt,) = await moving
    found = (attempt.outcome, attempt.code, attempt.downtime_s)
    assert found == (("migrated", "", 0.024) if has_moved else ("unknown", "source_died", None))


async def test_a_move_that_takes_too_long_goes_on_and_is_counted(bed: Bed) -> None:
    moving = ordered(bed, patience_s=3.0)
    asked = await asked_of(bed)
    (attempt,) = await moving
    assert (attempt.outcome, attempt.code) == ("unknown", "timed_out")
    answers(bed, asked)
    await settle()
    log = bed.controller.operator_moves.log
    assert [move.record.migration_id for move in log.recent] == [asked.order.migration_id]
    assert log.last_minute(bed.controller.now_s()) == (1, 0)


async def test_a_plan(bed: Bed) -> None:
    operator_moves = bed.controller.operator_moves
    planning = asyncio.create_task(operator_moves.ask_source(ORDER, "i-1", dry_run=True))
    asked = await asked_of(bed)
    assert asked.dry_run
    found = MovePlan(60, 4, 4096, 0.01)
    bed.says("i-0", MoveAnswered(asked.query_id, "", found))
    assert (await planning).plan == found
    began_s = asyncio.get_running_loop().time()
    with pytest.raises(TimeoutError):
        await operator_moves.ask_source(ORDER, "i-1", dry_run=True)
    waited_s = asyncio.get_running_loop().time() - began_s
    assert waited_s == pytest.approx(calls.PATIENCE_S, abs=0.2)


async def refused(bed: Bed, instance_id: str, *refusals: tuple[str, str]) -> Any:
    asked = await bed.peers[instance_id].receive(MoveRefusalAsked)
    bed.says(instance_id, MoveRefusalsAnswered(asked.query_id, refusals))
    return asked.request_ids


async def test_all_instances_are_asked_at_once_who_cannot_move(bed: Bed) -> None:
    wanted = {"i-0": ["a", "b"], "i-1": ["c"], "i-2": ["d"]}
    asking = asyncio.create_task(bed.controller.queries.refusals(wanted))
    assert await refused(bed, "i-0", ("b", "in_prefill")) == ("a", "b")
    assert await refused(bed, "i-1") == ("c",)
    began_s = asyncio.get_running_loop().time()
    assert await asking == {"i-0": {"b": "in_prefill"}, "i-1": {}}, "i-2 says nothing"
    waited_s = asyncio.get_running_loop().time() - began_s
    assert waited_s == pytest.approx(REFUSALS_PATIENCE_S, abs=0.2)
    assert await bed.controller.queries.refusals({}) == {}
