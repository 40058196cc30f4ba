"""`llumctl simulate`: policies compared on clusters in virtual time; `knee`: a policy's saturation
rate; `paper`: the figures of the Llumnix paper. First their options, then the commands."""

import re
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from controller.api.errors import EXIT_FAILED, UsageError
from llumctl.commands.options import TableOrJson, check_extra, format_option, positive
from llumctl.config import config_file
from llumctl.lab.option_values import FigureName

app = typer.Typer(name="simulate", rich_markup_mode=None)
HINT = "llumctl simulate --workload M-M --rate 7.5"
SET_HINT = "--set migration.source_below_steps=160"

DEFAULT_PROFILE = "a10-llama-7b"
DEFAULT_POLICIES = ("llumnix+", "infaas++")
DEFAULT_SEEDS = 3
KNEE_POLICY = "infaas++"
KNEE_TARGET_S = 30.0
MAX_INSTANCES = 1024
MAX_SEEDS = 1000


class Mode(StrEnum):
    CHUNKED = "chunked"
    PREFILL_FIRST = "prefill-first"


class ShapeName(StrEnum):
    CONSTANT = "constant"
    DIURNAL = "diurnal"
    BURST = "burst"


# -- options: the load --------------------------------------------------------------------

Workload = Annotated[
    str,
    typer.Option(
        "--workload",
        "-w",
        metavar="NAME|FILE",
        help="S-S, M-M, L-L, S-L, L-S, sharegpt, burstgpt, IN,OUT in tokens, or a trace file.",
    ),
]
Workloads = Annotated[
    list[str] | None,
    typer.Option(
        "--workload",
        "-w",
        metavar="NAME|FILE",
        help="S-S, M-M, L-L, S-L, L-S, sharegpt, burstgpt, IN,OUT in tokens, or a trace file."
        " Repeatable.",
    ),
]
From = Annotated[
    Path | None,
    typer.Option(
        "--from", metavar="FILE", help="A recording or another trace file, as it was recorded."
    ),
]
Rates = Annotated[
    list[float] | None,
    typer.Option("--rate", metavar="R", help="Requests per second. Repeatable."),
]
NumRequests = Annotated[
    int | None,
    typer.Option("--requests", metavar="N", help="So many requests (10000; of a file all)."),
]
Cv = Annotated[
    float | None,
    typer.Option(metavar="C", help="Coefficient of variation of the gaps; 1 is Poisson (1)."),
]
ShapeOption = Annotated[
    ShapeName | None, typer.Option("--shape", help="The rate over time (constant).")
]
HighFraction = Annotated[
    float | None, typer.Option(metavar="SHARE", help="Share of requests of high priority (0).")
]
NumClients = Annotated[
    int | None, typer.Option("--clients", metavar="N", help="So many clients send the requests.")
]
Speed = Annotated[
    float | None, typer.Option(metavar="X", help="A trace file so many times as fast.")
]
Start = Annotated[float | None, typer.Option(metavar="S", help="Begin there in a trace file.")]
Duration = Annotated[
    float | None, typer.Option(metavar="S", help="So many seconds of a trace file.")
]
DropTooLong = Annotated[
    bool,
    typer.Option(
        "--drop-too-long", help="Leave out requests that are longer than an instance's memory."
    ),
]

# -- options: the cluster -----------------------------------------------------------------

