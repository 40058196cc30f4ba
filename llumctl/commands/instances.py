"""`llumctl drain`, `cordon` and `uncordon`, and how drains are shown and followed.

A drain does not need to be followed: a command that stops following ends nothing, and the
controller may be away for a while. `restart`, `scale` and `undo` show and follow their drains the
same way.
"""

import contextlib
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar

import typer

from controller.api.errors import (
    EXIT_INTERRUPTED,
    EXIT_WOULD_CHANGE,
    LlumctlError,
    NotDrainingError,
    NotRunningError,
    TimedOutError,
    UnreachableError,
    UsageError,
)
from controller.api.settings import MAX_DEADLINE_S
from controller.api.text.quantities import duration, latency, num_cells
from llumctl import arguments, connect, output
from llumctl.commands.options import (
    LONGEST_DEADLINE,
    Cluster,
    Detach,
    DryRun,
    Flags,
    Force,
    IfRevision,
    OutputFormat,
    Reason,
    Yes,
    complete_instances,
    deadline_of,
)
from llumctl.output import Format

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from controller.api.client import ControlClient
    from controller.api.operations.on_instances import CordonReport, DrainReport, MarkReport
    from controller.api.operations.order import Order
    from controller.api.wire import OrderModel
    from controller.api.wire.status import ClusterStatus, InstanceStatus

ON_DEADLINE = ("keep", "abort")
DEFAULT_WITHIN = "30s"
WARM_HELP = "once it is empty, give others at most so long to copy what it has cached (0s)."
LONGEST_WARM = "1h"
"""`MAX_WARM_S` as people type it."""
DRAINING = "draining"
"""The reason in `closed_by` that goes away when the drain is taken back."""

InstanceIds = Annotated[
    list[str],
    typer.Argument(
        metavar="ID...",
        help="Instances, as status shows them.",
        autocompletion=complete_instances,
    ),
]
Body = TypeVar("Body", bound="OrderModel")
Given = TypeVar("Given", bound="Order[Any, DrainReport]")


def drain(
    instance_ids: InstanceIds,
    deadline: Annotated[
        str | None,
        typer.Option(metavar="S", help="How long it may take: 90, 90s, 5m (no limit)."),
    ] = None,
    on_deadline: Annotated[
        str,
        typer.Option(
            metavar="|".join(ON_DEADLINE),
            help="At the deadline, keep on draining, or abort: the requests left stay and run on.",
        ),
    ] = "keep",
    remove: Annotated[
        bool,
        typer.Option("--remove", help="Remove the instance once it is empty, or after --within."),
    ] = False,
    within: Annotated[
        str | None,
        typer.Option(metavar="S", help="With --remove: remove it after this time at most (30s)."),
    ] = None,
    warm: Annotated[
        str | None,
        typer.Option(metavar="S", help="With --remove: " + WARM_HELP),
    ] = None,
    detach: Detach = False,
    force: Force = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    reason: Reason = "",
    if_revision: IfRevision = None,
    output_format: OutputFormat = Format.TABLE,
    cluster: Cluster = None,
) -> None:
    """Empty instances: their requests move to others.

    Asks first. The instances get no new requests until llumctl uncordon.

    --remove is for an instance whose machine will be taken away: requests of the highest priority
    leave first, and requests that cannot move in time are replayed elsewhere once the instance is
    gone. Ctrl-C does not end the drain; llumctl uncordon takes it back.
    """
    wanted_ids = ids_once(instance_ids)
    flags = Flags(cluster, dry_run, yes, reason, if_revision, output_format, detach, force)
    if remove:
        of_drain = {"--deadline": deadline is not None, "--on-deadline": on_deadline != "keep"}
        check_flags(of_drain, "--remove")
        _remove(flags, wanted_ids, DEFAULT_WITHIN if within is None else within, warm_of(warm))
        return
    if warm is not None:
        raise UsageError("--warm: only with --remove")
    if within is not None:
        raise UsageError("--within: only with --remove")
    arguments.one_of(on_deadline, ON_DEADLINE, "--on-deadline", "an action at the deadline")
    deadline_s = deadline_of(deadline)
    if deadline_s is None and on_deadline != "keep":
        raise UsageError("--on-deadline: only with --deadline")
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
    carry_out(flags, orders, deadline_s, command=f"llumctl drain {' '.join(wanted_ids)}")


