"""Requests that the controller holds, on the control API: listed, found, explained, in the status.

i-0 lacks 21 blocks for r-large (10 free, 30 needed, and 1 for the growth of its running requests),
i-1 lacks 26.
"""

from collections.abc import AsyncIterator
from dataclasses import replace

import httpx
import pytest

from controller.api.wire.requests import Explanation, OtherStep, RequestDetail, RequestList
from controller.core.scheduler_events import Dispatch, DispatchRequested, Ticked
from controller.core.settings import HoldingConfig
from controller.runtime.frontend.request_book import RequestBook
from controller.runtime.messages.codec import encode
from controller.runtime.messages.requests import DispatchAsked
from tests.unit.control_support import AUTHORIZED, Listener, listening

ARRIVAL_S = 1_700_000_000.0
LEVELS = {0: "normal", 1: "high"}
HOLDING = HoldingConfig(room_to_grow_tokens=16, reserve_after_s=0.0, reserved_share=0.5)


class Bed:
    def __init__(self, listener: Listener, client: httpx.AsyncClient) -> None:
        self.client, self.cluster = client, listener.cluster
        self.book = RequestBook("f-0", LEVELS)
        self.cluster.mailbox.engine_state["mem://f-0"] = self.book
        live = self.cluster.controller.live
        scheduler = replace(live.scheduler, holding=HOLDING)
        self.cluster.controller.configure(replace(live, scheduler=scheduler))
        self.cluster.report("i-0", num_free_blocks=10, num_running=2)
        self.cluster.report("i-1", num_free_blocks=5, num_running=2)

    def asks(self, request_id: str, tokens: int = 480, rank: int = 0, after_s: float = 0.0) -> None:
        request = DispatchRequested(request_id, "f-0", tokens, rank, ARRIVAL_S + after_s)
        self.book.arrived(request, f"cmpl-{request_id}", None)
        self.cluster.mailbox.say(encode(DispatchAsked(request)), [])

    async def get(self, path: str) -> httpx.Response:
        answer = await self.client.get(path, headers=AUTHORIZED)
        assert answer.status_code == 200, answer.text
        return answer

    async def listed(self, query: str = "") -> RequestList:
        answer = await self.get(f"/v1/requests{query}")
        return RequestList.model_validate_json(answer.content)

    async def explained(self, request_id: str) -> Explanation:
        answer = await self.get(f"/v1/requests/{request_id}/explain")
        return Explanation.model_validate_json(answer.content)


@pytest.fixture
async def bed(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bed]:
    monkeypatch.setattr("controller.runtime.controller.queries.PATIENCE_S", 0.2)
    async with listening(2) as (listener, client):
        yield Bed(listener, client)


async def test_what_is_held_is_listed_in_the_order_in_which_it_goes(bed: Bed) -> None:
    bed.asks("r-large")
    bed.asks("r-later", after_s=2.0)
    bed.asks("r-high", rank=1, after_s=3.0)
    found = await bed.listed()
    assert [(item.id, item.state, item.instance_id) for item in found.requests] == [
        ("r-high", "waiting", None),
        ("r-large", "waiting", None),
        ("r-later", "waiting", None),
    ]
    places = [item.held for item in found.requests]
    assert [place and place.place for place in places] == [1, 2, 3]
    assert [place and place.demand_blocks for place in places] == [30, 30, 30]
    first = places[0]
    assert first is not None
    assert (first.why, first.instance_id, first.lacking_blocks) == ("kept", "i-0", 21)
    waiting = await bed.listed("?state=waiting")
    assert [item.held for item in waiting.requests] == places
    assert (await bed.listed("?state=waiting&state=dispatching")).num_matching == 3
    dispatching = await bed.listed("?state=dispatching")
    assert (dispatching.requests, dispatching.num_matching) == ((), 0)


async def test_the_first_ones_are_listed_where_not_all_are(bed: Bed) -> None:
    for number in range(5):
        bed.asks(f"r-{number}", after_s=float(number))
    bed.asks("r-high", rank=1, after_s=9.0)
    found = await bed.listed("?limit=2")
    assert [item.id for item in found.requests] == ["r-high", "r-0"]
    assert found.num_matching == 6


async def test_what_is_being_dispatched_is_not_held(bed: Bed) -> None:
    bed.asks("r-large")
    request = DispatchRequested("r-new", "f-0", 16, 1, ARRIVAL_S)
    bed.book.arrived(request, "cmpl-new", None)  # its question has not come yet
    found = await bed.listed()
    assert [(item.id, item.state) for item in found.requests] == [
        ("r-large", "waiting"),
        ("r-new", "dispatching"),
    ]
    assert [item.id for item in (await bed.listed("?state=waiting")).requests] == ["r-large"]


