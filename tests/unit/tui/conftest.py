"""Dashboards for tests that press keys. Textual's pilot waits for 4 ms of idle time after each key
instead of 20 ms."""

import inspect
from collections.abc import AsyncIterator

import pytest
from textual import _wait

from tests.unit.tui.tui_support import Bed, acting, watching

HERE = "tests/unit/tui/"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the asynchronous tests here, each of which runs the whole dashboard in some 300 ms of
    CPU."""
    for item in items:
        function = getattr(item, "function", None)
        if item.nodeid.startswith(HERE) and inspect.iscoroutinefunction(function):
            item.add_marker("dashboard")


@pytest.fixture
async def bed() -> AsyncIterator[Bed]:
    """A dashboard that has heard one status of twelve instances."""
    async with acting() as found:
        yield found


@pytest.fixture
async def watched() -> AsyncIterator[Bed]:
    """A dashboard that has heard ten seconds of sixteen instances."""
    async with watching() as found:
        yield found


@pytest.fixture(autouse=True)
def _quick_pilot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_wait, "SLEEP_GRANULARITY", 0.004)
    monkeypatch.setattr(_wait, "SLEEP_IDLE", 0.001)


@pytest.fixture(autouse=True)
def _messages_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps messages on the screen: on a busy machine they could vanish before a test reads
    them."""
    monkeypatch.setattr("tui.session.MESSAGE_S", 3600.0)
