"""Textual's pilot waits until the process has idled for 20 ms after each key: 4 ms will do."""

import pytest
from textual import _wait


@pytest.fixture(autouse=True)
def _quick_pilot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_wait, "SLEEP_GRANULARITY", 0.004)
    monkeypatch.setattr(_wait, "SLEEP_IDLE", 0.001)
