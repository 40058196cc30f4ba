"""A recording in the place of a live controller, and what an operator does with it.

`ReplaySource` gives the frames at their old distances, by the recording's own clock. So the screen
is a function of the frames that are due, as it was when they came, and time can be set to any
moment of the recording. Every key of a replay ends in `Replaying`.
"""

import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from datetime import time as clock_time

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
from tui.moments import Moments
from tui.state import (
    Arrived,
    DashboardState,
    ExplanationArrived,
    Heard,
    Lost,
    Replayed,
    RequestsArrived,
)

Say = Callable[[str, Tone], None]

QUIET = ("ping", "requests")
"""Frames that change nothing on the main screen; steps leave them out."""
MIN_SPEED, MAX_SPEED = 1 / 8, 64.0
MOMENT_EXAMPLES = ("2m30s", "+30s", "12:04:31")


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a replay is. `state` is its pace or that it stands still; `hint`: what can be done."""

    position_s: float
    length_s: float
    state: str
    hint: str = ""
    troubles_s: tuple[float, ...] = ()


class ReplaySource:
    """Positions are seconds since the first frame; a clock that was set back adds none."""

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
        """Of the frames, and of the loss at a bad line."""
        self._failed = ""
        """Why nothing can be read behind the last mark."""
        self._first = DashboardState(limits=limits or ConsoleTable())
        self._moments = Moments(self._first, self._hear, ())
        self._num_shown = 0
        self._answers: list[Heard] = []
        self._about: dict[str, tuple[int, list[Event]]] = {}
        """Events about the request that was asked for last, from the lines up to an offset."""
        self.troubles_s: tuple[float, ...] = ()
        """Where there is trouble."""

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
        """When the first frame was written."""
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
        """Doubles the speed `steps` times, or halves it."""
        self._count()
        self.speed = max(MIN_SPEED, min(MAX_SPEED, self.speed * 2.0**steps))

    def seek(self, position_s: float) -> None:
        """Goes to a moment, or to the nearest that there is; if it runs it goes on from there."""
        self._since_s = self._clock()
        self._counted_s = max(0.0, min(position_s, self.length_s))

    def step(self, frames: int) -> None:
        """Pauses, and goes to the next moment (1) at which something was heard, or to the last."""
        self.seek(self.position_s())
        self.paused = True
        places = self._beyond(frames)
        place = next((each for each in places if self._marks[each].type not in QUIET), None)
        if place is not None:
            self.seek(self._positions_s[place])

    def seek_event(self, wanted: Weight, direction: int) -> EventFrame | GapFrame | None:
        """Pauses at the next event (1) that weighs so much or more, or at the last (-1). None: it
        has none that way."""
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
        """Looks for events about the request in what was shown by now."""
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

    def stop(self) -> None:
        self._reader.close()

    def _beyond(self, direction: int) -> range:
        """The frames after the present moment, or those before it, the nearest first."""
        position_s, num = self.position_s(), len(self._marks)
        if direction > 0:
            return range(bisect_right(self._positions_s, position_s), num)
        return range(min(num, bisect_left(self._positions_s, position_s)) - 1, -1, -1)

    def _count(self) -> None:
        """Must be called before the pace changes: counts the time so far by the old one."""
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
        """From this frame on there is nothing but a loss, at the moment of the frame before it."""
        del self._marks[place:], self._positions_s[place:]
        self._positions_s.append(self.length_s)
        self._failed = reason


class Replaying:
    """`show` draws what is known at the moment that the replay went to."""

    def __init__(
        self,
        source: ReplaySource,
        keymap: Mapping[str, str],
        zone: tzinfo | None,
        say: Say,
        show: Callable[[], None],
    ) -> None:
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
        """To a moment as it was typed."""
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
        """To the next event that weighs so much or more, or the last, and says which it is."""
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
    """The moment that somebody typed (`2m30s`, `+30s`, `-1m`, `12:04:31`), in seconds since the
    recording began, which was at `origin_s`; `now_s` is the present position.

    Raises UsageError: it is no moment, or a time of day that the recording does not have.
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
    """Whether it is an event, or a gap among events, that weighs so much or more."""
    if mark.type not in ("event", "gap"):
        return False
    found = weight_of(mark.kind) if mark.type == "event" else Weight.TROUBLE
    weights = list(Weight)
    return weights.index(found) >= weights.index(wanted)
