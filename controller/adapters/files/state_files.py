"""The files that the controller reads when it starts again: the cluster's spec, the incarnations of
its members, the last events, and the history. They have mode 0600 and are in the cluster's state
folder, next to the audit log."""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Generic, TypeVar

import msgspec
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from controller.api.errors import LlumctlError
from controller.api.state import user_files
from controller.core.fleet.cluster_spec import ClusterSpec
from controller.core.fleet.incarnations import LastIncarnation
from controller.core.record.event_log import LoggedEvent, parse_position
from controller.core.record.history import COARSE_FOR_S, COARSE_S, Sample

log = logging.getLogger(__name__)

# -- the spec --------------------------------------------------------------------------------------
# The cluster's spec as a JSON file.
#
# A spec is valid only during one run of the cluster, so the file names the run by its nonce. Within
# one `schema_version` fields are only added, and unknown fields are ignored.

SPEC_FILE = "spec.json"
MAX_SPEC_BYTES = 16 << 20
SCHEMA_VERSION = 3
"""Earlier versions: in version 1 each instance had one drain order, which contained the order
before it; version 2 had cordons in place of marks."""


class _Version(BaseModel):
    schema_version: int


class _Kept(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, allow_inf_nan=False)

    schema_version: int = SCHEMA_VERSION
    nonce: Annotated[str, Field(min_length=1)]
    spec: ClusterSpec


def of_model(file: str, number: int) -> str:
    """The name of the file for the cluster's model of this number: `spec-1.json`."""
    stem, dot, rest = file.partition(".")
    return f"{stem}-{number}{dot}{rest}" if number else file


class SpecFile:
    def __init__(self, state_dir: str | Path, nonce: str, model: int = 0) -> None:
        """`model`: the number of the model whose spec it is."""
        self.path = Path(state_dir) / of_model(SPEC_FILE, model)
        self._nonce = nonce

    def load(self) -> ClusterSpec | None:
        try:
            text = user_files.read(self.path, MAX_SPEC_BYTES).decode()
            kept = _parsed(text)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise LlumctlError(
                f"cannot read {self.path}: {error.strerror}", "llumctl doctor"
            ) from error
        except ValueError as error:
            raise LlumctlError(
                f"the cluster's spec {self.path} is broken: {_first_line(error)}",
                f"rm {self.path}      (the cluster is then as it was started)",
            ) from error
        return kept.spec if kept.nonce == self._nonce else None

    def save(self, spec: ClusterSpec) -> None:
        """Writes the spec. This blocks the event loop, so that changes keep their order. In 50
        tries on the local disk of a busy machine this took 2 ms as a rule, and at most 7 ms."""
        kept = _Kept(nonce=self._nonce, spec=spec)
        try:
            user_files.replace(self.path, kept.model_dump_json(indent=2) + "\n")
        except OSError as error:
            raise LlumctlError(
                f"cannot write {self.path}: {error.strerror}", "llumctl doctor"
            ) from error


def _parsed(text: str) -> _Kept:
    """Parses the file. Raises ValueError if any part of it cannot be read, because a part of a spec
    is useless."""
    if (version := _Version.model_validate_json(text).schema_version) != SCHEMA_VERSION:
        age = "a newer" if version > SCHEMA_VERSION else "an older"
        raise ValueError(
            f"it was written by {age} llumctl (schema {version}, this one reads {SCHEMA_VERSION})"
        )
    kept = _Kept.model_validate_json(text)
    kept.spec.check()
    return kept


def _first_line(error: ValueError) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}" if where else first["msg"]


# -- incarnations ----------------------------------------------------------------------------------
# The incarnations that members were given, as lines of JSON.
#
# A line is appended before the member gets its Welcome. The file outlives the controller's process,
# but need not outlive the machine: a cluster ends with the machine of its controller. Appending
# takes 0.05 ms and does not wait for the disk. The first line names the run of the cluster.

INCARNATION_FILE = "incarnations.jsonl"

_line_decoder = msgspec.json.Decoder(tuple[str, LastIncarnation])


class IncarnationFile:
    def __init__(self, state_dir: str | Path, nonce: str, model: int = 0) -> None:
        """`model`: the number of the model whose members they are."""
        self.path = Path(state_dir) / of_model(INCARNATION_FILE, model)
        self._header = msgspec.json.encode({"run": nonce})

    def load(self) -> dict[str, LastIncarnation]:
        try:
            header, *lines = self.path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return {}
        except OSError as error:
            log.error("earlier incarnations cannot be read: %s", error)
            return {}
        found: dict[str, LastIncarnation] = {}
        for line in lines if header == self._header else ():
            try:
                member_id, last = _line_decoder.decode(line)
            except msgspec.MsgspecError:  # a line torn by a full disk
                continue
            found[member_id] = last
        return found

    def keep(self, member_id: str, last: LastIncarnation) -> None:
        try:
            # Each line begins with the newline, so that a line that follows a torn one can still be
            # read.
            self._append(b"\n" + msgspec.json.encode((member_id, last)))
        except OSError as error:
            log.error("%s: incarnation %d is not kept: %s", member_id, last.incarnation, error)

    def _append(self, line: bytes) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        descriptor = os.open(self.path, flags, 0o600)
        with os.fdopen(descriptor, "ab", buffering=0) as file:
            if os.pread(descriptor, len(self._header), 0) != self._header:
                file.truncate(0)
                line = self._header + line
            file.write(line)


