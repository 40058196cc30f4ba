"""Priorities of live requests on the control API: what is refused, planned, done and recorded."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, cast

import httpx
import pytest

from controller.api.operations.on_requests import PriorityEffect, PriorityReport
from controller.api.wire.requests import EventPage, RequestDetail
from controller.core.migration.rank_changes import RankChanges
from controller.core.migration.routes import Routes
from controller.core.record.request_record import RequestState
from controller.runtime.frontend.dispatcher import Dispatcher, FrontendKeys, KnownInstances
from controller.runtime.frontend.router import RankRunner
from controller.runtime.messages.requests import RankChangeAsked
from tests.unit.control_support import AUTHORIZED, VIEW_TOKEN, Listener, listening
from tests.unit.move_support import serve_running_request

PATH = "/v1/requests/r-1/priority"


class Bed:
    """Only f-0's book is real, and the way in which it changes a rank."""

    def __init__(self, listener: Listener, client: httpx.AsyncClient, num_choices: int = 1) -> None:
        self.listener, self.client = listener, client
        self.cluster = listener.cluster
        self.book = serve_running_request(listener, num_choices=num_choices)
        self.book._level_names = {0: "normal", 1: "high"}
        nobody, known = cast("Any", None), KnownInstances()
        routes = Routes(known)
        dispatcher = Dispatcher(nobody, nobody, known, routes, FrontendKeys("f-0", nobody))
        changes = RankRunner(RankChanges(routes), dispatcher, self.book, nobody)
        self.cluster.mailbox.answers["mem://f-0"] = lambda message: (
            changes.asked(message) if isinstance(message, RankChangeAsked) else None
        )

    async def asks(self, path: str = PATH, **body: Any) -> httpx.Response:
        return await self.client.post(path, headers=AUTHORIZED, json={"level": "high"} | body)

    async def report(self, path: str = PATH, **body: Any) -> PriorityReport:
        answer = await self.asks(path, **body)
        assert answer.status_code == 200, answer.text
        return PriorityReport.model_validate_json(answer.content)

    async def refused(self, path: str = PATH, **body: Any) -> tuple[int, str, str]:
        answer = await self.asks(path, **body)
        error = answer.json()
        return answer.status_code, error["code"], error["message"]

    def audited(self) -> list[dict[str, Any]]:
        path = self.listener.audit.path
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def asked(self) -> list[RankChangeAsked]:
        return self.cluster.mailbox.sent_to("mem://f-0", RankChangeAsked)


@pytest.fixture
async def bed(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bed]:
    monkeypatch.setattr("controller.runtime.controller.queries.PATIENCE_S", 0.2)
    monkeypatch.setattr("controller.runtime.controller.queries.REFUSALS_PATIENCE_S", 0.05)
    async with listening() as (listener, client):
        yield Bed(listener, client)


async def test_it_changes_and_says_what_it_was(bed: Bed) -> None:
    found = await bed.report(reason="the board meets")
    assert (found.request_id, found.client_id) == ("r-1", "cmpl-1")
    assert (found.previous, found.level, found.instance_id) == ("normal", "high", "i-0")
    assert not found.dry_run
    detail = (await bed.client.get("/v1/requests/r-1", headers=AUTHORIZED)).content
    assert RequestDetail.model_validate_json(detail).level == "high"
    again = await bed.report(level="normal")
    assert (again.previous, again.level) == ("high", "normal")


async def test_a_dry_run_says_what_it_does_to_the_instance(bed: Bed) -> None:
    """A request at level high limits the instance to 1,600 tokens: 60 of 160 blocks of 16 stay
    free, and count as used. Back at normal they no longer count."""
    room = {"num_total_blocks": 160, "num_free_blocks": 120, "num_running": 2}
    bed.cluster.report("i-0", **room, num_running_by_rank={0: 2})
    found = (await bed.report(dry_run=True)).effect
    assert found == PriorityEffect(
        headroom_blocks_before=0,
        headroom_blocks_after=60,
        freeness_steps_before=120 * 16 / 2,
        freeness_steps_after=60 * 16 / 2,
    )
    assert (await bed.report()).effect is None
    bed.cluster.report("i-0", **room, num_running_by_rank={0: 1, 1: 1})
    back = (await bed.report(level="normal", dry_run=True)).effect
    assert back is not None
    assert (back.headroom_blocks_before, back.headroom_blocks_after) == (60, 0)
    assert (back.freeness_steps_before, back.freeness_steps_after) == (480, 960)
    bed.cluster.report("i-0", **room, num_running_by_rank={1: 1}, draining=True)
    draining = (await bed.report(level="normal", dry_run=True)).effect
    assert draining is not None
    assert draining.freeness_steps_after is None


