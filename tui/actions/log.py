"""The session's log: each order that was given here, and what came of it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import tzinfo

from rich.cells import cell_len

from controller.api.text.quantities import printable, time_of_day
from tui.actions.outbox import Call, Phase
from tui.actions.target import Target
from tui.drawing import Column, Glyphs, Line, Span, Tone, fitted, wrapped

TONES = {
    Phase.DONE: Tone.GOOD,
    Phase.FAILED: Tone.BAD,
    Phase.CANCELLED: Tone.BAD,
    Phase.UNKNOWN: Tone.BAD,
}


@dataclass(frozen=True, slots=True)
class LogRow:
    call: Call
    zone: tzinfo | None

    @property
    def id(self) -> str:
        return str(self.call.call_id)

    @property
    def target(self) -> Target:
        return Target(other=self.call.command)

    @property
    def text(self) -> str:
        return f"{self.call.order.title} {self.call.phase} {self.call.text}"


def rows(calls: Iterable[Call], zone: tzinfo | None) -> list[LogRow]:
    """Newest first."""
    return [LogRow(call, zone) for call in calls][::-1]


def told(call: Call) -> str:
    """One line for the bottom of the screen; a request's id is long, and is there once."""
    text = call.text.replace(f"request {call.order.lane} ", "it ")
    return printable(f"{call.order.title}: {text or call.phase}")


def whole(call: Call, width: int) -> list[Line]:
    """All that there is to read of an order, in as many lines as that takes."""
    outcome = f"{call.order.title}: {call.phase}{', ' * bool(call.text)}{call.text}"
    texts = ((outcome, TONES.get(call.phase, Tone.WARN)), (call.command, Tone.DIM))
    return [
        (Span(f" {line}", tone),)
        for text, tone in texts
        for line in wrapped(printable(text), max(1, width - 2))
    ]


def under_way(calls: Iterable[Call], width: int, glyphs: Glyphs) -> Line:
    """The last order that goes on, for the bottom line; in half its width at most."""
    found = [call for call in calls if call.phase is Phase.UNDER_WAY]
    if not found:
        return ()
    more = f" (+{len(found) - 1})" if len(found) > 1 else ""
    words = f"> {told(found[-1])}{more}"
    return (Span(f" {fitted(words, min(cell_len(words), width // 2), glyphs)} ", Tone.WARN),)


def _time(row: LogRow, _: int) -> Span:
    return Span(time_of_day(row.call.time_s, row.zone), Tone.DIM)


def _phase(row: LogRow, _: int) -> Span:
    return Span(str(row.call.phase), TONES.get(row.call.phase, Tone.WARN))


def _words(text: Callable[[Call], str], tone: Tone = Tone.PLAIN) -> Callable[[LogRow, int], Span]:
    return lambda row, _: Span(printable(text(row.call)), tone)


COLUMNS: tuple[Column[LogRow], ...] = (
    Column("time", "TIME", 8, _time),
    Column("action", "ACTION", 20, _words(lambda call: call.order.title)),
    Column("phase", "STATE", 9, _phase),
    Column("outcome", "OUTCOME", 30, _words(lambda call: call.text), max_width=80),
    Column(
        "command",
        "COMMAND",
        24,
        _words(lambda call: call.command, Tone.DIM),
        drop=1,
        max_width=200,
    ),
)
