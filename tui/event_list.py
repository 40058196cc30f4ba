"""The event list: a line per event, and a line where some were lost."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import tzinfo

from controller.api.models import Event
from tui import format as fmt
from tui.format import Span, Tone
from tui.state import DashboardState, Entry
from tui.table import Column

_TONES: Mapping[str, Tone] = {
    "rejected": Tone.BAD,
    "failed": Tone.BAD,
    "instance_died": Tone.BAD,
    "instance_failed": Tone.BAD,
    "frontend_died": Tone.BAD,
    "frontend_failed": Tone.BAD,
    "evicted": Tone.WARN,
    "aborted": Tone.WARN,
    "instance_stalled": Tone.WARN,
    "instance_started": Tone.GOOD,
    "instance_recovered": Tone.GOOD,
    "frontend_started": Tone.GOOD,
    "controller_started": Tone.GOOD,
    "operator": Tone.STRONG,
}


@dataclass(frozen=True, slots=True)
class EventRow:
    entry: Entry
    zone: tzinfo | None

    @property
    def id(self) -> str:
        return str(self.entry.seq)

    @property
    def text(self) -> str:
        event = self.entry.event
        if event is None:
            return "missed"
        return f"{event.kind} {who(event)} {event.request_id or ''} {event.cause_id} {what(event)}"


def rows(state: DashboardState, zone: tzinfo | None) -> list[EventRow]:
    """Oldest first."""
    return [EventRow(entry, zone) for entry in state.entries]


def word(event: Event) -> str:
    """`instance_died` beside the instance's name is `died`."""
    kind = fmt.plain(event.kind)
    for member in ("instance_", "frontend_", "controller_"):
        kind = kind.removeprefix(member)
    return kind.replace("_", " ")


def tone(event: Event) -> Tone:
    return _TONES.get(event.kind, Tone.PLAIN)


def who(event: Event) -> str:
    """The member that it happened to."""
    if event.kind.startswith("controller_"):
        return "controller"
    if event.kind.startswith("frontend_"):
        return event.frontend_id or "-"
    return event.instance_id or event.frontend_id or "-"


def what(event: Event) -> str:
    """The request, the reason, who asked for it."""
    words = [event.request_id or "", event.reason]
    if event.actor:
        words.append(f"by {event.actor}")
    return fmt.plain("  ".join(word for word in words if word))


def figures(event: Event) -> str:
    """The numbers of its kind, units in their names; those that are unknown are left out."""
    known = {name: value for name, value in event.numbers.items() if value is not None}
    return fmt.plain("  ".join(f"{name}={value:.6g}" for name, value in sorted(known.items())))


def missed(entry: Entry) -> str:
    return "events were missed" if entry.missed is None else f"{entry.missed} events were missed"


def _kind(row: EventRow, _: int) -> Span:
    event = row.entry.event
    if event is None:
        return Span("gap", Tone.BAD)
    return Span(word(event), tone(event))


def _who(row: EventRow, _: int) -> Span:
    return Span(fmt.plain(who(row.entry.event)) if row.entry.event else "-")


def _what(row: EventRow, _: int) -> Span:
    event = row.entry.event
    return Span(what(event)) if event else Span(missed(row.entry), Tone.BAD)


def _figures(row: EventRow, _: int) -> Span:
    return Span(figures(row.entry.event) if row.entry.event else "", Tone.DIM)


def _cause(row: EventRow, _: int) -> Span:
    return Span(fmt.plain(row.entry.event.cause_id) if row.entry.event else "", Tone.DIM)


_TIME: Column[EventRow] = Column(
    "time",
    "TIME",
    8,
    lambda row, _: Span(fmt.time_of_day(row.entry.time_s, row.zone), Tone.DIM),
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
