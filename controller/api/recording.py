"""Recordings of the watch stream, in JSON lines: a header, then the frames as they came. Also
extracts the requests of all instances from a recording.

The frames are models of `controller.api.wire`, which has the rules of compatibility; readers skip
frames that they do not know. A recording names requests and machines, so its file is private
(0600).

A recording begins with the last minutes of the controller's history (`past_frames`), so that a
replay shows what led to its first moment, too.

The watch stream has no requests, so `record` asks for them now and then. A frame of requests
describes a request in full when the request begins, and later says only what changed. Each request
gets a number, its place among all requests that began in the file; later frames name the request by
this number. Of a held request the recording says only that it waited at no instance. Its place in
the queue follows from its rank and its arrival, and its demand follows from its prompt. The
instance that was kept for the request is in the status.
"""

import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal, NamedTuple, Self

from controller.api.errors import LlumctlError, RefusedError, UsageError
from controller.api.explain import explain, held_back
from controller.api.state import user_files
from controller.api.text.hints import own_version, upgrade_command
from controller.api.wire import WireModel
from controller.api.wire.requests import (
    LIVE_STATES,
    Event,
    Explanation,
    RequestList,
    RequestState,
    RequestStatus,
)
from controller.api.wire.status import ClusterStatus, HeldPlaceStatus
from controller.api.wire.stream import (
    MAX_FIGURE,
    EventFrame,
    Frame,
    HistoryFrame,
    RequestBegan,
    RequestsFrame,
    RequestStands,
    figure,
    parse_frame,
)

if TYPE_CHECKING:
    from controller.api.client import Connect, ControlClient
    from controller.api.wire.history import HistoryReport

RECORDING_VERSION = 1
MAX_LINE_BYTES = 16 << 20
"""The longest line that is read. The status of 1,000 instances is shorter. The limit keeps a file
that is no recording out of memory."""
_BEGINNING = re.compile(
    rb'\{"type":"(status|event|gap|ping|requests|history)",'
    rb'"time_s":(-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)[,}]'
    rb'(?:"event":\{"position":"[^"]*","kind":"(\w+)")?'
)
"""Matches the beginning of a frame as our own writer writes it. That is enough to place the frame.
A line that begins in another way is parsed to place it."""


REQUESTS_EVERY_S = 5.0
"""How often the requests are recorded. Running requests get tokens all the time, so each of them
costs some 36 bytes in each frame of requests; and each time all frontends are asked."""
MAX_REQUESTS = 10_000

Recorded = Mapping[int, RequestStatus]
"""The requests that were live when requests were recorded last, by their numbers."""


class RecordingHeader(WireModel):
    """The first line. `time_s`: when the recording began, seconds since the epoch."""

    type: Literal["recording"] = "recording"
    schema_version: int = RECORDING_VERSION
    cluster: str
    time_s: float
    status_every_s: float = 1.0
    llumctl_version: str = ""


class Mark(NamedTuple):
    """Where a frame is in the file, and what is known about it without parsing it. `kind`: the kind
    if the frame is an event, else empty."""

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

    def __init__(
        self, path: Path, header: RecordingHeader, before: Iterable[HistoryFrame] = ()
    ) -> None:
        """`before`: frames about the time before, which do not count as recorded."""
        self.path = path
        self.num_frames = 0
        self.time_s = header.time_s
        """The time of the last frame."""
        self._lock = threading.Lock()
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError as error:
            raise RefusedError(
                f"{path} exists already: recordings are never overwritten", f"ls -l {path}"
            ) from error
        except OSError as error:
            raise _cannot(path, "write", error) from error
        for line in (header, *before):
            self._write(line)

    @property
    def is_closed(self) -> bool:
        return self._descriptor < 0

    def append(self, frame: Frame) -> None:
        """Appends a frame. May be called on several threads."""
        self._write(frame)
        with self._lock:
            self.num_frames += 1
            self.time_s = max(self.time_s, frame.time_s)

    def close(self) -> None:
        """Closes the file, and removes it if it has no frame. It may be called again, and on
        another thread than `append`."""
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


PAST_S, PAST_OF_INSTANCES_S = 900.0, 60.0
"""How much of the history a dashboard shows: of the cluster, and of its instances."""


def past_of(client: "ControlClient") -> "list[HistoryReport]":
    """The history that a dashboard shows, a point for each second: the cluster's, and the
    instances' of a shorter time. Raises the errors of the client, NotFoundError if this controller
    keeps no history."""
    return [
        client.history(PAST_S, points=int(PAST_S)),
        client.history(PAST_OF_INSTANCES_S, points=int(PAST_OF_INSTANCES_S), instances=True),
    ]


def past_frames(client: "ControlClient") -> list[HistoryFrame]:
    """What a recording begins with; empty if the controller does not tell its history."""
    try:
        found = past_of(client)
    except LlumctlError:
        return []
    times_s = [each.time_s[-1] if each.time_s else None for each in found]
    return [
        HistoryFrame(time_s=time_s, history=each)
        for time_s, each in zip(times_s, found, strict=True)
        if time_s is not None
    ]