NumInstances = Annotated[
    str, typer.Option("--instances", "-n", metavar="N", help="How many instances.")
]
MaybeInstances = Annotated[
    str | None,
    typer.Option(
        "--instances",
        "-n",
        metavar="N|A..B",
        help="How many instances, or each number from A to B (16; with --autoscale so many at"
        " first, the middle of its range).",
    ),
]
Autoscale = Annotated[
    str | None,
    typer.Option(
        "--autoscale",
        metavar="MIN..MAX",
        help="Instances come and go with the load; settings are --set autoscale.KEY=VALUE.",
    ),
]
Policies = Annotated[
    list[str] | None,
    typer.Option(
        "--policy",
        "-p",
        metavar="NAME",
        help=f"A policy; repeatable ({' and '.join(DEFAULT_POLICIES)}).",
    ),
]
Policy = Annotated[str, typer.Option("--policy", "-p", metavar="NAME", help="A policy.")]
Profile = Annotated[
    str, typer.Option(metavar="NAME|FILE", help="The engines' speed and size, by name or as TOML.")
]
ModeOption = Annotated[
    Mode,
    typer.Option(
        "--mode",
        help="How engines schedule: prompts in chunks beside decodes, or whole prompts first, as in"
        " the Llumnix paper.",
    ),
]
PrefixCaching = Annotated[
    bool, typer.Option("--prefix-caching", help="Engines keep the blocks of prompts they saw.")
]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="A scheduling setting as of llumctl set, e.g. migration.source_below_steps=160."
        " Repeatable.",
    ),
]
Faults = Annotated[
    str | None,
    typer.Option(
        metavar="LIST|FILE",
        help="SECONDS:KIND:INSTANCE[:FACTOR] with commas between, or a file with one per line;"
        " kinds are kill, drain, slow-steps, slow-links.",
    ),
]

# -- options: runs and figures ------------------------------------------------------------

NumSeeds = Annotated[
    int | None,
    typer.Option(
        "--seeds",
        metavar="N",
        help=f"So many runs of each, with other seeds ({DEFAULT_SEEDS}; of a trace file 1).",
    ),
]
FirstSeed = Annotated[int, typer.Option("--seed", metavar="N", help="The first of the seeds.")]
WarmUp = Annotated[
    float, typer.Option(metavar="SHARE", help="Leave out the first requests, as 0.1 for a tenth.")
]
Jobs = Annotated[
    int | None,
    typer.Option("--jobs", "-j", metavar="N", help="So many runs at once (one per core)."),
]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Refuse rates above saturation; exit 1 if a run reached no steady state.",
    ),
]
TtftTarget = Annotated[
    float | None,
    typer.Option(metavar="S", help="Say which number of instances has this P99 TTFT at most."),
]
TpotTarget = Annotated[float | None, typer.Option(metavar="S", help="The same of P99 TPOT.")]
KneeTarget = Annotated[
    float, typer.Option("--target-ttft-p99", metavar="S", help="P99 TTFT at the knee.")
]
OutputFormat = Annotated[TableOrJson, format_option]
Plot = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Draw a picture, .png or .svg; - draws in the terminal."),
]


