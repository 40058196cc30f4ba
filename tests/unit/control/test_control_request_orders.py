"""Abort, priority and migrate on the control API: what is special in each; and `llumctl abort`."""

import asyncio
import json
from typing import Any

import pytest

from controller.api.operations.on_requests import (
    Abort,
    Migrate,
    MigrationReport,
    PriorityEffect,
    SetPriority,
)
from controller.api.wire.requests import RequestList
from controller.core.migration.move_records import MoveInFlight
from controller.core.record.request_record import RequestState
from controller.runtime.frontend.router import TOLD_TO_THE_CLIENT
from controller.runtime.messages.move_messages import MoveAsked
from controller.runtime.messages.requests import AbortAsked, RankChangeAsked
from tests.unit.control.control_bed import AnyOrder, Bed, bed_of, llumctl
from tests.unit.control.move_support import arrive, serve_running_request

Captured = pytest.CaptureFixture[str]
CANNOT = {
    Abort: "request r-1 cannot be aborted: ",
    SetPriority: "the priority of request r-1 cannot change: ",
}


def body_of(row: AnyOrder) -> dict[str, Any]:
    return {"level": "high"} if row is SetPriority else {}


def asked(bed: Bed) -> int:
    """How often the frontend was asked to carry out an order."""
    sent = bed.mailbox.sent_to
    return len(sent("mem://f-0", AbortAsked)) + len(sent("mem://f-0", RankChangeAsked))


# -- abort and priority -------------------------------------------------------------------


@pytest.mark.parametrize("row", CANNOT, ids=lambda row: row.kind)
@pytest.mark.parametrize(
    ("meanwhile", "happens", "why"),
    [
        (False, "ends", "it has finished"),
        (True, "ends", "it ended meanwhile"),
        (True, "is lost", "its frontend f-0 died"),
    ],
)
async def test_a_request_that_ends_or_is_lost_before_its_frontend_is_asked(
    bed: Bed, row: AnyOrder, meanwhile: bool, happens: str, why: str
) -> None:
    def happen() -> None:
        if happens == "ends":
            bed.book.ended("r-1", RequestState.FINISHED, "stop")
        else:
            bed.mailbox.lose("mem://f-0")

    if meanwhile:
        bed.while_recording(happen)
    else:
        happen()
    assert await bed.refusal(row, **body_of(row)) == (409, "ended", f"{CANNOT[row]}{why}")
    outcomes = [outcome for _, outcome in bed.outcomes()]
    assert outcomes == (["begun", "failed: ended"] if meanwhile else [])
    if happens == "is lost":
        assert asked(bed) == 0


@pytest.mark.parametrize("row", CANNOT, ids=lambda row: row.kind)
async def test_a_frontend_that_does_not_answer_or_dies(bed: Bed, row: AnyOrder) -> None:
    del bed.mailbox.answers["mem://f-0"]
    status, code, message = await bed.refusal(row, **body_of(row))
    assert (status, code) == (504, "no_answer")
    assert "it may still " in message
    assert bed.audited()[-1]["outcome"] == "unknown: no_answer"
    asking = asyncio.create_task(bed.refusal(row, **body_of(row)))
    async with asyncio.timeout(10):
        while asked(bed) < 2:
            await asyncio.sleep(0.001)
    bed.mailbox.lose("mem://f-0")
    assert await asking == (409, "ended", f"{CANNOT[row]}its frontend f-0 died")


@pytest.mark.parametrize("row", [Abort, SetPriority, Migrate], ids=lambda row: row.kind)
async def test_an_order_takes_whole_ids_only(bed: Bed, row: AnyOrder) -> None:
    """For looking, each of these references except the last names the only request."""
    for reference in ("cmpl-1", "r", "…1", "~1", "*"):
        path = f"/v1/requests/{reference}/id"
        found = (await bed.client.get(path)).json().get("request_id")
        assert found == (None if reference == "*" else "r-1")
        status, code, message = await bed.refusal(row, reference, **body_of(row))
        assert (status, code) == (404, "no_such_request")
        assert "by the whole id" in message
    assert (bed.audited(), asked(bed)) == ([], 0)


