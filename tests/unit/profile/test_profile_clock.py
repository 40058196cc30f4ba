"""The clock that stands still while its thread waits for a core."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from controller.main.profile import engine_process
from controller.main.profile.engine_process import CoreClock


@pytest.fixture
def waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Tells the system's account of this thread that it waited for so long."""
    account = tmp_path / "schedstat"
    account.write_text("5 1000000000 7\n")
    monkeypatch.setattr(engine_process, "SCHEDSTAT", account)

    def wait(seconds: float) -> None:
        waited_ns = int(account.read_text().split()[1]) + int(seconds * 1e9)
        account.write_text(f"9 {waited_ns} 8\n")

    return wait


def test_waits_do_not_count(
    waits: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 100.0
    monkeypatch.setattr(time, "perf_counter", lambda: now_s)
    clock = CoreClock()
    began_s = clock()
    now_s = 103.0
    waits(2.0)
    assert clock() - began_s == pytest.approx(1.0)
    assert clock.waited_ratio == pytest.approx(2 / 3)


def test_a_wait_while_the_clock_is_read_does_not_turn_it_back(
    waits: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, waits_s = 100.0, [0.0]
    clock = CoreClock()

    def read() -> float:
        """The thread loses its core right after it has read the time."""
        nonlocal now_s
        before_s = now_s
        if waits_s:
            wait_s = waits_s.pop()
            now_s += wait_s
            waits(wait_s)
        return before_s

    monkeypatch.setattr(time, "perf_counter", read)
    began_s = clock()
    now_s += 0.005
    waits_s.append(0.05)
    assert clock() - began_s == pytest.approx(0.005)
