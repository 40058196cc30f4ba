"""The last events as lines of JSON in the cluster's state folder, mode 0600, for a controller that
starts again.

The event loop only appends to a queue; a thread of the file's own writes the queue ten times a
second, so a controller that is killed loses events of a tenth of a second. A file of 4 MiB, some
13,000 events, is turned over, and the file before it is kept. The first line of each names the run
of the cluster; files of an earlier run are removed. No event holds what users wrote to the model.
"""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path

import msgspec

from controller.core.record.event_log import LoggedEvent, parse_position

log = logging.getLogger(__name__)

FILE = "events.jsonl"
MAX_BYTES = 4 << 20
# While the disk hangs at most this many events wait; beyond that the oldest are dropped.
MAX_WAITING = 10_000
BATCH_S = 0.1

Kept = tuple[str, LoggedEvent]
_decoder = msgspec.json.Decoder(Kept)


class EventFile:
    def __init__(self, state_dir: str | Path, nonce: str, max_bytes: int = MAX_BYTES) -> None:
        self.path = Path(state_dir) / FILE
        self._before = self.path.with_name(FILE + ".1")
        self._header = msgspec.json.encode({"run": nonce}) + b"\n"
        self._max_bytes = max_bytes
        self._waiting: deque[Kept] = deque(maxlen=MAX_WAITING)
        self._there = threading.Event()
        self._closed = False
        self._failing = False
        self._thread: threading.Thread | None = None

    def load(self, max_events: int) -> list[Kept]:
        kept: deque[Kept] = deque(maxlen=max_events)
        for path in self._before, self.path:
            kept.extend(self._events_of(path))
        return list(kept)

    def keep(self, position: str, event: LoggedEvent) -> None:
        self._waiting.append((position, event))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="events", daemon=True)
            self._thread.start()
        self._there.set()

    def close(self) -> None:
        """Returns when every event given to the file is written, or lost."""
        self._closed = True
        self._there.set()
        if self._thread is not None:
            self._thread.join()

    def _events_of(self, path: Path) -> Iterable[Kept]:
        try:
            header, *lines = path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return
        except OSError as error:
            log.warning("earlier events cannot be read: %s", error)
            return
        if header + b"\n" != self._header:
            return
        for line in lines:
            try:
                kept = _decoder.decode(line)
                parse_position(kept[0])
            except (msgspec.MsgspecError, ValueError):  # a line torn as its controller was killed
                continue
            yield kept

    def _is_ours(self, path: Path) -> bool:
        try:
            with path.open("rb") as file:
                return file.read(len(self._header)) == self._header
        except FileNotFoundError:
            return False

    def _run(self) -> None:
        while not (self._closed and not self._waiting):
            self._there.wait()
            if not self._closed:
                time.sleep(BATCH_S)
                self._there.clear()
            batch = [self._waiting.popleft() for _ in range(len(self._waiting))]
            if lines := b"".join(map(_line, batch)):
                self._write(lines)

    def _write(self, batch: bytes) -> None:
        try:
            self._append(batch)
        except OSError as error:
            if not self._failing:
                log.error("events are not kept on disk: %s", error)
            self._failing = True
        else:
            self._failing = False

    def _append(self, batch: bytes) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        descriptor = os.open(self.path, flags, 0o600)
        with os.fdopen(descriptor, "ab", buffering=0) as file:
            size = file.tell()
            if os.pread(descriptor, len(self._header), 0) != self._header:
                file.truncate(0)
                if not self._is_ours(self._before):
                    self._before.unlink(missing_ok=True)
                batch = self._header + batch
            elif os.pread(descriptor, 1, size - 1) != b"\n":
                batch = b"\n" + batch  # the last line was torn
            file.write(batch)
            if file.tell() < self._max_bytes:
                return
        self.path.replace(self._before)


def _line(kept: Kept) -> bytes:
    """Empty for an event that JSON cannot hold, such as one with half a character: the thread
    that writes must not end with it."""
    try:
        return msgspec.json.encode(kept) + b"\n"
    except (ValueError, OverflowError, TypeError) as error:
        log.error("event %s is not kept on disk: %s", kept[0], error)
        return b""
