"""`llumctl bench` sends open-loop load to an endpoint, checks every answer, and reports
latencies."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controller.api.errors import EXIT_FAILED, EXIT_INTERRUPTED, UsageError
from llumctl import arguments, connect, output
from llumctl.commands.options import (
    Cluster,
    TableOrJson,
    check_extra,
    complete_models,
    format_option,
)
from llumctl.lab.option_values import Arrivals, Verify

if TYPE_CHECKING:
    from llumctl.lab.bench import Measured

DEFAULT_RATE = 1.0
DEFAULT_DURATION_S = 30.0
DEFAULT_LENGTHS = "S-S"


# -- options: the load --------------------------------------------------------------------

Rate = Annotated[
    float | None, typer.Option(metavar="R", help=f"Requests per second ({DEFAULT_RATE:g}).")
]
ArrivalKind = Annotated[
    Arrivals | None, typer.Option(help="Distribution of the gaps between requests (poisson).")
]
Cv = Annotated[
    float | None,
    typer.Option(metavar="C", help="For gamma arrivals: coefficient of variation of the gaps."),
]
Duration = Annotated[
    float | None,
    typer.Option(
        metavar="S", help=f"Send for S seconds ({DEFAULT_DURATION_S:g}, unless --requests)."
    ),
]
NumRequests = Annotated[int | None, typer.Option(metavar="N", help="Send N requests.")]
Lengths = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|IN,OUT",
        help="Lengths of prompts and outputs in tokens: S-S, M-M, L-L, S-L, L-S, sharegpt or"
        " burstgpt, from table 1 of the Llumnix paper; zipf:M-M, drawn as by its authors; two"
        " numbers; or agents or chats: sessions, whose turns each wait for the answer before"
        f" ({DEFAULT_LENGTHS}).",
    ),
]
Trace = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Replay a trace of Azure, BurstGPT, Mooncake or Qwen, or a recording of llumctl.",
    ),
]
ScaleRate = Annotated[
    float | None,
    typer.Option(metavar="X", help="Replay the trace X times as fast (1)."),
]
MaxTokensCap = Annotated[
    int | None, typer.Option(metavar="N", help="Shorten prompts and outputs to N tokens at most.")
]
Priorities = Annotated[
    list[str] | None,
    typer.Option(
        metavar="LEVEL=SHARE",
        help="Share of the requests with this priority level, as in high=0.1; the others have rank"
        " 0. LEVEL is a name or vLLM's number (lower goes first). Repeatable.",
    ),
]
Seed = Annotated[int, typer.Option(help="Seed of arrivals, lengths, levels and prompts.")]

# -- options: what is measured and checked ------------------------------------------------

Warmup = Annotated[
    float,
    typer.Option(metavar="S", help="Leave requests due in the first S seconds out of latencies."),
]
Verification = Annotated[
    Verify,
    typer.Option(
        help="What to check. tokens: every token id, which emulated engines determine; counts: the"
        " number of ids; usage: only the number that the server reports; auto: tokens if emulated,"
        " else counts."
    ),
]
Timeout = Annotated[float, typer.Option(metavar="S", help="How long one request may take.")]

# -- options: the endpoint ----------------------------------------------------------------

Url = Annotated[
    str | None, typer.Option(metavar="URL", help="An OpenAI endpoint instead of a cluster's.")
]
Model = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        autocompletion=complete_models,
        help="Model to ask for (the first one).",
    ),
]
ApiKeyFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="File with the endpoint's API key, in line 1.")
]

# -- options: where the figures go --------------------------------------------------------

OutputFormat = Annotated[TableOrJson, format_option]
JsonFile = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Also write the report as JSON.")
]
Records = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write a JSON line for each request.")
]
Plot = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Draw latencies and rates as a PNG.")
]


def bench(
    rate: Rate = None,
    arrivals: ArrivalKind = None,
    cv: Cv = None,
    duration: Duration = None,
    requests: NumRequests = None,
    lengths: Lengths = None,
    trace: Trace = None,
    scale_rate: ScaleRate = None,
    max_tokens_cap: MaxTokensCap = None,
    priority: Priorities = None,
    seed: Seed = 0,
    warmup: Warmup = 0.0,
    verify: Verification = Verify.AUTO,
    timeout: Timeout = 600.0,
    url: Url = None,
    model: Model = None,
    api_key_file: ApiKeyFile = None,
    cluster: Cluster = None,
    output_format: OutputFormat = TableOrJson.TABLE,
    json_file: JsonFile = None,
    records: Records = None,
    plot: Plot = None,
) -> None:
    """Send load at a fixed rate, check every answer, report latencies.

    Each request is sent when it is due, even if earlier ones are not finished. Exit 1 if a request
    failed or a token was wrong.
    """
    for value, flag in ((timeout, "--timeout"), (duration, "--duration")):
        arguments.within(0, value, flag, above=True)
    arguments.within(0, warmup, "--warmup")
    arguments.within(1, requests, "--requests")
    arguments.within(1, max_tokens_cap, "--max-tokens-cap")
    for file, flag in ((json_file, "--json"), (records, "--records"), (plot, "--plot")):
        _check_folder(file, flag)
    if plot is not None:
        check_extra("lab", "--plot")
    generated = {"--rate": rate, "--arrivals": arrivals, "--cv": cv, "--lengths": lengths}
    given = [flag for flag, value in generated.items() if value is not None]
    _check_trace(trace, scale_rate, given)
    if url is not None and cluster is not None:
        raise UsageError(
            "--url: a cluster has an endpoint of its own", f"llumctl bench --cluster {cluster}"
        )
    if duration is None and requests is None and trace is None:
        duration = DEFAULT_DURATION_S
    from llumctl.lab import bench
    from llumctl.lab.bench_load import Load

    load = Load(
        rate=DEFAULT_RATE if rate is None else rate,
        arrivals=arrivals or (Arrivals.POISSON if cv is None else Arrivals.GAMMA),
        cv=cv,
        lengths=DEFAULT_LENGTHS if lengths is None else lengths,
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
    """Writes the figures to stdout and into files, then warnings and failures to stderr."""
    from llumctl.lab import bench_report

    figures, target = measured.figures, measured.target
    text = output.json_text(measured.as_json(), indent=2)
    if output_format is TableOrJson.JSON:
        output.emit(text)
    else:
        output.emit(bench_report.render(figures, target, measured.verify))
    if json_file is not None:
        bench_report.write(json_file, f"{text}\n")
    if records is not None:
        bench_report.write_records(records, measured.results)
    if plot is not None:
        bench_report.save_plot(plot, measured.results, measured.title())
    for line in (*measured.warnings, *bench_report.failures(measured.results)):
        output.say(line)


def _check_trace(trace: Path | None, scale_rate: float | None, generated: list[str]) -> None:
    if trace is None and scale_rate is not None:
        raise UsageError(
            "--scale-rate: there is no trace to replay", f"llumctl bench --rate {scale_rate:g}"
        )
    if trace is not None and generated:
        raise UsageError(
            f"{generated[0]}: not with --trace, which has the times and lengths of requests",
            f"llumctl bench --trace {trace} --scale-rate 2",
        )
    arguments.within(0, scale_rate, "--scale-rate", above=True)


def _check_folder(file: Path | None, flag: str) -> None:
    """Refuses a file that cannot be written, before the load is sent and not after it."""
    if file is not None and not file.parent.is_dir():
        raise UsageError(f"{flag}: there is no folder {file.parent}", f"mkdir -p {file.parent}")
