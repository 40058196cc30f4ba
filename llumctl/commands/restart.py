"""`llumctl restart` restarts one instance or, with `--rolling`, all of them one after the other.

An operator who stops following a restart does not end it, and the controller may be away for a
while.
"""

import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from controller.api.errors import (
    EXIT_INTERRUPTED,
    EXIT_WOULD_CHANGE,
    LlumctlError,
    NotRollingError,
    NotRunningError,
    UnreachableError,
    UsageError,
    one_line,
)
from controller.api.settings import MAX_INSTANCES, PYTHON
from controller.api.text.quantities import duration, latency
from llumctl import arguments, connect, output
from llumctl.commands import instances
from llumctl.commands.options import (
    LONGEST_DEADLINE,
    Cluster,
    Detach,
    DryRun,
    Flags,
    Force,
    IfRevision,
    Model,
    OutputFormat,
    Reason,
    Yes,
    complete_instances,
    deadline_of,
)
from llumctl.output import Format

if TYPE_CHECKING:
    from controller.api.operations.on_cluster import Rolling
    from controller.api.operations.on_instances import DrainReport
    from controller.api.wire.status import RollingReport

DEFAULT_START_TIMEOUT_S = 600.0
POLL_S = 0.5


def restart(
    instance_id: Annotated[
        str | None,
        typer.Argument(
            metavar="[ID]", help="Instance, as status shows it.", autocompletion=complete_instances
        ),
    ] = None,
    rolling: Annotated[
        bool,
        typer.Option("--rolling", help="Restart all instances, one after the other."),
    ] = False,
    stop: Annotated[
        bool, typer.Option("--stop", help="Stop a rolling restart: no other instance restarts.")
    ] = False,
    dismiss: Annotated[
        bool,
        typer.Option(
            "--dismiss", help="Take a failed rolling restart out of the status, which keeps it."
        ),
    ] = False,
    engine_arg: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="With --rolling: start each with this argument; null: as at up. Repeatable.",
        ),
    ] = None,
    python: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="With --rolling: start each with this Python, or the environment of this folder;"
            " null: as at up.",
        ),
    ] = None,
    at_once: Annotated[
        str | None,
        typer.Option(
            metavar="N|max",
            help="With --rolling: how many at a time, or as many as the others can take over (1).",
        ),
    ] = None,
    deadline: Annotated[
        str | None,
        typer.Option(metavar="S", help="Give up if emptying an instance takes longer: 90, 5m."),
    ] = None,
    start_timeout: Annotated[
        str | None,
        typer.Option(metavar="S", help="With --rolling: how long a start may take (10m)."),
    ] = None,
    warm: Annotated[
        str | None,
        typer.Option(metavar="S", help=instances.WARM_HELP[0].upper() + instances.WARM_HELP[1:]),
    ] = None,
    now: Annotated[
        bool,
        typer.Option("--now", help="Do not empty it; its requests are replayed elsewhere."),
    ] = False,
    force: Force = False,
    detach: Detach = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    reason: Reason = "",
    if_revision: IfRevision = None,
    output_format: OutputFormat = Format.TABLE,
    cluster: Cluster = None,
    model: Model = None,  # noqa: ARG001  # its callback notes it
) -> None:
    """Restart an instance, once its requests have moved to others.

    Asks first. Ctrl-C does not end the restart. Until the process has ended, llumctl uncordon takes
    the restart back; llumctl restart --stop stops a rolling one.
    """
    if [instance_id is not None, rolling, stop, dismiss].count(True) != 1:
        raise UsageError("ID: give one of ID, --rolling, --stop and --dismiss")
    deadline_s = deadline_of(deadline)
    flags = Flags(cluster, dry_run, yes, reason, if_revision, output_format, detach, force)
    of_all: dict[str, object] = {
        "--at-once": at_once,
        "--start-timeout": start_timeout,
        "--engine-arg": engine_arg,
        "--python": python,
    }
    if instance_id is not None:
        instances.check_flags(of_all, "ID")
        _of_one(flags, instance_id, deadline_s, instances.warm_of(warm), now=now)
        return
    instances.check_flags({"--now": now})
    if rolling:
        of_python = [] if python is None else [f"{PYTHON}={python}"]
        warm_s = instances.warm_of(warm)
        engine_args = [*(engine_arg or ()), *of_python]
        _begin(flags, at_once, deadline_s, start_timeout, engine_args, warm_s)
        return
    word = "--stop" if stop else "--dismiss"
    instances.check_flags(
        {**of_all, "--deadline": deadline, "--warm": warm, "--force": force, "--detach": detach},
        word,
    )
    (_stop if stop else _dismiss)(flags)


