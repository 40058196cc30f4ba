"""`llumctl simulate paper`: the figures of the Llumnix paper, simulated."""

from typing import Annotated

import typer

from controller.api.errors import UsageError
from llumctl.commands import simulate_options as options
from llumctl.commands.options import TableOrJson
from llumctl.commands.simulate_options import within
from llumctl.lab.option_values import FigureName

NUM_SEEDS = 10
SHARES = (0.9, 1.0, 1.05)

Figure = Annotated[FigureName, typer.Argument(help="Which figure of the paper.")]
Workloads = Annotated[
    list[str] | None,
    typer.Option("--workload", "-w", metavar="NAME", help="Only this trace. Repeatable (all)."),
]
Seeds = Annotated[
    int, typer.Option("--seeds", metavar="N", help="So many runs of each, with other seeds.")
]
Middle = Annotated[
    bool, typer.Option("--middle", help="Only the middle one of the paper's loads of each trace.")
]
ModeOption = Annotated[
    options.Mode | None,
    typer.Option(
        "--mode", help="How engines schedule (prefill-first as in the paper; --matched: chunked)."
    ),
]
Matched = Annotated[
    bool,
    typer.Option(
        "--matched",
        help="Of figure11's traces, or figure13's bursts, at shares of the rate at which P99 TTFT"
        " of infaas++ is 30 s; llumnix+ beside the others.",
    ),
]
Shares = Annotated[
    list[float] | None,
    typer.Option("--load", metavar="SHARE", help="A share of that rate; repeatable (.9, 1, 1.05)."),
]
Knees = Annotated[
    list[str] | None,
    typer.Option(
        "--knee", metavar="NAME=RATE", help="That rate of a trace, instead of a search. Repeatable."
    ),
]
Instances = Annotated[int, typer.Option("--instances", "-n", metavar="N", help="How many.")]


def paper(
    figure: Figure,
    workload: Workloads = None,
    middle: Middle = False,
    matched: Matched = False,
    load: Shares = None,
    knee: Knees = None,
    seeds: Seeds = NUM_SEEDS,
    seed: options.FirstSeed = 1,
    requests: options.NumRequests = None,
    mode: ModeOption = None,
    instances: Instances = 16,
    profile: options.Profile = options.DEFAULT_PROFILE,
    jobs: options.Jobs = None,
    output_format: options.OutputFormat = TableOrJson.TABLE,
    plot: options.Plot = None,
) -> None:
    """Simulate a figure of the Llumnix paper, each point beside the paper's.

    Traces, rates and thresholds are those of its authors.
    """
    for value, flag in ((requests, "--requests"), (jobs, "--jobs")):
        within(1, value, flag)
    within(1, instances, "--instances", options.MAX_INSTANCES)
    options.check_plot(plot)
    if plot is not None and str(plot) == "-":
        raise UsageError("--plot: a figure needs a file", "--plot figure.svg")
    if matched and (middle or figure not in (FigureName.FIGURE11, FigureName.FIGURE13)):
        raise UsageError(
            "--matched: it is for figure11's traces and figure13's bursts, at loads of its own",
            "llumctl simulate paper figure11 --matched",
        )
    if not matched and (load or knee):
        raise UsageError("--load and --knee belong to --matched", "--matched --load 1.0")
    shares = tuple(dict.fromkeys(load or SHARES))
    for share in shares:
        within(0, share, "--load", above=True)
    from llumctl.lab import paper

    paper.simulate(
        paper.Asked(
            figure,
            options.seeds(seed, seeds),
            num_requests=requests,
            workloads=workload or (),
            only_middle=middle,
            mode=None if mode is None else mode.value,
            matched=matched,
            shares=shares,
            knees=_knees(knee or ()),
            num_instances=instances,
            profile=profile,
        ),
        jobs,
        plot,
        as_json=output_format is TableOrJson.JSON,
    )


def _knees(texts: list[str] | tuple[()]) -> dict[str, float]:
    """`NAME=RATE` each."""
    found = {}
    for text in texts:
        name, _, rate = text.partition("=")
        try:
            found[name.strip()] = float(rate)
        except ValueError:
            raise UsageError(
                f"--knee: {text[:60]!r} is not of the form NAME=RATE", "--knee M-M=6.86"
            ) from None
        within(0, found[name.strip()], "--knee", above=True)
    return found
