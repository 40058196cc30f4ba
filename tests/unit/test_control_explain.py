"""Why a request is where it is, on the control API."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from controller.api.wire.requests import Explanation
from controller.core.load.snapshot import QueueHead
from controller.core.record.event_log import EventKind, LoggedEvent
from controller.core.record.request_record import RequestState
from controller.core.scheduler_events import DispatchRequested
from controller.runtime.frontend.request_book import RequestBook
from tests.unit.control_support import AUTHORIZED, VIEW_TOKEN, Listener, listening
from tests.unit.move_support import Source, serve_running_request

PATH = "/v1/requests/r-1/explain"


class Bed:
    """r-1 runs on i-0; i-1 and i-2 are there too."""

    def __init__(self, listener: Listener, client: httpx.AsyncClient) -> None:
        self.client, self.cluster = client, listener.cluster
        self.book: RequestBook = serve_running_request(listener)
        self.source = Source(listener, self.book)

    async def explained(self, path: str = PATH, token: str = "") -> Explanation:
        headers = {"Authorization": f"Bearer {token}"} if token else AUTHORIZED
        answer = await self.client.get(path, headers=headers)
        assert answer.status_code == 200, answer.text
        return Explanation.model_validate_json(answer.content)

    def evict(self) -> None:
        event = LoggedEvent(EventKind.EVICTED, 6.0, "s", "", "i-0", 1, request_id="r-1")
        self.book.happened(event)

    def queue(self, head_id: str, demand_blocks: int = 60, **what: Any) -> None:
        head = QueueHead(head_id, 0, demand_blocks, 5.0, evicted=True)
        counts = {"num_queued": 4, "queue_head": head, "num_running": 3} | what
        self.cluster.report("i-0", **counts)


@pytest.fixture
async def bed(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bed]:
    monkeypatch.setattr("controller.runtime.controller.queries.PATIENCE_S", 0.2)
    monkeypatch.setattr("controller.core.emptying.by_hand.TIMED_PATIENCE_S", 0.2)
    async with listening(3) as (listener, client):
        yield Bed(listener, client)


async def test_one_that_runs(bed: Bed) -> None:
    bed.cluster.report("i-2", num_free_blocks=50)
    found = await bed.explained(token=VIEW_TOKEN)
    assert (found.request.id, found.request.state, found.request.movable) == (
        "r-1",
        "running",
        True,
    )
    assert [step.kind for step in found.steps] == ["dispatched", "other"]
    assert found.waiting is None
    assert (found.could_move_to, found.why_not_movable) == ("i-1", "")
    assert (await bed.explained("/v1/requests/cmpl-1/explain")).steps == found.steps


async def test_one_that_was_moved_by_hand(bed: Bed) -> None:
    answer = await bed.client.post(
        "/v1/requests/r-1/migrate", headers=AUTHORIZED, json={"to": "i-2", "reason": "make room"}
    )
    assert answer.status_code == 200
    (step,) = [step for step in (await bed.explained()).steps if step.kind == "migrated"]
    assert (step.from_instance_id, step.to_instance_id, step.reason) == ("i-0", "i-2", "make room")


async def test_one_that_cannot_move(bed: Bed) -> None:
    bed.source.refusals = {"r-1": "in_prefill"}
    found = await bed.explained()
    assert (found.request.movable, found.request.why_not_movable) == (False, "in_prefill")
    assert found.why_not_movable == "its prompt is still being computed"
    assert found.could_move_to is None


async def test_one_that_could_move_and_fits_nowhere(bed: Bed) -> None:
    for instance_id in ("i-1", "i-2"):
        bed.cluster.report(instance_id, num_free_blocks=2)
    found = await bed.explained()
    assert (found.request.movable, found.could_move_to) == (True, None)


@pytest.mark.parametrize(
    ("what", "code"),
    [
        ({"num_free_blocks": 20}, "fragmented"),
        ({"num_free_blocks": 20, "demand_blocks": 900}, "memory"),
        ({"num_free_blocks": 80}, "next-step"),
        ({"num_free_blocks": 80, "max_num_running": 3}, "batch-full"),
    ],
)
async def test_why_the_first_of_a_queue_waits(bed: Bed, what: dict[str, Any], code: str) -> None:
    bed.evict()
    bed.queue("r-1", **what)
    found = await bed.explained()
    assert found.request.state == "evicted"
    assert found.waiting is not None
    assert found.waiting.code == code
    assert found.waiting.why
    assert found.waiting.figures == {
        "needed_blocks": what.get("demand_blocks", 60),
        "free_blocks": what["num_free_blocks"],
        "cluster_free_blocks": 200 + what["num_free_blocks"],
        "num_running_reqs": 3,
    }


async def test_one_behind_the_first(bed: Bed) -> None:
    bed.evict()
    bed.queue("another")
    waiting = (await bed.explained()).waiting
    assert waiting is not None
    assert (waiting.code, waiting.figures) == ("behind", {"num_waiting_reqs": 4})


async def test_one_that_no_instance_has_yet(bed: Bed) -> None:
    bed.book.arrived(DispatchRequested("r-new", "f-0", 120, 0, 1_700_000_000.0), "cmpl-2", None)
    found = await bed.explained("/v1/requests/r-new/explain")
    assert found.steps == ()
    assert found.waiting is not None
    assert found.waiting.code == "dispatching"
    assert found.request.movable is None


async def test_one_that_ended_and_is_remembered(bed: Bed) -> None:
    bed.book.ended("r-1", RequestState.ABORTED, "the client left")
    found = await bed.explained()
    assert [step.kind for step in found.steps] == ["dispatched", "other", "other"]
    assert (found.waiting, found.could_move_to, found.request.movable) == (None, None, None)


@pytest.mark.parametrize(
    ("reference", "status", "code"),
    [("r-9", 404, "no_such_request"), ("x" * 300, 400, "bad_request"), ("r-", 409, "ambiguous")],
)
async def test_what_names_none(bed: Bed, reference: str, status: int, code: str) -> None:
    bed.book.arrived(DispatchRequested("r-2", "f-0", 120, 0, 1_700_000_000.0), "cmpl-2", None)
    answer = await bed.client.get(f"/v1/requests/{reference}/explain", headers=AUTHORIZED)
    assert (answer.status_code, answer.json()["code"]) == (status, code)


async def test_an_instance_that_does_not_answer_leaves_it_open(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.runtime.controller.queries.REFUSALS_PATIENCE_S", 0.05)
    bed.source.silent = True
    found = await bed.explained()
    assert (found.request.movable, found.why_not_movable, found.could_move_to) == (None, "", None)
