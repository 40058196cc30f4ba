"""The BurstGPT trace: Timestamp (s), Model, Request tokens, Response tokens, Total tokens,
Log Type; its later files have a Session ID too.

Its publishers mark a failed request by a response of 0 tokens; those are left out.
"""

from collections.abc import Iterator

from controller.sim.workload.formats.csv_rows import cells_of, places_of, rows_of
from controller.sim.workload.formats.lines import Line
from controller.sim.workload.request import TraceRequest

COLUMNS = ("Timestamp", "Model", "Request tokens", "Response tokens", "Total tokens", "Log Type")
SESSION_COLUMN = "Session ID"


def requests(header: Line, lines: Iterator[Line]) -> Iterator[TraceRequest]:
    """Raises TraceError."""
    at, _, prompt, outputs, *_ = places_of(header, COLUMNS)
    names = cells_of(header)
    session = names.index(SESSION_COLUMN) if SESSION_COLUMN in names else None
    for line, cells in rows_of(header, lines):
        num_output_tokens = line.tokens(COLUMNS[3], cells[outputs])
        num_prompt_tokens = max(1, line.tokens(COLUMNS[2], cells[prompt]))
        arrival_s = _seconds(line, cells[at])
        if num_output_tokens:
            yield TraceRequest(
                arrival_s,
                num_prompt_tokens,
                num_output_tokens,
                session="" if session is None else cells[session],
            )


def _seconds(line: Line, cell: str) -> float:
    try:
        found = float(cell)
    except ValueError as error:
        raise line.error(f"Timestamp must be a number of seconds, not {cell[:40]!r}") from error
    return line.number_from_zero("Timestamp", "seconds", found)
