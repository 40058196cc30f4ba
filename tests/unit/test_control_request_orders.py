"""Abort and priority on the control API and `llumctl abort`: orders that a request's frontend
carries out. Moves are in test_control_migrate.py."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from controller.api.operations.on_requests import (
    Abort,
    Migrate,
    PriorityEffect,
    SetPriority,
)
from controller.core.record.request_record import RequestState
from controller.runtime.frontend.router import TOLD_TO_THE_CLIENT
from controller.runtime.messages.requests import AbortAsked, RankChangeAsked
from tests.unit.control_bed import AnyOrder, Bed, bed_of, llumctl
from tests.unit.move_support import arrive

Captured = pytest.CaptureFixture[str]
CANNOT = {
    Abort: "request r-1 cannot be aborted: ",
    SetPriority: "the priority of request r-1 cannot change: ",
}
both_orders = pytest.mark.parametrize("row", CANNOT, ids=lambda row: row.kind)


@pytest.fixture
async def bed() -> AsyncIterator[Bed]:
    async with bed_of(1) as found:
        yield found


def body_of(row: AnyOrder) -> dict[str, Any]:
    return {"level": "high"} if row is SetPriority else {}


def asked(bed: Bed) -> int:
    """How often the frontend was asked to carry out an order."""
    sent = bed.mailbox.sent_to
    return len(sent("mem://f-0", AbortAsked)) + len(sent("mem://f-0", RankChangeAsked))


# -- both ----------------------------------------------------------------------------------


@both_orders
async def test_a_request_that_has_ended_is_refused(bed: Bed, row: AnyOrder) -> None:
    bed.book.ended("r-1", RequestState.FINISHED, "stop")
    refusal = await bed.refusal(row, **body_of(row))
    assert refusal == (409, "ended", f"{CANNOT[row]}it has finished")
    assert (bed.audited(), asked(bed)) == ([], 0)


@both_orders
async def test_a_request_that_ends_before_its_frontend_is_asked(bed: Bed, row: AnyOrder) -> None:
    bed.while_recording(lambda: bed.book.ended("r-1", RequestState.FINISHED, "stop"))
    refusal = await bed.refusal(row, **body_of(row))
    assert refusal == (409, "ended", f"{CANNOT[row]}it ended meanwhile")
    assert bed.audited()[-1]["outcome"] == "failed: ended"


@pytest.mark.parametrize(
    ("row", "may_still"), [(Abort, "end it"), (SetPriority, "change the priority")]
)
async def test_a_frontend_that_does_not_answer(bed: Bed, row: AnyOrder, may_still: str) -> None:
    del bed.mailbox.answers["mem://f-0"]
    status, code, message = await bed.refusal(row, **body_of(row))
    assert (status, code) == (504, "no_answer")
    assert message.endswith(f"it may still {may_still}")
    assert bed.audited()[-1]["outcome"] == "unknown: no_answer"


@both_orders
async def test_a_frontend_that_dies_is_not_waited_for(bed: Bed, row: AnyOrder) -> None:
    del bed.mailbox.answers["mem://f-0"]
    asking = asyncio.create_task(bed.refusal(row, **body_of(row)))
    async with asyncio.timeout(10):
        while not asked(bed):
            await asyncio.sleep(0.001)
    bed.mailbox.lose("mem://f-0")
    assert await asking == (409, "ended", f"{CANNOT[row]}its frontend f-0 died")


@both_orders
async def test_a_frontend_that_died_is_not_asked(bed: Bed, row: AnyOrder) -> None:
    bed.while_recording(lambda: bed.mailbox.lose("mem://f-0"))
    refusal = await bed.refusal(row, **body_of(row))
    assert refusal == (409, "ended", f"{CANNOT[row]}its frontend f-0 died")
    assert asked(bed) == 0


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


# -- abort ---------------------------------------------------------------------------------


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
    async with bed_of(1, num_choices=3) as bed:
        path = "/v1/requests/cmpl-1/id"
        assert (await bed.client.get(f"{path}?any_choice=true")).json()["request_id"] == "r-1"
        ambiguous = (await bed.client.get(path)).json()
        assert ambiguous["code"] == "ambiguous"
        assert ambiguous["message"] == "'cmpl-1' names 3 sequences: r-1, r-2, r-3"
        assert (await bed.does(Abort)).request_ids == ("r-1", "r-2", "r-3")
        assert len(bed.told) == 1
        assert await bed.refused(Abort, "r-3") == (409, "ended")


@pytest.mark.usefixtures("bed")
async def test_the_command_aborts(capsys: Captured) -> None:
    assert await llumctl("abort", "r-1", "--dry-run", "-o", "json") == 10
    found = json.loads(capsys.readouterr().out)
    assert (found["request_ids"], found["state"], found["dry_run"]) == (["r-1"], "running", True)
    assert await llumctl("abort", "cmpl-1", "--dry-run") == 10
    assert "running -> would be aborted" in capsys.readouterr().out
    assert await llumctl("abort", "cmpl-1", "-m", "too long") == 0
    assert [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()] == [
        ["request", "r-1"],
        ["client-id", "cmpl-1"],
        ["instance", "i-0"],
        ["state", "running -> aborted"],
        ["tokens", "33 written so far"],
    ]
    assert await llumctl("abort", "cmpl-1") == 5
    assert "request r-1 cannot be aborted: it was aborted" in capsys.readouterr().err
    assert await llumctl("abort", "nothing") == 4


async def test_the_command_names_one_of_two_requests_of_a_client(
    bed: Bed, capsys: Captured
) -> None:
    arrive(bed.book, "r-9", "cmpl-1")
    answer = await bed.client.get("/v1/requests/cmpl-1/id?any_choice=true")
    assert answer.json()["code"] == "ambiguous", "they are no choices of one request"
    assert await llumctl("abort", "cmpl-1") == 6
    assert "r-1, r-9" in capsys.readouterr().err
    assert asked(bed) == 0
    del bed.mailbox.answers["mem://f-0"]
    assert await llumctl("abort", "r-1") == 124
    assert "it may still end it" in capsys.readouterr().err


async def test_the_command_prints_names(bed: Bed, capsys: Captured) -> None:
    assert await llumctl("abort", "r-1", "-o", "name") == 0
    assert capsys.readouterr().out == "r-1\n"
    assert bed.told


# -- priority ------------------------------------------------------------------------------


async def test_a_priority_changes_and_its_event_has_the_order_s_cause(bed: Bed) -> None:
    found = await bed.does(SetPriority, level="high", reason="the board meets")
    assert (found.request_id, found.client_id) == ("r-1", "cmpl-1")
    assert (found.previous, found.level, found.instance_id) == ("normal", "high", "i-0")
    request = await bed.request()
    assert request.level == "high"
    (event,) = await bed.events("priority_changed")
    assert event.cause_id == bed.audited()[-1]["cause_id"]
    assert event.actor == bed.audited()[-1]["actor"]
    assert event.reason == "from normal to high: the board meets"
    assert (event.request_id, event.level, event.instance_id) == ("r-1", "high", "i-0")
    assert request.history[-1].kind == event.kind


async def test_a_level_that_does_not_exist(bed: Bed) -> None:
    for level in ("urgent", "High"):
        refusal = await bed.refusal(SetPriority, level=level)
        message = f"there is no priority level {level!r}; there are normal, high"
        assert refusal == (400, "no_such_level", message)
    assert asked(bed) == 0


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
    assert await effect("normal", **both) == PriorityEffect(
        headroom_blocks_before=60,
        headroom_blocks_after=0,
        freeness_steps_before=480,
        freeness_steps_after=960,
    )
    draining = await effect("normal", **both, draining=True)
    assert draining is not None
    assert draining.freeness_steps_after is None
    bed.evict()
    assert await effect("normal", **both) is None, "it does not run"
