"""Recordings of the watch stream: a header line, then the frames as they came, in JSON lines.

The frames are models of `controller.api.wire`, whose `base` has the rules of compatibility; readers
skip frames that they do not know. A recording names requests and machines, so its file is private
(0600).
"""

import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Literal, NamedTuple, Self

from controller.api.errors import LlumctlError, RefusedError, UsageError
from controller.api.state import user_files
from controller.api.version import own_version, upgrade_command
from controller.api.wire.base import WireModel
from controller.api.wire.requests import Event
from controller.api.wire.stream import MAX_FIGURE, EventFrame, Frame, figure, parse_frame

RECORDING_VERSION = 1
MAX_LINE_BYTES = 16 << 20
"""Above the status of 1,000 instances; keeps a file that is no recording out of memory."""
_BEGINNING = re.compile(
    rb'\{"type":"(status|event|gap|ping|requests)",'
    rb'"time_s":(-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)[,}]'
    rb'(?:"event":\{"position":"[^"]*","kind":"(\w+)")?'
)
"""How our own writer begins a frame: enough to place it. Other lines are parsed for that."""


class RecordingHeader(WireModel):
    """The first line. `time_s`: when the recording began, seconds since the epoch."""

    type: Literal["recording"] = "recording"
    schema_version: int = RECORDING_VERSION
    cluster: str
    time_s: float
    status_every_s: float = 1.0
    llumctl_version: str = ""


class Mark(NamedTuple):
    """Where a frame is in the file, and what is known of it unparsed. `kind`: of an
    event, else empty."""

    offset: int
    line: int
    time_s: float
    type: str
    kind: str


class RecordingWriter:
    """Appends frames to a new file; the kernel has a frame when `append` returns.

    Raises:
        RefusedError: the file exists.
        LlumctlError: the file cannot be written.
    """

    def __init__(self, path: Path, header: RecordingHeader) -> None:
        self.path = path
        self.num_frames = 0
        self.time_s = header.time_s
        """That of the last frame."""
        self._lock = threading.Lock()
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError as error:
            raise RefusedError(
                f"{path} exists already: recordings are never overwritten", f"ls -l {path}"
            ) from error
        except OSError as error:
            raise _cannot(path, "write", error) from error
        self._write(header)

    @property
    def is_closed(self) -> bool:
        return self._descriptor < 0

    def append(self, frame: Frame) -> None:
        """May be called on several threads."""
        self._write(frame)
        with self._lock:
            self.num_frames += 1
            self.time_s = max(self.time_s, frame.time_s)

    def close(self) -> None:
        """Closes the file, and removes it if it has no frame. May be called again, and on another
        thread than `append`."""
        with self._lock:
            if self._descriptor < 0:
                return
            os.close(self._descriptor)
            self._descriptor = -1
        if not self.num_frames:
            self.path.unlink(missing_ok=True)

    def _write(self, line: WireModel) -> None:
        rest = memoryview(f"{line.model_dump_json()}\n".encode())
        with self._lock:
            if self._descriptor < 0:
                raise LlumctlError(f"{self.path} is closed")
            try:
                while rest:
                    rest = rest[os.write(self._descriptor, rest) :]
            except OSError as error:
                raise _cannot(self.path, "write", error) from error


def new_header(cluster: str, time_s: float, status_every_s: float) -> RecordingHeader:
    return RecordingHeader(
        cluster=cluster,
        time_s=time_s,
        status_every_s=status_every_s,
        llumctl_version=own_version(),
    )


class RecordingReader:
    """The frames of a recording, read as they are asked for.

    `truncated` turns true when the last line was cut, as a writer that was killed leaves it.

    Raises:
        UsageError: no such file, or a line that a recording cannot have (`FILE:LINE`).
        LlumctlError: the file has a newer schema, or cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.truncated = False
        try:
            self._file: IO[bytes] = user_files.opened(path)
        except FileNotFoundError as error:
            raise UsageError(f"{path}: there is no such recording") from error
        except OSError as error:
            raise _cannot(path, "read", error) from error
        try:
            self.header = self._header()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    def __iter__(self) -> Iterator[Frame]:
        for number, _, line in self._lines():
            frame = self._parsed(number, line)
            if frame is not None:
                yield frame

    def marks(self) -> Iterator[Mark]:
        """All frames, without parsing them: their lines are bad or good when they are read."""
        for number, offset, line in self._lines():
            found = _BEGINNING.match(line)
            if found and (found[3] or found[1] != b"event") and line.endswith(b"}\n"):
                kind = (found[3] or b"").decode()
                if abs(float(found[2])) > MAX_FIGURE:
                    raise self._bad(number)
                yield Mark(offset, number, float(found[2]), found[1].decode(), kind)
            elif (frame := self._parsed(number, line)) is not None:
                kind = frame.event.kind if frame.type == "event" else ""
                yield Mark(offset, number, frame.time_s, frame.type, kind)

    def events_about(self, request_id: str, begin: int, end: int) -> list[Event]:
        """Those of the lines from one offset up to another, found without parsing the others."""
        found, name = [], request_id.encode()
        self._file.seek(begin)
        while self._file.tell() < end and (line := self._line()):
            if name in line and line.startswith(b'{"type":"event"'):
                frame = self._parsed(0, line)
                if isinstance(frame, EventFrame) and frame.event.request_id == request_id:
                    found.append(frame.event)
        return found

    def frame(self, mark: Mark) -> Frame:
        """Raises UsageError if its line is bad."""
        self._file.seek(mark.offset)
        frame = self._parsed(mark.line, self._line())
        if frame is None:
            raise UsageError(f"{self.path}:{mark.line}: changed while it was read")
        return frame

    def _lines(self) -> Iterator[tuple[int, int, bytes]]:
        """(number, offset, line), from the first frame on."""
        self._file.seek(0)
        number, offset = 1, len(self._line())
        while line := self._line():
            number += 1
            yield number, offset, line
            offset += len(line)

    def _parsed(self, number: int, line: bytes) -> Frame | None:
        """None: of a type that this llumctl does not know, or a last line that was cut."""
        try:
            return parse_frame(line)
        except ValueError as error:
            if not line.endswith(b"\n"):
                self.truncated = True
                return None
            raise self._bad(number) from error

    def _bad(self, number: int) -> UsageError:
        return UsageError(f"{self.path}:{number}: not a frame of a recording")

    def _header(self) -> RecordingHeader:
        line = self._line()
        try:
            header = RecordingHeader.model_validate_json(line)
            figure(str(header.time_s))
            figure(str(header.status_every_s))
        except ValueError as error:  # a ValidationError is one
            raise UsageError(
                f"{self.path}:1: not a recording of llumctl", "llumctl record FILE"
            ) from error
        if header.schema_version > RECORDING_VERSION:
            raise LlumctlError(
                f"{self.path} was recorded by a newer llumctl (schema {header.schema_version},"
                f" this one knows {RECORDING_VERSION})",
                upgrade_command(),
            )
        return header

    def _line(self) -> bytes:
        try:
            line = self._file.readline(MAX_LINE_BYTES)
        except OSError as error:
            raise _cannot(self.path, "read", error) from error
        if len(line) == MAX_LINE_BYTES:
            raise UsageError(f"{self.path}: a line is longer than {MAX_LINE_BYTES} bytes")
        return line


def _cannot(path: Path, verb: str, error: OSError) -> LlumctlError:
    return LlumctlError(f"cannot {verb} the recording {path}: {error.strerror}")
