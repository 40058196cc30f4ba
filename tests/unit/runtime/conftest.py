"""One in-memory network per test; nothing may have been refused on it at the end."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from controller.runtime.instance.llumlet import Serving
from tests.unit.runtime.fakes import FakeNetwork
from tests.unit.runtime.members import repeat_often
from tests.unit.runtime.moving_cluster import Clock, MovingCluster


@pytest.fixture
def network() -> Iterator[FakeNetwork]:
    network = FakeNetwork()
    yield network
    assert network.errors == []


@pytest.fixture
async def moving(
    network: FakeNetwork,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    request: pytest.FixtureRequest,
) -> AsyncIterator[MovingCluster]:
    """A parameter is the number of blocks of each instance."""
    clock = Clock()
    monkeypatch.setattr(Serving, "now_s", lambda self: clock.now_s)
    repeat_often(monkeypatch)
    monkeypatch.setattr("controller.runtime.instance.llumlet.MOVES_TICK_S", 0.002)
    monkeypatch.setattr("controller.core.migration.routes.MISSING_S", 0.01)
    in_callbacks: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: in_callbacks.append(what))
    cluster = MovingCluster(network, clock, getattr(request, "param", 65))
    await cluster.start()
    yield cluster
    await cluster.end()
    assert in_callbacks == []
    records = caplog.get_records("call")
    illegal = [
        r.getMessage() for r in records if r.name == "controller.runtime.instance.instance_moves"
    ]
    assert illegal == []
