"""`llumctl restart`: empty an instance, then replace its process; or all, one after the other."""

from typing import TYPE_CHECKING, Annotated

import typer

from controller.api.errors import EXIT_WOULD_CHANGE, UsageError
from llumctl import choices, confirm, connect
from llumctl.commands.drain import agreed, follow, text
from llumctl.commands.options import (
    Cluster,
    DryRun,
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
        str | None, typer.Argument(metavar="[ID]", help="As status shows it.")
    ] = None,
    rolling: Annotated[
        bool,
        typer.Option("--rolling", help="All instances: the next one when the one before serves."),
    ] = False,
    stop: Annotated[
        bool, typer.Option("--stop", help="Stop a rolling restart: no other instance follows.")
    ] = False,
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
        typer.Option("--now", help="Do not empty it: its requests end, each with an error."),
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
    if [instance_id is not None, rolling, stop].count(True) != 1:
        raise UsageError("restart: give one of ID, --rolling and --stop", "llumctl restart --help")
    deadline_s = deadline_of(deadline)
    one_line(reason)
    not_negative(if_revision, "--if-revision")
    if instance_id is None:
        from llumctl.commands import rolling as of_all

        _check_flags({"--now": now})
        flags = of_all.Flags(
            cluster, dry_run, yes, reason, if_revision, output_format, detach, force
        )
        if stop:
            only = {"--at-once": at_once, "--deadline": deadline, "--start-timeout": start_timeout}
            _check_flags({**only, "--force": force, "--detach": detach}, "--stop")
            of_all.stop(flags)
        else:
            of_all.begin(flags, at_once, deadline_s, start_timeout)
        return
    _check_flags({"--at-once": at_once, "--start-timeout": start_timeout}, "ID")
    choices.an_id(instance_id, "ID")
    if now and deadline_s is not None:
        raise UsageError("--now: what happens now has no --deadline", "llumctl restart --help")
    name = connect.attached(cluster)
    if not (yes or dry_run):
        command = f"llumctl restart {instance_id}{' --now' if now else ''}"
        connect.check(name)
        confirm.check_terminal("restart", f"{command} --dry-run      then      {command} -y")
    from controller.api.wire.operations import RestartRequest

    order = RestartRequest(
        deadline_s=deadline_s,
        now=now,
        dry_run=dry_run,
        force=force,
        reason=reason,
        if_revision=if_revision,
    )
    if not (yes or dry_run):
        order = agreed(
            name,
            order,
            lambda client, asked: [client.restart(instance_id, asked)],
            f"Restart {instance_id}{' at once' if order.now else ''}?",
        )
    with connect.client(name) as client:
        report = client.restart(instance_id, order)
    if dry_run or detach:
        output.emit(text((report,), output_format))
    if dry_run and report.changes:
        raise typer.Exit(EXIT_WOULD_CHANGE)
    if not (dry_run or detach):
        follow(name, (report,), deadline_s, output_format, _detached)


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