def _of_one(
    flags: Flags, instance_id: str, deadline_s: float | None, warm_s: float, *, now: bool
) -> None:
    """Plans and asks, restarts one instance, and follows the restart."""
    arguments.an_id(instance_id, "ID")
    if now and deadline_s is not None:
        raise UsageError("--now: not with --deadline")
    if now and warm_s:
        raise UsageError("--now: not with --warm")
    from controller.api.operations.on_instances import Restart, RestartRequest

    wanted = RestartRequest(
        deadline_s=deadline_s,
        warm_s=warm_s,
        now=now,
        dry_run=flags.dry_run,
        force=flags.force,
        reason=flags.reason,
        if_revision=flags.if_revision,
    )
    order = Restart(instance_id, wanted)
    instances.carry_out(flags, [order], deadline_s, detached=_restart_goes_on)


def _restart_goes_on(going_on: "Sequence[DrainReport]") -> str:
    name = " ".join(report.instance_id for report in going_on)  # empty if it has just ended
    return (
        f"no longer watching: the restart goes on ({name})\n"
        f"try:   llumctl status --wait=instance/{name}=active"
    )


# -- rolling: all instances, one after the other --------------------------------------------


def _begin(
    flags: Flags,
    at_once: str | None,
    deadline_s: float | None,
    start_timeout: str | None,
    engine_arg: Sequence[str],
    warm_s: float,
) -> None:
    """Plans and asks, begins a rolling restart, and follows it. Raises UsageError for a wrong
    `at_once`, timeout or engine argument."""
    engine_args = _engine_args(engine_arg)
    num_at_once = _at_once(at_once)
    start_timeout_s = DEFAULT_START_TIMEOUT_S
    if start_timeout is not None:
        start_timeout_s = arguments.positive(start_timeout, "--start-timeout", LONGEST_DEADLINE)
    name = connect.attached(flags.cluster)
    from controller.api.operations.on_cluster import Rolling, RollingRequest

    wanted = RollingRequest(
        at_once=num_at_once,
        deadline_s=deadline_s,
        start_timeout_s=start_timeout_s,
        warm_s=warm_s,
        dry_run=flags.dry_run,
        force=flags.force,
        reason=flags.reason,
        if_revision=flags.if_revision,
        engine_args=engine_args,
    )
    order = Rolling(wanted)
    if not (flags.yes or flags.dry_run):
        given = [word for each in engine_arg for word in ("--engine-arg", each)]
        command = shlex.join(["llumctl", "restart", "--rolling", *given])
        order = _rolling_agreed(name, order, command)
    with connect.client(name) as client:
        report = client.send(order)
    if flags.dry_run or flags.detach:
        output.emit(_rolling_text(report, flags.output_format))
    if flags.dry_run:
        raise typer.Exit(EXIT_WOULD_CHANGE)
    if not flags.detach:
        _follow_rolling(name, report, flags.output_format)


def _stop(flags: Flags) -> None:
    """Stops a rolling restart; does nothing if there is none."""
    with connect.client(connect.attached(flags.cluster)) as client:
        from controller.api.operations.on_cluster import RollingStopRequest, StopRolling

        wanted = RollingStopRequest(
            dry_run=flags.dry_run, reason=flags.reason, if_revision=flags.if_revision
        )
        try:
            report = client.send(StopRolling(wanted))
        except NotRollingError:
            output.say("nothing to change")
            return
    output.emit(_rolling_text(report, flags.output_format))
    if flags.dry_run:
        raise typer.Exit(EXIT_WOULD_CHANGE)


def _dismiss(flags: Flags) -> None:
    """Takes a rolling restart that has ended out of the status; does nothing if there is none."""
    with connect.client(connect.attached(flags.cluster)) as client:
        from controller.api.operations.on_cluster import DismissRolling, RollingDismissRequest

        report = client.send(
            DismissRolling(
                RollingDismissRequest(
                    dry_run=flags.dry_run, reason=flags.reason, if_revision=flags.if_revision
                )
            )
        )
    if not report.changes:
        output.say("nothing to change")
        return
    output.emit(_rolling_text(report, flags.output_format))
    if flags.dry_run:
        raise typer.Exit(EXIT_WOULD_CHANGE)


def _engine_args(given: Sequence[str]) -> dict[str, Any]:
    from llumctl.config.settings import interpreter, parse_engine_arg

    found: dict[str, Any] = {}
    for each in given:
        key, value = parse_engine_arg(
            each, "llumctl restart --rolling --engine-arg max_num_seqs=64"
        )
        if key in found:
            raise UsageError(f"--engine-arg: {key} is given twice")
        if key == PYTHON and isinstance(value, str):
            value = interpreter(Path.cwd() / _expanded(value))
        found[key] = value
    return found


