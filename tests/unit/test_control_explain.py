"""Why a request is where it is, on the control API; and requests that the controller holds: listed,
explained, in the status."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from controller.api.operations.on_requests import Migrate
from controller.api.wire.requests import Explanation, OtherStep, RequestList, Waiting
from controller.core.load.snapshot import QueueHead
from controller.core.record.request_record import RequestState
from controller.core.scheduler_events import Dispatch, DispatchRequested, Ticked
from controller.core.settings import HoldingConfig
from controller.runtime.messages.codec import encode
from controller.runtime.messages.requests import DispatchAsked
from tests.unit.control_bed import VIEWER, Bed, bed_of
from tests.unit.move_support import ARRIVAL_S, arrive, new_book


@pytest.fixture
async def bed() -> AsyncIterator[Bed]:
    async with bed_of() as found:
        yield found


async def explained(bed: Bed, reference: str = "r-1") -> Explanation:
    return await bed.get(f"requests/{reference}/explain", Explanation)


async def waiting(bed: Bed, reference: str = "r-1") -> Waiting:
    return (await explained(bed, reference)).waiting


async def test_a_request_that_runs_and_where_it_could_move(bed: Bed) -> None:
    bed.cluster.report("i-2", num_free_blocks=50)
    found = await explained(bed)
    assert (found.request.id, found.request.state, found.request.movable) == (
        "r-1",
        "running",
        True,
    )
    assert [step.kind for step in found.steps] == ["dispatched", "other"]
    assert (found.waiting, found.could_move_to, found.why_not_movable) == (None, "i-1", "")
    answer = await bed.client.get("/v1/requests/cmpl-1/explain", headers=VIEWER)
    assert Explanation.model_validate_json(answer.content).steps == found.steps
    for instance_id in ("i-1", "i-2"):
        bed.cluster.report(instance_id, num_free_blocks=2)
    found = await explained(bed)
    assert (found.request.movable, found.could_move_to) == (True, None)


async def test_a_request_that_was_moved_by_hand(bed: Bed) -> None:
    await bed.does(Migrate, to="i-2", reason="make room")
    (step,) = [step for step in (await explained(bed)).steps if step.kind == "migrated"]
    assert (step.from_instance_id, step.to_instance_id, step.reason) == ("i-0", "i-2", "make room")


async def test_a_request_that_cannot_move(bed: Bed) -> None:
    bed.source.refusals = {"r-1": "in_prefill"}
    found = await explained(bed)
    assert (found.request.movable, found.request.why_not_movable) == (False, "in_prefill")
    assert found.why_not_movable == "its prompt is still being computed"
    assert found.could_move_to is None
    bed.source.silent = True
    found = await explained(bed)
    assert (found.request.movable, found.why_not_movable, found.could_move_to) == (None, "", None)


@pytest.mark.parametrize(
    ("load", "demand_blocks", "code"),
    [
        ({"num_free_blocks": 20}, 60, "fragmented"),
        ({"num_free_blocks": 20}, 900, "memory"),
        ({"num_free_blocks": 80}, 60, "next-step"),
        ({"num_free_blocks": 80, "max_num_running": 3}, 60, "batch-full"),
    ],
)
async def test_why_the_first_of_a_queue_waits(
    bed: Bed, load: dict[str, int], demand_blocks: int, code: str
) -> None:
    bed.evict()
    head = QueueHead("r-1", 0, demand_blocks, 5.0, evicted=True)
    bed.cluster.report("i-0", num_queued=4, queue_head=head, num_running=3, **load)
    found = await waiting(bed)
    assert found.code == code
    assert found.why
    assert found.figures == {
        "needed_blocks": demand_blocks,
        "free_blocks": load["num_free_blocks"],
        "cluster_free_blocks": 200 + load["num_free_blocks"],
        "num_running_reqs": 3,
    }


async def test_a_request_behind_the_first_and_one_that_no_instance_has_yet(bed: Bed) -> None:
    bed.evict()
    head = QueueHead("another", 0, 60, 5.0, evicted=True)
    bed.cluster.report("i-0", num_queued=4, queue_head=head)
    found = await waiting(bed)
    assert (found.code, found.figures) == ("behind", {"num_waiting_reqs": 4})
    arrive(bed.book, "r-new")
    assert (await waiting(bed, "r-new")).code == "dispatching"
    assert (await explained(bed, "r-new")).request.movable is None


async def test_a_request_that_ended_and_is_remembered(bed: Bed) -> None:
    bed.book.ended("r-1", RequestState.ABORTED, "the client left")
    found = await explained(bed)
    assert [step.kind for step in found.steps] == ["dispatched", "other", "other"]
    assert (found.waiting, found.could_move_to, found.request.movable) == (None, None, None)


@pytest.mark.parametrize(
    ("reference", "status", "code"),
    [("r-9", 404, "no_such_request"), ("x" * 257, 400, "bad_request"), ("r-", 409, "ambiguous")],
)
async def test_what_names_no_request(bed: Bed, reference: str, status: int, code: str) -> None:
    arrive(bed.book, "r-2")
    for path in (reference, f"{reference}/id", f"{reference}/explain"):
        answer = await bed.client.get(f"/v1/requests/{path}")
        assert (answer.status_code, answer.json()["code"]) == (status, code)


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


async def listed(bed: Bed, query: str = "") -> RequestList:
    return await bed.get(f"requests{query}", RequestList)


async def test_held_requests_are_listed_in_the_order_in_which_they_go(holding: Bed) -> None:
    asks(holding, "r-large")
    asks(holding, "r-later", after_s=2.0)
    asks(holding, "r-high", rank=1, after_s=3.0)
    found = await listed(holding)
    assert [(item.id, item.state, item.instance_id) for item in found.requests] == [
        ("r-high", "waiting", None),
        ("r-large", "waiting", None),
        ("r-later", "waiting", None),
    ]
    places = [item.held for item in found.requests]
    assert [place and place.place for place in places] == [1, 2, 3]
    assert [place and place.demand_blocks for place in places] == [30, 30, 30]
    first = places[0]
    assert (first.why, first.instance_id, first.lacking_blocks) == ("kept", "i-0", 21)
    assert (await holding.request("r-high")).held == first
    some = await listed(holding, "?limit=2")
    assert ([item.id for item in some.requests], some.num_matching) == (["r-high", "r-large"], 3)


async def test_a_request_whose_question_has_not_come_is_not_held(holding: Bed) -> None:
    asks(holding, "r-large")
    arrive(holding.book, "r-new")
    for query, expected in (
        ("", [("r-large", "waiting"), ("r-new", "dispatching")]),
        ("?state=waiting", [("r-large", "waiting")]),
        ("?state=dispatching", [("r-new", "dispatching")]),
        ("?state=waiting&state=dispatching", [("r-large", "waiting"), ("r-new", "dispatching")]),
        ("?state=running", []),
    ):
        found = await listed(holding, query)
        assert [(item.id, item.state) for item in found.requests] == expected
        assert found.num_matching == len(expected)


async def test_why_held_requests_wait_and_who_may_go_ahead(holding: Bed) -> None:
    asks(holding, "r-large")
    asks(holding, "r-small", tokens=16, after_s=1.0)  # goes ahead, as it fits on i-1
    holding.book.dispatched(Dispatch("r-small", "f-0", "i-1", 1, 1))
    asks(holding, "r-later", after_s=2.0)
    found = await explained(holding, "r-large")
    assert found.waiting == Waiting(
        code="held",
        why="the first at the controller; i-0 is kept for it and lacks 21 blocks;"
        " requests that fit elsewhere may go ahead of it: 1 has, while it was the first",
        figures={"needed_blocks": 30, "lacking_blocks": 21},
    )
    assert found.request.held is not None
    assert found.request.movable is None
    assert (await waiting(holding, "r-later")).why == (
        "1 is before it at the controller; all instances together do not have enough free memory;"
        " requests that fit may go ahead of it, but none of a lower rank"
    )


async def test_why_a_request_waits_while_no_instance_takes_any(holding: Bed) -> None:
    for instance_id in ("i-0", "i-1"):
        holding.cluster.report(instance_id, draining=True)
    asks(holding, "r-large")
    found = await waiting(holding, "r-large")
    assert found.why == (
        "the first at the controller; no instance takes requests; no request may go ahead of it"
    )
    assert found.figures == {"needed_blocks": 30, "lacking_blocks": None}


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
    assert [item.kept_for for item in status.instances] == [None, None]
    asks(holding, "r-large")
    asks(holding, "r-later", after_s=-2.0)
    asks(holding, "r-high", rank=1, after_s=3.0)
    status = await holding.status()
    held = status.held
    assert (status.num_held_reqs, held.demand_blocks) == (3, 90)
    assert held.num_by_level == {"high": 1, "normal": 2}
    head = held.head
    expected: dict[str, Any] = {"request_id": "r-high", "level": "high", "rank": 1}
    expected |= {"frontend_id": "f-0", "why": "kept", "instance_id": "i-0", "lacking_blocks": 21}
    assert expected.items() <= head.model_dump().items()
    assert held.oldest_wait_s == pytest.approx(head.waited_s + 5.0, abs=0.01)
    assert (held.oldest.request_id, held.oldest.place) == ("r-later", 2)
    assert held.oldest.waited_s == held.oldest_wait_s
    kept, other = (item.kept_for for item in status.instances)
    assert other is None
    assert (kept.request_id, kept.lacking_blocks) == ("r-high", 21)
