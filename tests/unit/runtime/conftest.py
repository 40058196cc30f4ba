"""One in-memory network per test; nothing may have been refused on it at the end, and no callback
may have raised."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from controller.runtime.instance.llumlet import Serving
from tests.unit.runtime import llumlet_bed
from tests.unit.runtime.fakes import FakeNetwork, loop_factories
from tests.unit.runtime.members import repeat_often
from tests.unit.runtime.moving_cluster import Clock, MovingCluster

pytest_asyncio_loop_factories = loop_factories


@pytest.fixture
async def network() -> AsyncIterator[FakeNetwork]:
    in_callbacks: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: in_callbacks.append(what))
    network = FakeNetwork()
    yield network
    assert network.errors == []
    assert in_callbacks == []


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    repeat_often(monkeypatch)


@pytest.fixture
async def unstarted(
    network: FakeNetwork,
    impatient: None,  # noqa: ARG001
) -> AsyncIterator[llumlet_bed.Bed]:
    bed = llumlet_bed.Bed(network)
    yield bed
    await bed.end()


@pytest.fixture
async def moving(
    network: FakeNetwork,
    impatient: None,  # noqa: ARG001
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    request: pytest.FixtureRequest,
) -> AsyncIterator[MovingCluster]:
    """A parameter is the number of blocks of each instance. After a test that went well all
    requests that still run finish with their tokens, and nothing is left."""
    clock = Clock()
    monkeypatch.setattr(Serving, "now_s", lambda self: clock.now_s)
    monkeypatch.setattr("controller.runtime.instance.llumlet.MOVES_TICK_S", 0.002)
    monkeypatch.setattr("controller.core.migration.routes.MISSING_S", 0.01)
    num_failed = request.session.testsfailed
    cluster = MovingCluster(network, clock, getattr(request, "param", 65))
    await cluster.start()
    yield cluster
    if request.session.testsfailed == num_failed:
        await cluster.comes_to_rest()
    await cluster.end()
    illegal = [
        record.getMessage()
        for record in caplog.get_records("call")
        if record.name == "controller.runtime.instance.instance_moves"
    ]
    assert illegal == []
