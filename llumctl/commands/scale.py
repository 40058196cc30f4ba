"""`llumctl scale` adds or removes instances; `llumctl scale auto` lets their number follow the
load."""

import re
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperCommand

from controller.api.errors import EXIT_INTERRUPTED, EXIT_WOULD_CHANGE, UsageError
from controller.api.settings import MAX_INSTANCES
from controller.api.text.quantities import duration
from llumctl import arguments, connect, meant, output
from llumctl.commands import instances
from llumctl.commands.options import (
    Cluster,
    DryRun,
    Flags,
    IfRevision,
    Model,
    OutputFormat,
    Reason,
    Yes,
    deadline_of,
)
from llumctl.commands.set_settings import changes_text
from llumctl.output import Format

if TYPE_CHECKING:
    from controller.api.client import ControlClient
    from controller.api.operations.on_cluster import Scale, ScaleReport, SettingChanges
    from controller.api.wire import SettingValue
    from controller.api.wire.status import AutoscaleStatus, ClusterStatus

DEFAULT_TIMEOUT_S = 600.0
DEADLINE_MARGIN_S = 10.0
"""A wait for a drain with a deadline lasts this much longer, to learn how the drain ended."""

AUTO = "auto"
_TARGET = re.compile(r"([+-]?)([0-9]{1,9})")


class Mode(StrEnum):
    OFF = "off"
    DRY_RUN = "dry-run"
    ON = "on"


class ScaleCommand(TyperCommand):
    """A command that reads `-1` as its argument, not as an option."""

    # Typer's Context is a subclass of the one that the base's method takes.
    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        values = {flag for item in self.params for flag in _with_value(item)}
        for at, argument in enumerate(args):
            if argument == "--":
                break
            if re.fullmatch(r"-[0-9]+", argument) and not (at and args[at - 1] in values):
                args = [*args[:at], *args[at + 1 :], "--", argument]
                break
        return super().parse_args(ctx, args)


def _with_value(item: object) -> list[str]:
    """The flags of an option that takes a value."""
    if getattr(item, "is_flag", True):
        return []
    return [flag for flag in getattr(item, "opts", []) if flag.startswith("-")]


def _autos(incomplete: str) -> list[str]:
    return [AUTO] if AUTO.startswith(incomplete) else []


def scale(
    target: Annotated[
        str,
        typer.Argument(
            metavar="[MODEL=]N|+N|-N|auto",
            help="N instances in all, N more, N fewer, or as many as the load needs.",
            autocompletion=_autos,
        ),
    ],
    mode: Annotated[
        Mode | None,
        typer.Argument(
            metavar="[off|dry-run|on]",
            help="Mode of auto; dry-run only reports its decisions. Without a mode: show auto.",
            show_default=False,
        ),
    ] = None,
    minimum: Annotated[
        int | None, typer.Option("--min", metavar="N", help="With auto: the fewest instances.")
    ] = None,
    maximum: Annotated[
        int | None, typer.Option("--max", metavar="N", help="With auto: the most instances.")
    ] = None,
    target_ttft: Annotated[
        str | None,
        typer.Option(
            metavar="S", help="With auto: the P99 time to first token to keep: 2s, 500ms, none."
        ),
    ] = None,
    target_tpot: Annotated[
        str | None,
        typer.Option(
            metavar="S", help="With auto: the P99 time per output token to keep: 80ms, none."
        ),
    ] = None,
    deadline: Annotated[
        str | None,
        typer.Option(
            metavar="S", help="How long emptying the removed instances may take: 90s, 5m."
        ),
    ] = None,
    warm: Annotated[
        str | None,
        typer.Option(metavar="S", help="With fewer instances: " + instances.WARM_HELP),
    ] = None,
    wait: Annotated[
        bool,
        typer.Option("--wait", help="Return when new instances serve and removed ones are gone."),
    ] = False,
    timeout: Annotated[
        str | None,
        typer.Option(metavar="S", help="With --wait: how long to wait (10m, or the deadline)."),
    ] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Do it even if there seems to be no room for new instances, or if none would serve"
            " meanwhile.",
        ),
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    reason: Reason = "",
    if_revision: IfRevision = None,
    output_format: OutputFormat = Format.TABLE,
    cluster: Cluster = None,
    model: Model = None,
) -> None:
    """Add instances, or drain and remove some. Asks before it removes any.

    The instances with the fewest running requests are removed, once their requests have moved to
    others.

    With auto, instances come and go with the load. A number that you set with llumctl scale
    overrides auto until llumctl scale auto on. Other settings of auto are autoscale.* in llumctl
    set.
    """
    target = _of_model(target, model)
    of_number = {
        "--deadline": deadline,
        "--warm": warm,
        "--wait": wait,
        "--timeout": timeout,
        "--force": force,
    }
    targets = {"--target-ttft": target_ttft, "--target-tpot": target_tpot}
    of_auto = {"off|dry-run|on": mode, "--min": minimum, "--max": maximum, **targets}
    is_auto = target.strip() == AUTO
    for flag, value in (of_number if is_auto else of_auto).items():
        if value is not None and value is not False:
            raise UsageError(f"{flag}: {'not' if is_auto else 'only'} with {AUTO}")
    flags = Flags(cluster, dry_run, yes, reason, if_revision, output_format, force=force)
    if is_auto:
        _scale_auto(flags, _auto_changes(mode, minimum, maximum, target_ttft, target_tpot))
        return
    if timeout is not None and not wait:
        raise UsageError("--timeout: only with --wait")
    timeout_s = None if timeout is None else arguments.positive(timeout, "--timeout")
    _scale_by_hand(
        flags, target, deadline_of(deadline), timeout_s, instances.warm_of(warm), wait=wait
    )