# -- events and the history ------------------------------------------------------------------------
# The last events, and the last samples of the history, as lines of JSON.
#
# The event loop only appends to a queue. A thread writes the queue ten times a second, so a
# controller that is killed loses the lines of a tenth of a second. When a file has its full size,
# the next file is begun, and only the previous one is kept. The first line of each file names the
# run of the cluster; files of an earlier run are removed. No line contains what users wrote to the
# model.

FILE = "events.jsonl"
HISTORY_FILE = "history.jsonl"
MAX_BYTES = 4 << 20
"""Some 13,000 events."""
MAX_HISTORY_BYTES = 16 << 20
"""6 hours of 200 instances."""
# If the disk hangs, at most this many lines wait; then the oldest are dropped.
MAX_WAITING = 10_000
BATCH_S = 0.1

Kept = tuple[str, LoggedEvent]
T = TypeVar("T")


class LineFile(Generic[T]):
    """Values as lines of JSON, of which the disk holds a bounded number. `name`: what they are, for
    messages."""

    def __init__(
        self, path: Path, nonce: str, decoder: msgspec.json.Decoder[T], name: str, max_bytes: int
    ) -> None:
        self.path = path
        self._before = self.path.with_name(f"{path.name}.1")
        self._header = msgspec.json.encode({"run": nonce}) + b"\n"
        self._decoder = decoder
        self._name = name
        self._max_bytes = max_bytes
        self._waiting: deque[T] = deque(maxlen=MAX_WAITING)
        self._there = threading.Event()
        self._closed = False
        self._failing = False
        self._thread: threading.Thread | None = None

    def close(self) -> None:
        """Returns when every line is either written or lost."""
        self._closed = True
        self._there.set()
        if self._thread is not None:
            self._thread.join()

    def _load(self, most: int, is_right: Callable[[T], object]) -> list[T]:
        """The last values that can be read. `is_right` raises ValueError for one that cannot be."""
        kept: deque[T] = deque(maxlen=most)
        for path in self._before, self.path:
            kept.extend(self._lines_of(path, is_right))
        return list(kept)

    def _keep(self, value: T) -> None:
        self._waiting.append(value)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._there.set()

    def _lines_of(self, path: Path, is_right: Callable[[T], object]) -> Iterable[T]:
        try:
            header, *lines = path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return
        except OSError as error:
            log.warning("earlier %s cannot be read: %s", self._name, error)
            return
        if header + b"\n" != self._header:
            return
        for line in lines:
            try:
                kept = self._decoder.decode(line)
                is_right(kept)
            except (msgspec.MsgspecError, ValueError):  # torn when the controller was killed
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
                log.error("%s are not kept on disk: %s", self._name, error)
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


def _line(kept: object) -> bytes:
    """The value as a line of JSON; empty if JSON cannot hold it, as with half of a surrogate pair.
    The writing thread must survive such a value."""
    try:
        return msgspec.json.encode(kept) + b"\n"
    except (ValueError, OverflowError, TypeError) as error:
        log.error("%.80r is not kept on disk: %s", kept, error)
        return b""


def _has_position(kept: Kept) -> None:
    parse_position(kept[0])


class EventFile(LineFile[Kept]):
    def __init__(self, state_dir: str | Path, nonce: str, max_bytes: int = MAX_BYTES) -> None:
        path = Path(state_dir) / FILE
        decoder: msgspec.json.Decoder[Kept] = msgspec.json.Decoder(Kept)
        super().__init__(path, nonce, decoder, "events", max_bytes)

    def load(self, max_events: int) -> list[Kept]:
        return self._load(max_events, _has_position)

    def keep(self, position: str, event: LoggedEvent) -> None:
        self._keep((position, event))


class HistoryFile(LineFile[Sample]):
    def __init__(
        self,
        state_dir: str | Path,
        nonce: str,
        max_bytes: int = MAX_HISTORY_BYTES,
        model: int = 0,
    ) -> None:
        """`model`: 1 for the first of several models, and so on; 0: of all of them."""
        path = Path(state_dir) / of_model(HISTORY_FILE, model)
        decoder = msgspec.json.Decoder(Sample)
        super().__init__(path, nonce, decoder, "samples of the history", max_bytes)

    def load(self) -> list[Sample]:
        return self._load(int(COARSE_FOR_S / COARSE_S), Sample.check)

    def keep(self, sample: Sample) -> None:
        self._keep(sample)
