"""Logs stay small, whichever process writes to them, and followers lose nothing by it."""

import contextlib
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from controller.adapters.ray.log_rotation import NUM_OLD, old_file, turn_over
from controller.api.state.log_tail import LogTail
from controller.main.machine import run_folders

PATIENCE_S = 30.0
MAX_BYTES = 20_000

# Python's logging, a C library on the file descriptor, and a child process.
MEMBER = """
import ctypes, logging, subprocess, sys, time
from controller.adapters.ray import log_rotation
from controller.adapters.ray.ray_launcher import RayMember

log_rotation.MAX_BYTES, log_rotation.LOOK_EVERY_S = {max_bytes}, 0.01

async def flood(start):
    libc = ctypes.CDLL(None)
    for n in range(300):
        logging.info("python %d", n)
        libc.dprintf(2, b"C %d\\n", n)
        subprocess.run(["echo", "child"], check=True)
        sys.stderr.write("x" * 500 + "\\n")
    print("the end", flush=True)
    time.sleep(1000)

sys.modules["flooding"] = sys.modules["__main__"]
RayMember("i-0", "flooding:flood", {{}}, {log_dir!r}, "run")
time.sleep(1000)
"""


def files_of(path: Path) -> list[Path]:
    return [path, *(old_file(path, number) for number in range(1, NUM_OLD + 1))]


def size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # it has got another name since it was listed
        return 0


@pytest.mark.process
def test_a_members_log_stays_small_whoever_writes_to_it(tmp_path: Path) -> None:
    log = tmp_path / "i-0.log"
    script = MEMBER.format(max_bytes=MAX_BYTES, log_dir=str(tmp_path))
    member = subprocess.Popen([sys.executable, "-c", script])
    seen: list[str] = []
    largest = 0
    try:
        deadline_s = time.monotonic() + PATIENCE_S
        while not log.exists() and time.monotonic() < deadline_s:
            time.sleep(0.01)
        tail = LogTail(log)
        while "the end" not in seen and time.monotonic() < deadline_s:
            seen += tail.added()
            largest = max(largest, sum(map(size_of, tmp_path.glob("i-0.log*"))))
            time.sleep(0.002)
        while size_of(log) > MAX_BYTES and time.monotonic() < deadline_s:
            time.sleep(0.002)  # the last one is still being put aside
        tail.close()
    finally:
        member.kill()
        member.wait()
    assert largest <= (1 + 2 * NUM_OLD) * 2 * MAX_BYTES
    assert sorted(tmp_path.glob("i-0.log*")) == files_of(log)
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in files_of(log))
    # Of 300. A reader that a busy machine keeps waiting for two turns misses what was between them.
    for writer in "C ", "child", "xxx":
        assert sum(line.startswith(writer) for line in seen) >= 200


def test_what_is_not_full_stays_and_else_the_oldest_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "i-0.log"
    log.write_bytes(b"x" * 100)
    assert not turn_over(log, 100)
    assert list(tmp_path.iterdir()) == [log]
    for number in range(5):
        log.write_bytes(b"%d" % number * 101)
        assert turn_over(log, 100)
    assert [path.read_bytes()[:1] for path in files_of(log)] == [b"", b"4", b"3"]
    with monkeypatch.context() as full_disk:
        full_disk.setattr(os, "fdopen", lambda *_: Path("/dev/full").open("wb"))  # noqa: SIM115
        log.write_bytes(b"5" * 101)
        with pytest.raises(OSError, match="No space left"):
            turn_over(log, 100)
    assert [path.read_bytes()[:1] for path in sorted(tmp_path.iterdir())] == [b"", b"4", b"3"]
    log.write_bytes(b"x" * 10_000)
    assert turn_over(log, 100)
    kept = old_file(log, 1).read_bytes()
    assert kept.startswith(b"x" * 200 + b"\n[the log grew too fast"), "the beginning of a flood"


def test_a_follower_reads_on_over_a_rotation_and_the_last_lines_reach_behind_it(
    tmp_path: Path,
) -> None:
    log = tmp_path / "i-0.log"
    log.write_text("one\ntwo\nthr")
    tail = LogTail(log)
    assert tail.last(10) == ["one", "two"]
    with log.open("a") as file:
        file.write("ee\nfo")
    turn_over(log, 10)
    with log.open("a") as file:
        file.write("ur\nfive\n")
    assert tail.added() == ["three", "four", "five"]
    assert tail.added() == []
    for number in (2, 3, 10):
        with contextlib.closing(LogTail(log)) as other:
            assert other.last(number) == ["one", "two", "three", "four", "five"][-number:]
    tail.close()
    turn_over(log, 7)
    log.write_text("six\n")
    with contextlib.closing(LogTail(log)) as other:
        assert other.last(2) == ["five", "six"]
        assert other.last(1) == ["six"]


def test_a_new_run_keeps_the_logs_of_the_last_one(tmp_path: Path) -> None:
    (tmp_path / "ray").mkdir()
    for number in range(3):
        for name in f"i-{number}.log", f"i-{number}.log.1", "head.log":
            (tmp_path / name).write_text(f"{number}")
        run_folders.put_aside(tmp_path)
    run_folders.put_aside(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["previous", "ray"]
    kept = {path.name: path.read_text() for path in (tmp_path / "previous").iterdir()}
    assert kept == {"i-2.log": "2", "i-2.log.1": "2", "head.log": "2"}