def _of_model(target: str, model: str | None) -> str:
    """Notes the model that `MODEL=N` names. Returns what is behind it."""
    name, equals, number = (part.strip() for part in target.rpartition("="))
    if not equals:
        return target
    if not name:
        raise UsageError(f"{target[:60]!r}: no model before =", f"llumctl scale {number}")
    if model is not None and model != name:
        raise UsageError(
            f"--model: {model} is another model than that of {target[:60]}",
            f"llumctl scale {name}={number}",
        )
    meant.model_is(name)
    return number


def _scale_by_hand(
    flags: Flags,
    target: str,
    deadline_s: float | None,
    timeout_s: float | None,
    warm_s: float,
    *,
    wait: bool,
) -> None:
    """Plans and asks, sets the number of instances, and waits if that is wanted."""
    target_count, change = _wanted(target)
    name = connect.attached(flags.cluster)
    connect.check(name)
    from controller.api.operations.on_cluster import Scale, ScaleRequest

    is_planned_first = not flags.dry_run and (change is not None or not flags.yes)
    order = Scale(
        ScaleRequest(
            target=target_count,
            change=change,
            if_revision=flags.if_revision,
            dry_run=flags.dry_run or is_planned_first,
            force=flags.force,
            reason=flags.reason,
            deadline_s=deadline_s,
            warm_s=warm_s,
        )
    )
    if is_planned_first:
        order = agreed(name, f"llumctl scale {target}", order, yes=flags.yes)
    with connect.client(name) as client:
        report = client.send(order)
        if wait and not flags.dry_run and not _changes(report):
            report = _begun_before(client, report)
    if report.holds_autoscale:
        would = "would leave" if flags.dry_run else "leaves"
        output.say(f"auto-scaling {would} it at {report.target}, until llumctl scale auto on")
    if wait and not flags.dry_run and _changes(report):
        if timeout_s is None:
            until_s = None if deadline_s is None or not report.draining else deadline_s
            timeout_s = DEFAULT_TIMEOUT_S if until_s is None else until_s + DEADLINE_MARGIN_S
        _wait(name, report, timeout_s, deadline_s, flags.output_format)
        return
    output.emit(_text(report, flags.output_format))
    if not _changes(report):
        output.say("nothing to change")
    elif flags.dry_run:
        raise typer.Exit(EXIT_WOULD_CHANGE)


