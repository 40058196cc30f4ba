"""Events one by one on stdout, each on a line as soon as it is known."""

import sys
import time
from collections.abc import Mapping

from controller.api.text import events as event_words
from controller.api.text.events import KINDS, Severity, subject, what, where
from controller.api.text.quantities import printable, time_of_day
from controller.api.wire.base import SCHEMA_VERSION
from controller.api.wire.requests import Event
from llumctl.text import output
from llumctl.text.output import Format

_WIDTHS = (8, max(map(len, KINDS)), 18)
_WIDE_WIDTHS = (12, *_WIDTHS[1:], 8, 8, 24)
_TINTS: Mapping[Severity, str] = {
    Severity.GOOD: output.GREEN,
    Severity.NOTED: output.BOLD,
    Severity.WARN: output.YELLOW,
    Severity.BAD: output.RED,
}


class EventLines:
    """Shows the events that it is called with: table, wide, jsonl or name.

    Columns are of fixed width, so that events still to come fit below; what is longer than its
    column is not cut. A date stands on a line of its own before the first event of a day other
    than today.
    """

    def __init__(self, output_format: Format) -> None:
        self._format = output_format
        self._wide = output_format is Format.WIDE
        self._widths = _WIDE_WIDTHS if self._wide else _WIDTHS
        self._colours = output.use_colours(sys.stdout)
        self._day = time.strftime("%Y-%m-%d")
        self._begun = False

    def __call__(self, event: Event) -> None:
        if self._format is Format.NAME:
            output.emit(event.position)
        elif self._format is Format.JSONL:
            row = {"schema_version": SCHEMA_VERSION, **output.plain(event)}
            output.emit(output.json_text(row))
        else:
            if not self._begun:
                self._begun = True
                output.emit(self._header())
            output.emit(self._dated(event.time_s, self._row(event)))

    def _header(self) -> str:
        wide = ("WHERE", "LEVEL", "CAUSE") if self._wide else ()
        line = self._line("TIME", "KIND", "SUBJECT", *wide, "WHAT")
        return output.paint(line, output.BOLD) if self._colours else line

    def _row(self, event: Event) -> str:
        wide = (where(event) or "-", event.level or "-", event.cause_id) if self._wide else ()
        clock = time_of_day(event.time_s, millis=self._wide)
        line = self._line(clock, event.kind, subject(event), *wide, what(event))
        if self._colours and (colour := _TINTS.get(event_words.severity(event))):
            line = line.replace(event.kind, output.paint(event.kind, colour), 1)
        return line

    def _line(self, *cells: str) -> str:
        *columns, last = (printable(cell).strip() for cell in cells)
        padded = [cell.ljust(width) for cell, width in zip(columns, self._widths, strict=True)]
        return "  ".join((*padded, last)).rstrip()

    def _dated(self, time_s: float, line: str) -> str:
        day = time.strftime("%Y-%m-%d", time.localtime(time_s))
        if day == self._day:
            return line
        self._day = day
        return f"-- {day} --\n{line}"
