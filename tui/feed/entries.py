"""The event list as it is kept: routine events apart, as hundreds of them may come with each status
and most screens show none."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from controller.api.text.events import Weight, weight
from controller.api.wire.requests import Event
from controller.api.wire.stream import EventFrame, GapFrame, PingFrame

MOVES_S = 60.0
MAX_EVENTS = 1000
"""How many of the routine events are kept."""
MAX_RARE = 300
"""How many notable events are kept, and of the grave ones, each about requests and about members:
neither routine ones nor a thousand refused requests push out that an instance died."""
RATE_S = 5
"""Routine events are counted by kind over so many whole seconds."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the event list; without an event, a gap where `missed` were lost."""

    seq: int
    time_s: float
    event: Event | None = None
    missed: int | None = None
    reason: str = ""
    """Why the event of a gap is not here; empty where the controller has forgotten it."""
    weight: Weight = Weight.ROUTINE

    @property
    def ring(self) -> tuple[Weight, bool]:
        """What it weighs, and whether it is about a request: rare entries of one ring push out each
        other, and no others."""
        return self.weight, self.event is not None and self.event.request_id is not None


@dataclass(frozen=True, slots=True)
class Way:
    """A request moved."""

    time_s: float
    source: str
    destination: str


Counts = Mapping[int, Mapping[str, int]]
"""By seconds in which there were routine events the number of each kind."""


class Unread:
    """Events and gaps that are not in the state yet. There may be hundreds between two statuses: a
    new state for each took as long as all else that is reduced."""

    def __init__(self, num_entries: int) -> None:
        """`num_entries`: how many ever came before."""
        self.num_entries = num_entries
        self.routine: list[Entry] = []
        self.rare: list[Entry] = []
        self.ways: list[Way] = []
        self.counts: dict[int, Counter[str]] = {}
        self.last: tuple[float, float] | None = None
        """When the last frame was heard, and the controller's clock then."""

    def hear(self, frame: EventFrame | GapFrame | PingFrame, at_s: float) -> None:
        self.last = at_s, frame.time_s
        if isinstance(frame, EventFrame):
            self._hear_event(frame.event)
        elif isinstance(frame, GapFrame):
            missed, reason = frame.missed, frame.reason
            self.rare.append(
                Entry(self.num_entries, frame.time_s, None, missed, reason, Weight.TROUBLE)
            )
            self.num_entries += 1

    def _hear_event(self, event: Event) -> None:
        of = weight(event)
        entry = Entry(self.num_entries, event.time_s, event, weight=of)
        self.num_entries += 1
        if of is Weight.ROUTINE:
            self.routine.append(entry)
            # Events of the past, which come first after connecting, count in their own seconds.
            second = int(event.time_s)
            if (counts := self.counts.get(second)) is None:
                counts = self.counts[second] = Counter()
            counts[event.kind] += 1
        else:
            self.rare.append(entry)
        if event.kind == "migrated" and event.labels.keys() >= {"from", "to"}:
            self.ways.append(Way(event.time_s, event.labels["from"], event.labels["to"]))


def latest(known: tuple[Entry, ...], new: list[Entry]) -> tuple[Entry, ...]:
    """Of routine entries those that are kept."""
    return (*known, *new)[-MAX_EVENTS:] if new else known


def rare(known: tuple[Entry, ...], new: list[Entry]) -> tuple[Entry, ...]:
    """Of the others: each ring forgets its oldest."""
    if not new:
        return known
    found = (*known, *new)
    sizes = Counter(entry.ring for entry in found)
    excess = {ring: size - MAX_RARE for ring, size in sizes.items() if size > MAX_RARE}
    if not excess:
        return found
    kept: list[Entry] = []
    for entry in found:
        if excess.get(entry.ring):
            excess[entry.ring] -= 1
        else:
            kept.append(entry)
    return tuple(kept)


def counted(known: Counts, new: Mapping[int, Counter[str]], now_s: float) -> Counts:
    """Of the last seconds only."""
    counts = {at: each for at, each in known.items() if abs(now_s - at) <= RATE_S + 2}
    for second, of_second in new.items():
        counts[second] = Counter(counts.get(second, {})) + of_second
    return counts


def recent_ways(ways: Iterable[Way], now_s: float) -> tuple[Way, ...]:
    """Clocks of machines differ, and may be set back."""
    return tuple(way for way in ways if abs(now_s - way.time_s) < MOVES_S)
