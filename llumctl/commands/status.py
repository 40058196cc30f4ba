"""`llumctl status`: how the cluster is, once or again and again."""

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from controller.api.errors import EXIT_FAILED, UsageError
from llumctl import connect
from llumctl.commands.options import Cluster, OutputFormat, positive
from llumctl.text import output
from llumctl.text.output import Format

if TYPE_CHECKING:
    from controller.api.wire.status import ClusterStatus

DEFAULT_EVERY_S = 2.0


def status(
    output_format: OutputFormat = Format.TABLE,
    check: Annotated[
        bool, typer.Option("--check", help="Exit 1 unless the cluster and all instances are well.")
    ] = False,
    cluster: Cluster = None,
    timeout: Annotated[
        float, typer.Option(metavar="S", help="How many seconds the controller may take.")
    ] = connect.DEFAULT_TIMEOUT_S,
    watch: Annotated[
        bool, typer.Option("-w", "--watch", help="Show it again and again until Ctrl-C.")
    ] = False,
    every: Annotated[
        float | None, typer.Option(metavar="S", help="With --watch: every so many seconds (2).")
    ] = None,
) -> None:
    """Show the cluster and its instances."""
    positive(timeout, "--timeout")
    positive(every, "--every")
    if watch:
        _refuse_unwatchable(output_format, check=check)
    elif every is not None:
        raise UsageError("--every: only with --watch", "llumctl status --watch --every 5")
    name = connect.attached(cluster)
    text_of = _texts(output_format)
    found = fetch(name, timeout)
    if watch:
        _watch(name, found, text_of, output_format, every or DEFAULT_EVERY_S, timeout)
        return
    if text := text_of(found):
        output.emit(text)
    if check and (complaints := unwell(found)):
        for line in complaints:
            output.say(line)
        raise typer.Exit(EXIT_FAILED)


def fetch(cluster: str, timeout_s: float) -> "ClusterStatus":
    """Raises UnreachableError if nothing runs under that name or it does not answer."""
    with connect.client(cluster, timeout_s) as client:
        return client.status()


def unwell(found: "ClusterStatus") -> list[str]:
    """Why `--check` fails, a line each; empty if all is well."""
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
    """How a status is shown. Raises UsageError where the alarms of a table are set wrong."""
    if output_format is Format.NAME:
        return lambda found: "\n".join(item.id for item in found.instances)
    if output_format not in (Format.TABLE, Format.WIDE):
        return lambda found: output.encode(output_format, found, found.instances)
    from llumctl.config import settings
    from llumctl.text import status as status_table

    return functools.partial(
        status_table.render,
        wide=output_format is Format.WIDE,
        colours=output.use_colours(sys.stdout),
        limits=settings.load_console(),
    )


def _refuse_unwatchable(output_format: Format, *, check: bool) -> None:
    if check:
        raise UsageError(
            "--check: its verdict is an exit code, which watching never gives",
            "llumctl wait --for=ready",
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
    from llumctl.following import status_watch

    lines_only = output_format is Format.JSONL

    def render(status: "ClusterStatus") -> str:
        if lines_only:
            return output.json_text(output.plain(status))
        return text_of(status)

    status_watch.watch(
        cluster, first, render, every_s=every_s, timeout_s=timeout_s, lines_only=lines_only
    )
