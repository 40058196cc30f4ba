"""Rows of a CSV file by the names of its columns. A row is one line: no trace has line breaks in
its cells."""

import csv
from collections.abc import Iterator, Sequence

from controller.sim.workload.formats.lines import Line


def cells_of(line: Line) -> list[str]:
    """Raises TraceError."""
    try:
        (cells,) = csv.reader([line.text], strict=True)
    except csv.Error as error:
        raise line.error(f"not CSV ({error})") from error
    return [cell.strip() for cell in cells]


def places_of(header: Line, names: Sequence[str]) -> list[int]:
    """Where these columns stand. Raises TraceError if one is missing."""
    found = cells_of(header)
    missing = [name for name in names if name not in found]
    if missing:
        raise header.error(f"no column {missing[0]!r}; they must be {','.join(names)}")
    return [found.index(name) for name in names]


def rows_of(header: Line, lines: Iterator[Line]) -> Iterator[tuple[Line, list[str]]]:
    """Raises TraceError for a row that has not as many cells as the header."""
    num_columns = len(cells_of(header))
    for line in lines:
        cells = cells_of(line)
        if len(cells) != num_columns:
            raise line.error(f"{len(cells)} columns where the header has {num_columns}")
        yield line, cells
