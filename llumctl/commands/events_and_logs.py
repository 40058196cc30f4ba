"""What happened in the cluster, and what happens now: `llumctl events` shows what the controller
recorded, `llumctl logs` what each process wrote into its log file."""

import contextlib
import math
import re
import sys
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controller.api.errors import LlumctlError, NotFoundError, NotRunningError, UsageError
from controller.api.text.quantities import printable, time_of_day
from llumctl import arguments, connect, output
from llumctl.commands.options import Cluster, ClusterName, OutputFormat, complete_members
from llumctl.config import config_file
from llumctl.output import Format

if TYPE_CHECKING:
    from controller.api.client import ControlClient
    from controller.api.text.events import EventSum
    from controller.api.wire.requests import Event

PAGE = 1000
FOLLOW_LAST = 10
DOCUMENTS = (Format.JSON, Format.YAML)
_POSITION = re.compile(r"[0-9A-Za-z]+-\d{1,18}")


@dataclass(frozen=True)
class Wanted:
    """A filter: the events that are shown."""

    since_s: float | None = None
    kinds: tuple[str, ...] = ()
    instance: str | None = None
    request: str | None = None
    cause: str | None = None

    def fits(self, event: "Event") -> bool:
        return (
            (self.since_s is None or event.time_s >= self.since_s)
            and (not self.kinds or event.kind in self.kinds)
            and (self.instance is None or event.instance_id == self.instance)
            and (self.request is None or (event.request_id or "").startswith(self.request))
            and (self.cause is None or event.cause_id == self.cause)
        )


def events(
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Show new events until Ctrl-C.")
    ] = False,
    since: Annotated[
        str | None,
        typer.Option(metavar="5m|TIME", help="Only events since then; TIME as in ISO 8601."),
    ] = None,
    kind: Annotated[
        str | None, typer.Option(metavar="K,...", help="Only events of these kinds: evicted,failed")
    ] = None,
    instance: Annotated[
        str | None, typer.Option(metavar="ID", help="Only events of this instance.")
    ] = None,
    request: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Only events of requests whose id begins like this."),
    ] = None,
    cause: Annotated[
        str | None, typer.Option(metavar="ID", help="Only events with this cause.")
    ] = None,
    after: Annotated[
        str | None,
        typer.Option(metavar="POSITION", help="Only events after this position (see -o json)."),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "-n",
            "--limit",
            metavar="N",
            help=f"Begin with the last N events (all that are kept, or {FOLLOW_LAST} with -f).",
        ),
    ] = None,
    sums: Annotated[
        bool,
        typer.Option(
            "--sums", help="Show events of one kind and member within 10 s as one: 9 in 10 s."
        ),
    ] = False,
    output_format: OutputFormat = Format.TABLE,
    cluster: Cluster = None,
) -> None:
    """Show what happened in the cluster, oldest first."""
    arguments.within(0, limit, "--limit")
    if after is not None and not _POSITION.fullmatch(after):
        raise UsageError(
            f"--after: {after[:60]!r} is not the position of an event", "llumctl events -o name"
        )
    if follow and output_format in DOCUMENTS:
        raise UsageError(
            f"-o {output_format}: not with --follow, as it is a single document",
            "llumctl events --follow -o jsonl",
        )
    if sums and output_format not in (Format.TABLE, Format.WIDE):
        raise UsageError(
            f"--sums: not with -o {output_format}, which has each event",
            "llumctl events --sums",
        )
    wanted = Wanted(
        None if since is None else arguments.moment(since, "--since", time.time()),
        _kinds(kind),
        instance,
        request,
        cause,
    )
    if follow and limit is None and since is None and after is None:
        limit = FOLLOW_LAST
    name = connect.attached(cluster)
    with connect.client(name) as client:
        kept, position = _kept(client, after or "", wanted, limit)
    if output_format in DOCUMENTS:
        output.emit(_whole(kept, position, output_format))
        return

    show = EventLines(output_format, sums=sums)
    for event in kept:
        show(event)
    if follow:
        try:
            _follow(name, position, wanted, show)
        finally:
            show.end()
        return
    show.end()
    if not kept:
        output.say("no such events are kept")


def _kinds(text: str | None) -> tuple[str, ...]:
    if text is None:
        return ()
    from controller.api.text import events as event_words

    return arguments.several_of(text, event_words.KINDS, "--kind", "a kind of event")


def _kept(
    client: "ControlClient", after: str, wanted: Wanted, limit: int | None
) -> tuple[deque["Event"], str]:
    """The last `limit` wanted events, and the position after all events that are kept."""
    found: deque[Event] = deque(maxlen=limit)
    while True:
        page = client.events(after, PAGE)
        if after and page.missed != 0:
            _tell_gap(page.missed)
        found.extend(event for event in page.events if wanted.fits(event))
        after = page.next_position
        if len(page.events) < PAGE:
            return found, after


