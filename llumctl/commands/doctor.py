"""`llumctl doctor`: what would keep a cluster from starting here, and the cure."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from controller.api.errors import EXIT_FAILED
from llumctl import meant
from llumctl.commands.options import ClusterName, Config, TableOrJson, format_option
from llumctl.text import output

if TYPE_CHECKING:
    from controller.api.wire.status import Check


def doctor(
    output_format: Annotated[TableOrJson, format_option] = TableOrJson.TABLE,
    cluster: ClusterName = None,
    config: Config = None,
    ray_address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Check each node of this Ray too; else of the config file's, if it names one.",
        ),
    ] = None,
) -> None:
    """Check this machine, and the nodes of a Ray to join; exit 1 if anything fails."""
    from controller.api.wire.status import CheckResult, DoctorReport
    from llumctl.config import settings as settings_module

    settings = settings_module.load(
        config=config,
        flags={
            ("cluster", "name"): ("--cluster", cluster),
            ("cluster", "ray_address"): ("--ray-address", ray_address),
        },
    )
    meant.cluster_is(settings.cluster.name)
    from controller.main.doctor import doctor as doctor_main

    report = DoctorReport(checks=tuple(doctor_main.run(settings)))
    if output_format is TableOrJson.JSON:
        output.emit(output.encode(output.Format.JSON, report, report.checks))
    else:
        output.emit(_text(report.checks))
    if any(check.result is CheckResult.FAIL for check in report.checks):
        raise typer.Exit(EXIT_FAILED)


def _text(checks: "tuple[Check, ...]") -> str:
    """A row per check; the cure, which is long, on its own line below."""
    rows = [(check.result, check.name, check.what) for check in checks]
    colours = output.use_colours(sys.stdout)
    header, *lines = output.table(("RESULT", "CHECK", "WHAT"), rows, colours=colours).split("\n")
    told = [header]
    for check, line in zip(checks, lines, strict=True):
        told.append(line)
        if check.cure:
            told.append(f"        try: {meant.aimed(check.cure)}")
    return "\n".join(told)