class RecordingReader:
    """The frames of a recording, which are read only when the caller asks for them.

    `truncated` turns true if the last line is incomplete, because its writer was killed.

    Raises:
        UsageError: no such file, or a line that a recording cannot have; the message names
            `FILE:LINE`.
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
        """The marks of all frames. The frames are not parsed for that, so a bad line is found only
        when its frame is read."""
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
        """The events about a request on the lines between two offsets, found without parsing other
        lines."""
        found, name = [], request_id.encode()
        self._file.seek(begin)
        while self._file.tell() < end and (line := self._line()):
            if name in line and line.startswith(b'{"type":"event"'):
                frame = self._parsed(0, line)
                if isinstance(frame, EventFrame) and frame.event.request_id == request_id:
                    found.append(frame.event)
        return found

    def frame(self, mark: Mark) -> Frame:
        """The frame at this mark. Raises UsageError if its line is bad."""
        self._file.seek(mark.offset)
        frame = self._parsed(mark.line, self._line())
        if frame is None:
            raise UsageError(f"{self.path}:{mark.line}: changed while it was read")
        return frame

    def _lines(self) -> Iterator[tuple[int, int, bytes]]:
        """Yields (number, offset, line) for each line from the first frame on."""
        self._file.seek(0)
        number, offset = 1, len(self._line())
        while line := self._line():
            number += 1
            yield number, offset, line
            offset += len(line)

    def _parsed(self, number: int, line: bytes) -> Frame | None:
        """The line's frame; None if this llumctl does not know its type, or if it is the last line
        and was cut."""
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


class RequestNumbers:
    """The numbers that a recording has given to requests, and how each request stood when it was
    recorded last."""

    def __init__(self) -> None:
        self._num_begun = 0
        self._known: dict[tuple[str, str, str], RequestStands] = {}
        """The last state of each request, by its frontend, id and priority level. A request whose
        level changes counts as a new request."""

    def frame(self, found: RequestList, time_s: float) -> RequestsFrame | None:
        """What is new since the last call; None if nothing is new. If a frontend did not answer,
        its requests stay as they were: that happens under load, and does not mean that they
        ended."""
        began: list[RequestBegan] = []
        stands: list[RequestStands] = []
        num_before, known = self._num_begun, self._known
        self._known = {}
        for request in found.requests:
            key = request.frontend_id, request.id, request.level
            before = known.pop(key, None)
            number = self._num_begun if before is None else before.number
            if before is None:
                self._num_begun += 1
                began.append(_began(request))
            now = _stands(request, number)
            if now != before:
                stands.append(now)
            self._known[key] = now
        silent = {key: each for key, each in known.items() if key[0] in found.silent_frontends}
        self._known |= silent
        gone = tuple(each.number for key, each in known.items() if key not in silent)
        if not (stands or gone):
            return None
        return RequestsFrame(
            time_s=time_s,
            num_before=num_before,
            began=tuple(began),
            stands=tuple(stands),
            gone=gone,
        )


class RequestRecorder:
    """Asks for the requests and records them, on a daemon thread that nobody waits for."""

    def __init__(self, connect: "Connect", writer: RecordingWriter) -> None:
        self._connect = connect
        self._writer = writer
        self._numbers = RequestNumbers()
        self._stopped = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._record, name="requests", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def _record(self) -> None:
        while not self._stopped.wait(REQUESTS_EVERY_S):
            try:
                with self._connect() as client:
                    found = client.requests(states=LIVE_STATES, limit=MAX_REQUESTS)
            except LlumctlError:  # the stream already tells that the controller is gone
                continue
            if self._writer.is_closed:
                return
            # The time is the controller's clock, as in the whole file; the clock of this machine
            # may differ.
            frame = self._numbers.frame(found, self._writer.time_s)
            try:
                if frame is not None:
                    self._writer.append(frame)
            except LlumctlError:  # the next frame of the stream tells the reason
                return


def after(known: Recorded, frame: RequestsFrame) -> Recorded:
    """The recorded requests after this frame."""
    found = dict(known)
    for number in frame.gone:
        found.pop(number, None)
    for number, began in enumerate(frame.began, frame.num_before):
        found[number] = RequestStatus(
            **began._asdict(),
            state=RequestState.WAITING,
            age_s=max(0.0, frame.time_s - began.arrival_time_s),
            num_output_tokens=0,
        )
    for stands in frame.stands:
        if (status := found.get(stands.number)) is not None:
            update = stands._asdict() | {"age_s": max(0.0, frame.time_s - status.arrival_time_s)}
            del update["number"]
            found[stands.number] = status.model_copy(update=update)
    return found


def of_instance(
    known: Recorded, instance_id: str, status: ClusterStatus | None = None
) -> RequestList:
    """The requests of an instance, in the controller's order; the requests of all instances if the
    id is empty. `status`: the cluster's status at that moment."""
    found = [
        each
        for each in with_places(known.values(), status)
        if instance_id in ("", each.instance_id)
    ]
    found.sort(key=_listed_at)
    return RequestList(requests=tuple(found), num_matching=len(found))