def _follow(cluster: str, after: str, wanted: Wanted, show: "EventLines") -> None:
    """Shows events until the reader of stdout leaves or the cluster is stopped."""
    from controller.api.wire.stream import EventFrame, GapFrame

    try:
        for frame in connect.follow(cluster, after):
            if isinstance(frame, GapFrame):
                _tell_gap(frame.missed, frame.reason)
            elif isinstance(frame, EventFrame) and wanted.fits(frame.event):
                show(frame.event)
            elif frame is not None:
                show.end(frame.time_s)
            if output.reader_left():
                return
    except NotRunningError:
        from controller.api.state.audit import last_stop_words

        output.say(last_stop_words(cluster))


def _tell_gap(missed: int | None, reason: str = "") -> None:
    """Reports missing events. `reason`: why an event was left out; empty if the controller no
    longer keeps the events."""
    if reason:
        output.say(f"gap: an event was left out: {reason}")
    elif missed is None:
        output.say("gap: the controller restarted; events before that may be missing")
    else:
        output.say(f"gap: {missed} events are missing here: the controller keeps only the last")


def _whole(kept: deque["Event"], position: str, output_format: Format) -> str:
    from controller.api.wire.requests import EventPage

    page = EventPage(events=tuple(kept), next_position=position)
    return output.encode(output_format, page, page.events)


_TINTS: Mapping[str, str] = {
    "good": output.GREEN,
    "noted": output.BOLD,
    "warn": output.YELLOW,
    "bad": output.RED,
}
"""Colours of the severities (`controller.api.text.events.Severity`)."""


class EventLines:
    """Shows each event that it is called with at once, as table, wide, jsonl or name.

    Columns have fixed widths, because later events are not known yet. A longer text is not cut. If
    an event is not from today, a line with the date precedes the first event of that day.

    `sums`: events about requests are shown as sums, each once its time is over, or before an event
    about something else.
    """

    def __init__(self, output_format: Format, *, sums: bool = False) -> None:
        from controller.api.text.events import KINDS

        self._sums = sums
        self._open: list[EventSum] = []
        """The sums that may still grow."""

        widths = (8, max(map(len, KINDS)), 18)
        self._format = output_format
        self._wide = output_format is Format.WIDE
        self._widths = (12, *widths[1:], 8, 8, 24) if self._wide else widths
        self._colours = output.use_colours(sys.stdout)
        self._day = time.strftime("%Y-%m-%d")
        self._begun = False

    def __call__(self, event: "Event") -> None:
        if self._format is Format.NAME:
            output.emit(event.position)
        elif self._format is Format.JSONL:
            from controller.api.wire import SCHEMA_VERSION

            row = {"schema_version": SCHEMA_VERSION, **output.plain(event)}
            output.emit(output.json_text(row))
        elif self._sums and event.request_id is not None:
            from controller.api.text.events import summed

            self.end(event.time_s)
            self._open = summed([event], self._open)
        else:
            self.end()
            self._show(event)

    def end(self, now_s: float = math.inf) -> None:
        """Shows the sums whose time is over."""
        from controller.api.text.events import SUMMED_S

        while self._open and now_s - self._open[0].first.time_s >= SUMMED_S:
            found = self._open.pop(0)
            self._show(found.first, found if found.count > 1 else None)

    def _show(self, event: "Event", found: "EventSum | None" = None) -> None:
        if not self._begun:
            self._begun = True
            output.emit(self._header())
        output.emit(self._dated(event.time_s, self._row(event, found)))

    def _header(self) -> str:
        wide = ("WHERE", "LEVEL", "CAUSE") if self._wide else ()
        line = self._line("TIME", "KIND", "SUBJECT", *wide, "WHAT")
        return output.paint(line, output.BOLD) if self._colours else line

    def _row(self, event: "Event", found: "EventSum | None") -> str:
        from controller.api.text.events import member, severity, subject, what, where

        about, words, wide = subject(event), what(event), (event.level or "-", event.cause_id)
        if found is not None:
            words = ", ".join(filter(None, (found.words, found.reason)))
            about, wide = member(event) or "controller", ("-", "-")
        more = (where(event) or "-", *wide) if self._wide else ()
        clock = time_of_day(event.time_s, millis=self._wide)
        line = self._line(clock, event.kind, about, *more, words)
        if self._colours and (colour := _TINTS.get(severity(event))):
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


# -- logs -----------------------------------------------------------------------------------

DEFAULT_MEMBER = "controller"
DEFAULT_LINES = 100
LOG_POLL_S = 0.2


