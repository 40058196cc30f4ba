"""An operator ends a live request in any place: its client is told once, and no instance has
anything left of it.
"""

import asyncio

import pytest

from controller.core.record.event_log import EventKind
from controller.core.record.request_record import RequestState
from controller.core.scheduler_events import (
    Dispatch,
    DispatchRequested,
)
from controller.runtime.frontend.router import TOLD_TO_THE_CLIENT
from controller.runtime.messages.requests import (
    AbortAnswered,
    AbortAsked,
    AbortRequests,
    DispatchAsked,
    Dispatched,
)
from tests.unit.runtime.fake_engine import tokens_of
from tests.unit.runtime.fakes import FakeNetwork, settle, virtual_time
from tests.unit.runtime.moving_cluster import MovingCluster
from tests.unit.runtime.router_bed import Bed


def order(
    query_id: str = "q", request_id: str = "r", *, reason: str = "", dry_run: bool = False
) -> AbortAsked:
    return AbortAsked(query_id, request_id, "op-1", "ann", reason, dry_run)


async def abort(moving: MovingCluster, asked: AbortAsked) -> AbortAnswered:
    moving.controller.send("f-0", asked)
    await moving.until(lambda: asked.query_id in moving.controller.answers)
    answer: AbortAnswered = moving.controller.answers[asked.query_id]
    return answer


# -- one that an instance has -------------------------------------------------------------


@pytest.mark.parametrize("is_queued", [False, True])
async def test_of_one_that_an_instance_has(moving: MovingCluster, is_queued: bool) -> None:
    await moving.stream()
    if is_queued:
        moving.a.engine.admits = False
        await moving.evict("r", moving.a)
    state = RequestState.EVICTED if is_queued else RequestState.RUNNING
    for asked in (order("dry", dry_run=True), order(reason="too long")):
        assert not moving.events(EventKind.ABORTED)
        answer = await abort(moving, asked)
        assert answer == AbortAnswered(asked.query_id, "", ("r",), state, "i-0", 5)
    assert (await abort(moving, order("q-2"))).code == "ended", "by the first order"
    assert (await abort(moving, order("q-3", "another"))).code == "unknown"
    assert await moving.ends() == TOLD_TO_THE_CLIENT, "the operator's reason stays here"
    assert moving.frontend.tokens["r"] == tokens_of("r", 5)
    record = moving.record()
    assert record.state is RequestState.ABORTED
    assert record.finish_reason == "an operator ended it: too long"
    (event,) = moving.events(EventKind.ABORTED)
    assert (event.cause_id, event.actor) == ("op-1", "ann")
    await moving.until(lambda: event in moving.controller.events)


# -- one that no instance has yet ---------------------------------------------------------


# -- several choices of one request -------------------------------------------------------


@virtual_time
async def test_choices_of_one_request_end_together(network: FakeNetwork) -> None:
    """The client has one answer for all of them, and gets one error; another request of the same
    client goes on."""
    bed = Bed(network)
    await bed.know()
    submitted: list[asyncio.Task[None]] = []
    for number, (request_id, parent_id) in enumerate(
        [("0_p", "p"), ("1_p", "p"), ("0_other", "other"), ("alone", None)]
    ):
        request = DispatchRequested(request_id, "f-0", 10, 0, 5.0)
        submitting = bed.router.submit(request, [b"x"], "client", parent_id)
        submitted.append(asyncio.create_task(submitting))
        await bed.controller.receive(DispatchAsked, lambda a, r=request_id: a.asked.request_id == r)
        bed.say(Dispatched(Dispatch(request_id, "f-0", "i-0", 1, number + 1)))
    await asyncio.gather(*submitted)
    bed.say(order(request_id="1_p"))
    answer = await bed.controller.receive(AbortAnswered)
    assert answer.request_ids == ("0_p", "1_p")
    assert await bed.instances["i-0"].receive(AbortRequests) == AbortRequests(("0_p", "1_p"))
    assert bed.told.aborted == [("1_p", TOLD_TO_THE_CLIENT)]
    assert sorted(bed.router.live_request_ids) == ["0_other", "alone"]
    bed.say(order("q-2", "alone"))
    assert (await bed.controller.receive(AbortAnswered)).request_ids == ("alone",)
    await settle()
    assert bed.router.live_request_ids == ["0_other"]
