"""`llumctl restart --rolling`, `--stop` and `--dismiss`: all instances, one after the other."""

import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from controller.api.errors import EXIT_INTERRUPTED, EXIT_WOULD_CHANGE, NotRollingError, UsageError
from controller.api.settings.bounds import MAX_DEADLINE_S, MAX_INSTANCES
from llumctl import confirm, connect, durations
from llumctl.commands.options import Flags
from llumctl.text import output
from llumctl.text.output import Format

if TYPE_CHECKING:
    from controller.api.operations.on_cluster import Rolling
    from controller.api.wire.status import RollingReport

DEFAULT_START_TIMEOUT_S = 600.0


def begin(
    flags: Flags,
    at_once: str | None,
    deadline_s: float | None,
    start_timeout: str | None,
    engine_arg: Sequence[str],
) -> None:
    """Plans, asks, begins and follows. Raises UsageError for a wrong `at_once`, timeout or engine
    argument."""
    engine_args = _engine_args(engine_arg)
    num_at_once = _at_once(at_once)
    start_timeout_s = DEFAULT_START_TIMEOUT_S
    if start_timeout is not None:
        start_timeout_s = durations.positive(start_timeout, "--start-timeout")
        if start_timeout_s > MAX_DEADLINE_S:
            raise UsageError("--start-timeout: must be at most 7d", "llumctl restart --help")
    name = connect.attached(flags.cluster)
    if not (flags.yes or flags.dry_run):
        given = [word for each in engine_arg for word in ("--engine-arg", each)]
        command = shlex.join(["llumctl", "restart", "--rolling", *given])
        connect.check(name)
        confirm.check_terminal("restart", f"{command} --dry-run      then      {command} -y")
    from controller.api.operations.on_cluster import Rolling, RollingRequest

    wanted = RollingRequest(
        at_once=num_at_once,
        deadline_s=deadline_s,
        start_timeout_s=start_timeout_s,
        dry_run=flags.dry_run,
        force=flags.force,
        reason=flags.reason,
        if_revision=flags.if_revision,
        engine_args=engine_args,
    )
    order = Rolling(wanted)
    if not (flags.yes or flags.dry_run):
        order = _agreed(name, order)
    with connect.client(name) as client:
        report = client.send(order)
    if flags.dry_run or flags.detach:
        output.emit(_text(report, flags.output_format))
    if flags.dry_run:
        raise typer.Exit(EXIT_WOULD_CHANGE)
    if not flags.detach:
        _follow(name, report, flags.output_format)


def stop(flags: Flags) -> None:
    """Stops a rolling restart; does nothing if none goes on."""
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
    output.emit(_text(report, flags.output_format))
    if flags.dry_run:
        raise typer.Exit(EXIT_WOULD_CHANGE)


def dismiss(flags: Flags) -> None:
    """Takes a rolling restart that is over out of the status; does nothing if there is none."""
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
    output.emit(_text(report, flags.output_format))
    if flags.dry_run:
        raise typer.Exit(EXIT_WOULD_CHANGE)


def _engine_args(given: Sequence[str]) -> dict[str, Any]:
    from llumctl.config.settings import parse_engine_arg

    found: dict[str, Any] = {}
    for each in given:
        key, value = parse_engine_arg(
            each, "llumctl restart --rolling --engine-arg max_num_seqs=64"
        )
        if key in found:
            raise UsageError(f"--engine-arg: {key} is given twice", "llumctl restart --help")
        found[key] = value
    return found


def _follow(name: str, begun: "RollingReport", output_format: Format) -> None:
    from llumctl.following import rolling_watch

    watch = rolling_watch.Watch(name, begun)
    try:
        watch.until_over()
    except KeyboardInterrupt:
        output.say(rolling_watch.DETACHED)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    output.emit(_text(watch.report, output_format))
    rolling_watch.check(watch.report)


def _agreed(cluster: str, order: "Rolling") -> "Rolling":
    """The order that the operator agreed to, bound to the revision that was shown."""
    from controller.api.text import rolling_words as words

    with connect.client(cluster) as client:
        plan = client.send(order.dry())
    output.say("\n".join(words.plan(plan)))
    confirm.ask(order.question)
    return order if order.revision is not None else order.at(plan.revision)


def _at_once(text: str | None) -> int:
    """0 for as many as the others can hold."""
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


def _text(report: "RollingReport", output_format: Format) -> str:
    if output_format in (Format.TABLE, Format.WIDE):
        from llumctl.text import rolling_text

        return rolling_text.render(report, colours=output.use_colours(sys.stdout))
    if output_format is Format.NAME:
        done = [each.instance_id for each in report.done]
        under_way = [each.instance_id for each in report.under_way]
        return "\n".join((*done, *under_way, *report.left))
    return output.encode(output_format, report, (report,))