def carry_out(
    flags: Flags,
    orders: "Sequence[Given]",
    deadline_s: float | None,
    *,
    command: str = "",
    detached: "Callable[[Sequence[DrainReport]], str] | None" = None,
) -> None:
    """Plans and asks, sends the orders, and follows their drains. `command` as for `agreed`,
    `detached` as for `follow`."""
    name = connect.attached(flags.cluster)
    if not (flags.yes or flags.dry_run):
        orders = agreed(name, orders, command)
    reports = _sent(name, orders, dry_run=flags.dry_run)
    if flags.dry_run or flags.detach:
        output.emit(text(reports, flags.output_format))
    if flags.dry_run and any(report.changes for report in reports):
        raise typer.Exit(EXIT_WOULD_CHANGE)
    if not (flags.dry_run or flags.detach):
        follow(name, reports, deadline_s, flags.output_format, detached)


def _sent(cluster: str, orders: "Sequence[Given]", *, dry_run: bool) -> "list[DrainReport]":
    """Sends the orders. When the controller gets the first order, it checks whether all instances
    may drain."""
    reports: list[DrainReport] = []
    try:
        with connect.client(cluster) as client:
            for report in _in_turn(client, orders):
                reports.append(report)
    except LlumctlError:
        if reports and not dry_run:
            begun = " ".join(report.instance_id for report in reports)
            output.say(f"draining has begun: {begun} (llumctl uncordon {begun})")
        raise
    return reports


def _in_turn(client: "ControlClient", orders: "Iterable[Order[Any, Any]]") -> "Iterator[Any]":
    """Sends the orders one after the other, each bound to the revision that the order before it
    left."""
    revision: int | None = None
    for each in orders:
        if revision is not None and each.revision is not None:
            each = each.at(revision)
        report = client.send(each)
        revision = report.revision
        yield report


def cordon(
    instance_ids: InstanceIds,
    force: Force = False,
    dry_run: DryRun = False,
    reason: Reason = "",
    if_revision: IfRevision = None,
    output_format: OutputFormat = Format.TABLE,
    cluster: Cluster = None,
) -> None:
    """Send no new requests and no moves to instances. Requests that they have stay.

    A cordon lasts until llumctl uncordon, even over a restart of the instance.
    """
    flags = Flags(cluster, dry_run, True, reason, if_revision, output_format, force=force)
    _marking("cordon", instance_ids, flags)


def uncordon(
    instance_ids: Annotated[
        list[str],
        typer.Argument(
            metavar="ID...",
            help="Instances that are cordoned, draining or drained.",
            autocompletion=complete_instances,
        ),
    ],
    dry_run: DryRun = False,
    reason: Reason = "",
    if_revision: IfRevision = None,
    output_format: OutputFormat = Format.TABLE,
    cluster: Cluster = None,
) -> None:
    """Take cordons and drains back: instances get requests again.

    If an instance has both, both are taken back. These are two operations, and llumctl undo takes
    back the last one first.
    """
    wanted_ids = ids_once(instance_ids)
    name = connect.attached(cluster)
    from controller.api.operations.on_instances import UncordonList

    taken = _TakenBack(reason, if_revision, dry_run=dry_run)
    try:
        with connect.client(name) as client:
            if len(wanted_ids) > 1 and not dry_run:  # all are looked at before one is changed
                planned = _TakenBack(reason, if_revision, dry_run=True)
                for each in wanted_ids:
                    planned.take_back(client, each)
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
    """Takes back the drain of each instance, then its cordon. If a revision was given, each order
    carries the revision that the order before left."""

    def __init__(self, reason: str, if_revision: int | None, *, dry_run: bool) -> None:
        self.drains: list[DrainReport] = []
        self.cordons: list[CordonReport] = []
        self.lines: list[str] = []
        """A line for people about each instance that was changed."""
        self._reason = reason
        self._if_revision = if_revision
        self._dry_run = dry_run

    def take_back(self, client: "ControlClient", instance_id: str) -> None:
        """Takes back the instance's drain, then its cordon. Raises LlumctlError if one of the two
        orders is refused."""
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
    """Gives an order of `MARKS`, whose row has this kind, for each instance."""
    wanted_ids = ids_once(instance_ids)
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


