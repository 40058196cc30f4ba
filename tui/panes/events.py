"""What happened: the event list of the cluster, the history of one instance, and the end of a log.

The event list has a line for each event that is not routine, and a line wherever events were lost.
Routine events are shown as rates below the list or, if the operator wants all events, as lines
among the others. Many routine events that mean trouble have a line with their sum.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from operator import attrgetter

from controller.api.state.log_tail import harmless
from controller.api.text import events as event_words
from controller.api.text.events import STORM, STORM_KINDS, EventSum, Severity, searched
from controller.api.text.quantities import printable, time_of_day
from controller.api.wire.requests import Event
from tui.actions import NOTHING, Target
from tui.drawing import Column, Line, Span, Tone
from tui.panes.instances import state_tone
from tui.panes.requests import Names
from tui.state import Change, DashboardState, Entry

_TONES: Mapping[Severity, Tone] = {
    Severity.PLAIN: Tone.PLAIN,
    Severity.GOOD: Tone.GOOD,
    Severity.NOTED: Tone.STRONG,
    Severity.WARN: Tone.WARN,
    Severity.BAD: Tone.BAD,
}


@dataclass(frozen=True, slots=True)
class EventRow:
    """A line of the event list. `sum`: what it stands for, if these are several events."""

    entry: Entry
    zone: tzinfo | None
    names: Names
    sum: EventSum | None = None

    @property
    def id(self) -> str:
        event = self.entry.event
        return (event.position if event is not None else "") or str(self.entry.seq)

    @property
    def target(self) -> Target:
        event = self.entry.event
        if event is None:
            return NOTHING
        operation_id = event.cause_id if event.kind == "operator" else ""
        return Target(
            event.instance_id or "",
            event.request_id or "" if self.sum is None else "",
            event_words.member(event),
            operation_id,
        )

    @property
    def text(self) -> str:
        event = self.entry.event
        if event is None:
            return "missed"
        return searched(event)


def rows(
    state: DashboardState,
    zone: tzinfo | None,
    names: Names,
    *,
    routine: bool,
    older: Sequence[Event] = (),
) -> list[EventRow]:
    """The rows, the oldest first. `routine`: whether each event has a row, with those `older` ones
    that the controller still knows. If not, routine events have none, and the same event of many
    requests takes one row."""
    if routine:
        entries = [*_entries_of(older, state.entries), *state.entries]
        return [EventRow(entry, zone, names) for entry in entries]
    entries = sorted((*state.rare, *state.storm), key=attrgetter("seq"))
    of_event = {id(each.event): each for each in entries if each.event is not None}
    sums = event_words.summed(each.event for each in entries if each.event is not None)
    found = [EventRow(each, zone, names) for each in entries if each.event is None]
    for each in sums:
        if each.count >= STORM or each.first.kind not in STORM_KINDS:
            entry = of_event[id(each.first)]
            found.append(EventRow(entry, zone, names, each if each.count > 1 else None))
    return sorted(found, key=lambda row: row.entry.seq)


def _entries_of(events: Iterable[Event], known: Sequence[Entry]) -> list[Entry]:
    """The events that are not known. They count from -1 downwards, as they came before."""
    positions = {each.event.position for each in known if each.event is not None}
    news = [each for each in events if each.position not in positions]
    return [
        Entry(place - len(news), each.time_s, each, weight=event_words.weight(each))
        for place, each in enumerate(news)
    ]


_RATED = (
    "dispatched",
    "finished",
    "evicted",
    "migrated",
    "migration_failed",
    "not_moved",
    "room_not_made",
    "aborted",
    "admitted",
)


_RATE_WORDS = {
    "migration_failed": "moves failed",
    "not_moved": "not moved",
    "room_not_made": "no room",
}


def rates(state: DashboardState, width: int, max_lines: int) -> list[Line]:
    """`+23 dispatched/s  +22 finished/s`: routine events of each kind, in at most `max_lines`."""
    found = state.rates()
    lines: list[str] = []
    for kind in _RATED:
        if not (rate := found.get(kind)):
            continue
        figure = f"{rate:.1f}" if rate < 9.95 else f"{rate:.0f}"
        words = f"  +{figure} {_RATE_WORDS.get(kind, kind)}/s"
        if lines and len(lines[-1] + words) < width:
            lines[-1] += words
        elif len(lines) < max_lines and len(words) < width:
            lines.append(words[1:])
    return [(Span(text, Tone.DIM),) for text in lines]


def word(event: Event) -> str:
    """One word for the kind of an event: next to the instance's name, `instance_died` becomes
    `died`."""
    if event.kind == "migration_failed":
        return "not moved"  # the column is ten characters wide
    if event.kind == "room_not_made":
        return "no room"
    kind = printable(event.kind)
    for member in ("instance_", "frontend_", "controller_"):
        kind = kind.removeprefix(member)
    return kind.replace("_", " ")


def tone(event: Event) -> Tone:
    return _TONES[event_words.severity(event)]


def who(event: Event) -> str:
    """The member to which an event happened."""
    return printable(event_words.member(event)) or "-"


def what(event: Event, name: str | None = None) -> str:
    """What an event says: the request, the reason, the actor. `name`: the request's name on the
    screen; None means that its id is shown."""
    request = event.request_id or "" if name is None else name
    return printable("  ".join((request, *event_words.reasons(event)))).strip()


def figures(event: Event) -> str:
    return printable("  ".join(event_words.figures(event)))


def missed(entry: Entry) -> str:
    return printable(event_words.gap(entry.missed, entry.reason))


def _kind(row: EventRow, _: int) -> Span:
    event = row.entry.event
    if event is None:
        return Span("gap", Tone.BAD)
    return Span(word(event), tone(event))


def _who(row: EventRow, _: int) -> Span:
    return Span(who(row.entry.event) if row.entry.event else "-")


def _what(row: EventRow, _: int) -> Span:
    event = row.entry.event
    if event is None:
        return Span(missed(row.entry), Tone.BAD)
    if row.sum is not None:
        return Span(printable(f"{row.sum.words}  {row.sum.reason}").strip())
    return Span(what(event, row.names.of(event.request_id or "")))


def _figures(row: EventRow, _: int) -> Span:
    return Span(figures(row.entry.event) if row.entry.event else "", Tone.DIM)


def _cause(row: EventRow, _: int) -> Span:
    return Span(printable(row.entry.event.cause_id) if row.entry.event else "", Tone.DIM)


_TIME: Column[EventRow] = Column(
    "time",
    "TIME",
    8,
    lambda row, _: Span(time_of_day(row.entry.time_s, row.zone), Tone.DIM),
    drop=1,
)
_KIND = Column("kind", "EVENT", 10, _kind)
_WHO = Column("who", "WHO", 5, _who, max_width=10)
COLUMNS: tuple[Column[EventRow], ...] = (
    _TIME,
    _KIND,
    _WHO,
    Column("what", "WHAT", 12, _what, max_width=400),
)
EXPANDED_COLUMNS: tuple[Column[EventRow], ...] = (
    _TIME,
    _KIND,
    _WHO,
    Column("cause", "CAUSE", 16, _cause, drop=3),
    Column("what", "WHAT", 24, _what, max_width=30),
    Column("figures", "FIGURES", 20, _figures, drop=2, max_width=400),
)


# The history of one instance


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """A change of the instance's state, or an event of the instance (not of its requests)."""

    id: str
    time_s: float
    what: Span
    detail: str
    zone: tzinfo | None
    target: Target = NOTHING

    @property
    def text(self) -> str:
        return f"{self.what.text} {self.detail}"


