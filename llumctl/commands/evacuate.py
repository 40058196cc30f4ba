"""`llumctl evacuate`: empty an instance that will be ended, by a moment."""

from typing import TYPE_CHECKING, Annotated

import typer

from controller.api.errors import EXIT_WOULD_CHANGE, UsageError
from controller.api.settings.bounds import MAX_DEADLINE_S
from llumctl import choices, completion, connect, durations
from llumctl.commands.drain import agreed, follow, text
from llumctl.commands.options import (
    Cluster,
    DryRun,
    IfRevision,
    OutputFormat,
    Reason,
    Yes,
    not_negative,
    one_line,
)
from llumctl.text import output
from llumctl.text.output import Format

if TYPE_CHECKING:
    from collections.abc import Sequence

    from controller.api.wire.operations import DrainReport


def evacuate(
    instance_id: Annotated[
        str,
        typer.Argument(
            metavar="ID", help="As status shows it.", autocompletion=completion.instances
        ),
    ],
    within: Annotated[
        str, typer.Option(metavar="S", help="How long until it is ended: 30s, 2m.")
    ] = "30s",
    force: Annotated[
        bool, typer.Option("--force", help="Even the last instance that serves.")
    ] = False,
    detach: Annotated[
        bool,
        typer.Option("--detach/--monitor", help="Return at once, or follow it until it is over."),
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    reason: Reason = "",
    if_revision: IfRevision = None,
    output_format: OutputFormat = Format.TABLE,
    cluster: Cluster = None,
) -> None:
    """Move an instance's requests to others by a moment, and remove it then. Asks first.

    For an instance whose machine will be taken away. The requests of the highest priority leave
    first; what cannot arrive in time is replayed elsewhere when the instance is gone. Ctrl-C leaves
    it going; llumctl undrain takes it back.
    """
    choices.an_id(instance_id, "ID")
    within_s = durations.positive(within, "--within")
    if within_s > MAX_DEADLINE_S:
        raise UsageError(
            "--within: must be at most 7d", f"durations look like {durations.EXAMPLES}"
        )
    one_line(reason)
    not_negative(if_revision, "--if-revision")
    name = connect.attached(cluster)
    from controller.api.operations.on_instances import Evacuate
    from controller.api.wire.operations import EvacuateRequest

    wanted = EvacuateRequest(
        within_s=within_s, dry_run=dry_run, force=force, reason=reason, if_revision=if_revision
    )
    order = Evacuate(instance_id, wanted)
    if not (yes or dry_run):
        (order,) = agreed(name, [order])
    with connect.client(name) as client:
        report = client.send(order)
    if dry_run or detach:
        output.emit(text((report,), output_format))
    if dry_run:
        raise typer.Exit(EXIT_WOULD_CHANGE)
    if not detach:
        follow(name, (report,), within_s, output_format, _detached)


def _detached(going_on: "Sequence[DrainReport]") -> str:
    name = " ".join(report.instance_id for report in going_on)  # none if it has just ended
    return f"no longer watching: the evacuation goes on ({name})\ntry:   llumctl undrain {name}"
