"""`llumctl undo` takes back what an operator did."""

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from controller.api.errors import EXIT_WOULD_CHANGE, UsageError
from controller.api.text.quantities import moment
from llumctl import arguments, connect, output
from llumctl.commands.options import Cluster, DryRun, OutputFormat, Reason, Yes
from llumctl.output import Format

if TYPE_CHECKING:
    from controller.api.operations.order import Order
    from controller.api.operations.table import OperationEntry, OperationList


def undo(
    entry_id: Annotated[
        str, typer.Argument(metavar="[ID]", help="Operation, by its id in --list (the last one).")
    ] = "",
    listing: Annotated[
        bool, typer.Option("--list", help="Show the last operations, and what undoes each.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    reason: Reason = "",
    output_format: OutputFormat = Format.TABLE,
    cluster: Cluster = None,
) -> None:
    """Take back the last operation, whoever did it.

    This can be a drain, cordon, uncordon, restart, rolling restart (which ends), scale, priority,
    move or set.

    Asks before it removes or drains an instance. Refuses (exit 5) an operation that has no undo, or
    whose result was changed since. A second undo takes the first one back.
    """
    if entry_id:
        arguments.an_id(entry_id, "ID")
        if listing:
            raise UsageError("--list: give either this or an ID", "llumctl undo --list")
    name = connect.attached(cluster)
    with connect.client(name) as client:
        if listing:
            done = client.operations()
            output.emit(_text(done, done.operations, output_format))
            return
        from controller.api.operations import table as undoing

        done = client.operations(undoing.MAX_LISTED)
        entry = undoing.chosen(done, entry_id)
    assert entry.undo is not None
    if not dry_run:
        order = undoing.inverse(entry, done.revision, reason)
        if not yes:
            order = _agreed(name, entry.id, order)
        with connect.client(name) as client:
            client.send(order)
    output.emit(_text(done, (entry,), output_format))
    if dry_run:
        raise typer.Exit(EXIT_WOULD_CHANGE)


def _agreed(cluster: str, entry_id: str, order: "Order[Any, Any]") -> "Order[Any, Any]":
    """Asks what the order's own command would ask, so that nobody removes or drains an instance
    without having agreed. Returns the order."""
    from controller.api.operations.on_cluster import Scale
    from controller.api.operations.on_instances import Drain
    from llumctl.commands import instances, scale

    command = f"llumctl undo {entry_id}"
    if isinstance(order, Scale):
        return scale.agreed(cluster, command, order, yes=False)
    if isinstance(order, Drain):
        return instances.agreed(cluster, [order], command)[0]
    return order


def _text(
    done: "OperationList", entries: "tuple[OperationEntry, ...]", output_format: Format
) -> str:
    if output_format is Format.NAME:
        return "\n".join(entry.id for entry in entries)
    if output_format in (Format.TABLE, Format.WIDE):
        from controller.api.operations import table as undoing

        now_s = time.time()
        rows = [
            (
                entry.id,
                moment(entry.time_s, now_s),
                entry.actor,
                "; ".join(entry.actions),
                entry.why_not or (undoing.words(entry.undo) if entry.undo else "-"),
            )
            for entry in entries
        ]
        header = ("ID", "TIME", "BY", "DID", "UNDO")
        return output.table(header, rows)
    only = done.model_copy(update={"operations": entries})
    return output.encode(output_format, only, entries)
