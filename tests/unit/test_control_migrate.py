"""Moves on the control API: what is refused, planned, done, recorded and shown."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from controller.api.operations.on_requests import MigrationReport
from controller.api.wire.requests import EventPage, RequestDetail, RequestList
from controller.core.migration.move_records import MoveInFlight
from controller.core.record.request_record import RequestState
from controller.core.scheduler_events import DispatchRequested
from controller.runtime.messages.move_messages import MoveAsked
from tests.unit.control_support import AUTHORIZED, VIEW_TOKEN, Listener, listening
from tests.unit.move_support import Source, serve_running_request

PATH = "/v1/requests/r-1/migrate"


class Bed:
    def __init__(self, listener: Listener, client: httpx.AsyncClient) -> None:
        self.listener, self.client = listener, client
        self.cluster = listener.cluster
        self.book = serve_running_request(listener)
        self.source = Source(listener, self.book)

    async def asks(self, path: str = PATH, **body: Any) -> httpx.Response:
        return await self.client.post(path, headers=AUTHORIZED, json=body)

    async def report(self, **body: Any) -> MigrationReport:
        answer = await self.asks(**body)
        assert answer.status_code == 200, answer.text
        return MigrationReport.model_validate_json(answer.content)

    async def refused(self, path: str = PATH, **body: Any) -> tuple[int, str, str]:
        answer = await self.asks(path, **body)
        error = answer.json()
        return answer.status_code, error["code"], error["message"]


@pytest.fixture
async def bed(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bed]:
    monkeypatch.setattr("controller.runtime.controller.queries.PATIENCE_S", 0.2)
    monkeypatch.setattr("controller.core.emptying.by_hand.TIMED_PATIENCE_S", 0.2)
    monkeypatch.setattr("controller.core.emptying.by_hand.MAX_TIMED_PATIENCE_S", 0.2)
    monkeypatch.setattr("controller.runtime.controller.queries.REFUSALS_PATIENCE_S", 0.2)
    async with listening(3) as (listener, client):
        yield Bed(listener, client)


# -- done ---------------------------------------------------------------------------------


async def test_a_move_is_reported_with_its_figures(bed: Bed) -> None:
    found = await bed.report(to="i-2", verify_kv=True, reason="make room")
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


async def test_without_a_destination_the_freest_is_taken_and_another_if_it_fails(
    bed: Bed,
) -> None:
    bed.cluster.report("i-1", num_free_blocks=60, num_running=2)
    bed.source.ends = [("kept", "transfer"), ("kept", "no_blocks")]
    found = await bed.report()
    assert [each.to_instance_id for each in found.attempts] == ["i-2", "i-1"]
    assert (found.outcome, found.code, found.to_instance_id) == ("kept", "no_blocks", "i-1")
    assert found.why == "the destination has not enough free blocks"
    assert found.attempts[0].why == "the copy did not get through"
    found = await bed.report()
    assert [each.to_instance_id for each in found.attempts] == ["i-1"], "i-2 cools"


async def test_one_that_cools_may_be_named_and_the_answer_says_so(bed: Bed) -> None:
    bed.source.ends = [("kept", "no_answer")]
    assert (await bed.report(to="i-1")).note == ""
    found = await bed.report(to="i-1", dry_run=True)
    assert (found.outcome, found.note) == (
        "would_move",
        "i-1 failed lately and cools for another 30s",
    )
    found = await bed.report(to="i-1")
    assert (found.outcome, found.note) == (
        "migrated",
        "i-1 failed lately and cools for another 30s",
    )


async def test_a_downtime_that_nobody_told_is_null(bed: Bed) -> None:
    bed.book.move_timed = lambda *_: None
    found = await bed.report(to="i-1")
    assert (found.outcome, found.downtime_s, found.excess_s) == ("migrated", None, None)


async def test_a_move_that_is_not_over_in_time_goes_on(bed: Bed) -> None:
    bed.source.silent = True
    status, code, message = await bed.refused(timeout_s=0.05)
    assert (status, code) == (504, "timed_out")
    assert message.endswith("of r-1 to i-1 is not over after 0.05 s; it goes on")


async def test_a_source_that_dies_is_not_waited_for(bed: Bed) -> None:
    bed.source.silent = True
    asking = asyncio.create_task(bed.report(to="i-1"))
    async with asyncio.timeout(10):
        while not bed.cluster.mailbox.sent_to("mem://i-0", MoveAsked):
            await asyncio.sleep(0.005)
    bed.cluster.mailbox.lose("mem://i-0")
    found = await asking
    assert (found.outcome, found.why) == ("unknown", "the source died")


# -- planned ------------------------------------------------------------------------------


async def test_a_dry_run_says_what_it_would_take(bed: Bed) -> None:
    found = await bed.report(dry_run=True)
    assert (found.outcome, found.to_instance_id, found.dry_run) == ("would_move", "i-1", True)
    assert found.plan is not None
    assert (found.plan.num_tokens, found.plan.num_blocks, found.plan.num_bytes) == (153, 10, 4096)
    assert found.plan.copy_time_s == 0.0125
    assert found.plan.downtime_s == 0.007251, "a step of the destination"
    assert (bed.source.moved, found.attempts) == ([], ())
    await bed.report(to="i-1")
    bed.book.moved("r-1", "i-0", 1)
    found = await bed.report(dry_run=True)
    assert found.plan is not None
    assert found.plan.downtime_s == 0.011651, "and what the last moves took beyond one"


async def test_a_dry_run_without_a_step_to_tell_from_knows_no_downtime(bed: Bed) -> None:
    status = bed.cluster.controller.statuses["i-1"]
    bed.cluster.controller.statuses["i-1"] = type(status)(status.snapshot, 0, 0, 0.0)
    found = await bed.report(to="i-1", dry_run=True)
    assert found.plan is not None
    assert found.plan.downtime_s is None


@pytest.mark.parametrize(
    ("load", "code"),
    [
        ({"num_free_blocks": 9}, "no_blocks"),
        ({"num_free_blocks": 19, "watermark_blocks": 10}, "no_blocks"),
        ({"num_running": 4, "max_num_running": 4}, "no_slot"),
    ],
)
async def test_a_dry_run_to_one_without_room(bed: Bed, load: dict[str, int], code: str) -> None:
    bed.cluster.report("i-1", **load)
    found = await bed.report(to="i-1", dry_run=True)
    assert (found.outcome, found.code) == ("refused", code)
    assert found.plan is not None


async def test_a_dry_run_of_what_cannot_move(bed: Bed) -> None:
    bed.source.refusal = "in_prefill"
    found = await bed.report(to="i-1", dry_run=True)
    assert (found.outcome, found.code, found.plan) == ("refused", "in_prefill", None)
    assert found.why == "its prompt is still being computed"
    bed.source.silent = True
    status, code, message = await bed.refused(dry_run=True)
    assert (status, code) == (504, "no_answer")
    assert "i-0, which runs the request, did not answer" in message


# -- refused ------------------------------------------------------------------------------


async def test_what_the_source_refuses_is_told(bed: Bed) -> None:
    bed.source.refusal = "in_prefill"
    found = await bed.report(to="i-1")
    assert (found.outcome, found.code, found.hint) == ("refused", "in_prefill", "")
    assert found.attempts[0].stages == ()


async def test_too_many_moves_name_the_setting_its_value_and_the_cure(bed: Bed) -> None:
    bed.source.refusal = "too_many_moves"
    found = await bed.report(to="i-1", timeout_s=0.1)
    assert (found.outcome, found.code) == ("refused", "too_many_moves")
    assert found.note == "migration.max_moves is 4"
    assert found.hint == "llumctl set migration.max_moves=8"


async def test_moves_that_wait_for_their_turn_are_shown(bed: Bed) -> None:
    bed.source.silent = True
    bed.cluster.controller.operator_moves.machine.max_moves = 1
    first = asyncio.create_task(bed.asks(to="i-1", timeout_s=2))
    while not bed.cluster.controller.operator_moves._asking:  # it has begun
        await asyncio.sleep(0.01)
    second = asyncio.create_task(bed.asks(to="i-2", timeout_s=1))
    while not (status := (await bed.client.get("/v1/status", headers=AUTHORIZED)).json())[
        "queued_moves"
    ]:
        await asyncio.sleep(0.01)
    (queued,) = status["queued_moves"]
    assert (queued["state"], queued["request_id"]) == ("queued", "r-1")
    assert (queued["from_instance_id"], queued["to_instance_id"]) == ("i-0", "i-2")
    report = MigrationReport.model_validate_json((await second).content)
    assert (report.outcome, report.code) == ("refused", "no_turn")
    assert report.why == "as many moves as allowed were under way all the time"
    assert report.note.endswith("migration.max_moves is 4")
    assert (await first).status_code == 504


async def test_no_destination_says_why_of_each(bed: Bed) -> None:
    bed.cluster.report("i-1", num_free_blocks=3)
    bed.cluster.report("i-2", draining=True)
    for dry_run in (False, True):
        found = await bed.report(dry_run=dry_run)
        assert (found.outcome, found.code, found.to_instance_id) == (
            "refused",
            "no_destination",
            None,
        )
        assert found.note == (
            "i-1: the destination has not enough free blocks; i-2: it is draining"
        )


async def test_requests_that_cannot_be_moved(bed: Bed) -> None:
    assert (await bed.refused(to="i-0"))[:2] == (400, "same_instance")
    hint = (await bed.asks(to="i-0")).json()["hint"]
    assert hint in ("llumctl migrate r-1 --to i-1", "llumctl migrate r-1 --to i-2")
    assert (await bed.refused(to="i-9"))[:2] == (404, "no_such_instance")
    assert (await bed.refused(to="f-0"))[:2] == (404, "no_such_instance")
    assert (await bed.refused("/v1/requests/r-9/migrate"))[:2] == (404, "no_such_request")
    bed.book.arrived(DispatchRequested("r-new", "f-0", 120, 0, 1_700_000_000.0), "cmpl-2", None)
    assert (await bed.refused("/v1/requests/r-new/migrate"))[:2] == (409, "not_dispatched")
    bed.book.ended("r-1", RequestState.FINISHED, "stop")
    assert await bed.refused() == (409, "ended", "request r-1 has finished")
    assert bed.source.moved == []


async def test_instances_that_may_take_nothing(bed: Bed) -> None:
    bed.cluster.report("i-1", draining=True)
    status, code, message = await bed.refused(to="i-1")
    assert (status, code) == (409, "unschedulable")
    assert message == "instance i-1 cannot move it: it is draining"
    bed.cluster.mailbox.lose("mem://i-2")
    assert (await bed.refused(to="i-2"))[:2] == (409, "unschedulable")
    bed.cluster.now_s += 11
    bed.cluster.report("i-1")
    bed.cluster.controller.fleet.look_for_stalls()
    status, code, message = await bed.refused(to="i-1")
    assert (status, code) == (409, "not_serving")
    assert message == "instance i-0, which the request is on, cannot move it: it is stalled"


async def test_a_draining_source_is_left(bed: Bed) -> None:
    bed.cluster.report("i-0", draining=True)
    assert (await bed.report()).outcome == "migrated"


async def test_several_choices_of_one_request_are_named(bed: Bed) -> None:
    serve_running_request(bed.listener, num_choices=3)
    answer = await bed.client.get("/v1/requests/cmpl-1/id", headers=AUTHORIZED)
    assert (answer.status_code, answer.json()["code"]) == (409, "ambiguous")
    assert answer.json()["message"] == "'cmpl-1' names 3 sequences: r-1, r-2, r-3"


@pytest.mark.parametrize(
    ("removed", "refusal"), [("i-1", (404, "no_such_instance")), ("i-0", (409, "not_serving"))]
)
async def test_an_instance_that_is_removed_while_this_goes_on_the_record(
    bed: Bed, removed: str, refusal: tuple[int, str]
) -> None:
    write, loop = bed.listener.audit.write_all, asyncio.get_running_loop()

    async def remove() -> None:
        bed.cluster.controller.terminate(removed)

    def slow(*args: Any, outcome: str, **what: Any) -> None:
        write(*args, outcome=outcome, **what)
        if outcome == "begun":
            asyncio.run_coroutine_threadsafe(remove(), loop).result(10)

    bed.listener.audit.write_all = slow
    assert (await bed.refused(to="i-1"))[:2] == refusal
    assert bed.source.moved == []
    assert audited(bed)[-1]["outcome"] == f"failed: {refusal[1]}"


# -- recorded and shown -------------------------------------------------------------------


def audited(bed: Bed) -> list[dict[str, Any]]:
    path = bed.listener.audit.path
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


async def test_who_asked_is_recorded_and_a_dry_run_is_not(bed: Bed) -> None:
    await bed.report(dry_run=True)
    assert audited(bed) == []
    found = await bed.report(to="i-1", reason="make room")
    entry, end = audited(bed)
    migration_id = found.attempts[0].migration_id
    assert entry["action"] == end["action"] == f"migrate r-1 to i-1 ({migration_id})"
    assert (entry["target"], entry["outcome"], entry["reason"]) == ("r-1", "begun", "make room")
    assert (end["cause_id"], end["outcome"]) == (entry["cause_id"], "migrated")
    back = {"previous": {"instance": "i-0"}, "made": {"instance": "i-1"}}
    assert end["undo"] == {"kind": "migrate", "target": "r-1", **back}
    answer = await bed.client.get("/v1/events", headers=AUTHORIZED)
    events = EventPage.model_validate_json(answer.content).events
    by_hand, migrated, over = events[-3:]
    for event, outcome in ((by_hand, "begun"), (over, "migrated")):
        assert (event.kind, event.cause_id) == ("operator", entry["cause_id"])
        assert event.reason == f"{entry['action']} ({outcome}): make room"
    assert (migrated.kind, migrated.cause_id) == ("migrated", migration_id)
    assert migrated.reason == "from i-0 to i-1: make room"
    assert migrated.labels == {"from": "i-0", "to": "i-1", "reason": "make room"}
    assert list(migrated.numbers)[:3] == ["downtime_s", "excess_s", "step_time_s"]
    assert migrated.numbers["stage_1_blocks"] == 1


async def test_how_a_move_that_failed_ended_is_recorded(bed: Bed) -> None:
    bed.source.ends = [("kept", "no_blocks")]
    await bed.report(to="i-1")
    assert audited(bed)[-1]["outcome"] == "kept: the destination has not enough free blocks"


async def test_a_move_that_is_not_over_in_time_is_recorded_as_such(bed: Bed) -> None:
    bed.source.silent = True
    assert (await bed.refused(to="i-1", timeout_s=0.01))[:2] == (504, "timed_out")
    assert audited(bed)[-1]["outcome"] == "unknown: timed_out"


async def test_what_is_not_audited_is_not_done(bed: Bed) -> None:
    bed.listener.audit.path = bed.listener.audit.path / "no folder"
    assert (await bed.refused(to="i-1"))[:2] == (500, "not_audited")
    assert bed.source.moved == []


async def test_the_view_token_moves_nothing(bed: Bed) -> None:
    headers = {"Authorization": f"Bearer {VIEW_TOKEN}"}
    answer = await bed.client.post(PATH, headers=headers, json={"dry_run": True})
    assert (answer.status_code, answer.json()["code"]) == (403, "view_only")
    assert bed.source.moved == []


async def listed(bed: Bed, query: str = "?movable=true") -> RequestList:
    answer = await bed.client.get(f"/v1/requests{query}", headers=AUTHORIZED)
    return RequestList.model_validate_json(answer.content)


async def test_requests_say_whether_they_could_move(bed: Bed) -> None:
    book = serve_running_request(bed.listener, num_choices=2)
    book.arrived(DispatchRequested("r-new", "f-0", 120, 0, 1_700_000_000.0), "cmpl-2", None)
    book.arrived(DispatchRequested("r-old", "f-0", 120, 0, 1_700_000_000.0), "cmpl-3", None)
    book.ended("r-old", RequestState.FINISHED, "stop")
    bed.source.refusals = {"r-2": "in_prefill"}
    found = {item.id: (item.movable, item.why_not_movable) for item in (await listed(bed)).requests}
    assert found == {
        "r-1": (True, None),
        "r-2": (False, "in_prefill"),
        "r-new": (None, None),
        "r-old": (None, None),
    }
    assert {item.movable for item in (await listed(bed, "")).requests} == {None}, "nobody asked"
    bed.source.silent = True
    assert {item.movable for item in (await listed(bed)).requests} == {None}, "nobody answered"


async def test_a_request_counts_its_moves_and_tells_of_them(bed: Bed) -> None:
    await bed.report(to="i-1")
    answer = await bed.client.get("/v1/requests/r-1", headers=AUTHORIZED)
    found = RequestDetail.model_validate_json(answer.content)
    assert (found.num_moves, found.instance_id, found.state) == (1, "i-1", "running")
    assert [event.kind for event in found.history] == ["dispatched", "admitted", "migrated"]


async def test_the_status_shows_moves_under_way_and_those_that_ended(bed: Bed) -> None:
    await bed.report(to="i-1")
    bed.source.ends = [("kept", "evicted")]
    bed.book.moved("r-1", "i-0", 1)
    await bed.report(to="i-2")
    moving = MoveInFlight("m-9", "r-7", "i-2", "copying", 1, 3, 8, "by hand", 0.25)
    bed.cluster.report("i-0", moves=(moving,))
    bed.cluster.report("i-2", num_moves_in=1)
    found = bed.cluster.view()
    (move,) = found.moves
    assert (move.migration_id, move.request_id, move.state, move.stage) == (
        "m-9",
        "r-7",
        "copying",
        1,
    )
    assert (move.from_instance_id, move.to_instance_id) == ("i-0", "i-2")
    assert (move.num_blocks_copied, move.num_blocks, move.age_s) == (3, 8, 0.25)
    assert [(item.num_moves_in, item.num_moves_out) for item in found.instances] == [
        (0, 1),
        (0, 0),
        (1, 0),
    ]
    kept, migrated = found.ended_moves
    assert (kept.outcome, kept.why) == ("kept", "it lost its blocks to memory pressure")
    assert (migrated.outcome, migrated.downtime_s, migrated.num_bytes) == ("migrated", 0.0244, 4096)
    assert (found.num_migrated_last_minute, found.num_failed_moves_last_minute) == (1, 1)
    bed.cluster.mailbox.lose("mem://i-0")
    assert bed.cluster.view().moves == ()