@app.callback(invoke_without_command=True)
def simulate(
    context: typer.Context,
    workload: Workloads = None,
    recording: From = None,
    rate: Rates = None,
    instances: MaybeInstances = None,
    autoscale: Autoscale = None,
    policy: Policies = None,
    seeds: NumSeeds = None,
    seed: FirstSeed = 1,
    requests: NumRequests = None,
    cv: Cv = None,
    shape: ShapeOption = None,
    high_fraction: HighFraction = None,
    clients: NumClients = None,
    speed: Speed = None,
    start: Start = None,
    duration: Duration = None,
    drop_too_long: DropTooLong = False,
    profile: Profile = DEFAULT_PROFILE,
    mode: ModeOption = Mode.CHUNKED,
    prefix_caching: PrefixCaching = False,
    set_: Assignments = None,
    faults: Faults = None,
    warm_up: WarmUp = 0.0,
    target_ttft_p99: TtftTarget = None,
    target_tpot_p99: TpotTarget = None,
    strict: Strict = False,
    jobs: Jobs = None,
    output_format: OutputFormat = TableOrJson.TABLE,
    plot: Plot = None,
) -> None:
    """Compare policies on a cluster in virtual time, or find the smallest cluster that will do.

    The scheduler's decisions are those of the live cluster, the engines a model with the times of a
    profile. The same options give the same figures.
    """
    if context.invoked_subcommand is not None:
        _nothing_before(context)
        return
    _check_numbers(rate or (), requests, clients, jobs, warm_up)
    positive(target_ttft_p99, "--target-ttft-p99")
    positive(target_tpot_p99, "--target-tpot-p99")
    check_plot(plot)
    if recording is not None and workload is not None:
        raise UsageError("--from: it is a workload itself", f"{HINT}      or      --from FILE")
    if recording is None and not workload:
        raise UsageError("--workload: which requests come must be said", HINT)
    names = [_file(recording)] if recording is not None else list(dict.fromkeys(workload or ()))
    targeted = target_ttft_p99 is not None or target_tpot_p99 is not None
    if autoscale is not None and targeted:
        raise UsageError(
            "--autoscale: targets are for the smallest cluster of a fixed size",
            "--instances 8..16 --target-ttft-p99 2",
        )
    bounds = None if autoscale is None else autoscale_bounds(autoscale, instances)
    sizes = cluster_sizes(instances or "16") if bounds is None else [bounds[2]]
    from controller.sim.run import Load
    from llumctl.lab import simulation
    from llumctl.lab.simulation import Targets
    from llumctl.lab.simulation_plan import Wanted

    load = Load(
        "",
        num_requests=requests,
        cv=cv,
        shape=None if shape is None else shape.value,
        high_fraction=high_fraction,
        num_clients=clients,
        speed=speed,
        start_s=start,
        duration_s=duration,
        drop_too_long=drop_too_long,
    )
    wanted = Wanted(
        workloads=names,
        rates=list(dict.fromkeys(rate)) if rate else [None],
        sizes=sizes,
        policies=list(dict.fromkeys(policy or DEFAULT_POLICIES)),
        seeds=seed_numbers(seed, seeds),
        load=load,
        profile=profile,
        mode=mode.value,
        prefix_caching=prefix_caching,
        settings=config_file.parse_assignments(set_ or (), "--set", SET_HINT),
        faults=faults,
        warm_up=warm_up,
        autoscale=None if bounds is None else bounds[:2],
    )
    if seeds is not None:
        simulation.tell_simulated_once(wanted)
    targets = Targets(target_ttft_p99, target_tpot_p99)
    ran = simulation.compare(wanted, jobs, strict=strict)
    simulation.deliver(
        ran,
        None if targets == Targets() else targets,
        plot,
        as_json=output_format is TableOrJson.JSON,
    )
    if simulation.is_short_of(ran, targets, strict=strict):
        raise typer.Exit(EXIT_FAILED)


def find_knee(
    workload: Workload,
    instances: NumInstances = "16",
    policy: Policy = KNEE_POLICY,
    seeds: NumSeeds = None,
    seed: FirstSeed = 1,
    requests: NumRequests = None,
    cv: Cv = None,
    shape: ShapeOption = None,
    high_fraction: HighFraction = None,
    drop_too_long: DropTooLong = False,
    profile: Profile = DEFAULT_PROFILE,
    mode: ModeOption = Mode.CHUNKED,
    prefix_caching: PrefixCaching = False,
    set_: Assignments = None,
    target_ttft_p99: KneeTarget = KNEE_TARGET_S,
    jobs: Jobs = None,
    output_format: OutputFormat = TableOrJson.TABLE,
) -> None:
    """Find the rate at which a policy's P99 TTFT, its mean over seeds, is 30 s.

    Loads that are as far from it are comparable, whatever the workload.
    """
    _check_numbers((), requests, None, jobs, 0.0)
    positive(target_ttft_p99, "--target-ttft-p99")
    (size, *more) = cluster_sizes(instances)
    if more:
        raise UsageError("--instances: a knee is that of one number of instances", "--instances 16")
    from controller.sim.run import Load
    from llumctl.lab import simulation
    from llumctl.lab.simulation_plan import Wanted

    load = Load(
        "",
        num_requests=requests,
        cv=cv,
        shape=None if shape is None else shape.value,
        high_fraction=high_fraction,
        drop_too_long=drop_too_long,
    )
    wanted = Wanted(
        workloads=[workload],
        rates=[1.0],
        sizes=[size],
        policies=[policy],
        seeds=seed_numbers(seed, seeds),
        load=load,
        profile=profile,
        mode=mode.value,
        prefix_caching=prefix_caching,
        settings=config_file.parse_assignments(set_ or (), "--set", SET_HINT),
    )
    if seeds is not None:
        simulation.tell_simulated_once(wanted)
    simulation.deliver_knee(
        wanted, target_ttft_p99, jobs, as_json=output_format is TableOrJson.JSON
    )


