"""`llumctl restart`: empty an instance, then replace its process; or all, one after the other."""

from typing import TYPE_CHECKING, Annotated

import typer

from controller.api.errors import EXIT_WOULD_CHANGE, UsageError
from llumctl import choices, completion, connect
from llumctl.commands.drain import agreed, follow, text
from llumctl.commands.options import (
    Cluster,
    DryRun,
    Flags,
    IfRevision,
    OutputFormat,
    Reason,
    Yes,
    deadline_of,
    not_negative,
    one_line,
)
from llumctl.text import output
from llumctl.text.output import Format

if TYPE_CHECKING:
    from collections.abc import Sequence

    from controller.api.wire.operations import DrainReport


def restart(
    instance_id: Annotated[
        str | None,
        typer.Argument(
            metavar="[ID]", help="As status shows it.", autocompletion=completion.instances
        ),
    ] = None,
    rolling: Annotated[
        bool,
        typer.Option("--rolling", help="All instances: the next one when the one before serves."),
    ] = False,
    stop: Annotated[
        bool, typer.Option("--stop", help="Stop a rolling restart: no other instance follows.")
    ] = False,
    dismiss: Annotated[
        bool,
        typer.Option("--dismiss", help="Show one that is over no more: status keeps a failed one."),
    ] = False,
    engine_arg: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="With --rolling: start each with this argument; null: as at up. Repeatable.",
        ),
    ] = None,
    at_once: Annotated[
        str | None,
        typer.Option(
            metavar="N|max",
            help="With --rolling: so many at a time, or as many as the others can hold.",
        ),
    ] = None,
    deadline: Annotated[
        str | None,
        typer.Option(metavar="S", help="How long emptying may take (90, 5m); then it is given up."),
    ] = None,
    start_timeout: Annotated[
        str | None,
        typer.Option(metavar="S", help="With --rolling: how long a start may take. Else: 10m."),
    ] = None,
    now: Annotated[
        bool,
        typer.Option("--now", help="Do not empty it: its requests are replayed elsewhere."),
    ] = False,
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
    """Restart an instance: its requests move to others, then its process is replaced. Asks first.

    Ctrl-C leaves the restart going; llumctl undrain takes it back until the process has ended, and
    llumctl restart --stop ends one of all instances.
    """
    if [instance_id is not None, rolling, stop, dismiss].count(True) != 1:
        raise UsageError(
            "restart: give one of ID, --rolling, --stop and --dismiss", "llumctl restart --help"
        )
    deadline_s = deadline_of(deadline)
    one_line(reason)
    not_negative(if_revision, "--if-revision")
    flags = Flags(cluster, dry_run, yes, reason, if_revision, output_format, detach, force)
    of_all: dict[str, object] = {
        "--at-once": at_once,
        "--start-timeout": start_timeout,
        "--engine-arg": engine_arg,
    }
    if instance_id is not None:
        _check_flags(of_all, "ID")
        _of_one(flags, instance_id, deadline_s, now=now)
        return
    _check_flags({"--now": now})
    from llumctl.commands import rolling as rolling_restart

    if rolling:
        rolling_restart.begin(flags, at_once, deadline_s, start_timeout, engine_arg or ())
        return
    word = "--stop" if stop else "--dismiss"
    _check_flags({**of_all, "--deadline": deadline, "--force": force, "--detach": detach}, word)
    (rolling_restart.stop if stop else rolling_restart.dismiss)(flags)


def _of_one(flags: Flags, instance_id: str, deadline_s: float | None, *, now: bool) -> None:
    """Plans, asks, restarts one instance and follows that."""
    choices.an_id(instance_id, "ID")
    if now and deadline_s is not None:
        raise UsageError("--now: what happens now has no --deadline", "llumctl restart --help")
    name = connect.attached(flags.cluster)
    from controller.api.operations.on_instances import Restart
    from controller.api.wire.operations import RestartRequest

    wanted = RestartRequest(
        deadline_s=deadline_s,
        now=now,
        dry_run=flags.dry_run,
        force=flags.force,
        reason=flags.reason,
        if_revision=flags.if_revision,
    )
    order = Restart(instance_id, wanted)
    if not (flags.yes or flags.dry_run):
        (order,) = agreed(name, [order])
    with connect.client(name) as client:
        report = client.send(order)
    if flags.dry_run or flags.detach:
        output.emit(text((report,), flags.output_format))
    if flags.dry_run and report.changes:
        raise typer.Exit(EXIT_WOULD_CHANGE)
    if not (flags.dry_run or flags.detach):
        follow(name, (report,), deadline_s, flags.output_format, _detached)


def _check_flags(given: dict[str, object], where: str = "--rolling") -> None:
    """Raises UsageError for a flag that says nothing where it stands."""
    for flag, value in given.items():
        if value:
            raise UsageError(f"{flag}: not with {where}", "llumctl restart --help")


def _detached(going_on: "Sequence[DrainReport]") -> str:
    name = " ".join(report.instance_id for report in going_on)  # none if it has just ended
    return (
        f"no longer watching: the restart goes on ({name})\n"
        f"try:   llumctl wait --for=instance/{name}=active"
    )
