"""Writes to the terminal: data to stdout, messages and questions to stderr.

Tables are plain columns without boxes. In a pipe nothing is cut. On a terminal that is too narrow,
only ids are shortened. If the reader has gone away (closed pipe), that is no error: later output is
dropped.
"""

import contextlib
import json
import math
import os
import select
import shutil
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TextIO

from controller.api.errors import LlumctlError, RefusedError
from controller.api.text.quantities import num_cells, printable
from llumctl import meant

if TYPE_CHECKING:
    from pydantic import BaseModel

BOLD, RED, YELLOW, GREEN = "1", "31", "33", "32"

MIN_ID_WIDTH = 9
MIN_PROSE_WIDTH = 20


class Format(StrEnum):
    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    JSONL = "jsonl"
    YAML = "yaml"
    NAME = "name"


def emit(text: str, end: str = "\n") -> None:
    """Writes a block of data to stdout, with a newline at its end."""
    _write(sys.stdout, f"{text}{end}")


def say(text: str) -> None:
    """Writes a message to stderr. Commands in it get the option for this command's cluster."""
    say_on(f"{text}\n")


def say_on(text: str) -> None:
    """Writes a message to stderr without a newline: an answer or the next message follows it."""
    with contextlib.suppress(LlumctlError):
        _write(sys.stderr, meant.aimed(text))


def check_terminal(what: str, hint: str) -> None:
    """Raises RefusedError if there is no terminal to ask on. `what`: the command's name."""
    if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        raise RefusedError(f"{what} asks before it acts, and there is no terminal to ask on", hint)


def ask(question: str) -> None:
    """Raises RefusedError unless the answer is yes. End of input counts as no."""
    say_on(f"{question} [y/N] ")
    answer = ""
    with contextlib.suppress(UnicodeDecodeError):
        try:
            answer = sys.stdin.readline()
        except KeyboardInterrupt:
            say("\ninterrupted: nothing was changed")
            raise
    if not answer.endswith("\n"):
        say("")
    if answer.strip().lower() not in ("y", "yes"):
        raise RefusedError("the answer was not yes: nothing was changed")


def reader_left() -> bool:
    """Whether stdout is a pipe whose other end is closed. A command that follows the cluster ends
    then."""
    if sys.stdout is None:
        return False
    if sys.stdout in _left:
        return True
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(mask & select.POLLERR for _, mask in poll.poll(0))
    except (OSError, ValueError):  # no descriptor below
        return False


def refused(stream: TextIO, error: OSError) -> LlumctlError:
    """The error for a stream that takes no more output. Later writes to it are dropped."""
    _silence(stream)
    return LlumctlError(f"cannot write the output: {error.strerror}")


