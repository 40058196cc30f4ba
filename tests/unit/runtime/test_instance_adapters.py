"""An instance's LoRA adapters, and requests that come before theirs is loaded."""

import threading

import pytest

from controller.core.fleet.adapters import Adapter
from controller.runtime.instance import adapters
from controller.runtime.messages.members import AdaptersSet
from controller.runtime.messages.requests import AbortRequests, OutputsEmitted, RequestRefused
from tests.unit.runtime.fake_engine import tokens_of
from tests.unit.runtime.fakes import PATIENCE_S, settle, until
from tests.unit.runtime.llumlet_bed import HERE, Bed

pytestmark = pytest.mark.usefixtures("impatient")


@pytest.fixture
async def bed(unstarted: Bed) -> Bed:
    await unstarted.start()
    return unstarted


def tell(bed: Bed, *numbers: int, next_number: int = 9) -> None:
    told = tuple(Adapter(f"a{n}", n, f"/models/a{n}", str(n) * 64, 8) for n in numbers)
    bed.controller.send(HERE, AdaptersSet(told, next_number))


def slow_fetch(bed: Bed) -> threading.Event:
    """Files come only once the event is set."""
    go_on, fetch = threading.Event(), bed.adapter_files.fetch

    def slow(adapter: Adapter) -> str:
        assert go_on.wait(PATIENCE_S)
        return fetch(adapter)

    bed.adapter_files.fetch = slow  # type: ignore[method-assign]
    return go_on


async def test_adapters_are_loaded_reported_and_unloaded_when_nobody_uses_them(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.core.fleet.adapters.LOOK_EVERY_S", 0.01)
    tell(bed, 1, 2)
    await bed.status(lambda told: set(told.snapshot.adapters) == {1, 2})
    assert bed.engine.adapters == {n: f"/copies/{str(n) * 64}" for n in (1, 2)}
    bed.engine.adapters_in_use = {1}
    tell(bed, 2)
    bed.add("on its way", adapter=1)
    assert await bed.tokens("on its way") == tokens_of("on its way", 5)
    assert set(bed.engine.adapters) == {1, 2}
    bed.engine.adapters_in_use = set()
    await bed.status(lambda told: set(told.snapshot.adapters) == {2})
    await until(lambda: bed.adapter_files.here == {2})
    bed.add("late", adapter=1)
    refused = await bed.f0.receive(RequestRefused)
    assert refused.message.endswith("its LoRA adapter: it is not loaded any more")
    assert not refused.retryable


@pytest.mark.parametrize("at", ["files", "engine"])
async def test_an_adapter_that_cannot_be_used_is_reported_and_its_requests_are_refused(
    bed: Bed, at: str
) -> None:
    why = "no such folder"
    if at == "files":
        bed.adapter_files.why_not = why
    else:
        bed.engine.refuses_adapters = why
    tell(bed, 1)
    bed.add("r", adapter=1)
    bed.add("again", adapter=1, attempt=1)
    for request_id in ("r", "again"):
        refused = await bed.f0.receive(RequestRefused, lambda r, i=request_id: r.request_id == i)
        assert refused.message == f"its instance cannot use its LoRA adapter: {why}"
    await bed.status(lambda told: told.snapshot.failed_adapters == {1: why})
    await until(lambda: not bed.adapter_files.here)
    bed.add("without")
    assert await bed.tokens("without") == tokens_of("without", 5)
    tell(bed)
    await bed.status(lambda told: not told.snapshot.failed_adapters)


async def test_a_request_waits_for_its_adapter(bed: Bed) -> None:
    """Even one of which the instance has not been told yet."""
    go_on = slow_fetch(bed)
    bed.add("early", adapter=3)
    tell(bed, 3, next_number=4)
    bed.add("r", adapter=3)
    bed.add("again", adapter=3, attempt=1)
    bed.add("left", adapter=3)
    bed.add("orphan", adapter=3, frontend=bed.f1)
    bed.add("without")
    assert await bed.tokens("without") == tokens_of("without", 5)
    found = await bed.pull()
    assert (found.snapshot.num_queued, found.snapshot.num_queued_by_rank) == (4, {0: 4})
    assert bed.llumlet.num_live_reqs == 4
    bed.f0.send(HERE, AbortRequests(("left",)))
    bed.network.lose("mem://f-1")
    await settle()
    go_on.set()
    waiting = {"early", "r", "again"}
    while waiting:
        emitted, _ = await bed.output()
        waiting -= {item.request_id for item in emitted.items if item.finish_reason}
    assert not bed.f1.received(OutputsEmitted)
    await until(lambda: bed.llumlet.num_live_reqs == 0)
    assert not {"left", "orphan"} & bed.engine.running.keys()


async def test_who_waits_too_long_may_try_another_instance(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapters, "LOAD_TIMEOUT_S", 0.05)
    go_on = slow_fetch(bed)
    tell(bed, 1)
    bed.add("r", adapter=1)
    refused = await bed.f0.receive(RequestRefused)
    assert refused.retryable
    go_on.set()