def logs(
    member: Annotated[
        str | None,
        typer.Argument(
            metavar="[ID]",
            autocompletion=complete_members,
            help="i-0, f-0, head, ... (controller)",
            show_default=False,
        ),
    ] = None,
    everyone: Annotated[
        bool, typer.Option("--all", help="Show all logs, each line after its member's name.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Show new lines until Ctrl-C.")
    ] = False,
    grep: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="Only lines with this text, from the whole log. Upper and lower case are the same"
            " unless TEXT has an upper-case letter.",
        ),
    ] = None,
    lines: Annotated[
        int, typer.Option("-n", "--lines", metavar="N", help="Begin with the last N lines.")
    ] = DEFAULT_LINES,
    cluster: ClusterName = None,
) -> None:
    """Show the log of a member, even after the cluster was stopped.

    -f goes on when the member's process is restarted, until Ctrl-C.
    """
    arguments.within(0, lines, "--lines")
    if everyone and member is not None:
        raise UsageError(f"--all: not with ID; {member[:60]!r} is one of all")
    name = config_file.cluster_name(cluster)
    from controller.api.state.log_tail import LogTail

    folder = _folder_of(name)
    one = DEFAULT_MEMBER if member is None else member
    found = _chosen(_logs_in(folder), None if everyone else one, name)
    show = _LogPrinter(found, everyone=everyone)
    search = _Search("" if grep is None else grep)
    with contextlib.ExitStack() as stack:

        def opened(path: Path) -> LogTail:
            return stack.enter_context(contextlib.closing(LogTail(path)))

        tails = {key: opened(path) for key, path in found.items()}
        for key, tail in tails.items():
            begun = tail.last(sys.maxsize if grep else lines)
            if not follow and lines:
                begun += tail.unfinished()
            hits = search.lines(begun)
            if grep:
                hits = hits[-lines:] if lines else []
            if any(map(str.strip, hits)):
                show(key, hits)
            elif lines and not everyone:
                if any(map(str.strip, begun)):
                    output.say(f"no line of the log of {key} has {grep!r} so far: {found[key]}")
                else:
                    output.say(f"the log of {key} is empty so far: {found[key]}")
        while follow and not output.reader_left():
            time.sleep(LOG_POLL_S)
            for key, tail in tails.items():
                show(key, search.lines(tail.added()))
            if everyone:
                for key, path in _logs_in(folder).items():
                    if key not in tails:
                        tails[key] = opened(path)


class _Search:
    """Chooses the lines that contain a text, as a terminal shows them. Upper and lower case are the
    same, unless the text has an upper-case letter. An empty text chooses all lines."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._exact = text != text.lower()

    def lines(self, lines: list[str]) -> list[str]:
        return [line for line in lines if self._fits(line)] if self._text else lines

    def _fits(self, line: str) -> bool:
        from controller.api.state.log_tail import harmless

        shown = harmless(line)
        return self._text in (shown if self._exact else shown.lower())


_NUMBER = re.compile(r"(\d+)")


def _folder_of(cluster: str) -> Path:
    """The folder of the logs, which remains when the cluster is stopped."""
    from controller.api.state import run_state

    state = run_state.load(cluster)
    return run_state.state_path(cluster) / "logs" if state is None else Path(state.log_dir)


def _logs_in(folder: Path) -> dict[str, Path]:
    """The log file of each member, in natural order: i-2 before i-10."""
    try:
        files = [path for path in folder.iterdir() if path.suffix == ".log"]
    except (FileNotFoundError, NotADirectoryError):
        files = []
    except OSError as error:
        raise LlumctlError(f"cannot read {folder}: {error.strerror}", f"ls -ld {folder}") from error
    return {path.stem: path for path in sorted(files, key=_natural)}


def _chosen(logs: dict[str, Path], member: str | None, cluster: str) -> dict[str, Path]:
    """The log of one member, or all logs. Raises NotFoundError, which lists the known names."""
    if not logs:
        raise NotFoundError(f"cluster {cluster} has left no logs", "llumctl up")
    if member is None:
        return logs
    if member not in logs:
        raise NotFoundError(
            f"cluster {cluster} has no log of {member[:60]!r}",
            f"llumctl logs ID      with one of {', '.join(logs)}",
        )
    return {member: logs[member]}


def _natural(path: Path) -> list[tuple[int, str]]:
    return [(int(part or 0) if part.isdigit() else -1, part) for part in _NUMBER.split(path.stem)]


class _LogPrinter:
    """Prints lines on stdout, after the member's name if all are shown, and without control
    characters on a terminal."""

    def __init__(self, names: Iterable[str], *, everyone: bool) -> None:
        self._width = max(map(len, names)) if everyone else 0
        self._on_terminal = output.is_terminal(sys.stdout)

    def __call__(self, name: str, lines: list[str]) -> None:
        from controller.api.state.log_tail import harmless

        if not lines:
            return
        prefix = f"{name:<{self._width}} | " if self._width else ""
        output.emit(
            "\n".join(prefix + (harmless(line) if self._on_terminal else line) for line in lines)
        )