def flush() -> None:
    """Flushes the streams. Must be called last, so that the interpreter finds nothing left to
    write."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(LlumctlError):
            _write(stream, "")


def encode(format_: Format, whole: "BaseModel", rows: Sequence["BaseModel"]) -> str:
    """The text in a machine format. JSON and YAML have the whole object; the other formats have a
    line for each row, with its schema version."""
    if format_ is Format.JSON:
        return json_text(plain(whole), indent=2)
    if format_ is Format.YAML:
        import yaml

        text: str = yaml.safe_dump(plain(whole), sort_keys=False, allow_unicode=False)
        return text.rstrip("\n")
    if format_ is Format.JSONL:
        version = {"schema_version": plain(whole).get("schema_version")}
        return "\n".join(json_text({**version, **plain(row)}) for row in rows)
    raise ValueError(f"{format_} is not a machine format")


def plain(model: "BaseModel") -> dict[str, Any]:
    """The model as values of JSON. Numbers that are not finite become null."""
    found: dict[str, Any] = _finite(model.model_dump(mode="json"))
    return found


def json_text(value: Any, indent: int | None = None) -> str:
    """The value as JSON in ASCII, which is right in every encoding of a terminal."""
    return json.dumps(value, indent=indent, allow_nan=False)


def facts(facts: Sequence[tuple[str, str]]) -> str:
    """Names and values, a pair on each line."""
    width = max(num_cells(name) for name, _ in facts)
    return "\n".join(
        f"{_pad(name, width, right=False)}  {printable(value)}" for name, value in facts
    )


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    colours: bool | None = None,
    ids: Sequence[str] = (),
    ends_in_prose: bool = False,
) -> str:
    """Columns two spaces apart, each as wide as its widest cell. Figures are right-aligned. `ids`:
    the titles of columns that may be shortened on a narrow terminal, beginning with the first.
    `ends_in_prose`: whether the last column is wrapped on a narrow terminal. `colours`: by default
    those of stdout."""
    if colours is None:
        colours = use_colours(sys.stdout)
    cells = [[printable(cell).strip() or "-" for cell in row] for row in rows]
    if ids and is_terminal(sys.stdout):
        _shorten(header, cells, ids, shutil.get_terminal_size().columns)
    widths = [max(map(num_cells, column)) for column in zip(header, *cells, strict=True)]
    right = [_is_figures(column) for column in zip(*cells, strict=True)] or [False] * len(header)
    if ends_in_prose and is_terminal(sys.stdout):
        room = shutil.get_terminal_size().columns - sum(widths[:-1]) - 2 * (len(widths) - 1)
        if MIN_PROSE_WIDTH <= room < widths[-1]:
            cells = [line for row in cells for line in _wrapped(row, room)]
            widths[-1] = room
    lines = []
    for row in (list(header), *cells):
        padded = [
            _pad(cell, width, right=flush_right)
            for cell, width, flush_right in zip(row, widths, right, strict=True)
        ]
        if colours:
            padded = [_tint(cell) for cell in padded]
        lines.append("  ".join(padded).rstrip())
    if colours:
        lines[0] = paint(lines[0], BOLD)
    return "\n".join(lines)


def _shorten(header: Sequence[str], cells: list[list[str]], ids: Sequence[str], room: int) -> None:
    """Shortens the ids in the cells as far as needed, but none to less than MIN_ID_WIDTH."""
    from controller.api.text.short_ids import shortened

    widths = [max(map(num_cells, column)) for column in zip(header, *cells, strict=True)]
    over = sum(widths) + 2 * (len(widths) - 1) - room
    ellipsis = "…" if (sys.stdout.encoding or "").lower().startswith("utf") else "~"
    for title in ids:
        place = header.index(title)
        width = max(MIN_ID_WIDTH, len(title), widths[place] - max(0, over))
        if over > 0 and width < widths[place]:
            shorter = shortened((row[place] for row in cells), width, ellipsis)
            for row in cells:
                row[place] = shorter[row[place]]
            over -= widths[place] - max(len(title), *(num_cells(row[place]) for row in cells))


def _wrapped(row: list[str], room: int) -> list[list[str]]:
    """The row, and below it rows that have only the rest of its last cell."""
    import textwrap

    first, *rest = textwrap.wrap(row[-1], room)
    return [[*row[:-1], first], *([""] * (len(row) - 1) + [line] for line in rest)]


def use_colours(stream: TextIO | None) -> bool:
    """Whether the stream is a terminal with colours, and NO_COLOR is not set."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return is_terminal(stream)


def can_redraw(stream: TextIO | None) -> bool:
    """Whether the stream is a terminal that understands cursor movements."""
    return is_terminal(stream) and os.environ.get("TERM", "dumb") != "dumb"


def is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and not stream.closed and stream.isatty()


def paint(text: str, colour: str) -> str:
    return f"\x1b[{colour}m{text}\x1b[0m"


_TINTS: Mapping[str, str] = {
    "active": GREEN,
    "ready": GREEN,
    "ok": GREEN,
    "starting": YELLOW,
    "restarting": YELLOW,
    "draining": YELLOW,
    "drained": GREEN,
    "removed": GREEN,
    "restarted": GREEN,
    "degraded": YELLOW,
    "stopping": YELLOW,
    "warn": YELLOW,
    "stalled": RED,
    "failed": RED,
    "fail": RED,
}


def _tint(cell: str) -> str:
    colour = _TINTS.get(cell.strip())
    return cell if colour is None else paint(cell, colour)


def _pad(cell: str, width: int, *, right: bool) -> str:
    space = " " * (width - num_cells(cell))
    return space + cell if right else cell + space


def _is_figures(column: Sequence[str]) -> bool:
    return all(cell[0] in "-+.0123456789" for cell in column)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value


def _write(stream: TextIO | None, text: str) -> None:
    if stream is None or stream.closed:
        return
    encoding = stream.encoding or "utf-8"
    try:
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()
    except BrokenPipeError:
        _silence(stream)
    except OSError as error:
        raise refused(stream, error) from error


_left: list[TextIO] = []
"""Streams whose reader has gone away."""


def _silence(stream: TextIO) -> None:
    """Points the stream's descriptor to /dev/null, because the interpreter flushes the stream once
    more at its end."""
    _left.append(stream)
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
