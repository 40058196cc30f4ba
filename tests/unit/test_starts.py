"""Members that die at their start, as real processes that are restarted as Ray does it."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from controller.adapters.ray import ray_starts
from controller.core.fleet.incarnations import (
    FIRST_DELAY_S,
    MAX_DELAY_S,
    MAX_FAILED_STARTS,
    delay_s,
    is_given_up,
)

# -- the decision -------------------------------------------------------------------------


def test_starts_wait_ever_longer_and_only_a_first_start_is_given_up() -> None:
    delays = [delay_s(num_failed) for num_failed in range(100)]
    assert delays == sorted(delays)
    assert (delays[:2], delays[-1]) == ([0, FIRST_DELAY_S], MAX_DELAY_S)
    assert sum(delays[:MAX_FAILED_STARTS]) < 10
    assert is_given_up(MAX_FAILED_STARTS, has_served=False)
    assert not is_given_up(MAX_FAILED_STARTS, has_served=True)
    assert not is_given_up(MAX_FAILED_STARTS - 1, has_served=False)


# -- processes ----------------------------------------------------------------------------

MEMBER = """
import sys, threading, faulthandler
faulthandler.enable()  # as Ray does in its workers
import controller.core.fleet.incarnations as restarts
restarts.FIRST_DELAY_S = 0.001
from controller.adapters.ray.ray_launcher import RayMember
log_dir, role, run = sys.argv[1:]
member = RayMember("i-0", role, {}, log_dir, run)
threading.Event().wait()
"""
ROLES = """
import os, sys

async def raises(start):
    told(start)
    raise RuntimeError("no room\\nfor the KV cache")

async def exits(start):
    told(start)
    os._exit(3)

async def crashes(start):
    told(start)
    import ctypes
    ctypes.string_at(0)

async def serves_then_dies(start):
    told(start)
    start.succeeded()
    os._exit(3)

def told(start):
    if start.failure:
        sys.__stdout__.flush()
        open("told", "w").write(start.failure)
        os._exit(0)
"""
ENOUGH = MAX_FAILED_STARTS + 1
Run = Callable[..., tuple[int, str, bool]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs the member's processes, each after the one before has ended, until one is told that it
    is given up. Returns how many there were before, and how the last of them failed."""
    (tmp_path / "dying_roles.py").write_text(ROLES)

    def run(role: str, *, most: int = ENOUGH) -> tuple[int, str, bool]:
        command = [sys.executable, "-c", MEMBER, str(tmp_path), role, "r1"]
        number = 0
        while number < most:
            environment = {"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"}
            subprocess.run(command, cwd=tmp_path, env=environment, timeout=30, check=False)
            if (tmp_path / "told").exists():
                break
            number += 1
        return number, *ray_starts.failure_of(tmp_path, "i-0", "r1")

    return run


@pytest.mark.process
def test_a_member_that_dies_at_each_start_is_given_up_with_its_reason(
    run: Run, tmp_path: Path
) -> None:
    reason = "RuntimeError: no room for the KV cache"
    assert run("dying_roles:raises") == (MAX_FAILED_STARTS, reason, True)
    told = (tmp_path / "told").read_text()
    assert told == f"{reason} ({MAX_FAILED_STARTS} starts in a row failed)"
    assert ray_starts.failure_of(tmp_path, "i-0", "r2") == ("", False), "of another run"


@pytest.mark.parametrize(
    ("role", "reason"),
    [
        ("dying_roles:crashes", "Fatal Python error: Segmentation fault"),
        ("no_such_module:f", "ModuleNotFoundError: No module named 'no_such_module'"),
    ],
)
@pytest.mark.process
def test_what_ended_without_a_note_is_found_by_the_next_one(
    run: Run, role: str, reason: str
) -> None:
    assert run(role, most=2) == (2, reason, False)


@pytest.mark.process
def test_a_member_that_has_served_is_started_for_ever(run: Run) -> None:
    role = "dying_roles:serves_then_dies"
    assert run(role) == (ENOUGH, "", False), "it serves each time"
    assert run("dying_roles:exits") == (ENOUGH, ray_starts.SILENT, False)


# -- the file -----------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", '{"run": "r1", "odd": 1}', "[" * 100_000])
def test_a_file_that_is_no_record_counts_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "i-0.starts").write_text(text)
    assert ray_starts.failure_of(tmp_path, "i-0", "r1") == ("", False)
    assert ray_starts.begin(tmp_path / "i-0.log", "r1").failure == ""


def test_a_record_that_cannot_be_written_keeps_nobody_from_starting(tmp_path: Path) -> None:
    start = ray_starts.begin(tmp_path / "none" / "i-0.log", "r1")
    start.succeeded()
    assert (start.delay_s, start.failure) == (0, "")


def test_the_reason_is_that_of_the_last_start_alone(tmp_path: Path) -> None:
    log = tmp_path / "i-0.log"
    log.write_text("ValueError: of an earlier one\n")
    ray_starts.begin(log, "r1")
    with log.open("a") as file:
        file.write("2026-01-01 INFO no error in sight\n")
    ray_starts.begin(log, "r1")
    assert ray_starts.failure_of(tmp_path, "i-0", "r1") == (ray_starts.SILENT, False)


SIGNAL = "*** SIGSEGV received at time=1 on cpu 0 ***"


def test_last_words() -> None:
    for text, words in (
        ("INFO loading\nValueError: bad\n  more\n", "ValueError: bad"),
        ("zmq.error.ZMQError: in use", "zmq.error.ZMQError: in use"),
        (f"[2026-01-01 00:00:00] {SIGNAL}\n  @ 0x1", SIGNAL),
    ):
        assert ray_starts.last_words(text) == words
