"""Textual's pilot waits until the process has idled for 20 ms after each key: 4 ms will do."""

import inspect

import pytest
from textual import _wait

HERE = "tests/unit/tui/"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """An asynchronous test here runs the whole dashboard, which takes some 300 ms of CPU."""
    for item in items:
        function = getattr(item, "function", None)
        if item.nodeid.startswith(HERE) and inspect.iscoroutinefunction(function):
            item.add_marker("dashboard")


@pytest.fixture(autouse=True)
def _quick_pilot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_wait, "SLEEP_GRANULARITY", 0.004)
    monkeypatch.setattr(_wait, "SLEEP_IDLE", 0.001)


@pytest.fixture(autouse=True)
def _messages_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a message may be over before a test has read it."""
    monkeypatch.setattr("tui.app.MESSAGE_S", 3600.0)
