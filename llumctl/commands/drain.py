"""`llumctl drain`: empty instances by moving their requests."""

import sys
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from controller.api.errors import EXIT_INTERRUPTED, EXIT_WOULD_CHANGE, LlumctlError, UsageError
from llumctl import choices, completion, confirm, connect
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
    from collections.abc import Callable, Sequence

    from controller.api.operations.on_instances import Drain
    from controller.api.operations.order import Order
    from controller.api.wire.operations import DrainReport

ON_DEADLINE = ("keep", "abort")

Given = TypeVar("Given", bound="Order[Any, DrainReport]")


def drain(
    instance_ids: Annotated[
        list[str],
        typer.Argument(
            metavar="ID...",
            help="Instances, as status shows them.",
            autocompletion=completion.instances,
        ),
    ],
    deadline: Annotated[
        str | None,
        typer.Option(metavar="S", help="How long it may take: 90, 90s, 5m. Else: any time."),
    ] = None,
    on_deadline: Annotated[
        str,
        typer.Option(
            metavar="|".join(ON_DEADLINE),
            help="Then go on draining, or give up: what is left stays and runs on.",
        ),
    ] = "keep",
    detach: Annotated[
        bool,
        typer.Option("--detach/--monitor", help="Return at once, or follow it until it is over."),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Even the last instance that serves.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    reason: Reason = "",
    if_revision: IfRevision = None,
    output_format: OutputFormat = Format.TABLE,
    cluster: Cluster = None,
) -> None:
    """Empty instances: their requests move to others, and no new ones come. Asks first.

    Ctrl-C leaves the drain going; llumctl undrain takes it back.
    """
    wanted_ids = ids_once(instance_ids)
    choices.one_of(on_deadline, ON_DEADLINE, "--on-deadline", "what may happen then")
    deadline_s = deadline_of(deadline)
    if deadline_s is None and on_deadline != "keep":
        raise UsageError("--on-deadline: only with --deadline", "llumctl drain --help")
    one_line(reason)
    not_negative(if_revision, "--if-revision")
    name = connect.attached(cluster)
    from controller.api.operations.on_instances import Drain
    from controller.api.wire.operations import DrainRequest

    wanted = DrainRequest(
        deadline_s=deadline_s,
        on_deadline="abort" if on_deadline == "abort" else "keep",
        dry_run=dry_run,
        force=force,
        reason=reason,
        if_revision=if_revision,
    )
    orders = Drain.of_each(wanted_ids, wanted)
    if not (yes or dry_run):
        orders = agreed(name, orders, f"llumctl drain {' '.join(wanted_ids)}")
    reports = _sent(name, orders)
    if dry_run or detach:
        output.emit(text(reports, output_format))
    if dry_run and any(report.changes for report in reports):
        raise typer.Exit(EXIT_WOULD_CHANGE)
    if not (dry_run or detach):
        follow(name, reports, deadline_s, output_format)


def ids_once(instance_ids: list[str]) -> list[str]:
    """The ids in the order given, each once. Raises UsageError for what is no id."""
    return list(dict.fromkeys(choices.an_id(each, "ID") for each in instance_ids))


def text(reports: "Sequence[DrainReport]", output_format: Format) -> str:
    if output_format is Format.NAME:
        return "\n".join(report.instance_id for report in reports)
    if output_format in (Format.TABLE, Format.WIDE):
        from llumctl.text import drains as drain_text

        wide = output_format is Format.WIDE
        return drain_text.render(reports, wide=wide, colours=output.use_colours(sys.stdout))
    from controller.api.wire.operations import DrainList

    return output.encode(output_format, DrainList(drains=tuple(reports)), reports)


def agreed(cluster: str, orders: "Sequence[Given]", command: str = "") -> "list[Given]":
    """The orders that the operator agreed to, bound to the revision that was shown. `command`: what
    was typed, if that is not the command of the first one."""
    from llumctl.text import drains as drain_text

    first, command = orders[0], command or orders[0].command
    connect.check(cluster)
    confirm.check_terminal(first.kind, f"{command} --dry-run      then      {command} -y")
    with connect.client(cluster) as client:
        plans = [client.send(each.dry()) for each in orders]
        status = client.status()
    output.say(drain_text.question(plans, status, colours=output.use_colours(sys.stderr)))
    names = ", ".join(each.target for each in orders)
    confirm.ask(first.question if len(orders) == 1 else f"{first.word} {names}?")
    if first.revision is not None:
        return list(orders)
    # All of what was shown is at least as new as the first plan.
    return [each.at(plans[0].revision) for each in orders]


def _sent(cluster: str, orders: "Sequence[Drain]") -> "list[DrainReport]":
    """Sends the orders one after the other, each on the revision that the one before left. The
    first one makes the controller check whether all of them may go."""
    reports: list[DrainReport] = []
    with connect.client(cluster) as client:
        for each in orders:
            is_next = bool(reports) and each.revision is not None
            try:
                order = each.at(reports[-1].revision) if is_next else each
                reports.append(client.send(order))
            except LlumctlError:
                if reports and not each.wanted.dry_run:
                    begun = " ".join(report.instance_id for report in reports)
                    output.say(f"draining has begun: {begun} (llumctl undrain {begun})")
                raise
    return reports


def follow(
    cluster: str,
    begun: "Sequence[DrainReport]",
    deadline_s: float | None,
    output_format: Format,
    detached: "Callable[[Sequence[DrainReport]], str] | None" = None,
) -> None:
    """Until all is over. `detached`: what Ctrl-C says of those that go on; None: drains."""
    from llumctl.following import drain_watch

    with drain_watch.Watch(cluster, begun) as watch:
        try:
            watch.until_over()
        except KeyboardInterrupt:
            output.say((detached or drain_watch.detached)(watch.unfinished))
            raise typer.Exit(EXIT_INTERRUPTED) from None
    output.emit(text(watch.reports, output_format))
    drain_watch.check(watch.reports, deadline_s)
