"""`llumctl doctor` checks the machine before `up`; with `--engine` it also starts two engines and
shows whether requests of every kind move between them unharmed."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from controller.api.errors import EXIT_FAILED, UsageError
from llumctl import meant, output
from llumctl.commands.options import ClusterName, Config, TableOrJson, format_option

if TYPE_CHECKING:
    from controller.api.wire.status import (
        Check,
        DoctorReport,
        EngineTrial,
        KindTrial,
        SlowdownTrial,
    )

HEADER = ("RESULT", "REQUESTS", "MOVES", "TOKENS", "KV BLOCKS", "DOWNTIME", "WORST", "STEP")


def doctor(
    model: Annotated[
        str | None,
        typer.Argument(
            help="'embedded' (the default), a folder, or a Hugging Face id.", show_default=False
        ),
    ] = None,
    output_format: Annotated[TableOrJson, format_option] = TableOrJson.TABLE,
    cluster: ClusterName = None,
    config: Config = None,
    ray_address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Check each node of this Ray too. Default: the Ray that the config file names.",
        ),
    ] = None,
    engine: Annotated[
        bool,
        typer.Option(
            "--engine",
            help="Start two instances in a cluster of their own, move requests of every kind"
            " between them, and compare what they say; takes a minute or two.",
        ),
    ] = False,
    engine_arg: Annotated[
        list[str] | None,
        typer.Option(metavar="K=V", help="A vLLM engine argument, V as JSON; repeatable."),
    ] = None,
) -> None:
    """Check this machine, and the nodes of a Ray cluster to join.

    The exit code is 1 if any check fails.
    """
    from controller.api.wire.status import CheckResult, DoctorReport
    from llumctl.config import settings as settings_module

    settings, origins = settings_module.load_with_origins(
        config,
        {
            ("cluster", "name"): ("--cluster", cluster),
            ("cluster", "model"): ("MODEL", model),
            ("cluster", "ray_address"): ("--ray-address", ray_address),
        },
        engine_arg or [],
    )
    if engine and cluster is not None:
        raise UsageError("--cluster: the trial of --engine has a cluster of its own")
    meant.cluster_is(settings.cluster.name)
    if engine:
        from controller.main.doctor import trial_cluster

        with settings_module.located(origins):
            report = trial_cluster.run(settings, output.say)
    else:
        from controller.main.doctor import doctor as doctor_main

        report = DoctorReport(checks=tuple(doctor_main.run(settings)))
    if output_format is TableOrJson.JSON:
        output.emit(output.encode(output.Format.JSON, report, report.checks))
    else:
        output.emit(_checks_text(report.checks) if report.engine is None else _text(report))
    results = [check.result for check in report.checks]
    results += [report.engine.result] if report.engine is not None else []
    if CheckResult.FAIL in results:
        raise typer.Exit(EXIT_FAILED)


def _checks_text(checks: "tuple[Check, ...]") -> str:
    """A row for each check, and its cure, which is long, on a line of its own below."""
    rows = [(check.result, check.name, check.what) for check in checks]
    header, *lines = output.table(("RESULT", "CHECK", "WHAT"), rows).split("\n")
    told = [header]
    for check, line in zip(checks, lines, strict=True):
        told.append(line)
        if check.cure:
            told.append(f"        try: {meant.aimed(check.cure)}")
    return "\n".join(told)


# -- --engine: a table to paste into an issue ------------------------------------------------


def _text(report: "DoctorReport") -> str:
    """The checks that are not ok, and what came of the trial."""
    from controller.api.wire.status import CheckResult

    assert report.engine is not None
    parts = [_trial_text(report.engine)]
    if odd := tuple(each for each in report.checks if each.result is not CheckResult.OK):
        parts.insert(0, _checks_text(odd))
    return "\n\n".join(parts)


def _trial_text(trial: "EngineTrial") -> str:
    rows = [_cells(each) for each in trial.kinds]
    header, *lines = output.table(HEADER, rows).split("\n")
    told = [header]
    for each, line in zip(trial.kinds, lines, strict=True):
        told.append(line)
        if each.what:
            told.append(f"        {each.what}")
    if trial.problem:
        told += ["", trial.problem]
    return "\n".join([*told, "", output.facts(list(_facts(trial)))])


def _cells(kind: "KindTrial") -> tuple[str, ...]:
    return (
        kind.result,
        kind.kind,
        str(kind.num_moves),
        _tokens(kind),
        _blocks(kind),
        _ms(kind.downtime_median_s),
        _ms(kind.downtime_worst_s),
        _ms(kind.step_s),
    )


def _tokens(kind: "KindTrial") -> str:
    if kind.tokens == "equal":
        return f"equal, {kind.num_tokens}"
    if kind.tokens == "unknown":
        return "-"
    word = "differ" if kind.tokens == "differ" else "not deterministic"
    return f"{word}, from {kind.first_difference}"


def _blocks(kind: "KindTrial") -> str:
    if kind.kv_equal is None:
        return "-"
    if not kind.kv_equal:
        return f"DIFFER in {kind.num_digests}"
    return f"equal, {kind.num_equal_blocks:,} in {kind.num_digests}"


def _ms(time_s: float | None) -> str:
    return "-" if time_s is None else f"{time_s * 1000:.1f}ms"


def _facts(trial: "EngineTrial") -> Iterator[tuple[str, str]]:
    yield "slowdown", _slowdown(trial.slowdown)
    yield from trial.facts.items()


def _slowdown(found: "SlowdownTrial | None") -> str:
    if found is None:
        return "not measured"
    change = f"{abs(found.slowdown):.0%} {'longer' if found.slowdown >= 0 else 'shorter'}"
    return (
        f"steps took {change} while {found.num_tokens:,} tokens moved to and fro beside"
        f" {found.num_streams} streams, {found.moving_share:.0%} of the time in"
        f" {found.num_moves} moves of {_ms(found.move_s)}; without moves they took"
        f" {_ms(found.step_s)} ({_ms(found.quickest_step_s)} to {_ms(found.slowest_step_s)})"
    )
