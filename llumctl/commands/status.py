"""`llumctl status`: shows the cluster once or again and again, or waits for a condition."""

import functools
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controller.api.errors import EXIT_FAILED, UnreachableError, UsageError
from controller.api.text.quantities import duration, time_of_day
from llumctl import arguments, connect, output
from llumctl.commands.options import Cluster, Model, OutputFormat, check_plot
from llumctl.output import Format

if TYPE_CHECKING:
    from controller.api.wire.status import ClusterStatus

DEFAULT_EVERY_S = 2.0
DEFAULT_WAIT = "600"
MAX_SINCE = "6h"
"""So much of its past a controller keeps."""


def status(
    output_format: OutputFormat = Format.TABLE,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Exit 1 unless the cluster and all instances are ready. A high load is no reason.",
        ),
    ] = False,
    cluster: Cluster = None,
    model: Model = None,  # noqa: ARG001  # its callback notes it
    timeout: Annotated[
        str | None,
        typer.Option(
            metavar="S",
            help="How long the controller may take to answer (5s). With --wait: how long to wait"
            " (10m; 0: look once).",
        ),
    ] = None,
    wait: Annotated[
        str | None,
        typer.Option(
            metavar="COND",
            help="Wait for ready, idle, cluster=STATE, instance/ID=STATE (or =gone),"
            " frontend/ID=STATE, request/ID=STATE or drained=ID. Exit 0 as soon as it is true, 124"
            " at the timeout.",
        ),
    ] = None,
    watch: Annotated[bool, typer.Option("-w", "--watch", help="Repeat until Ctrl-C.")] = False,
    every: Annotated[
        float | None, typer.Option(metavar="S", help="With --watch: seconds between updates (2).")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="S", help=f"Show the history of this time instead, up to {MAX_SINCE}: 10m."
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="With --since: draw a .png or .svg file; - draws in the terminal."
        ),
    ] = None,
) -> None:
    """Show the cluster and its instances, or wait for a condition."""
    if wait is not None:
        shown = {"--check": check, "--watch": watch, "--every": every is not None}
        shown["--output"] = output_format is not Format.TABLE
        shown |= {"--since": since is not None, "--plot": plot is not None}
        for flag, value in shown.items():
            if value:
                raise UsageError(f"{flag}: not with --wait, which shows nothing")
        _wait(cluster, wait, DEFAULT_WAIT if timeout is None else timeout)
        return
    if since is not None:
        if check or watch or every is not None:
            raise UsageError("--since: not with --check, --watch or --every")
        _show_history(cluster, since, plot, output_format)
        return
    if plot is not None:
        raise UsageError("--plot: only with --since", "llumctl status --since 10m --plot run.svg")
    timeout_s = connect.DEFAULT_TIMEOUT_S
    if timeout is not None:
        timeout_s = arguments.positive(timeout, "--timeout")
    arguments.within(0, every, "--every", above=True)
    if watch:
        _refuse_unwatchable(output_format, check=check)
    elif every is not None:
        raise UsageError("--every: only with --watch", "llumctl status --watch --every 5")
    name = connect.attached(cluster)
    text_of = _texts(output_format)
    found = fetch(name, timeout_s)
    if watch:
        _watch(name, found, text_of, output_format, every or DEFAULT_EVERY_S, timeout_s)
        return
    if text := text_of(found):
        output.emit(text)
    if check and (complaints := unwell(found)):
        for line in complaints:
            output.say(line)
        raise typer.Exit(EXIT_FAILED)


def _show_history(
    cluster: str | None, since: str, plot: Path | None, output_format: Format
) -> None:
    if output_format not in (Format.TABLE, Format.JSON, Format.YAML):
        raise UsageError(
            f"-o {output_format}: the history is shown as table, json or yaml",
            f"llumctl status --since {since} -o json",
        )
    if plot is not None and output_format is not Format.TABLE:
        raise UsageError(f"--plot: not with -o {output_format}")
    last_s = arguments.positive(since, "--since", most=MAX_SINCE)
    check_plot(plot)
    from llumctl.commands import status_history
    from llumctl.config import settings

    cost_per_hour = settings.load_console().instance_cost_per_hour
    num_points = status_history.MAX_ROWS if output_format is Format.TABLE else None
    if plot is not None:
        is_text = str(plot) == "-"
        num_points = status_history.NUM_CELLS if is_text else status_history.PLOT_POINTS
    with connect.client(connect.attached(cluster), connect.DEFAULT_TIMEOUT_S) as client:
        found = client.history(
            last_s,
            points=num_points or status_history.PLOT_POINTS,
            instances=output_format is not Format.TABLE,
        )
    if output_format is not Format.TABLE:
        output.emit(output.encode(output_format, found, ()))
    elif not found.time_s:
        output.say("there is no history yet: it begins with the controller's first second")
    elif plot is None:
        output.emit(status_history.table(found, cost_per_hour))
    elif str(plot) == "-":
        output.emit(status_history.curves(found, cost_per_hour))
    else:
        status_history.save_plot(plot, found)


