"""The machine of the batches that one frontend runs: which line is asked next, how many lines are
under way, and how each batch ends.

A batch is a file of requests, one in each line. Lines are numbered from 0. The answer to a line is
written to one of the batch's two files, the output or the errors, and counts as soon as it is on
disk. So a frontend that dies loses only answers that were not written yet; the next frontend begins
with the lines that neither file has.

The states of a line:

    WAITING   it was not asked yet, or is to be asked again
    ASKED     the endpoint has it; it has no instance yet
    PLACED    an instance has it
    WRITING   its answer is being written
    WRITTEN   its answer is on disk

    state           event      next      instructions
    WAITING         any        ASKED     Ask, if there is room
    ASKED           Placed     PLACED
    ASKED           Answered   WAITING   after 429 or 503: an overload. The batch pauses
    ASKED, PLACED   Answered   WAITING   after a fault of the server, MAX_TRIES times at most
                               WRITING   Write
    WRITING         Written    WRITTEN   Finish, after the last line
    WAITING, ASKED, PLACED   CancelAsked, or Ticked after the batch's time
                               WRITING   Abort; WriteUnanswered

A batch that was cancelled, or whose time was over, before this frontend began it ends in the same
way, and none of its lines is asked.

Room: at most MAX_UNPLACED lines of all batches are ASKED. With late binding a request without an
instance waits at the controller until it fits somewhere. So the lines take what is free, and never
more than MAX_UNPLACED of them wait in front of a request of the same level. At most
`most_in_flight` lines are ASKED or PLACED, so that a frontend keeps places for other requests. The
next line is taken from the batch that has the fewest lines under way.

If an answer cannot be written, the batch fails; the answers on disk stay. Times are in seconds
since the epoch, because a batch may take days and outlive processes.
"""

from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from http import HTTPStatus

MAX_UNPLACED = 16
MAX_TRIES = 3
"""How often a line is asked that ends with a fault of the server."""
FAULT_PAUSE_S = 1.0
"""The pause of a batch after such a fault."""
MAX_PAUSE_S = 60.0

OVERLOADED = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)


class Ending(StrEnum):
    """How a batch ends. Clients see the values."""

    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


# -- events ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Began:
    """This frontend runs the batch from now on. `completed`, `failed`: the lines whose answers are
    in the output and in the errors. `is_cancelled`: whether it was cancelled before."""

    batch_id: str
    num_lines: int
    expires_at_s: float
    completed: Collection[int] = ()
    failed: Collection[int] = ()
    is_cancelled: bool = False


@dataclass(frozen=True, slots=True)
class Placed:
    """The line has an instance."""

    batch_id: str
    line: int


@dataclass(frozen=True, slots=True)
class Answered:
    """The endpoint has answered the line with this HTTP status. `retry_after_s`: when it says that
    the request may come again."""

    batch_id: str
    line: int
    status: int
    retry_after_s: float = 1.0


@dataclass(frozen=True, slots=True)
class Written:
    """The answers to these lines are on disk."""

    batch_id: str
    lines: Collection[int]


@dataclass(frozen=True, slots=True)
class NotWritten:
    """Answers could not be written."""

    batch_id: str
    why: str


@dataclass(frozen=True, slots=True)
class CancelAsked:
    batch_id: str


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """The frontend stops. Its batches go on when the next one begins them."""


Event = Began | Placed | Answered | Written | NotWritten | CancelAsked | Ticked | Stopped

# -- instructions ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask the endpoint; then comes Answered, and before it perhaps Placed."""

    batch_id: str
    line: int


@dataclass(frozen=True, slots=True)
class Write:
    """Write the line's last answer to the output, or to the errors; then comes Written or
    NotWritten."""

    batch_id: str
    line: int
    is_error: bool


@dataclass(frozen=True, slots=True)
class WriteUnanswered:
    """Write to the errors that these lines were not answered, because the batch ended."""

    batch_id: str
    lines: tuple[int, ...]
    ending: Ending