def _remove(flags: Flags, instance_ids: list[str], within: str, warm_s: float) -> None:
    """Removes an instance after some time at most, and follows it until it is gone."""
    if len(instance_ids) > 1:
        raise UsageError("--remove: one instance at a time")
    within_s = arguments.positive(within, "--within", LONGEST_DEADLINE)
    from controller.api.operations.on_instances import Evacuate, EvacuateRequest

    wanted = EvacuateRequest(
        within_s=within_s,
        warm_s=warm_s,
        dry_run=flags.dry_run,
        force=flags.force,
        reason=flags.reason,
        if_revision=flags.if_revision,
    )
    order = Evacuate(instance_ids[0], wanted)
    carry_out(flags, [order], within_s, detached=_evacuation_goes_on)


def _evacuation_goes_on(going_on: "Sequence[DrainReport]") -> str:
    name = " ".join(report.instance_id for report in going_on)  # empty if it has just ended
    return f"no longer watching: the drain goes on ({name})\ntry:   llumctl uncordon {name}"


def warm_of(text: str | None) -> float:
    """The value of --warm in seconds. Raises UsageError."""
    if text is None:
        return 0.0
    return arguments.positive(text, "--warm", LONGEST_WARM)


def check_flags(given: Mapping[str, object], where: str = "--rolling") -> None:
    """Checks the flags. Raises UsageError for a flag that has no meaning in this form of the
    command."""
    for flag, value in given.items():
        if value:
            raise UsageError(f"{flag}: not with {where}")


def ids_once(instance_ids: list[str]) -> list[str]:
    """The ids in the order given, each once. Raises UsageError if one cannot be an id."""
    return list(dict.fromkeys(arguments.an_id(each, "ID") for each in instance_ids))


def text(reports: "Sequence[DrainReport]", output_format: Format) -> str:
    if output_format is Format.NAME:
        return "\n".join(report.instance_id for report in reports)
    if output_format in (Format.TABLE, Format.WIDE):
        wide = output_format is Format.WIDE
        return render(reports, wide=wide)
    from controller.api.operations.on_instances import DrainList

    return output.encode(output_format, DrainList(drains=tuple(reports)), reports)


def agreed(cluster: str, orders: "Sequence[Given]", command: str = "") -> "list[Given]":
    """Asks the operator, and binds the orders to the revision that was shown. `command`: what was
    typed, unless that is the command of the first order. An order that the controller would refuse
    is refused first, even if there is no terminal to ask on."""
    first, command = orders[0], command or orders[0].command
    with connect.client(cluster) as client:
        plans = [client.send(each.dry()) for each in orders]
        status = client.status()
    output.check_terminal(first.verb(), f"{command} --dry-run      then      {command} -y")
    output.say(question(plans, status))
    names = ", ".join(each.target for each in orders)
    output.ask(first.question if len(orders) == 1 else f"{first.word} {names}?")
    if first.revision is not None:
        return list(orders)
    # Everything that was shown is at least as new as the first plan.
    return [each.at(plans[0].revision) for each in orders]