def _nothing_before(context: typer.Context) -> None:
    """An option before the subcommand would be that of another command, and be lost."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            command = f"llumctl simulate {context.invoked_subcommand}"
            raise UsageError(f"options stand behind {command}", f"{command} --help")


def _check_numbers(
    rates: Sequence[float],
    requests: int | None,
    clients: int | None,
    jobs: int | None,
    warm_up: float,
) -> None:
    for rate in rates:
        within(0, rate, "--rate", above=True)
    for value, flag in ((requests, "--requests"), (clients, "--clients"), (jobs, "--jobs")):
        within(1, value, flag)
    within(0, warm_up, "--warm-up", 0.9)


def _file(path: Path) -> str:
    """As a workload's name, in which a slash means a file."""
    return str(path) if path.is_absolute() else f"./{path}"


_SIZES = re.compile(r"(\d{1,5})(?:\.\.(\d{1,5}))?")


def cluster_sizes(text: str) -> list[int]:
    """Numbers of instances, as `16` or `8..16`."""
    found = _SIZES.fullmatch(text.strip())
    first = int(found[1]) if found else 0
    last = int(found[2]) if found and found[2] else first
    if not 1 <= first <= last <= MAX_INSTANCES:
        raise UsageError(
            f"--instances: {text[:60]!r} is neither a number from 1 to {MAX_INSTANCES} nor a range",
            "--instances 16      or      --instances 8..16",
        )
    return list(range(first, last + 1))


def autoscale_bounds(text: str, instances: str | None) -> tuple[int, int, int]:
    """The fewest and the most instances, and how many there are at first."""
    found = _SIZES.fullmatch(text.strip())
    least, most = (int(found[1]), int(found[2])) if found and found[2] else (0, 0)
    if not 1 <= least <= most <= MAX_INSTANCES:
        raise UsageError(
            f"--autoscale: {text[:60]!r} is no range from 1 to {MAX_INSTANCES}", "--autoscale 1..16"
        )
    if instances is None:
        return least, most, (least + most) // 2
    at_first = cluster_sizes(instances)
    if len(at_first) != 1 or not least <= at_first[0] <= most:
        raise UsageError(
            f"--instances: with --autoscale it is the number at first, from {least} to {most}",
            f"--autoscale {least}..{most} --instances {least}",
        )
    return least, most, at_first[0]


def seed_numbers(first: int, num: int | None) -> list[int]:
    within(0, first, "--seed")
    within(1, num, "--seeds", MAX_SEEDS)
    return list(range(first, first + (DEFAULT_SEEDS if num is None else num)))


def within(
    least: float, value: float | None, flag: str, most: float | None = None, *, above: bool = False
) -> None:
    """Refuses what is below `least` (or equal, if it must be `above` it), above `most`, or not
    finite."""
    if value is None:
        return
    too_low = value <= least if above else value < least
    if not too_low and value < float("inf") and (most is None or value <= most):
        return
    bound = f"above {least:g}" if above else f"at least {least:g}"
    limit = "" if most is None else f" and at most {most:g}"
    raise UsageError(f"{flag}: must be {bound}{limit}, not {value:g}", "llumctl simulate --help")