def _changes(report: "ScaleReport") -> bool:
    return bool(report.added or report.undrained or report.draining)


def _begun_before(client: "ControlClient", report: "ScaleReport") -> "ScaleReport":
    """The report, with everything added that earlier orders began and that is still going on. This
    order may have been sent before and its answer lost; then a user who waits means what that
    earlier order began."""
    status, drains = client.status(), client.drains().drains
    going = {item.id for item in status.instances if item.drain and item.drain.removes}
    starting = [item.id for item in status.instances if item.state == "starting"]
    found = {
        "added": tuple(id_ for id_ in starting if id_ not in going),
        "draining": tuple(drain for drain in drains if drain.instance_id in going),
    }
    return report.model_copy(update=found)


def _wanted(text: str) -> tuple[int | None, int | None]:
    """Returns the target number of instances, or else the change of their number: (target, change),
    of which one is None. Raises UsageError."""
    found = _TARGET.fullmatch(text.strip())
    if found is None:
        raise UsageError(
            f"N|+N|-N: {text[:60]!r} is not a number of instances",
            "llumctl scale 4      llumctl scale +1      llumctl scale -1      llumctl scale auto",
        )
    sign, number = found[1], int(found[2])
    arguments.within(0, number, "N|+N|-N", MAX_INSTANCES)
    if not number:
        raise UsageError(f"N|+N|-N: {text} would leave no instance, or change none", "llumctl down")
    return (None, int(f"{sign}{number}")) if sign else (number, None)


def agreed(cluster: str, command: str, order: "Scale", *, yes: bool) -> "Scale":
    """The order, bound to its plan. If the plan removes instances, the operator is asked first.
    `command`: what was typed."""
    with connect.client(cluster) as client:
        planned = client.send(order.dry())
        status = client.status() if planned.draining and not yes else None
    if status is not None:
        output.check_terminal("scale-in", f"{command} --dry-run      then      {command} -y")
        output.say(instances.question(planned.draining, status))
        going = ", ".join(report.instance_id for report in planned.draining)
        output.ask(f"Drain and remove {going} ({planned.previous} -> {planned.target})?")
    return order.planned(planned)


def _text(report: "ScaleReport", output_format: Format) -> str:
    if output_format is Format.NAME:
        going = [drain.instance_id for drain in report.draining]
        return "\n".join([*report.added, *report.undrained, *going])
    if output_format in (Format.TABLE, Format.WIDE):
        wide = output_format is Format.WIDE
        return _table(report, wide=wide)
    return output.encode(output_format, report, (report,))


def _table(report: "ScaleReport", *, wide: bool) -> str:
    """Numbers and names of instances, then the drains if instances are removed."""
    draining = tuple(drain.instance_id for drain in report.draining)
    facts = (
        ("instances", f"{report.previous} -> {report.target}"),
        ("added", " ".join(report.added)),
        ("undrained", " ".join(report.undrained)),
        ("draining", " ".join(draining)),
        ("revision", str(report.revision)),
    )
    parts = [output.facts([(name, value) for name, value in facts if value])]
    if report.draining:
        parts.append(instances.render(report.draining, wide=wide))
    return "\n\n".join(parts)


def _wait(
    cluster: str,
    report: "ScaleReport",
    timeout_s: float,
    deadline_s: float | None,
    output_format: Format,
) -> None:
    from llumctl.commands import waiting

    deadline_at_s = time.monotonic() + timeout_s
    watch = instances.DrainWatch(cluster, report.draining)
    try:
        with watch:
            for each in (*report.added, *report.undrained):
                condition = waiting.MemberIs("instance", each, "active")
                left_s = max(0.0, deadline_at_s - time.monotonic())
                output.say(waiting.wait(cluster, condition, f"instance/{each}=active", left_s))
            watch.until_over(max(0.0, deadline_at_s - time.monotonic()))
    except KeyboardInterrupt:
        output.say(f"no longer watching: scaling to {report.target} goes on")
        output.say("try:   llumctl status -w")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    finally:  # the scaling goes on even if an error ends the wait
        report = report.model_copy(update={"draining": watch.reports})
        output.emit(_text(report, output_format))
    instances.check_done(report.draining, deadline_s, waited_s=timeout_s)


