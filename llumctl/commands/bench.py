"""`llumctl bench`: open-loop load on an endpoint, every answer checked, and what it took."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from controller.api.errors import EXIT_FAILED, EXIT_INTERRUPTED, UsageError
from llumctl import connect
from llumctl.commands import bench_options as options
from llumctl.commands.options import Cluster, TableOrJson, positive
from llumctl.lab.option_values import Arrivals, Verify
from llumctl.text import output

if TYPE_CHECKING:
    from llumctl.lab.bench import Measured


def bench(
    rate: options.Rate = None,
    arrivals: options.ArrivalKind = None,
    cv: options.Cv = None,
    duration: options.Duration = None,
    requests: options.NumRequests = None,
    lengths: options.Lengths = None,
    trace: options.Trace = None,
    scale_rate: options.ScaleRate = None,
    max_tokens_cap: options.MaxTokensCap = None,
    priority: options.Priorities = None,
    seed: options.Seed = 0,
    warmup: options.Warmup = 0.0,
    verify: options.Verification = Verify.AUTO,
    timeout: options.Timeout = 600.0,
    url: options.Url = None,
    model: options.Model = None,
    api_key_file: options.ApiKeyFile = None,
    cluster: Cluster = None,
    output_format: options.OutputFormat = TableOrJson.TABLE,
    json_file: options.JsonFile = None,
    records: options.Records = None,
    plot: options.Plot = None,
) -> None:
    """Send load at a fixed rate, check every answer, report latencies.

    Requests go out when they are due, whatever becomes of the others. Exit 1 if any failed or a
    token was wrong.
    """
    for value, flag in ((timeout, "--timeout"), (duration, "--duration")):
        positive(value, flag)
    _at_least(0, warmup, "--warmup")
    _at_least(1, requests, "--requests")
    _at_least(1, max_tokens_cap, "--max-tokens-cap")
    for file, flag in ((json_file, "--json"), (records, "--records"), (plot, "--plot")):
        _check_folder(file, flag)
    generated = {"--rate": rate, "--arrivals": arrivals, "--cv": cv, "--lengths": lengths}
    given = [flag for flag, value in generated.items() if value is not None]
    _check_trace(trace, scale_rate, given)
    if url is not None and cluster is not None:
        raise UsageError(
            "--url: a cluster has an endpoint of its own", f"llumctl bench --cluster {cluster}"
        )
    if duration is None and requests is None and trace is None:
        duration = options.DEFAULT_DURATION_S
    from llumctl.lab import bench
    from llumctl.lab.bench_load import Load

    load = Load(
        rate=options.DEFAULT_RATE if rate is None else rate,
        arrivals=arrivals or (Arrivals.POISSON if cv is None else Arrivals.GAMMA),
        cv=cv,
        lengths=options.DEFAULT_LENGTHS if lengths is None else lengths,
        trace=trace,
        speed=1.0 if scale_rate is None else scale_rate,
        duration_s=duration,
        num_requests=requests,
        max_tokens=max_tokens_cap,
        seed=seed,
    )
    wanted = bench.Wanted(
        load=load,
        priorities=tuple(priority or ()),
        warmup_s=warmup,
        verify=verify,
        timeout_s=timeout,
        model=model,
        api_key_file=api_key_file,
        url=url,
        cluster=None if url is not None else connect.attached(cluster),
    )
    measured = bench.run(wanted)
    _deliver(measured, output_format, json_file, records, plot)
    if measured.figures.interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)
    if measured.figures.num_failed:
        raise typer.Exit(EXIT_FAILED)


def _deliver(
    measured: "Measured",
    output_format: TableOrJson,
    json_file: Path | None,
    records: Path | None,
    plot: Path | None,
) -> None:
    """Figures on stdout and into files; what went wrong on stderr, after them."""
    from llumctl.lab import bench_report

    figures, target = measured.figures, measured.target
    text = output.json_text(measured.as_json(), indent=2)
    if output_format is TableOrJson.JSON:
        output.emit(text)
    else:
        colours = output.use_colours(sys.stdout)
        output.emit(bench_report.render(figures, target, measured.verify, colours=colours))
    if json_file is not None:
        bench_report.write(json_file, f"{text}\n")
    if records is not None:
        bench_report.write_records(records, measured.results)
    if plot is not None:
        from llumctl.lab import bench_plot as drawing

        drawing.save(plot, measured.results, measured.title())
    for line in (*measured.warnings, *bench_report.failures(measured.results)):
        output.say(line)


def _at_least(least: int, value: float | None, flag: str) -> None:
    if value is not None and not least <= value < float("inf"):
        raise UsageError(f"{flag}: must be at least {least}, not {value:g}", "llumctl bench --help")


def _check_trace(trace: Path | None, scale_rate: float | None, generated: list[str]) -> None:
    if trace is None and scale_rate is not None:
        raise UsageError(
            "--scale-rate: there is no trace to replay", f"llumctl bench --rate {scale_rate:g}"
        )
    if trace is not None and generated:
        raise UsageError(
            f"{generated[0]}: the trace says when requests come and how long they are",
            f"llumctl bench --trace {trace} --scale-rate 2",
        )
    if scale_rate is not None and not 0 < scale_rate < float("inf"):
        raise UsageError(
            f"--scale-rate: must be a positive number, not {scale_rate:g}",
            f"llumctl bench --trace {trace} --scale-rate 2",
        )


def _check_folder(file: Path | None, flag: str) -> None:
    """Fails before the load rather than after it."""
    if file is not None and not file.parent.is_dir():
        raise UsageError(f"{flag}: there is no folder {file.parent}", f"mkdir -p {file.parent}")