def check_plot(plot: Path | None) -> None:
    """Fails before the runs rather than after them."""
    if plot is None or str(plot) == "-":
        return
    if plot.suffix not in (".png", ".svg"):
        raise UsageError(f"--plot: {plot} ends neither in .png nor in .svg", "--plot run.svg")
    if not plot.parent.is_dir():
        raise UsageError(f"--plot: there is no folder {plot.parent}", f"mkdir -p {plot.parent}")
    check_extra("lab", "--plot")


# -- the figures of the paper -------------------------------------------------------------

PAPER_SEEDS = 10
PAPER_SHARES = (0.9, 1.0, 1.05)

PaperFigure = Annotated[FigureName, typer.Argument(help="Which figure of the paper.")]
PaperWorkloads = Annotated[
    list[str] | None,
    typer.Option("--workload", "-w", metavar="NAME", help="Only this trace. Repeatable (all)."),
]
PaperSeeds = Annotated[
    int, typer.Option("--seeds", metavar="N", help="So many runs of each, with other seeds.")
]
PaperMiddle = Annotated[
    bool, typer.Option("--middle", help="Only the middle one of the paper's loads of each trace.")
]
PaperModeOption = Annotated[
    Mode | None,
    typer.Option(
        "--mode", help="How engines schedule (prefill-first as in the paper; --matched: chunked)."
    ),
]
PaperMatched = Annotated[
    bool,
    typer.Option(
        "--matched",
        help="Of figure11's traces, or figure13's bursts, at shares of the rate at which P99 TTFT"
        " of infaas++ is 30 s; llumnix+ beside the others.",
    ),
]
PaperShares = Annotated[
    list[float] | None,
    typer.Option("--load", metavar="SHARE", help="A share of that rate; repeatable (.9, 1, 1.05)."),
]
PaperKnees = Annotated[
    list[str] | None,
    typer.Option(
        "--knee", metavar="NAME=RATE", help="That rate of a trace, instead of a search. Repeatable."
    ),
]
PaperInstances = Annotated[int, typer.Option("--instances", "-n", metavar="N", help="How many.")]


def paper(
    figure: PaperFigure,
    workload: PaperWorkloads = None,
    middle: PaperMiddle = False,
    matched: PaperMatched = False,
    load: PaperShares = None,
    knee: PaperKnees = None,
    seeds: PaperSeeds = PAPER_SEEDS,
    seed: FirstSeed = 1,
    requests: NumRequests = None,
    mode: PaperModeOption = None,
    instances: PaperInstances = 16,
    profile: Profile = DEFAULT_PROFILE,
    jobs: Jobs = None,
    output_format: OutputFormat = TableOrJson.TABLE,
    plot: Plot = None,
) -> None:
    """Simulate a figure of the Llumnix paper, each point beside the paper's.

    Traces, rates and thresholds are those of its authors.
    """
    for value, flag in ((requests, "--requests"), (jobs, "--jobs")):
        within(1, value, flag)
    within(1, instances, "--instances", MAX_INSTANCES)
    check_plot(plot)
    if plot is not None and str(plot) == "-":
        raise UsageError("--plot: a figure needs a file", "--plot figure.svg")
    if matched and (middle or figure not in (FigureName.FIGURE11, FigureName.FIGURE13)):
        raise UsageError(
            "--matched: it is for figure11's traces and figure13's bursts, at loads of its own",
            "llumctl simulate paper figure11 --matched",
        )
    if not matched and (load or knee):
        raise UsageError("--load and --knee belong to --matched", "--matched --load 1.0")
    shares = tuple(dict.fromkeys(load or PAPER_SHARES))
    for share in shares:
        within(0, share, "--load", above=True)
    from llumctl.lab import paper as figures

    figures.simulate(
        figures.Asked(
            figure,
            seed_numbers(seed, seeds),
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


app.command("paper")(paper)
app.command("knee")(find_knee)
