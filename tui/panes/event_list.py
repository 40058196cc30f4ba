"""The event list: a line per event, and a line where some were lost."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import tzinfo

from controller.api.text import events as event_words
from controller.api.text.events import Severity
from controller.api.text.quantities import printable, time_of_day
from controller.api.wire.models import Event
from tui.actions.target import NOTHING, Target
from tui.drawing.format import Span, Tone
from tui.drawing.table import Column
from tui.feed.state import DashboardState, Entry
from tui.panes.names import Names

_TONES: Mapping[Severity, Tone] = {
    Severity.PLAIN: Tone.PLAIN,
    Severity.GOOD: Tone.GOOD,
    Severity.NOTED: Tone.STRONG,
    Severity.WARN: Tone.WARN,
    Severity.BAD: Tone.BAD,
}


@dataclass(frozen=True, slots=True)
class EventRow:
    entry: Entry
    zone: tzinfo | None
    names: Names

    @property
    def id(self) -> str:
        return str(self.entry.seq)

    @property
    def target(self) -> Target:
        event = self.entry.event
        if event is None:
            return NOTHING
        return Target(event.instance_id or "", event.request_id or "", event_words.member(event))

    @property
    def text(self) -> str:
        event = self.entry.event
        if event is None:
            return "missed"
        return f"{event.kind} {who(event)} {event.request_id or ''} {event.cause_id} {what(event)}"


def rows(state: DashboardState, zone: tzinfo | None, names: Names) -> list[EventRow]:
    """Oldest first."""
    return [EventRow(entry, zone, names) for entry in state.entries]


def word(event: Event) -> str:
    """The kind of an event: `instance_died` beside the instance's name is `died`."""
    if event.kind == "migration_failed":
        return "not moved"  # the column has ten places
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
    """What an event says: the request by its name (None: its id), the reason, the actor."""
    request = event.request_id or "" if name is None else name
    return printable("  ".join((request, *event_words.reasons(event)))).strip()


def figures(event: Event) -> str:
    return printable("  ".join(event_words.figures(event)))


def missed(entry: Entry) -> str:
    return "events were missed" if entry.missed is None else f"{entry.missed} events were missed"


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