def follow(
    cluster: str,
    begun: "Sequence[DrainReport]",
    deadline_s: float | None,
    output_format: Format,
    detached: "Callable[[Sequence[DrainReport]], str] | None" = None,
) -> None:
    """Follows drains until all are over. `detached`: the message at Ctrl-C about the drains that go
    on, unless it is the usual one."""
    with DrainWatch(cluster, begun) as watch:
        try:
            watch.until_over()
        except KeyboardInterrupt:
            output.say((detached or _detached)(watch.unfinished))
            raise typer.Exit(EXIT_INTERRUPTED) from None
    output.emit(text(watch.reports, output_format))
    check_done(watch.reports, deadline_s)


COMMANDS: Mapping[str, Callable[..., None]] = {
    "drain": drain,
    "cordon": cordon,
    "uncordon": uncordon,
}


# -- drains as `drain`, `restart`, `scale` and `undo` show them ------------------------------

POLL_S = 1.0
"""The time between two questions. A question is costly: the controller passes it on to every
frontend and every draining instance."""
GIVE_UP_S = 10.0
"""How long a drain that is given up at its deadline may take to end."""
MAX_ROWS = 20
"""How many requests a question or a table lists; `-o wide` and machine formats list all."""
_CLEAR_LINE = "\r\x1b[K"


def render(reports: "Sequence[DrainReport]", *, wide: bool) -> str:
    """A table with a row for each drain, then each drain's plan, or the requests that cannot
    move."""
    columns: tuple[str, ...] = (
        "ID",
        "STATE",
        "LEFT",
        "MOVING",
        "MOVED",
        "ESTIMATE",
        "DEADLINE",
        "SAFE-TO-DELETE",
        "COLD-TOKENS",
    )
    rows = [_row(report) for report in reports]
    if wide:
        columns += ("ON-DEADLINE", "THEN", "REVISION", "BY", "REASON")
        rows = [row + _wide(report) for row, report in zip(rows, reports, strict=True)]
    limit = None if wide else MAX_ROWS
    parts = [output.table(columns, rows)]
    for report in reports:
        if report.plan:
            parts.append(_plan(report, limit))
        elif report.cannot_move:
            parts.append(_staying(report, limit=limit))
    return "\n\n".join(parts)


def _plan(report: "DrainReport", limit: int | None = MAX_ROWS, colours: bool | None = None) -> str:
    """Where each request would go, or why it cannot move."""
    rows = [
        (
            item.request_id,
            item.client_id,
            str(item.num_tokens),
            str(item.num_blocks),
            item.to_instance_id or "-",
            item.why or item.code,
        )
        for item in report.plan
    ]
    header = ("REQUEST", "CLIENT-ID", "TOKENS", "BLOCKS", "TO", "WHY-NOT")
    shown = output.table(header, rows[:limit], colours=colours, ids=("CLIENT-ID", "REQUEST"))
    return "\n".join((f"{report.instance_id}:", shown, *_more(len(rows), limit)))


def question(reports: "Sequence[DrainReport]", status: "ClusterStatus") -> str:
    """What an operator should know before agreeing: the requests, and the capacity that is left."""
    from controller.api.operations.on_instances import capacity, cold, would_move

    colours = output.use_colours(sys.stderr)
    parts = [_plan(report, colours=colours) for report in reports if report.plan]
    parts += [would_move(report) for report in reports]
    parts.append(capacity(status, {report.instance_id for report in reports}))
    parts += [f"{each.instance_id}: {line}" for each in reports for line in cold(each)]
    return "\n".join(parts)


def _row(report: "DrainReport") -> tuple[str, ...]:
    return (
        report.instance_id,
        report.state,
        str(report.num_requests_left),
        str(report.num_moving),
        str(report.num_moved),
        duration(report.estimate_s or None),
        _deadline(report.deadline_s),
        "yes" if report.safe_to_delete else "no",
        str(report.num_cold_tokens),
    )


def _wide(report: "DrainReport") -> tuple[str, ...]:
    then = "restarted" if report.restarts_instance else "kept"
    then = "removed" if report.removes_instance else then
    return report.on_deadline, then, str(report.revision), report.actor, report.reason


