"""The controller hears at once of new room, however rarely statuses are due."""

from collections.abc import AsyncIterator

import pytest

from controller.runtime.messages.requests import AbortRequests
from tests.unit.runtime.fakes import FakeNetwork, until
from tests.unit.runtime.llumlet_bed import HERE, Bed


@pytest.fixture
async def bed(network: FakeNetwork, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bed]:
    """While the engine works no status is due by itself."""
    monkeypatch.setattr("controller.runtime.controller_link.HELLO_INTERVAL_S", 0.02)
    bed = Bed(network, status_interval_s=10_000.0)
    await bed.start()
    bed.engine.hold()
    yield bed
    await bed.end()


async def added(bed: Bed, *requests: tuple[str, int, int]) -> None:
    """Adds (id, prompt tokens, output tokens), and waits until the engine has them and has made
    the steps that it may."""
    for name, num_prompt_tokens, max_tokens in requests:
        bed.add(name, num_prompt_tokens=num_prompt_tokens, max_tokens=max_tokens)
    await bed.taken_in(len(requests))
    wanted = (len(requests), bed.engine.num_steps + 2)
    bed.engine.allow(2)
    await until(lambda: (len(bed.engine.running), bed.engine.num_steps) == wanted)


async def test_the_end_of_a_request_is_told_after_its_step(bed: Bed) -> None:
    await added(bed, ("long", 4, 200), ("short", 4, 20))
    bed.engine.allow(30)
    told = await bed.status(lambda s: s.snapshot.num_running == 1)
    assert told.num_steps <= 22


async def test_an_eviction_is_told_after_its_step(bed: Bed) -> None:
    await added(bed, ("stays", 4, 200), ("leaves", 4, 200))
    bed.engine.admits = False
    bed.engine.on_step = lambda: "leaves" in bed.engine.running and bed.engine.evict("leaves")
    bed.engine.allow(1)
    told = await bed.status(lambda s: s.snapshot.num_evicted_queued == 1)
    assert told.num_steps == bed.engine.num_steps


async def test_an_abort_is_told_before_the_next_step(bed: Bed) -> None:
    await added(bed, ("stays", 4, 200), ("leaves", 4, 200))
    bed.f0.send(HERE, AbortRequests(("leaves",)))
    await bed.taken_in(1)
    bed.engine.allow(1)  # the step that it is in
    told = await bed.status(lambda s: s.snapshot.num_running == 1)
    assert bed.engine.aborted
    assert told.num_steps == bed.engine.num_steps