# -- scale auto: instances come and go with the load -----------------------------------------


def _scale_auto(flags: Flags, wanted: "dict[str, SettingValue]") -> None:
    """Changes auto-scaling if anything is wanted, then shows it. `wanted`: settings by key."""
    dry_run, output_format = flags.dry_run, flags.output_format
    if not wanted and (dry_run or flags.reason or flags.if_revision is not None):
        raise UsageError("auto: there is nothing to change")
    name = connect.attached(flags.cluster)
    with connect.client(name) as client:
        if wanted:
            from controller.api.operations.on_cluster import SetSettings, SettingsPatch

            patch = SettingsPatch(
                changes=wanted,
                dry_run=dry_run,
                reason=flags.reason,
                if_revision=flags.if_revision,
            )
            found = client.send(SetSettings(patch))
            if dry_run and (planned := changes_text(found, output_format)):
                output.emit(planned)
            _say_changed(found)
        if not dry_run:
            output.emit(_auto_text(client.status(), output_format))
    if dry_run and (found.changes or found.releases_autoscale):
        raise typer.Exit(EXIT_WOULD_CHANGE)


def _auto_changes(
    mode: Mode | None,
    minimum: int | None,
    maximum: int | None,
    target_ttft: str | None,
    target_tpot: str | None,
) -> "dict[str, SettingValue]":
    """The settings that were given, by key."""
    found: dict[str, SettingValue] = {}
    if mode is not None:
        found["mode"] = mode.value
    for flag, key, number in (
        ("--min", "min_instances", minimum),
        ("--max", "max_instances", maximum),
    ):
        if number is not None:
            arguments.within(1, number, flag, MAX_INSTANCES)
            found[key] = number
    for flag, key, text in (
        ("--target-ttft", "target_ttft_s", target_ttft),
        ("--target-tpot", "target_tpot_s", target_tpot),
    ):
        if text is not None:
            found[key] = None if text == "none" else arguments.positive(text, flag)
    return {f"autoscale.{key}": value for key, value in found.items()}


def _say_changed(found: "SettingChanges") -> None:
    if found.releases_autoscale:
        would = "would be" if found.dry_run else "is"
        output.say(f"an operator's scale held it, and it {would} released")
    if not (found.changes or found.releases_autoscale):
        output.say("nothing to change")
    elif not found.dry_run:
        output.say(f"revision {found.revision}")


def _auto_text(status: "ClusterStatus", output_format: Format) -> str:
    from controller.api.wire.status import AutoscaleReport

    found = status.autoscale
    if output_format is Format.NAME:
        return found.mode
    if output_format in (Format.TABLE, Format.WIDE):
        return _auto_facts(found, status.time_s)
    report = AutoscaleReport(**dict(found))
    return output.encode(output_format, report, (report,))


def _auto_facts(status: "AutoscaleStatus", now_s: float) -> str:
    """The state of auto-scaling, a fact on each line. `now_s`: seconds since the epoch."""
    from controller.api.text import status_words as words

    wanted = "" if status.num_wanted is None else f", {status.num_wanted} wanted"
    facts = [("mode", words.autoscale_state(status))]
    if held := words.autoscale_held(status, now_s):
        facts.append(("held", meant.aimed(held)))
    facts += [
        ("instances", f"{words.autoscale_range(status)}{wanted}"),
        ("targets", words.autoscale_targets(status) or "none"),
    ]
    if status.last is not None:
        facts.append(("last look", words.autoscale_decision(status.last, now_s)))
    if status.last_change is not None:
        facts.append(("last change", words.autoscale_decision(status.last_change, now_s)))
    if status.next_check_in_s is not None:
        facts.append(("next look", f"in {duration(status.next_check_in_s)}"))
    if status.cold_start_s is not None:
        facts.append(("a start takes", duration(status.cold_start_s)))
    return output.facts(facts)