def _expanded(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError as error:  # a ~user that does not exist
        raise UsageError(
            f"--python: {path[:60]}: {one_line(error)}", "llumctl restart --rolling --python /PATH"
        ) from error


def _follow_rolling(name: str, begun: "RollingReport", output_format: Format) -> None:
    watch = RollingWatch(name, begun)
    try:
        watch.until_over()
    except KeyboardInterrupt:
        output.say(DETACHED)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    output.emit(_rolling_text(watch.report, output_format))
    _check_over(watch.report)


def _rolling_agreed(cluster: str, order: "Rolling", command: str) -> "Rolling":
    """Asks the operator, and binds the order to the revision that was shown. `command`: what was
    typed."""
    with connect.client(cluster) as client:
        plan = client.send(order.dry())
    output.check_terminal("restart", f"{command} --dry-run      then      {command} -y")
    from controller.api.text import status_words as words

    output.say("\n".join(words.rolling_plan(plan)))
    output.ask(order.question)
    return order if order.revision is not None else order.at(plan.revision)


def _at_once(text: str | None) -> int:
    """How many instances restart at a time; 0 means as many as the others can take over."""
    if text is None:
        return 1
    if text == "max":
        return 0
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= MAX_INSTANCES:
        raise UsageError(
            f"--at-once: {text[:60]!r} is neither a number of instances nor max",
            "llumctl restart --rolling --at-once 2",
        )
    return int(text)


def _rolling_text(report: "RollingReport", output_format: Format) -> str:
    if output_format in (Format.TABLE, Format.WIDE):
        return _table(report)
    if output_format is Format.NAME:
        done = [each.instance_id for each in report.done]
        under_way = [each.instance_id for each in report.under_way]
        return "\n".join((*done, *under_way, *report.left))
    return output.encode(output_format, report, (report,))


def _table(report: "RollingReport") -> str:
    """Each instance, its state, and how long its restart took; for a dry run, the plan."""
    if report.dry_run and report.plan:
        return _plan(report)
    rows = [(each.instance_id, "restarted", latency(each.took_s)) for each in report.done]
    rows += [
        (each.instance_id, "starting" if each.state == "restarting" else "emptying", "-")
        for each in report.under_way
    ]
    rows += [
        (each, "failed" if each == report.failed_id else _left(report), "-")
        for each in dict.fromkeys((*filter(None, (report.failed_id,)), *report.left))
    ]
    return output.table(("ID", "STATE", "TOOK"), rows)


def _left(report: "RollingReport") -> str:
    return "to-come" if report.state == "going" else "not-restarted"


def _plan(report: "RollingReport") -> str:
    rows = [
        (
            str(place),
            each.instance_id,
            str(each.num_requests),
            str(each.num_blocks),
            str(each.num_cannot_move),
            duration(each.estimate_s),
            duration(report.cold_start_s),
        )
        for place, each in enumerate(report.plan, start=1)
    ]
    header = ("TURN", "ID", "REQUESTS", "BLOCKS", "CANNOT-MOVE", "EMPTY-IN", "START")
    return output.table(header, rows)


DETACHED = (
    "no longer watching: the rolling restart goes on\n"
    "try:   llumctl status      or      llumctl restart --stop"
)


class RollingWatch:
    """Polls the controller, and says on stderr how far the rolling restart is."""

    def __init__(self, cluster: str, begun: "RollingReport") -> None:
        self._cluster = cluster
        self.report = begun
        self._said: tuple[object, ...] = ()
        self._trouble = ""

    def until_over(self) -> None:
        """Follows the rolling restart to its end. Raises NotRunningError when the cluster is
        stopped, and LlumctlError if another rolling restart has begun."""
        self._tell()
        while self.report.state == "going":
            time.sleep(POLL_S)
            self._look()
            self._tell()

    def _look(self) -> None:
        try:
            with connect.client(self._cluster) as client:
                found = client.rolling()
        except NotRunningError:
            raise
        except UnreachableError as error:
            if not self._trouble:
                output.say(f"{error.message}; waiting for it")
            self._trouble = error.message
            return
        self._trouble = ""
        if found.rolling_id != self.report.rolling_id:
            raise LlumctlError("another rolling restart has begun meanwhile", "llumctl status")
        self.report = found

    def _tell(self) -> None:
        """Says a line for each step. One request fewer on an instance is not a step."""
        from controller.api.text import status_words as words

        step = words.rolling_step(self.report)
        if step != self._said:
            output.say(words.rolling_progress(self.report))
            self._said = step


def _check_over(report: "RollingReport") -> None:
    """Raises LlumctlError unless every instance was restarted."""
    if report.state == "failed":
        left = f"; not restarted: {' '.join(report.left)}" if report.left else ""
        raise LlumctlError(
            f"the rolling restart failed: {report.why}{left}",
            f"llumctl logs {report.failed_id}      then      {_again(report)}",
        )
    if report.state == "stopped":
        raise LlumctlError(
            f"the rolling restart was stopped: {report.why}",
            "llumctl events --kind operator      llumctl status",
        )


def _again(report: "RollingReport") -> str:
    """The commands that repeat the restart. Without engine arguments, instances that have changed
    already are changed back."""
    plain = "llumctl restart --rolling"
    if not report.engine_args:
        return plain
    return f"{plain}      or      llumctl restart --rolling --engine-arg KEY=VALUE"
