"""The last lines of a member's log, harmless on a terminal."""

from dataclasses import dataclass

from controller.api.state.log_tail import harmless
from tui.actions import NOTHING, Target
from tui.drawing import Column, Span, Tone
from tui.state import DashboardState

_TROUBLE = (" ERROR ", " CRITICAL ", "Traceback ", "Error: ")


@dataclass(frozen=True, slots=True)
class LogRow:
    id: str
    text: str
    target: Target = NOTHING


def rows(state: DashboardState, member_id: str) -> list[LogRow]:
    """As they were written, the newest last. A tab would shift what stands behind it."""
    answer = state.log
    if answer is None or answer.member_id != member_id or answer.found is None:
        return []
    return [
        LogRow(str(place), harmless(line).replace("\t", "    "))
        for place, line in enumerate(answer.found.lines)
    ]


def _line(row: LogRow, _: int) -> Span:
    if any(word in row.text for word in _TROUBLE):
        return Span(row.text, Tone.BAD)
    return Span(row.text, Tone.WARN if " WARNING " in row.text else Tone.PLAIN)


COLUMNS: tuple[Column[LogRow], ...] = (Column("line", "LINE", 20, _line, max_width=1000),)