HISTORY_COLUMNS: tuple[Column[HistoryRow], ...] = (
    Column("time", "TIME", 8, lambda row, _: Span(time_of_day(row.time_s, row.zone), Tone.DIM)),
    Column("what", "WHAT", 18, lambda row, _: row.what),
    Column("detail", "DETAIL", 10, lambda row, _: Span(row.detail), max_width=400),
)


def history_rows(state: DashboardState, instance_id: str, zone: tzinfo | None) -> list[HistoryRow]:
    """The rows, the newest first."""
    history = state.histories.get(instance_id)
    found = [
        HistoryRow(
            f"change-{change.time_s}",
            change.time_s,
            Span(str(change.state), state_tone(change.state))
            if change.state
            else Span("gone", Tone.BAD),
            printable("  ".join(filter(None, _change(change)))),
            zone,
        )
        for change in (history.changes if history else ())
    ]
    for entry in state.rare:
        event = entry.event
        if event is None or event.instance_id != instance_id or event.request_id:
            continue
        words = f"{what(event)}  {figures(event)}"
        kind = Span(f"* {word(event)}", tone(event))
        found.append(HistoryRow(f"event-{entry.seq}", entry.time_s, kind, words.strip(), zone))
    return sorted(found, key=lambda row: row.time_s, reverse=True)


def _change(change: Change) -> tuple[str, ...]:
    """What a change says. The first status says what the state is, but not since when."""
    before = "already so when this view began" if change.was_so else ""
    return f"incarnation {change.incarnation}", before, change.detail


# The last lines of a log, without anything that could control the terminal

_TROUBLE = (" ERROR ", " CRITICAL ", "Traceback ", "Error: ")


@dataclass(frozen=True, slots=True)
class LogRow:
    id: str
    text: str
    target: Target = NOTHING


def log_rows(state: DashboardState, member_id: str) -> list[LogRow]:
    """The lines of the log, the newest last, made harmless for the terminal. Tabs are replaced,
    because they would shift the text after them."""
    answer = state.log
    if answer is None or answer.member_id != member_id or answer.found is None:
        return []
    return [
        LogRow(str(place), harmless(line).replace("\t", "    "))
        for place, line in enumerate(answer.found.lines)
    ]


def log_trouble(state: DashboardState, member_id: str, *, has_logs: bool) -> Line:
    """Why the log has no lines; empty if it may have some. `has_logs`: False for a recording, which
    has no logs."""
    answer = state.log
    if not has_logs:
        return (Span("  a recording has no logs", Tone.DIM),)
    if answer is None or answer.member_id != member_id:
        return (Span("  asking ...", Tone.DIM),)
    return (Span(f"  {printable(answer.reason)}", Tone.BAD),) if answer.reason else ()


def _line(row: LogRow, _: int) -> Span:
    if any(word in row.text for word in _TROUBLE):
        return Span(row.text, Tone.BAD)
    return Span(row.text, Tone.WARN if " WARNING " in row.text else Tone.PLAIN)


LOG_COLUMNS: tuple[Column[LogRow], ...] = (Column("line", "LINE", 20, _line, max_width=1000),)
