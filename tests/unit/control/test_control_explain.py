"""Why a request is where it is, on the control API; and requests that the controller holds: listed,
explained, in the status."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from controller.api.wire.requests import Explanation, OtherStep, RequestList, Waiting
from controller.core.load.snapshot import BACKGROUND, QueueHead
from controller.core.record.request_record import RequestState
from controller.core.scheduler_events import Dispatch, DispatchRequested, Ticked
from controller.core.settings import HoldingConfig
from controller.runtime.messages.codec import encode
from controller.runtime.messages.requests import DispatchAsked
from tests.unit.control.control_bed import Bed, bed_of
from tests.unit.control.move_support import ARRIVAL_S, arrive, new_book


async def explained(bed: Bed, reference: str = "r-1") -> Explanation:
    return await bed.get(f"requests/{reference}/explain", Explanation)


async def test_a_request_that_runs_and_where_it_could_move(bed: Bed) -> None:
    bed.cluster.report("i-2", num_free_blocks=50)
    found = await explained(bed)
    assert (found.request.state, found.request.movable) == ("running", True)
    assert found.could_move_to == "i-1"
    assert [step.kind for step in found.steps] == ["dispatched", "other"]
    assert (found.waiting, found.why_not_movable) == (None, "")
    for instance_id in ("i-1", "i-2"):
        bed.cluster.report(instance_id, num_free_blocks=2)
    found = await explained(bed)
    assert (found.request.movable, found.could_move_to) == (True, None)
    bed.source.refusals = {"r-1": "in_prefill"}
    found = await explained(bed)
    assert (found.request.movable, found.could_move_to) == (False, None)
    assert found.why_not_movable == "its prompt is still being computed"
    bed.source.silent = True
    found = await explained(bed)
    assert (found.request.movable, found.why_not_movable, found.could_move_to) == (None, "", None)
    bed.book.ended("r-1", RequestState.ABORTED, "the client left")
    found = await explained(bed, "cmpl-1")
    assert [step.kind for step in found.steps] == ["dispatched", "other", "other"]
    assert (found.waiting, found.request.movable) == (None, None)


async def test_why_a_request_waits(bed: Bed) -> None:
    bed.evict()
    arrive(bed.book, "r-new")
    load = {"num_free_blocks": 20, "num_queued": 4, "num_running": 3}
    head = QueueHead("r-1", 0, 60, 5.0, evicted=True)
    bed.cluster.report("i-0", queue_head=head, **load)
    first = (await explained(bed)).waiting
    figures = {"needed_blocks": 60, "free_blocks": 20, "cluster_free_blocks": 220}
    assert (first.code, first.figures) == ("fragmented", figures | {"num_running_reqs": 3})
    bed.cluster.report("i-0", queue_head=replace(head, request_id="another"), **load)
    behind = (await explained(bed)).waiting
    assert (behind.code, behind.figures) == ("behind", {"num_waiting_reqs": 4})
    assert (await explained(bed, "r-new")).waiting.code == "dispatching"


# -- held ----------------------------------------------------------------------------------

HOLDING = HoldingConfig(room_to_grow_tokens=16, reserve_after_s=0.0, reserved_share=0.5)


@pytest.fixture
async def holding() -> AsyncIterator[Bed]:
    """i-0 lacks 21 blocks for r-large (10 free, 30 needed, and 1 for the growth of its running
    requests), i-1 lacks 26."""
    async with bed_of(2) as bed:
        bed.book = new_book(bed.listener)
        live = bed.controller.live
        bed.controller.configure(replace(live, scheduler=replace(live.scheduler, holding=HOLDING)))
        bed.cluster.report("i-0", num_free_blocks=10, num_running=2)
        bed.cluster.report("i-1", num_free_blocks=5, num_running=2)
        yield bed


def asks(bed: Bed, request_id: str, tokens: int = 480, rank: int = 0, after_s: float = 0.0) -> None:
    request = DispatchRequested(request_id, "f-0", tokens, rank, ARRIVAL_S + after_s)
    bed.book.arrived(request, f"cmpl-{request_id}", None)
    bed.mailbox.say(encode(DispatchAsked(request)), [])


async def test_held_requests_are_listed_in_the_order_in_which_they_go(holding: Bed) -> None:
    asks(holding, "r-large")
    asks(holding, "r-later", after_s=2.0)
    asks(holding, "r-high", rank=1, after_s=3.0)
    arrive(holding.book, "r-new")  # the controller has not been asked about it
    in_order, new = ["r-high", "r-large", "r-later"], ["r-new"]
    for query, ids, num_matching in (
        ("", in_order + new, 4),
        ("?limit=2", in_order[:2], 4),
        ("?state=waiting", in_order, 3),
        ("?state=dispatching", new, 1),
        ("?state=waiting&state=dispatching", in_order + new, 4),
        ("?state=running", [], 0),
    ):
        found = await holding.get(f"requests{query}", RequestList)
        assert ([item.id for item in found.requests], found.num_matching) == (ids, num_matching)
        for item in found.requests:
            place = in_order.index(item.id) + 1 if item.id in in_order else None
            assert (item.held and item.held.place) == place
            assert item.state == ("waiting" if place else "dispatching")
    first = (await holding.request("r-high")).held
    assert (first.why, first.instance_id, first.lacking_blocks) == ("kept", "i-0", 21)


async def test_why_held_requests_wait_and_who_may_go_ahead(holding: Bed) -> None:
    asks(holding, "r-large")
    asks(holding, "r-small", tokens=16, after_s=1.0)  # goes ahead, as it fits on i-1
    holding.book.dispatched(Dispatch("r-small", "f-0", "i-1", 1, 1))
    asks(holding, "r-later", after_s=2.0)
    found = await explained(holding, "r-large")
    assert found.request.movable is None
    assert found.waiting == Waiting(
        code="held",
        why="the first at the controller; i-0 is kept for it and lacks 21 blocks;"
        " requests that fit elsewhere may go ahead of it: 1 has, while it was the first",
        figures={"needed_blocks": 30, "lacking_blocks": 21},
    )
    assert (await explained(holding, "r-later")).waiting.why == (
        "1 is before it at the controller; all instances together do not have enough free memory;"
        " requests that fit may go ahead of it, but none of a lower rank"
    )
    for instance_id in ("i-0", "i-1"):
        holding.cluster.report(instance_id, draining=True)
    found = await explained(holding, "r-large")
    assert "no instance takes requests; no request may go ahead of it" in found.waiting.why
    assert found.waiting.figures["lacking_blocks"] is None


async def test_what_the_controller_recorded_while_it_held_a_request_is_told(holding: Bed) -> None:
    asks(holding, "r-large")
    asks(holding, "r-later", after_s=2.0)
    controller = holding.controller
    for _ in range(80):
        holding.cluster.now_s += 0.1
        for record in controller.admission_records.handle(Ticked(), holding.cluster.now_s):
            controller.journal.admission(record)
    (step,) = (await explained(holding, "r-large")).steps
    assert isinstance(step, OtherStep)
    assert (step.what, step.instance_id) == ("instance_kept", "i-0")
    assert step.figures["lacking_blocks"] == 21
    holding.book.dispatched(Dispatch("r-large", "f-0", "i-0", 1, 1))
    steps = (await explained(holding, "r-large")).steps
    assert [each.kind for each in steps] == ["other", "dispatched"]
    assert (await explained(holding, "r-later")).steps == ()


async def test_the_status_has_the_queue_its_head_and_the_kept_instance(holding: Bed) -> None:
    status = await holding.status()
    assert (status.num_held_reqs, status.held) == (0, None)
    asks(holding, "r-large")
    asks(holding, "r-later", after_s=-2.0)
    asks(holding, "r-high", rank=1, after_s=3.0)
    status = await holding.status()
    held, head = status.held, status.held.head
    assert (status.num_held_reqs, held.demand_blocks) == (3, 90)
    assert held.num_by_level == {"high": 1, "normal": 2}
    assert (head.request_id, head.level, head.why) == ("r-high", "high", "kept")
    assert (head.instance_id, head.lacking_blocks) == ("i-0", 21)
    assert held.oldest_wait_s == pytest.approx(head.waited_s + 5.0, abs=0.01)
    assert (held.oldest.request_id, held.oldest.place) == ("r-later", 2)
    kept, other = (item.kept_for for item in status.instances)
    assert other is None
    assert (kept.request_id, kept.lacking_blocks) == ("r-high", 21)


async def test_nobody_waits_for_a_request_of_the_background(holding: Bed) -> None:
    asks(holding, "r-line", rank=BACKGROUND.rank, after_s=-60.0)
    held = (await holding.status()).held
    assert (held.num_by_level, held.oldest_wait_s, held.oldest) == ({"background": 1}, 0.0, None)
    asks(holding, "r-large")
    held = (await holding.status()).held
    assert held.num_by_level == {"normal": 1, "background": 1}
    assert (held.head.request_id, held.oldest_wait_s) == ("r-large", held.head.waited_s)
