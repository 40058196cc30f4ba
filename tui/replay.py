"""Plays a recording in the place of a live controller, and carries out what an operator does with
it.

`ReplaySource` returns the frames at the intervals at which they were recorded, by the recording's
own clock. So the screen depends only on the frames that are due, and can be set to any moment of
the recording. Every key of a replay calls a method of `Replaying`.
"""

import pickle
import tempfile
import time
import weakref
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from datetime import time as clock_time
from typing import IO

from controller.api.errors import LlumctlError, UsageError
from controller.api.recording import Mark, RecordingReader, explained, of_instance
from controller.api.settings.settings import ConsoleTable
from controller.api.text import events as event_words
from controller.api.text.events import Weight, weight_of
from controller.api.text.quantities import duration, printable, seconds_of, time_of_day
from controller.api.wire.requests import Event
from controller.api.wire.stream import EventFrame, GapFrame
from tui.actions import first_of
from tui.drawing import Tone
from tui.state import (
    Arrived,
    DashboardState,
    ExplanationArrived,
    Heard,
    Lost,
    Replayed,
    RequestsArrived,
    reduce,
)

Say = Callable[[str, Tone], None]

QUIET = ("ping", "requests", "history")
"""Types of frames that change nothing on the main screen; steps skip them."""
MIN_SPEED, MAX_SPEED = 1 / 8, 64.0
MOMENT_EXAMPLES = ("2m30s", "+30s", "12:04:31")


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a replay stands. `state`: its speed, or that it is paused or has ended; `hint`: the
    keys that help now."""

    position_s: float
    length_s: float
    state: str
    hint: str = ""
    troubles_s: tuple[float, ...] = ()


class ReplaySource:
    """Positions are seconds since the first frame. Where the recorded clock was set back, the
    position stays the same."""

    def __init__(
        self,
        reader: RecordingReader,
        *,
        speed: float = 1.0,
        at_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        limits: ConsoleTable | None = None,
    ) -> None:
        self.cluster = reader.header.cluster
        self.status_every_s = reader.header.status_every_s
        self.path = reader.path
        self.wake: Callable[[], None] = lambda: None
        self.speed = speed
        self.paused = False
        self._reader = reader
        self._clock = clock
        self._counted_s = at_s
        self._since_s: float | None = None
        self._marks: list[Mark] = []
        self._positions_s: list[float] = []
        """The positions of the frames and, if a line is bad, of the loss that stands for it."""
        self._failed = ""
        """Why nothing can be read after the last mark; empty if all can be read."""
        self._first = DashboardState(limits=limits or ConsoleTable())
        self._moments = Moments(self._first, self._hear, ())
        self._num_shown = 0
        self._answers: list[Heard] = []
        self._about: dict[str, tuple[int, list[Event]]] = {}
        """For the request that was asked for last: the events about it, and the offset in the file
        up to which they were collected."""
        self.troubles_s: tuple[float, ...] = ()
        """The positions at which something went wrong."""

    @property
    def truncated(self) -> bool:
        return self._reader.truncated

    @property
    def ended(self) -> bool:
        return self._since_s is not None and self.position_s() >= self.length_s

    @property
    def length_s(self) -> float:
        return self._positions_s[-1] if self._positions_s else 0.0

    @property
    def origin_s(self) -> float:
        """When the first frame was written, in seconds since the epoch."""
        return self._marks[0].time_s if self._marks else 0.0

    def start(self) -> None:
        try:
            for mark in self._reader.marks():
                before_s = self._marks[-1].time_s if self._marks else mark.time_s
                self._positions_s.append(self.length_s + max(0.0, mark.time_s - before_s))
                self._marks.append(mark)
        except LlumctlError as error:
            self._end_with(error.message, len(self._marks))
        self.troubles_s = tuple(
            position_s
            for position_s, mark in zip(self._positions_s, self._marks, strict=False)
            if _weighs(mark, Weight.TROUBLE)
        )
        offsets = [mark.offset for mark in self._marks]
        self._moments = Moments(self._first, self._hear, offsets)
        self.seek(self._counted_s)

    def take(self) -> list[Heard]:
        due = bisect_right(self._positions_s, self.position_s())
        found: list[Heard] = []
        if due != self._num_shown:
            self._num_shown = due
            found.append(Replayed(self._moments.at(due)))
        self._moments.look_ahead()
        answers, self._answers = self._answers, []
        return found + answers

    def now_s(self) -> float:
        return self.origin_s + self.position_s()

    def position_s(self) -> float:
        if self.paused or self._since_s is None:
            return self._counted_s
        run_s = (self._clock() - self._since_s) * self.speed
        return min(self._counted_s + run_s, self.length_s)

    def toggle_pause(self) -> None:
        self._count()
        self.paused = not self.paused

    def change_speed(self, steps: int) -> None:
        """Doubles the speed `steps` times; a negative number halves it."""
        self._count()
        self.speed = max(MIN_SPEED, min(MAX_SPEED, self.speed * 2.0**steps))

    def seek(self, position_s: float) -> None:
        """Goes to a position, or to the nearest one in the recording; a running replay goes on from
        there."""
        self._since_s = self._clock()
        self._counted_s = max(0.0, min(position_s, self.length_s))

    def step(self, frames: int) -> None:
        """Pauses, and goes to the next moment at which something was heard (1), or to the nearest
        such moment before (-1)."""
        self.seek(self.position_s())
        self.paused = True
        places = self._beyond(frames)
        place = next((each for each in places if self._marks[each].type not in QUIET), None)
        if place is not None:
            self.seek(self._positions_s[place])

    def seek_event(self, wanted: Weight, direction: int) -> EventFrame | GapFrame | None:
        """Goes to the nearest event of at least this weight, after the present moment (1) or before
        it (-1), and pauses. Returns None if there is none in that direction."""
        for place in self._beyond(direction):
            if _weighs(self._marks[place], wanted):
                heard = self._hear(place)
                if isinstance(heard, Arrived) and isinstance(heard.frame, EventFrame | GapFrame):
                    self.seek(self._positions_s[place])
                    self.paused = True
                    return heard.frame
        return None

    def ask_requests(self, instance_id: str) -> bool:
        shown = self._shown()
        if shown.recorded is None:
            return False
        found = of_instance(shown.recorded, instance_id, shown.status)
        self._answers.append(RequestsArrived(instance_id, found, "", self.now_s()))
        return True

    def ask_explanation(self, request_id: str) -> bool:
        """Looks for events about the request in the frames that were shown so far."""
        known = self._shown().recorded
        if known is None:
            return False
        begin, events = self._about.get(request_id, (0, []))
        num = min(self._num_shown, len(self._marks))
        end = self._marks[num - 1].offset + 1 if num else 0
        if end > begin:
            first = begin or self._marks[0].offset
            events = [*events, *self._reader.events_about(request_id, first, end)]
            self._about = {request_id: (end, events)}
        now_s = self._shown().time_s
        due = [event for event in events if event.time_s <= now_s + 1e-3]
        found = explained(known, request_id, due, now_s, self._shown().status)
        reason = "" if found else "nothing of it is recorded up to here"
        self._answers.append(ExplanationArrived(request_id, found, reason, self.now_s()))
        return True

    def _shown(self) -> DashboardState:
        return self._moments.at(self._num_shown)

    def ask_log(self, member_id: str) -> bool:  # noqa: ARG002 - not recorded
        return False

    def ask_history(self, after_s: float | None) -> bool:  # noqa: ARG002 - the frames tell it
        return False

    def stop(self) -> None:
        self._reader.close()

    def _beyond(self, direction: int) -> range:
        """The places of the frames after the present moment, or before it, the nearest first."""
        position_s, num = self.position_s(), len(self._marks)
        if direction > 0:
            return range(bisect_right(self._positions_s, position_s), num)
        return range(min(num, bisect_left(self._positions_s, position_s)) - 1, -1, -1)

    def _count(self) -> None:
        """Adds the time so far at the old speed. It must be called before the speed changes."""
        self.seek(self.position_s())

    def _hear(self, place: int) -> Heard:
        if place < len(self._marks):
            at_s = self.origin_s + self._positions_s[place]
            try:
                return Arrived(self._reader.frame(self._marks[place]), at_s)
            except LlumctlError as error:
                self._end_with(error.message, place)
        return Lost(self._failed, self.origin_s + self.length_s)

    def _end_with(self, reason: str, place: int) -> None:
        """Replaces this frame and all later ones by a loss of the stream, at the moment of the
        frame before."""
        del self._marks[place:], self._positions_s[place:]
        self._positions_s.append(self.length_s)
        self._failed = reason


class Replaying:
    """Carries out the keys of a replay."""

    def __init__(
        self,
        source: ReplaySource,
        keymap: Mapping[str, str],
        zone: tzinfo | None,
        say: Say,
        show: Callable[[], None],
    ) -> None:
        """`show` draws the state at the moment to which the replay went."""
        self.source = source
        self._keymap = keymap
        self._zone = zone
        self._say = say
        self._show = show

    def toggle_pause(self) -> None:
        self.source.toggle_pause()
        self._show()

    def change_speed(self, steps: int) -> None:
        self.source.change_speed(steps)
        self._show()

    def seek(self, seconds: float) -> None:
        self.source.seek(self.source.position_s() + seconds)
        self._show()

    def seek_to(self, text: str) -> None:
        """Goes to a moment that was typed."""
        source = self.source
        try:
            where_s = typed_moment_s(
                text,
                source.position_s(),
                source.length_s,
                source.origin_s,
                self._zone,
            )
        except LlumctlError as error:
            self._say(printable(error.message), Tone.BAD)
            return
        source.seek(where_s)
        self._show()

    def to_edge(self, direction: int) -> None:
        self.source.seek(self.source.length_s if direction > 0 else 0.0)
        self._show()

    def step(self, frames: int) -> None:
        self.source.step(frames)
        self._show()

    def to_event(self, weight: str, direction: int) -> None:
        """Goes to the nearest event of at least this weight, after the present moment or before it,
        and says which event that is."""
        found = self.source.seek_event(Weight(weight), direction)
        if found is None:
            way = "after" if direction > 0 else "before"
            here = duration(self.source.position_s())
            what = "trouble" if weight == Weight.TROUBLE else "notable event"
            self._say(f"no {what} {way} {here}", Tone.WARN)
            return
        tone = Tone.WARN
        if isinstance(found, GapFrame):
            words = event_words.gap(found.missed, found.reason)
        else:
            event = found.event
            words = f"{event.kind.replace('_', ' ')} {event_words.subject(event)}"
            words = "  ".join(filter(None, (words, event_words.why(event))))
            if event_words.weight(event) is not Weight.TROUBLE:
                tone = Tone.STRONG
        self._say(f"{time_of_day(found.time_s, self._zone)} {printable(words)}", tone)
        self._show()

    def progress(self) -> Progress:
        source = self.source
        hint = ""
        if source.ended:
            state = "ended, last line cut" if source.truncated else "ended"
            keys = (("replay_start", "start"), ("replay_back", "10 s back"), ("quit", "leave"))
            hint = "  ".join(f"{first_of(each, self._keymap)} {word}" for each, word in keys)
        else:
            state = "paused" if source.paused else f"x{source.speed:g}"
        return Progress(source.position_s(), source.length_s, state, hint, source.troubles_s)


def typed_moment_s(
    text: str, now_s: float, length_s: float, origin_s: float, zone: tzinfo | None
) -> float:
    """The position of a moment that was typed (`2m30s`, `+30s`, `-1m`, `12:04:31`). The recording
    began at `origin_s`; `now_s` is the present position.

    Raises UsageError: the text is no moment, or a time of day outside the recording.
    """
    text = text.strip()
    if text[:1] in ("+", "-") and (by_s := seconds_of(text[1:])) is not None:
        return now_s + (by_s if text[0] == "+" else -by_s)
    if (found_s := seconds_of(text)) is not None:
        return found_s
    try:
        clock = clock_time.fromisoformat(text if ":" in text else "")
    except ValueError:
        words = ", ".join(MOMENT_EXAMPLES)
        raise UsageError(f"{text[:40]!r} is no moment: they are as in {words}") from None
    begin = datetime.fromtimestamp(origin_s, zone)
    first = datetime.combine(begin.date(), clock, begin.tzinfo)
    for each in (first, first + timedelta(days=1)):
        found_s = each.timestamp() - origin_s
        if -1 < found_s <= length_s:
            return max(0.0, found_s)
    shown = [time_of_day(each, zone) for each in (origin_s, origin_s + length_s)]
    raise UsageError(f"the recording has no {text[:40]}: it is from {' to '.join(shown)}")


def _weighs(mark: Mark, wanted: Weight) -> bool:
    """Whether the mark is an event, or a gap among events, of at least this weight."""
    if mark.type not in ("event", "gap"):
        return False
    found = weight_of(mark.kind) if mark.type == "event" else Weight.TROUBLE
    weights = list(Weight)
    return weights.index(found) >= weights.index(wanted)


# Moments of a recording

Known = tuple[int, DashboardState]
"""A number of frames, and the dashboard's state after them."""
_FASTEST = 1