@dataclass(frozen=True, slots=True)
class Abort:
    """End the line's request. Its answer is of no use any more."""

    batch_id: str
    line: int


@dataclass(frozen=True, slots=True)
class Finish:
    """The batch is over, with so many answers in the output and in the errors. `why`: the reason of
    a failure."""

    batch_id: str
    ending: Ending
    num_completed: int
    num_failed: int
    why: str = ""


Instruction = Ask | Write | WriteUnanswered | Abort | Finish


@dataclass(frozen=True, slots=True)
class BatchView:
    num_lines: int
    num_completed: int
    num_failed: int
    num_in_flight: int


@dataclass(slots=True)
class _Batch:
    """A line is in exactly one of `waiting`, `asked`, `placed`, `writing`, `completed` and
    `failed`. After `ending` is set no line is waiting, asked or placed."""

    batch_id: str
    num_lines: int
    expires_at_s: float
    completed: set[int]
    failed: set[int]
    waiting: deque[int] = field(default_factory=deque)
    asked: set[int] = field(default_factory=set)
    placed: set[int] = field(default_factory=set)
    writing: dict[int, bool] = field(default_factory=dict)
    """The lines whose answers are being written, and whether as errors."""
    tries: dict[int, int] = field(default_factory=dict)
    """How often lines have ended with a fault of the server."""
    paused_until_s: float = 0.0
    ending: Ending | None = None

    @property
    def num_in_flight(self) -> int:
        return len(self.asked) + len(self.placed)

    def may_ask(self, now_s: float) -> bool:
        return bool(self.waiting) and now_s >= self.paused_until_s

    def pause(self, wait_s: float, now_s: float) -> None:
        until_s = now_s + min(wait_s, MAX_PAUSE_S)
        self.paused_until_s = max(self.paused_until_s, until_s)