async def test_one_of_them_with_its_place(bed: Bed) -> None:
    bed.asks("r-large")
    detail = RequestDetail.model_validate_json((await bed.get("/v1/requests/r-large")).content)
    assert detail.state == "waiting"
    assert detail.held is not None
    assert (detail.held.place, detail.held.instance_id) == (1, "i-0")


async def test_why_the_first_waits_and_who_may_go_ahead(bed: Bed) -> None:
    bed.asks("r-large")
    bed.asks("r-small", tokens=16, after_s=1.0)  # goes ahead, as it fits on i-1
    small = Dispatch("r-small", "f-0", "i-1", 1, 1)
    bed.book.dispatched(small)
    found = await bed.explained("r-large")
    assert found.waiting is not None
    assert found.waiting.code == "held"
    assert found.waiting.why == (
        "the first at the controller; i-0 is kept for it and lacks 21 blocks;"
        " requests that fit elsewhere may go ahead of it: 1 has, while it was the first"
    )
    assert found.waiting.figures == {"needed_blocks": 30, "lacking_blocks": 21}
    assert found.request.held is not None
    assert found.request.movable is None


async def test_what_was_on_record_of_it_while_it_was_held(bed: Bed) -> None:
    bed.asks("r-large")
    bed.asks("r-later", after_s=2.0)
    controller = bed.cluster.controller
    for _ in range(80):
        bed.cluster.now_s += 0.1
        for record in controller.admission_records.handle(Ticked(), bed.cluster.now_s):
            controller.journal.admission(record)
    found = await bed.explained("r-large")
    (step,) = found.steps
    assert isinstance(step, OtherStep)
    assert (step.what, step.instance_id) == ("instance_kept", "i-0")
    assert step.figures["lacking_blocks"] == 21
    bed.book.dispatched(Dispatch("r-large", "f-0", "i-0", 1, 1))
    assert [each.kind for each in (await bed.explained("r-large")).steps] == ["other", "dispatched"]
    assert (await bed.explained("r-later")).steps == ()


async def test_why_another_waits(bed: Bed) -> None:
    bed.asks("r-large")
    bed.asks("r-later", after_s=2.0)
    found = await bed.explained("r-later")
    assert found.waiting is not None
    assert found.waiting.why == (
        "1 is before it at the controller; all instances together do not have enough free memory;"
        " requests that fit may go ahead of it, but none of a lower rank"
    )


async def test_while_no_instance_takes_any(bed: Bed) -> None:
    for instance_id in ("i-0", "i-1"):
        bed.cluster.report(instance_id, draining=True)
    bed.asks("r-large")
    found = await bed.explained("r-large")
    assert found.waiting is not None
    assert found.waiting.why == (
        "the first at the controller; no instance takes requests; no request may go ahead of it"
    )
    assert found.waiting.figures == {"needed_blocks": 30, "lacking_blocks": None}


async def test_the_status_has_the_queue_its_head_and_the_kept_instance(bed: Bed) -> None:
    bed.asks("r-large")
    bed.asks("r-later", after_s=-2.0)
    bed.asks("r-high", rank=1, after_s=3.0)
    status = bed.cluster.view()
    assert (status.num_held_reqs, status.held and status.held.demand_blocks) == (3, 90)
    held = status.held
    assert held is not None
    assert held.num_by_level == {"high": 1, "normal": 2}
    head = held.head
    assert (head.request_id, head.level, head.rank, head.frontend_id) == (
        "r-high",
        "high",
        1,
        "f-0",
    )
    assert (head.why, head.instance_id, head.lacking_blocks) == ("kept", "i-0", 21)
    assert held.oldest_wait_s == pytest.approx(head.waited_s + 5.0, abs=0.01)
    assert held.oldest is not None
    assert (held.oldest.request_id, held.oldest.place) == ("r-later", 2)
    assert held.oldest.waited_s == held.oldest_wait_s
    kept = {item.id: item.kept_for for item in status.instances}
    assert kept["i-1"] is None
    assert kept["i-0"] is not None
    assert (kept["i-0"].request_id, kept["i-0"].lacking_blocks) == ("r-high", 21)
    assert kept["i-0"].demand_blocks == 30


async def test_a_status_without_held_requests_says_so(bed: Bed) -> None:
    status = bed.cluster.view()
    assert (status.num_held_reqs, status.held) == (0, None)
    assert [item.kept_for for item in status.instances] == [None, None]
