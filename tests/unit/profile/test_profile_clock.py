"""The clock that stands still while its thread waits for a core."""

import time
from pathlib import Path

import pytest

from controller.main.profile import engine_process
from controller.main.profile.engine_process import CoreClock


def test_waits_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the system's account of how long this thread waited."""
    account, now_s = tmp_path / "schedstat", 100.0
    account.write_text("5 1000000000 7\n")
    monkeypatch.setattr(engine_process, "SCHEDSTAT", account)
    monkeypatch.setattr(time, "perf_counter", lambda: now_s)
    clock = CoreClock()
    began_s = clock()
    now_s = 103.0
    account.write_text("9 3000000000 8\n")
    assert clock() - began_s == pytest.approx(1.0)
    assert clock.waited_ratio == pytest.approx(2 / 3)
    account.unlink()
    clock = CoreClock()
    now_s = 104.0
    assert (clock(), clock.waited_ratio) == (now_s, 0)