def fetch(cluster: str, timeout_s: float) -> "ClusterStatus":
    """The cluster's status. Raises UnreachableError if no such cluster runs, or its controller does
    not answer."""
    with connect.client(cluster, timeout_s) as client:
        return client.status()


def unwell(found: "ClusterStatus") -> list[str]:
    """The reasons why `--check` fails, a line each; empty if there is none."""
    lines = [
        f"instance {item.id} is {item.state}" + (f": {item.detail}" if item.detail else "")
        for item in found.instances
        if item.state != "active"
    ]
    if not found.instances:
        lines.append("there are no instances")
    if found.state != "ready":
        detail = f": {found.detail}" if found.detail else ""
        lines.append(f"cluster {found.cluster} is {found.state}{detail}")
    return lines


def _texts(output_format: Format) -> "Callable[[ClusterStatus], str]":
    """A function that makes text of a status. Raises UsageError if the thresholds of the alarms,
    which a table shows, are set wrong."""
    if output_format is Format.NAME:
        return lambda found: "\n".join(item.id for item in found.instances)
    if output_format not in (Format.TABLE, Format.WIDE):
        return lambda found: output.encode(output_format, found, found.instances)
    from llumctl.commands import status_table
    from llumctl.config import settings

    return functools.partial(
        status_table.render,
        wide=output_format is Format.WIDE,
        limits=settings.load_console(),
    )


def _refuse_unwatchable(output_format: Format, *, check: bool) -> None:
    if check:
        raise UsageError(
            "--check: its result is the exit code, and --watch has none",
            "llumctl status --wait=ready",
        )
    if output_format not in (Format.TABLE, Format.WIDE, Format.JSONL):
        raise UsageError(
            f"-o {output_format}: cannot be watched; -o jsonl gives one status per line",
            "llumctl status --watch -o jsonl",
        )


def _watch(
    cluster: str,
    first: "ClusterStatus",
    text_of: "Callable[[ClusterStatus], str]",
    output_format: Format,
    every_s: float,
    timeout_s: float,
) -> None:
    """Shows the status until the reader of stdout leaves. On a terminal each status is drawn over
    the one before.

    If the controller does not answer, it is asked again. Meanwhile a terminal shows the last status
    with its age; otherwise one message goes to stderr.
    """
    lines_only = output_format is Format.JSONL
    paint = _Screen() if not lines_only and output.can_redraw(sys.stdout) else None
    status, asked_s, trouble = first, time.monotonic(), ""
    seen_s = asked_s
    while not output.reader_left():
        if paint is not None:
            paint(f"{_head(trouble, time.monotonic() - seen_s)}\n{text_of(status)}")
        elif lines_only and not trouble:
            output.emit(output.json_text(output.plain(status)))
        elif not trouble:
            output.emit(f"{_head()}\n{text_of(status)}\n")
        time.sleep(max(0.0, asked_s + every_s - time.monotonic()))
        asked_s = time.monotonic()
        try:
            status = fetch(cluster, timeout_s)
            if trouble and paint is None:
                output.say("the controller answers again")
            trouble, seen_s = "", time.monotonic()
        except UnreachableError as error:
            if not trouble and paint is None:
                output.say(f"{error.message}; waiting for it")
            trouble = error.message


def _head(trouble: str = "", age_s: float = 0.0) -> str:
    clock = time_of_day(time.time())
    return f"{clock}  stale for {duration(age_s)}: {trouble}" if trouble else clock


# Escape sequences: go to the upper left corner; erase the rest of the line; erase the rest of the
# screen; clear the screen; cut long lines; wrap long lines again.
_HOME, _END_OF_LINE, _END = "\x1b[H", "\x1b[K", "\x1b[J"
_CLEAR, _CUT, _WRAP = "\x1b[2J", "\x1b[?7l", "\x1b[?7h"


class _Screen:
    """Draws each text over the one before. Lines for which the terminal is too small are left
    out."""

    def __init__(self) -> None:
        self._begun = False

    def __call__(self, text: str) -> None:
        height = shutil.get_terminal_size().lines
        lines = [line + _END_OF_LINE for line in text.splitlines()[: height - 1]]
        clear = "" if self._begun else _CLEAR
        self._begun = True
        output.emit(f"{_CUT}{_HOME}{clear}" + "\n".join(lines) + f"\n{_END}{_WRAP}", end="")


def _wait(cluster: str | None, condition: str, timeout: str) -> None:
    """Waits for a condition, and says on stderr what has become true. stdout stays empty."""
    timeout_s = arguments.seconds(timeout, "--timeout")
    name = connect.attached(cluster)
    from llumctl.commands import waiting

    wanted = waiting.parse(condition)
    output.say(waiting.wait(name, wanted, condition.strip(), timeout_s))
