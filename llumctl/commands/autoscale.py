"""`llumctl scale auto`: instances come and go with the load, or an operator is told what would."""

from enum import StrEnum
from typing import TYPE_CHECKING

import typer

from controller.api.errors import EXIT_WOULD_CHANGE, UsageError
from controller.api.settings.bounds import MAX_INSTANCES
from controller.api.text.quantities import duration
from llumctl import arguments, connect, meant
from llumctl.commands.get_set import changes_text
from llumctl.commands.options import Flags, not_negative, one_line
from llumctl.text import output
from llumctl.text.output import Format

if TYPE_CHECKING:
    from controller.api.operations.on_cluster import SettingChanges
    from controller.api.wire.base import SettingValue
    from controller.api.wire.status import AutoscaleStatus, ClusterStatus


class Mode(StrEnum):
    OFF = "off"
    DRY_RUN = "dry-run"
    ON = "on"


def run(flags: Flags, wanted: "dict[str, SettingValue]") -> None:
    """Shows auto-scaling, and changes what is wanted first. `wanted`: settings by key."""
    one_line(flags.reason)
    not_negative(flags.if_revision, "--if-revision")
    dry_run, output_format = flags.dry_run, flags.output_format
    if not wanted and (dry_run or flags.reason or flags.if_revision is not None):
        raise UsageError("nothing is to be changed", "llumctl scale --help")
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
            _say(found)
        if not dry_run:
            output.emit(_shown(client.status(), output_format))
    if dry_run and (found.changes or found.releases_autoscale):
        raise typer.Exit(EXIT_WOULD_CHANGE)


def changes(
    mode: Mode | None,
    minimum: int | None,
    maximum: int | None,
    target_ttft: str | None,
    target_tpot: str | None,
) -> "dict[str, SettingValue]":
    """By key, those that are given."""
    found: dict[str, SettingValue] = {}
    if mode is not None:
        found["mode"] = mode.value
    for flag, key, number in (
        ("--min", "min_instances", minimum),
        ("--max", "max_instances", maximum),
    ):
        if number is not None:
            if not 1 <= number <= MAX_INSTANCES:
                raise UsageError(f"{flag}: must be from 1 to {MAX_INSTANCES}, not {number}")
            found[key] = number
    for flag, key, text in (
        ("--target-ttft", "target_ttft_s", target_ttft),
        ("--target-tpot", "target_tpot_s", target_tpot),
    ):
        if text is not None:
            found[key] = None if text == "none" else arguments.positive(text, flag)
    return {f"autoscale.{key}": value for key, value in found.items()}


def _say(found: "SettingChanges") -> None:
    if found.releases_autoscale:
        would = "would be" if found.dry_run else "is"
        output.say(f"an operator's scale held it, and it {would} released")
    if not (found.changes or found.releases_autoscale):
        output.say("nothing to change")
    elif not found.dry_run:
        output.say(f"revision {found.revision}")


def _shown(status: "ClusterStatus", output_format: Format) -> str:
    from controller.api.wire.status import AutoscaleReport

    found = status.autoscale
    if output_format is Format.NAME:
        return found.mode
    if output_format in (Format.TABLE, Format.WIDE):
        return _facts(found, status.time_s)
    report = AutoscaleReport(**dict(found))
    return output.encode(output_format, report, (report,))


def _facts(status: "AutoscaleStatus", now_s: float) -> str:
    """One to a line. `now_s`: seconds since the epoch."""
    from controller.api.text import autoscale_words as words

    wanted = "" if status.num_wanted is None else f", {status.num_wanted} wanted"
    facts = [("mode", words.state(status))]
    if held := words.held(status, now_s):
        facts.append(("held", meant.aimed(held)))
    facts += [
        ("instances", f"{words.instances(status)}{wanted}"),
        ("targets", words.targets(status) or "none"),
    ]
    if status.last is not None:
        facts.append(("last look", words.decision(status.last, now_s)))
    if status.last_change is not None:
        facts.append(("last change", words.decision(status.last_change, now_s)))
    if status.next_check_in_s is not None:
        facts.append(("next look", f"in {duration(status.next_check_in_s)}"))
    if status.cold_start_s is not None:
        facts.append(("a start takes", duration(status.cold_start_s)))
    return output.facts(facts)