async def test_a_request_says_what_it_holds_and_when_it_last_went_on(bed: Bed) -> None:
    found = await bed.request()
    assert found.last_token_age_s is not None
    assert found.num_blocks == -(-(found.num_prompt_tokens + found.num_output_tokens) // 16)
    await bed.does(Abort)
    ended = await bed.request()
    assert (ended.last_token_age_s, ended.num_blocks) == (None, 0)


# -- abort --------------------------------------------------------------------------------


async def test_an_abort_says_how_the_request_was_and_tells_its_client(bed: Bed) -> None:
    found = await bed.does(Abort, reason="too long")
    assert (found.request_id, found.client_id, found.request_ids) == ("r-1", "cmpl-1", ("r-1",))
    assert (found.state, found.instance_id, found.num_output_tokens) == ("running", "i-0", 33)
    assert bed.told == [("r-1", TOLD_TO_THE_CLIENT)]
    assert (await bed.request()).state == "aborted"
    (event,) = await bed.events("aborted")
    assert event.cause_id == bed.audited()[-1]["cause_id"]
    assert event.reason == "an operator ended it: too long"
    assert (event.request_id, event.instance_id) == ("r-1", "i-0")


async def test_choices_of_one_request_end_together() -> None:
    async with bed_of(num_choices=3) as bed:
        path = "/v1/requests/cmpl-1/id"
        assert (await bed.client.get(f"{path}?any_choice=true")).json()["request_id"] == "r-1"
        ambiguous = (await bed.client.get(path)).json()
        assert ambiguous["code"] == "ambiguous"
        assert ambiguous["message"] == "'cmpl-1' names 3 sequences: r-1, r-2, r-3"
        assert (await bed.does(Abort)).request_ids == ("r-1", "r-2", "r-3")
        assert len(bed.told) == 1
        assert await bed.refused(Abort, "r-3") == (409, "ended")


async def test_the_command_aborts(bed: Bed, capsys: Captured) -> None:
    assert await llumctl("abort", "r-1", "--dry-run", "-o", "json") == 10
    found = json.loads(capsys.readouterr().out)
    assert (found["request_ids"], found["state"], found["dry_run"]) == (["r-1"], "running", True)
    assert await llumctl("abort", "nothing") == 4
    before = asked(bed)
    arrive(bed.book, "r-9", "cmpl-1")
    answer = await bed.client.get("/v1/requests/cmpl-1/id?any_choice=true")
    assert answer.json()["code"] == "ambiguous", "they are no choices of one request"
    assert await llumctl("abort", "cmpl-1") == 6
    assert "r-1, r-9" in capsys.readouterr().err
    assert asked(bed) == before
    assert await llumctl("abort", "r-9", "-o", "name") == 0
    assert capsys.readouterr().out == "r-9\n"
    assert await llumctl("abort", "cmpl-1", "-m", "too long") == 0
    assert [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()] == [
        ["request", "r-1"],
        ["client-id", "cmpl-1"],
        ["instance", "i-0"],
        ["state", "running -> aborted"],
        ["tokens", "33 written so far"],
    ]
    assert await llumctl("abort", "r-1") == 5
    assert "request r-1 cannot be aborted: it was aborted" in capsys.readouterr().err
    arrive(bed.book, "r-10")
    del bed.mailbox.answers["mem://f-0"]
    assert await llumctl("abort", "r-10") == 124
    assert "it may still end it" in capsys.readouterr().err


# -- priority -----------------------------------------------------------------------------


async def test_a_priority_changes_and_its_event_has_the_order_s_cause(bed: Bed) -> None:
    for level in ("urgent", "High"):
        assert await bed.refused(SetPriority, level=level) == (400, "no_such_level")
    assert asked(bed) == 0
    found = await bed.does(SetPriority, level="high", reason="the board meets")
    assert (found.request_id, found.client_id) == ("r-1", "cmpl-1")
    assert (found.previous, found.level, found.instance_id) == ("normal", "high", "i-0")
    assert (await bed.request()).level == "high"
    (event,) = await bed.events("priority_changed")
    assert event.cause_id == bed.audited()[-1]["cause_id"]
    assert event.actor == bed.audited()[-1]["actor"]
    assert event.reason == "from normal to high: the board meets"
    assert (event.request_id, event.level, event.instance_id) == ("r-1", "high", "i-0")


async def test_a_dry_run_says_what_a_priority_does_to_the_instance(bed: Bed) -> None:
    """A request at level high limits the instance to 1,600 tokens: 60 of 160 blocks of 16 stay
    free, and count as used. Back at normal they no longer count."""

    async def effect(level: str, **load: Any) -> PriorityEffect | None:
        bed.cluster.report("i-0", num_total_blocks=160, num_free_blocks=120, **load)
        return (await bed.does(SetPriority, level=level, dry_run=True)).effect

    assert await effect("high", num_running=2, num_running_by_rank={0: 2}) == PriorityEffect(
        headroom_blocks_before=0,
        headroom_blocks_after=60,
        freeness_steps_before=120 * 16 / 2,
        freeness_steps_after=60 * 16 / 2,
    )
    assert (await bed.does(SetPriority, level="high")).effect is None
    both = {"num_running": 2, "num_running_by_rank": {0: 1, 1: 1}}
    back = await effect("normal", **both)
    assert (back.headroom_blocks_before, back.headroom_blocks_after) == (60, 0)
    assert (await effect("normal", **both, draining=True)).freeness_steps_after is None
    bed.evict()
    assert await effect("normal", **both) is None, "it does not run"


def told(found: MigrationReport) -> tuple[str, str, str | None]:
    return found.outcome, found.code, found.to_instance_id


# -- moves that are made ------------------------------------------------------------------


async def test_a_move_is_reported_with_its_figures_and_recorded(bed: Bed) -> None:
    found = await bed.does(Migrate, to="i-2", verify_kv=True, reason="make room")
    (asked,) = bed.source.moved
    assert (asked.order.destination.instance_id, asked.order.verify_kv) == ("i-2", True)
    assert asked.order.reason == "make room"
    assert (found.request_id, found.client_id, found.dry_run) == ("r-1", "cmpl-1", False)
    assert (found.from_instance_id, found.to_instance_id) == ("i-0", "i-2")
    assert (found.outcome, found.code, found.why, found.note) == ("migrated", "", "", "")
    assert (found.num_blocks, found.num_bytes, found.copy_time_s) == (10, 4096, 0.012)
    assert (found.downtime_s, found.excess_s) == (0.0244, 0.0044)
    (attempt,) = found.attempts
    assert (attempt.migration_id, attempt.num_tokens) == (asked.order.migration_id, 153)
    assert (attempt.num_cached_blocks, attempt.duration_s) == (2, 0.05)
    assert [stage.num_blocks for stage in attempt.stages] == [9, 1]
    begun, migrated, over = (await bed.events())[-3:]
    assert (begun.kind, over.kind) == ("operator", "operator")
    assert (migrated.kind, migrated.cause_id) == ("migrated", attempt.migration_id)
    assert migrated.labels == {"from": "i-0", "to": "i-2", "reason": "make room"}
    assert migrated.numbers["stage_1_blocks"] == 1
    request = await bed.request()
    assert (request.num_moves, request.instance_id, request.state) == (1, "i-2", "running")
    assert [event.kind for event in request.history] == ["dispatched", "admitted", "migrated"]


async def test_if_a_destination_fails_another_is_tried(bed: Bed) -> None:
    bed.cluster.report("i-1", num_free_blocks=60, num_running=2)
    bed.source.ends = [("kept", "transfer"), ("kept", "no_blocks")]
    found = await bed.does(Migrate)
    assert [each.to_instance_id for each in found.attempts] == ["i-2", "i-1"]
    assert told(found) == ("kept", "no_blocks", "i-1")
    assert found.why == "the destination has not enough free blocks"
    assert found.attempts[0].why == "the copy did not get through"
    assert bed.outcomes()[-1][1] == f"kept: {found.why}"
    assert (await bed.done())[0].why_not == "no order takes it back"
    named = await bed.does(Migrate, to="i-2", dry_run=True)
    assert named.note == "i-2 failed lately and cools for another 30s"


async def test_a_source_that_dies_is_not_waited_for(bed: Bed) -> None:
    """However patient the controller is. The bed's own patience is restored after this one."""
    bed.source.silent = True
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("controller.runtime.controller.queries.PATIENCE_S", 4.0)
        moving = asyncio.create_task(bed.does(Migrate, to="i-1"))
        looking = asyncio.create_task(bed.refused(Migrate, to="i-2", dry_run=True))
        async with asyncio.timeout(10):
            while len(bed.mailbox.sent_to("mem://i-0", MoveAsked)) < 2:
                await asyncio.sleep(0.005)
        bed.mailbox.lose("mem://i-0")
        found = await moving
        assert (found.outcome, found.why) == ("unknown", "the source died")
        assert await looking == (409, "not_serving")


# -- moves that are planned ---------------------------------------------------------------


async def test_a_dry_run_says_what_a_move_would_take(bed: Bed) -> None:
    found = await bed.does(Migrate, dry_run=True)
    assert (told(found), found.dry_run) == (("would_move", "", "i-1"), True)
    plan = found.plan
    assert (plan.num_tokens, plan.num_blocks, plan.num_bytes) == (153, 10, 4096)
    assert plan.copy_time_s == 0.0125
    assert plan.downtime_s == 0.007251, "a step of the destination"
    assert (bed.source.moved, found.attempts) == ([], ())
    bed.cluster.report("i-1", num_free_blocks=9)
    found = await bed.does(Migrate, to="i-1", dry_run=True)
    assert told(found) == ("refused", "no_blocks", "i-1")
    assert found.plan is not None
    await bed.does(Migrate, to="i-2")
    plan = (await bed.does(Migrate, dry_run=True)).plan
    assert plan.downtime_s == 0.011651, "and what the last moves took beyond one"
    status = bed.controller.statuses["i-1"]
    bed.controller.statuses["i-1"] = type(status)(status.snapshot, 0, 0, 0.0)
    plan = (await bed.does(Migrate, to="i-1", dry_run=True)).plan
    assert plan.downtime_s is None, "it has made no step"


# -- moves that are refused ---------------------------------------------------------------


async def test_what_the_source_refuses_is_told(bed: Bed) -> None:
    bed.source.refusal = "in_prefill"
    for dry_run in (True, False):
        found = await bed.does(Migrate, to="i-1", dry_run=dry_run)
        assert told(found) == ("refused", "in_prefill", "i-1")
        assert (found.why, found.hint) == ("its prompt is still being computed", "")
        assert found.plan is None
        assert all(each.stages == () for each in found.attempts)
    bed.source.silent = True
    status, code, message = await bed.refusal(Migrate, dry_run=True)
    assert (status, code) == (504, "no_answer")
    assert "i-0, which runs the request, did not answer" in message


async def test_too_many_moves_name_the_setting_its_value_and_the_cure(bed: Bed) -> None:
    bed.source.refusal = "too_many_moves"
    found = await bed.does(Migrate, to="i-1", timeout_s=0.1)
    assert told(found) == ("refused", "too_many_moves", "i-1")
    assert found.note == "migration.max_moves is 4"
    assert found.hint == "llumctl set migration.max_moves=8"
    bed.controller.model = "big"  # one of several
    found = await bed.does(Migrate, to="i-1", timeout_s=0.1)
    assert found.hint == "llumctl set migration.max_moves=8 --model big"


async def test_a_move_that_waits_for_its_turn_is_shown(bed: Bed) -> None:
    bed.source.silent = True
    bed.controller.operator_moves.machine.max_moves = 1
    first = asyncio.create_task(bed.refusal(Migrate, to="i-1", timeout_s=1))
    async with asyncio.timeout(10):
        while not bed.mailbox.sent_to("mem://i-0", MoveAsked):
            await asyncio.sleep(0.005)
        second = asyncio.create_task(bed.does(Migrate, to="i-2", timeout_s=0.5))
        while not (queued := (await bed.status()).queued_moves):
            await asyncio.sleep(0.005)
    assert [(each.state, each.request_id) for each in queued] == [("queued", "r-1")]
    assert (queued[0].from_instance_id, queued[0].to_instance_id) == ("i-0", "i-2")
    bed.cluster.now_s += 1.5
    found = await second
    assert told(found) == ("refused", "no_turn", "i-2")
    assert found.note == "waited 1.5s for its turn: migration.max_moves is 4"
    status, code, message = await first
    assert (status, code) == (504, "timed_out")
    assert message.endswith("of r-1 to i-1 is not over after 1 s; it goes on")
    assert "unknown: timed_out" in [outcome for _, outcome in bed.outcomes()]


async def test_no_destination_says_why_of_each_instance(bed: Bed) -> None:
    bed.cluster.report("i-1", num_free_blocks=3)
    bed.cluster.report("i-2", draining=True)
    for dry_run in (False, True):
        found = await bed.does(Migrate, dry_run=dry_run)
        assert told(found) == ("refused", "no_destination", None)
        assert found.note == (
            "i-1: the destination has not enough free blocks; i-2: it is draining"
        )


async def test_requests_that_cannot_be_moved(bed: Bed) -> None:
    same = await bed.gives(Migrate, to="i-0")
    assert (same.status_code, same.json()["code"]) == (400, "same_instance")
    assert same.json()["hint"] in ("llumctl migrate r-1 --to i-1", "llumctl migrate r-1 --to i-2")
    for to in ("i-9", "f-0"):
        assert await bed.refused(Migrate, to=to) == (404, "no_such_instance")
    arrive(bed.book, "r-new")
    assert await bed.refused(Migrate, "r-new") == (409, "not_dispatched")
    bed.book.ended("r-1", RequestState.FINISHED, "stop")
    assert await bed.refusal(Migrate) == (409, "ended", "request r-1 has finished")
    assert bed.source.moved == []


async def test_instances_that_may_not_take_or_send_a_request(bed: Bed) -> None:
    bed.cluster.report("i-1", draining=True)
    message = "instance i-1 cannot move it: it is draining"
    assert await bed.refusal(Migrate, to="i-1") == (409, "unschedulable", message)
    bed.mailbox.lose("mem://i-2")
    bed.cluster.report("i-0", draining=True)
    assert (await bed.does(Migrate, dry_run=True)).code == "no_destination", "it may be left"
    bed.cluster.now_s += 11
    bed.cluster.report("i-1")
    bed.controller.fleet.look_for_stalls()
    message = "instance i-0, which the request is on, cannot move it: it is stalled"
    assert await bed.refusal(Migrate, to="i-1") == (409, "not_serving", message)


@pytest.mark.parametrize(
    ("removed", "refusal"), [("i-1", (404, "no_such_instance")), ("i-0", (409, "not_serving"))]
)
async def test_an_instance_that_is_removed_while_the_order_is_recorded(
    bed: Bed, removed: str, refusal: tuple[int, str]
) -> None:
    bed.while_recording(lambda: bed.controller.terminate(removed))
    assert await bed.refused(Migrate, to="i-1") == refusal
    assert bed.source.moved == []
    assert bed.outcomes()[-1][1] == f"failed: {refusal[1]}"


# -- moves that are shown -----------------------------------------------------------------


async def test_requests_say_whether_they_could_move(bed: Bed) -> None:
    async def movable(query: str = "?movable=true") -> dict[str, Any]:
        found = (await bed.get(f"requests{query}", RequestList)).requests
        return {each.id: (each.movable, each.why_not_movable) for each in found}

    serve_running_request(bed.listener, num_choices=2)
    bed.source.refusals = {"r-2": "in_prefill"}
    unknown = dict.fromkeys(("r-1", "r-2"), (None, None))
    assert await movable() == {"r-1": (True, None), "r-2": (False, "in_prefill")}
    assert await movable("") == unknown, "nobody asked"
    bed.source.silent = True
    assert await movable() == unknown, "nobody answered"


async def test_the_status_shows_moves_under_way_and_those_that_ended(bed: Bed) -> None:
    await bed.does(Migrate, to="i-1")
    bed.source.ends = [("kept", "evicted")]
    await bed.does(Migrate, to="i-2")
    moving = MoveInFlight("m-9", "r-7", "i-2", "copying", 1, 3, 8, "by hand", 0.25)
    bed.cluster.report("i-0", moves=(moving,))
    bed.cluster.report("i-2", num_moves_in=1)
    found = await bed.status()
    (move,) = found.moves
    assert (move.migration_id, move.request_id, move.state) == ("m-9", "r-7", "copying")
    assert (move.from_instance_id, move.to_instance_id) == ("i-0", "i-2")
    assert (move.stage, move.num_blocks_copied, move.num_blocks, move.age_s) == (1, 3, 8, 0.25)
    counts = [(item.num_moves_in, item.num_moves_out) for item in found.instances]
    assert counts == [(0, 1), (0, 0), (1, 0)]
    kept, migrated = found.ended_moves
    assert (kept.outcome, kept.why) == ("kept", "it lost its blocks to memory pressure")
    assert (migrated.outcome, migrated.downtime_s, migrated.num_bytes) == ("migrated", 0.0244, 4096)
    assert (found.num_migrated_last_minute, found.num_failed_moves_last_minute) == (1, 1)
    bed.mailbox.lose("mem://i-0")
    assert (await bed.status()).moves == ()