def _deadline(deadline_s: float | None) -> str:
    """The time left. The controller runs on this machine, so both have the same clock."""
    if deadline_s is None:
        return "-"
    left_s = deadline_s - time.time()
    return f"in {duration(left_s)}" if left_s > 0 else "passed"


def _staying(report: "DrainReport", *, limit: int | None) -> str:
    rows = [(item.request_id, item.client_id, item.why or item.code) for item in report.cannot_move]
    header = ("REQUEST", "CLIENT-ID", "CANNOT-MOVE")
    shown = output.table(header, rows[:limit], ids=("CLIENT-ID", "REQUEST"))
    return "\n".join((f"{report.instance_id}:", shown, *_more(len(rows), limit)))


def _more(count: int, limit: int | None) -> list[str]:
    return [] if limit is None or count <= limit else [f"... and {count - limit} more (-o wide)"]


class DrainWatch:
    """Polls the controller, and says on stderr how far each drain is. `reports` has the latest
    report of each drain, in the order in which the drains were ordered."""

    def __init__(self, cluster: str, begun: "Sequence[DrainReport]") -> None:
        self._cluster = cluster
        self._reports = {report.instance_id: report for report in begun}
        self._late: set[str] = set()
        self._trouble = ""
        self._said: dict[str, str] = {}
        self._drawn = False
        self._redraws = output.can_redraw(sys.stderr)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._clear()

    @property
    def reports(self) -> "tuple[DrainReport, ...]":
        return tuple(self._reports.values())

    @property
    def unfinished(self) -> "tuple[DrainReport, ...]":
        return tuple(report for report in self.reports if not is_over(report))

    def until_over(self, timeout_s: float | None = None) -> None:
        """Follows until each drain is over or past its deadline, at most for `timeout_s`. Raises
        NotRunningError when the cluster is stopped."""
        end_s = float("inf") if timeout_s is None else time.monotonic() + timeout_s
        self._tell()
        while any(report.instance_id not in self._late for report in self.unfinished):
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                break
            time.sleep(min(POLL_S, left_s))
            self._look()
            self._tell()

    def _look(self) -> None:
        asked_s = time.time()
        try:
            with connect.client(self._cluster) as client:
                found = {report.instance_id: report for report in client.drains().drains}
                over = {report.instance_id for report in self.unfinished} - set(found)
                # A status is large: it is not asked for in each round.
                status = client.status() if over else None
                still_there = {i.id: i for i in status.instances} if status else {}
        except NotRunningError:
            raise
        except UnreachableError as error:
            if not self._trouble:
                self._clear()
                output.say(f"{error.message}; waiting for it")
            self._trouble = error.message
            return
        self._trouble = ""
        for report in self.unfinished:
            name = report.instance_id
            now = found.get(name) or _without_order(report, still_there.get(name))
            # The report keeps the process that ran when the drain began.
            process = {"incarnation": report.incarnation, "pid": report.pid}
            self._reports[name] = now = now.model_copy(update=process)
            if not is_over(now) and _is_late(now, asked_s):
                self._late.add(name)

    def _tell(self) -> None:
        from controller.api.operations.on_instances import drain_progress

        lines = {report.instance_id: drain_progress(report) for report in self.reports}
        for report in self.reports:
            name = report.instance_id
            keep = self._redraws and not is_over(report)
            if not keep and self._said.get(name) != lines[name]:
                self._clear()
                output.say(lines[name])
                self._said[name] = lines[name]
        if self._redraws and self.unfinished:
            going_on = "   ".join(lines[report.instance_id] for report in self.unfinished)
            output.say_on(f"{_CLEAR_LINE}{_fitted(going_on)}")
            self._drawn = True

    def _clear(self) -> None:
        if self._drawn:
            output.say_on(_CLEAR_LINE)
        self._drawn = False


