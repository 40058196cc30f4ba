"""Keeps a process's log file small: a full file is copied aside and then emptied.

Replacing the file by a new one would lose output: C libraries write to file descriptors, and child
processes have inherited theirs. All writers must append. Lines written in the microseconds between
the copy and the emptying are lost.
"""

import contextlib
import logging
import os
import threading
import time
from pathlib import Path
from typing import BinaryIO

log = logging.getLogger(__name__)

MAX_BYTES = 8 << 20
NUM_OLD = 2
# A file may outgrow its limit between two checks. A copy keeps up to twice the limit, so the logs
# of a member take 40 MiB at most.
LOOK_EVERY_S = 1.0
_CHUNK_BYTES = 1 << 20


def keep_small(path: Path) -> None:
    """Watches the file on a thread of its own for as long as the process lives."""
    threading.Thread(target=_watch, args=(path,), name="log rotation", daemon=True).start()


def old_file(path: Path, number: int) -> Path:
    """The path of a copy; number 1 is the newest."""
    return path.with_name(f"{path.name}.{number}")


def turn_over(path: Path, max_bytes: int) -> bool:
    """Copies and empties the file if it is full, and returns whether it was full. Raises
    OSError."""
    if path.stat().st_size <= max_bytes:
        return False
    copied = path.with_name(f"{path.name}.copy")
    with path.open("r+b") as full:
        try:
            with _new_file(copied) as copy:
                _copy(full, copy, 2 * max_bytes)
        except OSError:  # the disk is full: older copies stay, this text is lost
            copied.unlink(missing_ok=True)
            full.truncate(0)
            raise
        for number in range(NUM_OLD, 1, -1):
            with contextlib.suppress(FileNotFoundError):
                old_file(path, number - 1).replace(old_file(path, number))
        copied.replace(old_file(path, 1))
        full.truncate(0)
    return True


def _new_file(path: Path) -> BinaryIO:
    path.unlink(missing_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def _copy(full: BinaryIO, copy: BinaryIO, max_bytes: int) -> None:
    left = max_bytes
    while left > 0 and (part := full.read(min(left, _CHUNK_BYTES))):
        copy.write(part)
        left -= len(part)
    if not left:
        copy.write(b"\n[the log grew too fast: what follows is not kept]\n")


def _watch(path: Path) -> None:
    failing = False
    while True:
        time.sleep(LOOK_EVERY_S)
        try:
            turn_over(path, MAX_BYTES)
            failing = False
        except OSError as error:
            if not failing:
                log.warning("%s cannot be kept small: %s", path, error)
            failing = True