class BatchLines:
    def __init__(self, most_in_flight: int) -> None:
        self.most_in_flight = most_in_flight
        """May be replaced at any time."""
        self._batches: dict[str, _Batch] = {}
        self._stopped = False

    def handle(self, event: Event, now_s: float) -> list[Instruction]:
        """Events of batches that are not run here, or not any more, change nothing."""
        done = list(self._handle(event, now_s))
        if not self._stopped:
            done.extend(self._ask(now_s))
        return done

    def view(self, batch_id: str) -> BatchView | None:
        batch = self._batches.get(batch_id)
        if batch is None:
            return None
        counts = len(batch.completed), len(batch.failed)
        return BatchView(batch.num_lines, *counts, batch.num_in_flight)

    def check(self) -> None:
        """Raises AssertionError if a line is in no state or in two, or too many are under way."""
        for batch in self._batches.values():
            lines = [*batch.waiting, *batch.asked, *batch.placed, *batch.writing]
            lines += [*batch.completed, *batch.failed]
            assert sorted(lines) == list(range(batch.num_lines)), batch.batch_id
            is_over = batch.ending is not None or not (batch.waiting or batch.num_in_flight)
            assert not is_over or batch.writing, f"{batch.batch_id} is over and was not finished"
        assert sum(len(batch.asked) for batch in self._batches.values()) <= MAX_UNPLACED
        assert not (self._stopped and self._batches)

    def _handle(self, event: Event, now_s: float) -> Iterator[Instruction]:
        match event:
            case Began():
                yield from self._begin(event, now_s)
            case Ticked():
                for batch in list(self._batches.values()):
                    if now_s >= batch.expires_at_s:
                        yield from self._end(batch, Ending.EXPIRED)
            case Stopped():
                self._stopped = True
                for batch in self._batches.values():
                    yield from _aborts(batch)
                self._batches.clear()
            case _:
                if (found := self._batches.get(event.batch_id)) is not None:
                    yield from self._of_batch(found, event, now_s)

    def _begin(self, event: Began, now_s: float) -> Iterator[Instruction]:
        if self._stopped or event.batch_id in self._batches:
            return
        completed, failed = set(event.completed), set(event.failed)
        answered = completed | failed
        batch = _Batch(event.batch_id, event.num_lines, event.expires_at_s, completed, failed)
        batch.waiting.extend(each for each in range(event.num_lines) if each not in answered)
        self._batches[event.batch_id] = batch
        if event.is_cancelled:
            yield from self._end(batch, Ending.CANCELLED)
        elif now_s >= event.expires_at_s:
            yield from self._end(batch, Ending.EXPIRED)
        else:
            yield from self._finish_if_over(batch)

    def _of_batch(self, batch: _Batch, event: Event, now_s: float) -> Iterator[Instruction]:
        match event:
            case Placed():
                if event.line in batch.asked:
                    batch.asked.remove(event.line)
                    batch.placed.add(event.line)
            case Answered():
                yield from self._answered(batch, event, now_s)
            case Written():
                for line in event.lines:
                    is_error = batch.writing.pop(line)
                    (batch.failed if is_error else batch.completed).add(line)
                yield from self._finish_if_over(batch)
            case NotWritten():
                yield from _aborts(batch)
                del self._batches[batch.batch_id]
                yield _finish(batch, Ending.FAILED, event.why)
            case CancelAsked():
                yield from self._end(batch, Ending.CANCELLED)

    def _answered(self, batch: _Batch, event: Answered, now_s: float) -> Iterator[Instruction]:
        line = event.line
        was_placed = line in batch.placed
        if not was_placed and line not in batch.asked:
            return  # it was aborted
        batch.asked.discard(line)
        batch.placed.discard(line)
        if event.status in OVERLOADED and not was_placed:
            batch.waiting.appendleft(line)
            batch.pause(event.retry_after_s, now_s)
            return
        if event.status in OVERLOADED or event.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            batch.tries[line] = batch.tries.get(line, 0) + 1
            if batch.tries[line] < MAX_TRIES:
                batch.waiting.appendleft(line)
                batch.pause(FAULT_PAUSE_S, now_s)
                return
        batch.tries.pop(line, None)
        batch.writing[line] = is_error = event.status >= HTTPStatus.BAD_REQUEST
        yield Write(batch.batch_id, line, is_error)

    def _end(self, batch: _Batch, ending: Ending) -> Iterator[Instruction]:
        """Ends the batch before all its lines are answered. Answers that are being written still
        count."""
        if batch.ending is not None:
            return
        batch.ending = ending
        yield from _aborts(batch)
        unanswered = tuple(sorted({*batch.waiting, *batch.asked, *batch.placed}))
        batch.waiting.clear()
        batch.asked.clear()
        batch.placed.clear()
        batch.writing.update(dict.fromkeys(unanswered, True))
        if unanswered:
            yield WriteUnanswered(batch.batch_id, unanswered, ending)
        yield from self._finish_if_over(batch)

    def _finish_if_over(self, batch: _Batch) -> Iterator[Instruction]:
        if not (batch.waiting or batch.num_in_flight or batch.writing):
            del self._batches[batch.batch_id]
            yield _finish(batch, batch.ending or Ending.COMPLETED)

    def _ask(self, now_s: float) -> Iterator[Instruction]:
        batches = self._batches.values()
        num_asked = sum(len(each.asked) for each in batches)
        num_in_flight = sum(each.num_in_flight for each in batches)
        while num_asked < MAX_UNPLACED and num_in_flight < self.most_in_flight:
            ready = [each for each in batches if each.may_ask(now_s)]
            if not ready:
                return
            batch = min(ready, key=lambda each: (each.num_in_flight, each.batch_id))
            line = batch.waiting.popleft()
            batch.asked.add(line)
            num_asked += 1
            num_in_flight += 1
            yield Ask(batch.batch_id, line)


def _aborts(batch: _Batch) -> Iterator[Instruction]:
    for line in sorted(batch.asked | batch.placed):
        yield Abort(batch.batch_id, line)


def _finish(batch: _Batch, ending: Ending, why: str = "") -> Finish:
    return Finish(batch.batch_id, ending, len(batch.completed), len(batch.failed), why)