def is_over(report: "DrainReport") -> bool:
    """Whether the drain is done, failed, or was taken back, so that its instance is `active`."""
    return is_done(report) or report.state in ("active", "failed")


def is_done(report: "DrainReport") -> bool:
    """Whether the instance is empty, or removed or restarted if that was ordered."""
    emptied = report.safe_to_delete and not report.removes_instance
    return emptied or report.state in ("removed", "restarted")


def _detached(reports: "Sequence[DrainReport]") -> str:
    """The message for an operator who stops watching."""
    names = " ".join(report.instance_id for report in reports)
    first = reports[0].instance_id if reports else ""
    return (
        f"no longer watching: the drain goes on ({names})\n"
        f"try:   llumctl status --wait=drained={first}      or      llumctl uncordon {names}"
    )


def check_done(
    reports: "Sequence[DrainReport]",
    deadline_s: float | None = None,
    *,
    waited_s: float | None = None,
) -> None:
    """Raises an error for the first drain that is not done. `deadline_s`: how long the drains were
    allowed to take; `waited_s`: how long the command waited, if it did not wait for the deadline.

    Raises:
        TimedOutError: the deadline passed, or the command stopped waiting.
        LlumctlError: the drain was taken back, or the new process could not start.
    """
    from controller.api.operations.on_instances import cannot_move

    for report in reports:
        if is_done(report):
            continue
        name = report.instance_id
        what = "restart" if report.restarts_instance else "drain"
        if report.state == "failed":
            raise LlumctlError(
                f"{name} was restarted, and its new process could not start",
                f"llumctl logs {name}      llumctl status -o wide",
            )
        passed = report.deadline_s is not None and time.time() >= report.deadline_s
        given_up = report.state == "active" and passed and report.on_deadline == "abort"
        if report.state == "active" and not given_up:
            raise LlumctlError(
                f"the {what} of {name} was taken back before it was over",
                "llumctl events --kind operator      llumctl status",
            )
        if not passed and waited_s is not None:
            raise TimedOutError(
                f"{what} {name} is not over after {latency(waited_s)}:"
                f" {cannot_move(report)}; it goes on",
                f"llumctl status --wait=drained={name}      or      llumctl scale +1",
            )
        after, longer = "", "600"
        if passed and deadline_s is not None:
            after = f" after {duration(deadline_s)}"
            longer = f"{min(2 * deadline_s, MAX_DEADLINE_S):g}"
        goes_on = "it was given up" if given_up else "it goes on"
        raise TimedOutError(
            f"{what} {name} timed out{after}: {cannot_move(report)}; {goes_on}",
            f"llumctl scale +1      or      llumctl {what} {name} --deadline {longer}",
        )


def _is_late(report: "DrainReport", now_s: float) -> bool:
    if report.state == "restarting":
        return False  # the deadline was for emptying the instance
    ends_then = report.on_deadline == "abort" or report.evacuates_instance
    grace_s = GIVE_UP_S if ends_then else 0.0
    return report.deadline_s is not None and now_s >= report.deadline_s + grace_s


def _without_order(report: "DrainReport", instance: "InstanceStatus | None") -> "DrainReport":
    """The report of a drain that the controller no longer has: the instance is gone, serves again,
    or was restarted."""
    changes = {"num_moving": 0, "estimate_s": None}
    if instance is not None:
        state = "active"
        before = (report.incarnation, report.pid)
        if report.restarts_instance and before != (instance.incarnation, instance.pid):
            failed = instance.state == "failed"
            state = "failed" if failed else "restarted"
            changes["num_requests_left"] = 0
        return report.model_copy(update={**changes, "state": state})
    gone = {"state": "removed", "safe_to_delete": True, "num_requests_left": 0, "cannot_move": ()}
    return report.model_copy(update=changes | gone)


def _fitted(line: str) -> str:
    room = max(1, shutil.get_terminal_size().columns - 1)
    while num_cells(line) > room:
        line = line[: len(line) - max(1, (num_cells(line) - room) // 2)]
    return line