def _listed_at(item: RequestStatus) -> tuple[int, int, float]:
    place = item.held.place if item.held else 0
    return (LIVE_STATES.index(item.state), place, item.arrival_time_s)


def explained(
    known: Recorded,
    request_id: str,
    events: Sequence[Event],
    now_s: float,
    status: ClusterStatus | None = None,
) -> Explanation | None:
    """Explains a request's life from the recorded events about it; None if nothing is recorded
    about it. `status`: the cluster's status at that moment."""
    found = next((r for r in with_places(known.values(), status) if r.id == request_id), None)
    if found is None and not events:
        return None
    request = _as_events_say(found, request_id, events, now_s)
    return Explanation(
        request=request,
        steps=explain(events),
        waiting=held_back(request.held) if request.held is not None else None,
    )


def _as_events_say(
    status: RequestStatus | None, request_id: str, events: Sequence[Event], now_s: float
) -> RequestStatus:
    """The request as the events describe it. They are newer than a list of requests that was asked
    for seconds ago, and tell whether the request ended and where it is."""
    told = RequestStatus(
        id=request_id,
        client_id="",
        state=RequestState.DISPATCHING,
        level=next((event.level for event in events if event.level), ""),
        frontend_id=next((event.frontend_id for event in events if event.frontend_id), ""),
        arrival_time_s=events[0].time_s if events else now_s,
        age_s=0.0,
        num_prompt_tokens=0,
        num_output_tokens=0,
    )
    found = (status or told).model_dump()
    for event in events:
        if event.kind in _STATES:
            found["state"] = _STATES[event.kind]
        if event.kind in ("dispatched", "admitted", "migrated", "replayed", "request_found"):
            found["instance_id"], found["held"] = event.instance_id, None
        if event.kind == "request_lost":
            found["instance_id"] = None
        if event.kind in _ENDS:
            found["held"] = None
            figures = ("num_prompt_tokens", "num_output_tokens", "ttft_s", "num_evictions")
            found |= {name: event.numbers[name] for name in figures if name in event.numbers}
            found["finish_reason"] = event.reason
            now_s = event.time_s
    found["age_s"] = max(0.0, now_s - found["arrival_time_s"])
    return RequestStatus.model_validate(found)


_ENDS = ("finished", "aborted", "failed")
_STATES = {
    "dispatched": RequestState.WAITING,
    "admitted": RequestState.RUNNING,
    "evicted": RequestState.EVICTED,
    "request_lost": RequestState.DISPATCHING,
    "request_found": RequestState.RUNNING,
    **{kind: RequestState(kind) for kind in _ENDS},
}


def _began(request: RequestStatus) -> RequestBegan:
    return RequestBegan(**{name: getattr(request, name) for name in RequestBegan._fields})


def _stands(request: RequestStatus, number: int) -> RequestStands:
    figures = {name: getattr(request, name) for name in RequestStands._fields[1:]}
    return RequestStands(number, **figures)


def with_places(
    requests: Iterable[RequestStatus], status: ClusterStatus | None
) -> list[RequestStatus]:
    """The requests; each held request gets its place in the controller's queue. `status`: the
    cluster's status at that moment; if it has no held requests, no request gets a place."""
    found = list(requests)
    if status is None or status.held is None:
        return found
    ranks = {level.name: level.rank for level in status.levels}
    held = [item for item in found if _is_held(item)]
    lowest = min(ranks.values(), default=0) - 1  # of a level that is not declared: `background`
    held.sort(key=lambda r: (-ranks.get(r.level, lowest), r.arrival_time_s, r.id, r.frontend_id))
    places = {id(item): _place(item, place, status) for place, item in enumerate(held, 1)}
    return [
        item if id(item) not in places else item.model_copy(update={"held": places[id(item)]})
        for item in found
    ]


def _is_held(item: RequestStatus) -> bool:
    return item.state is RequestState.WAITING and item.instance_id is None


def _place(item: RequestStatus, place: int, status: ClusterStatus) -> HeldPlaceStatus:
    held = status.held
    if held is not None and held.head.request_id == item.id:
        return HeldPlaceStatus(**{name: getattr(held.head, name) for name in _HELD_FIELDS})
    sizes = (each.block_size for each in status.instances if each.block_size)
    block_size = next(sizes, None)
    kept = next(
        (
            (each.id, each.kept_for.lacking_blocks)
            for each in status.instances
            if each.kept_for is not None and each.kept_for.request_id == item.id
        ),
        (None, None),
    )
    return HeldPlaceStatus(
        place=place,
        why="kept" if kept[0] else "",
        demand_blocks=None if block_size is None else -(-item.num_prompt_tokens // block_size),
        instance_id=kept[0],
        lacking_blocks=kept[1],
    )


_HELD_FIELDS = tuple(HeldPlaceStatus.model_fields)
