"""The Azure LLM inference traces, 2023 and 2024: TIMESTAMP,ContextTokens,GeneratedTokens."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from controller.sim.workload.formats.csv_rows import places_of, rows_of
from controller.sim.workload.formats.lines import Line
from controller.sim.workload.request import TraceRequest

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def requests(header: Line, lines: Iterator[Line]) -> Iterator[TraceRequest]:
    """Arrivals count from the first line's; a count of 0 tokens is taken for 1. Raises
    TraceError."""
    at, prompt, outputs = places_of(header, COLUMNS)
    first = None
    for line, cells in rows_of(header, lines):
        when = _time(line, cells[at])
        first = first or when
        yield TraceRequest(
            (when - first) / timedelta(seconds=1),
            max(1, line.tokens(COLUMNS[1], cells[prompt])),
            max(1, line.tokens(COLUMNS[2], cells[outputs])),
        )


def _time(line: Line, cell: str) -> datetime:
    """The seventh decimal of a second, which the 2023 trace has, is cut off."""
    try:
        when = datetime.fromisoformat(cell)
    except ValueError as error:
        raise line.error(f"{cell[:40]!r} is no time like 2023-11-16 18:15:46.68") from error
    return when if when.tzinfo is not None else when.replace(tzinfo=UTC)
