"""How a member's starts went: a file next to its log, which the member's next process reads.

Ray restarts an ended process at once and for ever, and does not know why it ended. So every process
of a member notes here that it begins, and later that it serves or why it ended. If a process ended
without a note (by os._exit, a segmentation fault, or the kernel for lack of memory), the next
process looks for the reason in the log. `up` reads the file of the controller."""

import contextlib
import json
import logging
import os
import re
import signal
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from controller.api.state import user_files
from controller.core.fleet.incarnations import MAX_FAILED_STARTS, delay_s, is_given_up

log = logging.getLogger(__name__)

MAX_FILE_BYTES = 1 << 16
MAX_LOG_TAIL_BYTES = 1 << 16
MAX_REASON_CHARS = 500
SILENT = "its process ended without giving a reason: it was killed, perhaps for lack of memory"
# Matches the last line of a traceback, a fatal error of Python, or a signal as Ray shows it.
_REASON = re.compile(r"(?:[\w.]+(?:Error|Exception|Exit)\b.*|Fatal Python error: .*|\*\*\* SIG.*)")


@dataclass(frozen=True, slots=True)
class Starts:
    run: str
    """The run of the cluster to which these starts belong. Starts in another run do not count."""
    num_failed: int = 0
    """How many starts in a row failed before the present one."""
    reason: str = ""
    """Why the latest failed start failed."""
    is_open: bool = False
    """Whether the latest start has neither served nor noted why it ended."""
    has_served: bool = False
    log_bytes: int = 0
    """The length of the log when the latest start began."""
    pid: int = 0
    process_started_s: float = 0.0
    """When the latest process began. By this time and `pid`, `down` finds the process without
    Ray."""

    @property
    def given_up(self) -> bool:
        return is_given_up(self.num_failed, has_served=self.has_served)


class EndNotice:
    """Turns SIGTERM into a notice: the process will be ended soon, and may hand its requests on.

    Without a listener, and at the second SIGTERM, the earlier handler runs. It is Ray's own, and
    ends the process at once. Processes that Ray itself ends (by `ray.kill`, or because a raylet is
    gone) get no signal and no time.

    The object must be made on the process's main thread, the only one that may set signal
    handlers."""

    def __init__(self) -> None:
        self._listener: Callable[[], None] | None = None
        self._told = threading.Event()
        self._before: Any = signal.signal(signal.SIGTERM, self._on_signal)

    def listen(self, listener: Callable[[], None]) -> None:
        """Calls `listener` once, on the main thread, at the next SIGTERM."""
        self._listener = listener

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._listener is not None and not self._told.is_set():
            self._told.set()
            self._listener()
        elif callable(self._before):
            self._before(number, frame)
        else:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)


class Start:
    """The present start of a member, as its role sees it."""

    def __init__(self, path: Path, starts: Starts, notice: EndNotice | None = None) -> None:
        self._path = path
        self._starts = starts
        self.notice = notice
        """Tells the role that the process will be ended soon. None if the process handles no
        signal."""
        self.on_success: Callable[[], object] = lambda: None
        """Called when the member first serves in this process."""

    @property
    def delay_s(self) -> float:
        """How long to wait before this start. When a member is given up, the next start only
        reports that, without a wait. If that start fails too, the one after it waits."""
        num_failed = self._starts.num_failed
        if self._starts.given_up and num_failed == MAX_FAILED_STARTS:
            return 0.0
        return delay_s(num_failed)

    @property
    def failure(self) -> str:
        """Why the member is given up; empty if it is not given up."""
        if not self._starts.given_up:
            return ""
        return f"{self._starts.reason} ({self._starts.num_failed} starts in a row failed)"

    def succeeded(self) -> None:
        if self._starts.is_open:
            self._note(replace(self._starts, num_failed=0, is_open=False, has_served=True))
            self.on_success()

    def failed(self, reason: str) -> None:
        """Notes that the role raised an error. If the member has already served, this counts as a
        death, not as a failed start."""
        if self._starts.is_open:
            num_failed = self._starts.num_failed + 1
            reason = _one_line(reason)
            self._note(replace(self._starts, num_failed=num_failed, reason=reason, is_open=False))

    def _note(self, starts: Starts) -> None:
        self._starts = starts
        _write(self._path, starts)


def begin(log_file: Path, run: str, notice: EndNotice | None = None) -> Start:
    """Notes that a process of the member begins. Its output already goes to `log_file`."""
    path = log_file.with_suffix(".starts")
    before = _read(path, run) or Starts(run)
    if before.is_open:
        reason = last_words(_tail(log_file, before.log_bytes)) or SILENT
        before = replace(before, num_failed=before.num_failed + 1, reason=_one_line(reason))
    size = 0
    with contextlib.suppress(OSError):
        size = log_file.stat().st_size
    started_s = psutil.Process().create_time()
    now = replace(
        before, is_open=True, log_bytes=size, pid=os.getpid(), process_started_s=started_s
    )
    _write(path, now)
    return Start(path, now, notice)


def failure_of(log_dir: Path, member_id: str, run: str) -> tuple[str, bool]:
    """Why the member's last start failed, and whether the member is given up. The reason is empty
    if no start has failed since the member served."""
    found = _read(log_dir / f"{member_id}.starts", run)
    if found is None or not found.num_failed:
        return "", False
    return found.reason, found.given_up


def noted_processes(log_dir: Path, run: str) -> list[tuple[int, float]]:
    """For each member, the process id and the start time of its last process on this machine, dead
    or alive."""
    noted = [_read(file, run) for file in sorted(log_dir.glob("*.starts"))]
    return [(each.pid, each.process_started_s) for each in noted if each is not None and each.pid]


def last_words(text: str) -> str:
    """The last line of the text that names an error; empty if no line does."""
    for line in reversed(text.splitlines()):
        if found := _REASON.search(line):
            return found.group()
    return ""


def _read(path: Path, run: str) -> Starts | None:
    with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
        with path.open("rb") as file:
            found = Starts(**json.loads(file.read(MAX_FILE_BYTES)))
        if found.run == run and isinstance(found.num_failed, int):
            return found
    return None


def _write(path: Path, starts: Starts) -> None:
    """Writes the file. A failure is only logged, because a full disk must not keep a member from
    serving."""
    try:
        user_files.replace(path, json.dumps(asdict(starts)))
    except OSError as error:
        log.warning("cannot note the start in %s: %s", path, error.strerror)


def _tail(log_file: Path, since: int) -> str:
    with contextlib.suppress(OSError), log_file.open("rb") as file:
        size = file.seek(0, 2)
        began = since if since <= size else 0  # a shorter log has been rotated
        file.seek(max(began, size - MAX_LOG_TAIL_BYTES))
        return file.read(MAX_LOG_TAIL_BYTES).decode(errors="replace")
    return ""


def _one_line(reason: str) -> str:
    return " ".join(reason.split())[:MAX_REASON_CHARS]