async def test_who_and_why_are_audited_and_in_the_event(bed: Bed) -> None:
    await bed.report(reason="the board meets")
    entry, over = bed.audited()
    assert (entry["action"], entry["target"]) == ("priority r-1 high, was normal", "r-1")
    assert (entry["reason"], entry["outcome"]) == ("the board meets", "begun")
    assert (over["cause_id"], over["outcome"]) == (entry["cause_id"], "done")
    page = EventPage.model_validate_json(
        (await bed.client.get("/v1/events", headers=AUTHORIZED)).content
    )
    (event,) = [event for event in page.events if event.kind == "priority_changed"]
    assert event.cause_id == entry["cause_id"]
    assert event.actor == entry["actor"]
    assert event.reason == "from normal to high: the board meets"
    assert (event.request_id, event.level, event.instance_id) == ("r-1", "high", "i-0")
    by_operator = [event for event in page.events if event.kind == "operator"]
    assert {each.cause_id for each in by_operator} == {event.cause_id}
    detail = (await bed.client.get("/v1/requests/cmpl-1", headers=AUTHORIZED)).content
    assert event.kind in [e.kind for e in RequestDetail.model_validate_json(detail).history]


async def test_what_is_not_audited_is_not_done(bed: Bed) -> None:
    bed.listener.audit.path = bed.listener.audit.path / "no folder"
    assert (await bed.refused())[:2] == (500, "not_audited")
    assert not bed.asked()


async def test_a_dry_run_changes_nothing(bed: Bed) -> None:
    found = await bed.report(dry_run=True)
    assert (found.previous, found.level, found.dry_run) == ("normal", "high", True)
    assert not bed.audited()
    assert (await bed.report(level="normal")).previous == "normal"


async def test_the_level_that_it_has_changes_nothing_and_leaves_no_trace(bed: Bed) -> None:
    before = bed.cluster.controller.journal.log.last_position
    found = await bed.report(level="normal", reason="again")
    assert (found.previous, found.level, found.instance_id) == ("normal", "normal", "i-0")
    assert not bed.audited()
    assert bed.cluster.controller.journal.log.last_position == before


async def test_a_level_that_there_is_not(bed: Bed) -> None:
    assert await bed.refused(level="urgent") == (
        400,
        "no_such_level",
        "there is no priority level 'urgent'; there are normal, high",
    )
    assert not bed.asked()


async def test_a_request_that_has_ended(bed: Bed) -> None:
    bed.book.ended("r-1", RequestState.FINISHED, "stop")
    assert await bed.refused() == (
        409,
        "ended",
        "the priority of request r-1 cannot change: it has finished",
    )
    assert not bed.audited()


async def test_one_that_ends_meanwhile(bed: Bed) -> None:
    """The request's frontend knows better than the earlier listing."""
    answer = bed.cluster.mailbox.answers["mem://f-0"]

    def ends_first(message: Any) -> Any:
        if isinstance(message, RankChangeAsked):
            bed.book.ended("r-1", RequestState.FINISHED, "stop")
        return answer(message)

    bed.cluster.mailbox.answers["mem://f-0"] = ends_first
    status, code, message = await bed.refused()
    assert (status, code) == (409, "ended")
    assert message.endswith("it ended meanwhile")


async def test_a_frontend_that_says_nothing(bed: Bed) -> None:
    del bed.cluster.mailbox.answers["mem://f-0"]
    status, code, message = await bed.refused()
    assert (status, code) == (504, "no_answer")
    assert "f-0" in message
    assert message.endswith("it may still change the priority")


async def test_a_frontend_that_dies_is_not_waited_for(bed: Bed) -> None:
    bed.cluster.mailbox.answers["mem://f-0"] = lambda message: None
    asking = asyncio.create_task(bed.refused())
    async with asyncio.timeout(10):
        while not bed.asked():
            await asyncio.sleep(0.001)
    bed.cluster.mailbox.lose("mem://f-0")
    status, code, message = await asking
    assert (status, code) == (409, "ended")
    assert message.endswith("its frontend f-0 died")


async def test_a_frontend_that_dies_while_this_goes_on_the_record_is_not_asked(bed: Bed) -> None:
    write, loop = bed.listener.audit.write_all, asyncio.get_running_loop()

    async def die() -> None:
        bed.cluster.mailbox.lose("mem://f-0")

    def slow(*args: Any, outcome: str, **what: Any) -> None:
        write(*args, outcome=outcome, **what)
        if outcome == "begun":
            asyncio.run_coroutine_threadsafe(die(), loop).result(10)

    bed.listener.audit.write_all = slow
    status, code, message = await bed.refused()
    assert (status, code) == (409, "ended")
    assert message.endswith("its frontend f-0 died")
    assert not bed.asked()


async def test_choices_of_one_request_are_named_one_by_one() -> None:
    async with listening() as (listener, client):
        bed = Bed(listener, client, num_choices=2)
        answer = await client.get("/v1/requests/cmpl-1/id", headers=AUTHORIZED)
        assert (answer.status_code, answer.json()["code"]) == (409, "ambiguous")
        assert "r-1, r-2" in answer.json()["message"]
        assert (await bed.report("/v1/requests/r-2/priority")).request_id == "r-2"


async def test_who_may_only_look_changes_nothing(bed: Bed) -> None:
    answer = await bed.client.post(
        PATH, headers={"Authorization": f"Bearer {VIEW_TOKEN}"}, json={"level": "high"}
    )
    assert (answer.status_code, answer.json()["code"]) == (403, "view_only")
    assert not bed.asked()