class Shelf:
    """Keeps states, pickled, in a file without a name, which only this process can read and which
    ends with it. They are not kept in memory: each may have a thousand events, and two thirds of a
    minute of samples, that no other state has. If there is no room for the file, nothing is kept,
    and a jump takes longer."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._counts: list[int] = []
        self._places: list[tuple[int, int]] = []
        """The offset and the length of each state."""

    def __len__(self) -> int:
        return len(self._counts)

    @property
    def last(self) -> int:
        """The number of frames before the last state."""
        return self._counts[-1] if self._counts else 0

    def put(self, known: Known) -> None:
        """Keeps a state. States must come in the order of their frames."""
        count, state = known
        told = zlib.compress(pickle.dumps(state, pickle.HIGHEST_PROTOCOL), _FASTEST)
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - as long as self
                weakref.finalize(self, self._file.close)
            place = self._file.seek(0, 2)
            self._file.write(told)
        except OSError:
            return
        self._counts.append(count)
        self._places.append((place, len(told)))

    def count_before(self, count: int) -> int:
        """The number of frames before the nearest kept state that is not later than `count`; 0 if
        there is none."""
        place = bisect_right(self._counts, count)
        return self._counts[place - 1] if place else 0

    def take(self, count: int) -> Known | None:
        """The kept state after this number of frames; None if it cannot be read."""
        if self._file is None:
            return None
        place, length = self._places[self._counts.index(count)]
        try:
            self._file.seek(place)
            told = self._file.read(length)
            state: DashboardState = pickle.loads(zlib.decompress(told))
        except (OSError, zlib.error):
            return None
        return count, state


STRETCH_BYTES = 256 << 10
"""How many bytes of the file lie between two kept states. Parsing and reducing a stretch takes some
12 ms."""
MAX_KEPT = 32


class Moments:
    """What the dashboard knew at any moment of a recording, without hearing all of the recording
    again: after each stretch of the file a state is kept, at most MAX_KEPT of them. `first` is the
    state before all frames; `hear(n)` gives frame n; `offsets` are the frames' places in the
    file."""

    def __init__(
        self, first: DashboardState, hear: Callable[[int], Heard], offsets: Sequence[int]
    ) -> None:
        self._hear = hear
        self._num_frames = len(offsets)
        self._first: Known = (0, first)
        self._kept = Shelf()
        self._shown = self._farthest = self._first
        self._steps = _ends(offsets, STRETCH_BYTES)
        every = len(self._steps) // MAX_KEPT + 1
        self._ends = set(self._steps[every - 1 :: every])

    def at(self, count: int) -> DashboardState:
        """The state after this number of frames."""
        at_hand = (self._first, self._shown, self._farthest)
        begin = max((each for each in at_hand if each[0] <= count), key=lambda each: each[0])
        kept = self._kept.count_before(count)
        if kept > begin[0]:
            begin = self._kept.take(kept) or begin
        self._shown = self._after(begin, count)
        return self._shown[1]

    def look_ahead(self) -> None:
        """Reads one stretch farther than before, so that a jump to a moment in it is fast too."""
        place = bisect_right(self._steps, self._farthest[0])
        self._after(self._farthest, [*self._steps, self._num_frames][place])

    def _after(self, known: Known, count: int) -> Known:
        while known[0] < count:
            place = bisect_right(self._steps, known[0])
            upto = min([count, *self._steps[place : place + 1]])
            state = reduce(known[1], (self._hear(number) for number in range(known[0], upto)))
            known = (upto, state)
            if upto in self._ends and upto > self._kept.last:
                self._kept.put(known)
            if upto > self._farthest[0]:
                self._farthest = known
        return known


def _ends(offsets: Sequence[int], stretch_bytes: int) -> list[int]:
    """For each stretch, the number of frames up to its end."""
    found: list[int] = []
    begin = 0
    for number in range(1, len(offsets)):
        if offsets[number] - offsets[begin] >= stretch_bytes:
            found.append(number)
            begin = number
    return found
