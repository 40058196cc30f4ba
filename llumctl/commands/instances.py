"""`llumctl drain`, `cordon`, `uncordon` and `restart`: orders about instances."""

import contextlib
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from controller.api.errors import (
    EXIT_INTERRUPTED,
    EXIT_WOULD_CHANGE,
    LlumctlError,
    NotDrainingError,
    UsageError,
)
from controller.api.settings.bounds import MAX_DEADLINE_S
from llumctl import arguments, completion, connect
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
    from collections.abc import Iterable, Iterator, Sequence

    from controller.api.client import ControlClient
    from controller.api.operations.on_instances import CordonReport, Drain, DrainReport, MarkReport
    from controller.api.operations.order import Order
    from controller.api.wire.base import OrderModel

ON_DEADLINE = ("keep", "abort")
DEFAULT_WITHIN = "30s"
DRAINING = "draining"
"""The reason in `closed_by` that a drain takes away with it."""

Body = TypeVar("Body", bound="OrderModel")
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
    remove: Annotated[
        bool,
        typer.Option("--remove", help="Remove the instance: once it is empty, or by --within."),
    ] = False,
    within: Annotated[
        str | None,
        typer.Option(metavar="S", help="With --remove: it goes then at the latest (30s)."),
    ] = None,
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

    With --remove, for an instance whose machine will be taken away, the requests of the highest
    priority leave first; what cannot arrive in time is replayed elsewhere when the instance is
    gone. Ctrl-C leaves the drain going; llumctl uncordon takes it back.
    """
    wanted_ids = ids_once(instance_ids)
    if remove:
        of_drain = {"--deadline": deadline is not None, "--on-deadline": on_deadline != "keep"}
        _check_flags(of_drain, "--remove", "llumctl drain --help")
        flags = Flags(cluster, dry_run, yes, reason, if_revision, output_format, detach, force)
        _remove(flags, wanted_ids, DEFAULT_WITHIN if within is None else within)
        return
    if within is not None:
        raise UsageError("--within: only with --remove", "llumctl drain --help")
    arguments.one_of(on_deadline, ON_DEADLINE, "--on-deadline", "what may happen then")
    deadline_s = deadline_of(deadline)
    if deadline_s is None and on_deadline != "keep":
        raise UsageError("--on-deadline: only with --deadline", "llumctl drain --help")
    one_line(reason)
    not_negative(if_revision, "--if-revision")
    name = connect.attached(cluster)
    from controller.api.operations.on_instances import Drain, DrainRequest

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


def _sent(cluster: str, orders: "Sequence[Drain]") -> "list[DrainReport]":
    """The first order makes the controller check whether all of them may go."""
    reports: list[DrainReport] = []
    try:
        with connect.client(cluster) as client:
            for report in _in_turn(client, orders):
                reports.append(report)
    except LlumctlError:
        if reports and not orders[0].wanted.dry_run:
            begun = " ".join(report.instance_id for report in reports)
            output.say(f"draining has begun: {begun} (llumctl uncordon {begun})")
        raise
    return reports


def _in_turn(client: "ControlClient", orders: "Iterable[Order[Any, Any]]") -> "Iterator[Any]":
    """Sends the orders one after the other, each on the revision that the one before left."""
    revision: int | None = None
    for each in orders:
        if revision is not None and each.revision is not None:
            each = each.at(revision)
        report = client.send(each)
        revision = report.revision
        yield report


def cordon(
    instance_ids: Annotated[
        list[str],
        typer.Argument(
            metavar="ID...",
            help="Instances, as status shows them.",
            autocompletion=completion.instances,
        ),
    ],
    force: Annotated[
        bool, typer.Option("--force", help="Even the last instance that serves.")
    ] = False,
    dry_run: DryRun = False,
    reason: Reason = "",
    if_revision: IfRevision = None,
    output_format: OutputFormat = Format.TABLE,
    cluster: Cluster = None,
) -> None:
    """Give instances no new requests, and no moves: they keep what they have.

    It lasts until llumctl uncordon, also over a restart of the instance.
    """
    flags = Flags(cluster, dry_run, True, reason, if_revision, output_format, force=force)
    _marking("cordon", instance_ids, flags)


def uncordon(
    instance_ids: Annotated[
        list[str],
        typer.Argument(
            metavar="ID...",
            help="Instances that are cordoned, draining or drained.",
            autocompletion=completion.instances,
        ),
    ],
    dry_run: DryRun = False,
    reason: Reason = "",
    if_revision: IfRevision = None,
    output_format: OutputFormat = Format.TABLE,
    cluster: Cluster = None,
) -> None:
    """Take cordons and drains back: instances get requests again.

    Of an instance that has both, both are taken back: two operations, of which llumctl undo takes
    the last one back at first.
    """
    wanted_ids = ids_once(instance_ids)
    one_line(reason)
    not_negative(if_revision, "--if-revision")
    name = connect.attached(cluster)
    from controller.api.operations.on_instances import UncordonList

    taken = _TakenBack(reason, if_revision, dry_run=dry_run)
    try:
        with connect.client(name) as client:
            for each in wanted_ids:
                taken.take_back(client, each)
    except LlumctlError:
        if taken.lines and not dry_run:
            output.say("\n".join(taken.lines))
        raise
    found = UncordonList(drains=tuple(taken.drains), cordons=tuple(taken.cordons))
    if output_format is Format.NAME:
        if taken.lines:
            output.emit("\n".join(line.partition(":")[0] for line in taken.lines))
    elif output_format in (Format.JSON, Format.YAML, Format.JSONL):
        output.emit(output.encode(output_format, found, (*found.drains, *found.cordons)))
    elif taken.lines:
        output.emit("\n".join(taken.lines))
    if not taken.lines:
        output.say("nothing to change")
    elif dry_run:
        raise typer.Exit(EXIT_WOULD_CHANGE)


class _TakenBack:
    """Of each instance its drain, then its cordon; each order carries the revision that the one
    before it left, if one was given at first."""

    def __init__(self, reason: str, if_revision: int | None, *, dry_run: bool) -> None:
        self.drains: list[DrainReport] = []
        self.cordons: list[CordonReport] = []
        self.lines: list[str] = []
        """For people, a line for each instance that is changed."""
        self._reason = reason
        self._if_revision = if_revision
        self._dry_run = dry_run

    def take_back(self, client: "ControlClient", instance_id: str) -> None:
        """Raises LlumctlError if either is refused."""
        from controller.api.operations.on_instances import (
            Uncordon,
            UncordonRequest,
            Undrain,
            UndrainRequest,
            cordoned,
        )

        drained = False
        with contextlib.suppress(NotDrainingError):
            self.drains.append(self._sent(client, Undrain(instance_id, self._body(UndrainRequest))))
            drained = True
            self.lines.append(f"{instance_id}: {self._taken_back('drain')}")
        order = Uncordon(instance_id, self._body(UncordonRequest))
        report: CordonReport = self._sent(client, order)
        self.cordons.append(report)
        if not drained and report.changes:
            self.lines.append(cordoned(report))
        elif drained:
            what = "drain and cordon" if report.changes else "drain"
            others = [each for each in report.closed_by if each != DRAINING]
            gets = "would get" if self._dry_run else "gets"
            then = (
                f"it is {others[0].replace('_', ' ')}" if others else f"{gets} new requests again"
            )
            self.lines[-1] = f"{instance_id}: {self._taken_back(what)}, {then}"

    def _body(self, kind: "type[Body]") -> "Body":
        fields: dict[str, Any] = {"reason": self._reason, "if_revision": self._if_revision}
        return kind(**fields | {"dry_run": self._dry_run})

    def _sent(self, client: "ControlClient", order: "Order[Any, Any]") -> Any:
        report = client.send(order)
        if self._if_revision is not None:
            self._if_revision = report.revision
        return report

    def _taken_back(self, what: str) -> str:
        return f"{what} {'would be taken back' if self._dry_run else 'taken back'}"


def _marking(kind: str, instance_ids: list[str], flags: Flags) -> None:
    """`kind`: of a row of `MARKS`."""
    wanted_ids = ids_once(instance_ids)
    one_line(flags.reason)
    not_negative(flags.if_revision, "--if-revision")
    name = connect.attached(flags.cluster)
    from controller.api.operations.on_instances import MARKS

    wanted: dict[str, Any] = {"force": True} if flags.force else {}
    wanted |= {"dry_run": flags.dry_run, "reason": flags.reason, "if_revision": flags.if_revision}
    row = next(each for each in MARKS if each.kind == kind)
    changed, reports = list["MarkReport"](), list["MarkReport"]()
    try:
        with connect.client(name) as client:
            for report in _in_turn(client, row.of_each(wanted_ids, row.body(**wanted))):
                reports.append(report)
                changed += [report] if report.changes else []
    except LlumctlError:
        if changed and not flags.dry_run:
            output.say("\n".join(row.words(report) for report in changed))
        raise
    if flags.output_format is Format.NAME:
        output.emit("\n".join(report.instance_id for report in reports))
    elif flags.output_format in (Format.JSON, Format.YAML):
        output.emit(output.encode(flags.output_format, row.listed(reports), reports))
    elif changed:
        output.emit("\n".join(row.words(report) for report in changed))
    if not changed:
        output.say("nothing to change")
    elif flags.dry_run:
        raise typer.Exit(EXIT_WOULD_CHANGE)


def _remove(flags: Flags, instance_ids: list[str], within: str) -> None:
    """Empties an instance by a moment, and follows it until it is gone."""
    if len(instance_ids) > 1:
        raise UsageError("--remove: one instance at a time", "llumctl drain --help")
    within_s = arguments.positive(within, "--within")
    if within_s > MAX_DEADLINE_S:
        raise UsageError(
            "--within: must be at most 7d", f"durations look like {arguments.EXAMPLES}"
        )
    one_line(flags.reason)
    not_negative(flags.if_revision, "--if-revision")
    name = connect.attached(flags.cluster)
    from controller.api.operations.on_instances import Evacuate, EvacuateRequest

    wanted = EvacuateRequest(
        within_s=within_s,
        dry_run=flags.dry_run,
        force=flags.force,
        reason=flags.reason,
        if_revision=flags.if_revision,
    )
    order = Evacuate(instance_ids[0], wanted)
    if not (flags.yes or flags.dry_run):
        (order,) = agreed(name, [order])
    with connect.client(name) as client:
        report = client.send(order)
    if flags.dry_run or flags.detach:
        output.emit(text((report,), flags.output_format))
    if flags.dry_run:
        raise typer.Exit(EXIT_WOULD_CHANGE)
    if not flags.detach:
        follow(name, (report,), within_s, flags.output_format, _evacuation_goes_on)


def _evacuation_goes_on(going_on: "Sequence[DrainReport]") -> str:
    name = " ".join(report.instance_id for report in going_on)  # none if it has just ended
    return f"no longer watching: the drain goes on ({name})\ntry:   llumctl uncordon {name}"


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

    Ctrl-C leaves the restart going; llumctl uncordon takes it back until the process has ended, and
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
    arguments.an_id(instance_id, "ID")
    if now and deadline_s is not None:
        raise UsageError("--now: what happens now has no --deadline", "llumctl restart --help")
    name = connect.attached(flags.cluster)
    from controller.api.operations.on_instances import Restart, RestartRequest

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
        follow(name, (report,), deadline_s, flags.output_format, _restart_goes_on)


def _check_flags(
    given: Mapping[str, object], where: str = "--rolling", hint: str = "llumctl restart --help"
) -> None:
    """Raises UsageError for a flag that says nothing where it stands."""
    for flag, value in given.items():
        if value:
            raise UsageError(f"{flag}: not with {where}", hint)


def _restart_goes_on(going_on: "Sequence[DrainReport]") -> str:
    name = " ".join(report.instance_id for report in going_on)  # none if it has just ended
    return (
        f"no longer watching: the restart goes on ({name})\n"
        f"try:   llumctl status --wait=instance/{name}=active"
    )


def ids_once(instance_ids: list[str]) -> list[str]:
    """The ids in the order given, each once. Raises UsageError for what is no id."""
    return list(dict.fromkeys(arguments.an_id(each, "ID") for each in instance_ids))


def text(reports: "Sequence[DrainReport]", output_format: Format) -> str:
    if output_format is Format.NAME:
        return "\n".join(report.instance_id for report in reports)
    if output_format in (Format.TABLE, Format.WIDE):
        from llumctl.commands import drain_watch

        wide = output_format is Format.WIDE
        return drain_watch.render(reports, wide=wide, colours=output.use_colours(sys.stdout))
    from controller.api.operations.on_instances import DrainList

    return output.encode(output_format, DrainList(drains=tuple(reports)), reports)


def agreed(cluster: str, orders: "Sequence[Given]", command: str = "") -> "list[Given]":
    """The orders that the operator agreed to, bound to the revision that was shown. `command`: what
    was typed, if that is not the command of the first one."""
    from llumctl.commands import drain_watch

    first, command = orders[0], command or orders[0].command
    connect.check(cluster)
    output.check_terminal(first.kind, f"{command} --dry-run      then      {command} -y")
    with connect.client(cluster) as client:
        plans = [client.send(each.dry()) for each in orders]
        status = client.status()
    output.say(drain_watch.question(plans, status, colours=output.use_colours(sys.stderr)))
    names = ", ".join(each.target for each in orders)
    output.ask(first.question if len(orders) == 1 else f"{first.word} {names}?")
    if first.revision is not None:
        return list(orders)
    # All of what was shown is at least as new as the first plan.
    return [each.at(plans[0].revision) for each in orders]


def follow(
    cluster: str,
    begun: "Sequence[DrainReport]",
    deadline_s: float | None,
    output_format: Format,
    detached: "Callable[[Sequence[DrainReport]], str] | None" = None,
) -> None:
    """Until all is over. `detached`: what Ctrl-C says of those that go on; None: drains."""
    from llumctl.commands import drain_watch

    with drain_watch.Watch(cluster, begun) as watch:
        try:
            watch.until_over()
        except KeyboardInterrupt:
            output.say((detached or drain_watch.detached)(watch.unfinished))
            raise typer.Exit(EXIT_INTERRUPTED) from None
    output.emit(text(watch.reports, output_format))
    drain_watch.check(watch.reports, deadline_s)


COMMANDS: Mapping[str, Callable[..., None]] = {
    "drain": drain,
    "cordon": cordon,
    "uncordon": uncordon,
    "restart": restart,
}
