"""`llumctl simulate` compares policies on clusters in virtual time; `knee` finds the rate that a
policy can serve; `paper` simulates the figures of the Llumnix paper. The options stand first, then
the commands."""

import re
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from controller.api.errors import EXIT_FAILED, UsageError
from llumctl import arguments
from llumctl.commands.options import TableOrJson, check_plot, format_option
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
        help="S-S, M-M, L-L, S-L, L-S, sharegpt, burstgpt, agents, chats, IN,OUT in tokens, or a"
        " trace file.",
    ),
]
Workloads = Annotated[
    list[str] | None,
    typer.Option(
        "--workload",
        "-w",
        metavar="NAME|FILE",
        help="S-S, M-M, L-L, S-L, L-S, sharegpt, burstgpt, agents, chats, IN,OUT in tokens, or a"
        " trace file."
        " Repeatable.",
    ),
]
From = Annotated[
    Path | None,
    typer.Option(
        "--from", metavar="FILE", help="Simulate a recording or another trace file as it is."
    ),
]
Rates = Annotated[
    list[float] | None,
    typer.Option("--rate", metavar="R", help="Requests per second. Repeatable."),
]
NumRequests = Annotated[
    int | None,
    typer.Option("--requests", metavar="N", help="Number of requests (10000; of a file, all)."),
]
Cv = Annotated[
    float | None,
    typer.Option(metavar="C", help="Coefficient of variation of the gaps; 1 is Poisson (1)."),
]
ShapeOption = Annotated[
    ShapeName | None, typer.Option("--shape", help="Course of the rate over time (constant).")
]
HighFraction = Annotated[
    float | None, typer.Option(metavar="SHARE", help="Share of requests with high priority (0).")
]
NumClients = Annotated[
    int | None, typer.Option("--clients", metavar="N", help="Number of clients that send requests.")
]
Speed = Annotated[
    float | None, typer.Option(metavar="X", help="Replay a trace file X times as fast.")
]
Start = Annotated[
    float | None, typer.Option(metavar="S", help="Begin a trace file at this second.")
]
Duration = Annotated[
    float | None, typer.Option(metavar="S", help="Use only S seconds of a trace file.")
]
DropTooLong = Annotated[
    bool,
    typer.Option(
        "--drop-too-long", help="Leave out requests that do not fit into an instance's memory."
    ),
]

# -- options: the cluster -----------------------------------------------------------------

NumInstances = Annotated[
    str, typer.Option("--instances", "-n", metavar="N", help="Number of instances.")
]
MaybeInstances = Annotated[
    str | None,
    typer.Option(
        "--instances",
        "-n",
        metavar="N|A..B",
        help="Number of instances, or each number from A to B (16). With --autoscale: the number at"
        " first (the middle of its range).",
    ),
]
Autoscale = Annotated[
    str | None,
    typer.Option(
        "--autoscale",
        metavar="MIN..MAX",
        help="Let instances come and go with the load. Settings: --set autoscale.KEY=VALUE.",
    ),
]
Policies = Annotated[
    list[str] | None,
    typer.Option(
        "--policy",
        "-p",
        metavar="NAME",
        help=f"Policy; repeatable ({' and '.join(DEFAULT_POLICIES)}).",
    ),
]
Policy = Annotated[str, typer.Option("--policy", "-p", metavar="NAME", help="Policy.")]
Profile = Annotated[
    str, typer.Option(metavar="NAME|FILE", help="Profile of the engines, by name or as TOML file.")
]
ModeOption = Annotated[
    Mode,
    typer.Option(
        "--mode",
        help="How engines schedule: chunked prompts with decodes, or whole prompts first, as in"
        " the Llumnix paper.",
    ),
]
PrefixCaching = Annotated[
    bool, typer.Option("--prefix-caching", help="Let engines reuse the blocks of earlier prompts.")
]
HostCache = Annotated[
    float,
    typer.Option(
        "--host-cache",
        metavar="GIB",
        help="Keep this much of each prefix cache in main memory, too.",
    ),
]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Scheduling setting, as in llumctl set: migration.source_below_steps=160. Repeatable.",
    ),
]
Faults = Annotated[
    str | None,
    typer.Option(
        metavar="LIST|FILE",
        help="Faults as SECONDS:KIND:INSTANCE[:FACTOR], separated by commas, or a file with one per"
        " line. Kinds: kill, drain, slow-steps, slow-links.",
    ),
]

# -- options: runs and figures ------------------------------------------------------------

NumSeeds = Annotated[
    int | None,
    typer.Option(
        "--seeds",
        metavar="N",
        help=f"Runs of each case, with different seeds ({DEFAULT_SEEDS}; of a trace file 1).",
    ),
]
FirstSeed = Annotated[int, typer.Option("--seed", metavar="N", help="First seed.")]
WarmUp = Annotated[
    float, typer.Option(metavar="SHARE", help="Leave this share of the first requests out: 0.1.")
]
Jobs = Annotated[
    int | None,
    typer.Option("--jobs", "-j", metavar="N", help="Number of runs at a time (one per core)."),
]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Refuse rates above saturation; exit 1 if a run did not reach a steady state.",
    ),
]
TtftTarget = Annotated[
    float | None,
    typer.Option(metavar="S", help="Find the fewest instances with at most this P99 TTFT."),
]
TpotTarget = Annotated[
    float | None,
    typer.Option(metavar="S", help="Find the fewest instances with at most this P99 TPOT."),
]
KneeTarget = Annotated[
    float, typer.Option("--target-ttft-p99", metavar="S", help="P99 TTFT at the knee.")
]
OutputFormat = Annotated[TableOrJson, format_option]
Plot = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Draw a .png or .svg file; - draws in the terminal."),
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
    host_cache: HostCache = 0.0,
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
    """Compare policies on a cluster in virtual time.

    With targets, find the smallest cluster that meets them. The scheduler is the same as in a live
    cluster; the engines are a model with the times of a profile. The same options give the same
    figures.
    """
    if context.invoked_subcommand is not None:
        _nothing_before(context)
        return
    _check_numbers(rate or (), requests, clients, jobs, warm_up, host_cache)
    arguments.within(0, target_ttft_p99, "--target-ttft-p99", above=True)
    arguments.within(0, target_tpot_p99, "--target-tpot-p99", above=True)
    check_plot(plot)
    names = _names(workload, recording)
    targeted = target_ttft_p99 is not None or target_tpot_p99 is not None
    if autoscale is not None and targeted:
        raise UsageError(
            "--autoscale: not with targets, which are about clusters of a fixed size",
            "--instances 8..16 --target-ttft-p99 2",
        )
    bounds = None if autoscale is None else autoscale_bounds(autoscale, instances)
    sizes = cluster_sizes(instances or "16") if bounds is None else [bounds[2]]
    from controller.sim.run import Load
    from llumctl.config.settings import load_console
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
        host_cache_gib=host_cache,
        settings=config_file.parse_assignments(set_ or (), "--set", SET_HINT),
        faults=faults,
        warm_up=warm_up,
        autoscale=None if bounds is None else bounds[:2],
    )
    if seeds is not None:
        simulation.tell_simulated_once(wanted)
    targets = Targets(target_ttft_p99, target_tpot_p99)
    cost_per_hour = load_console().instance_cost_per_hour
    ran = simulation.compare(wanted, jobs, strict=strict)
    simulation.deliver(
        ran,
        None if targets == Targets() else targets,
        plot,
        as_json=output_format is TableOrJson.JSON,
        cost_per_hour=cost_per_hour,
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
    host_cache: HostCache = 0.0,
    set_: Assignments = None,
    target_ttft_p99: KneeTarget = KNEE_TARGET_S,
    jobs: Jobs = None,
    output_format: OutputFormat = TableOrJson.TABLE,
) -> None:
    """Find the rate at which the P99 TTFT under a policy is 30 s.

    The P99 TTFT is the mean over the seeds. With this rate loads of different workloads can be
    compared: as shares of it.
    """
    _check_numbers((), requests, None, jobs, 0.0, host_cache)
    arguments.within(0, target_ttft_p99, "--target-ttft-p99", above=True)
    (size, *more) = cluster_sizes(instances)
    if more:
        raise UsageError("--instances: a knee needs a single number of instances", "--instances 16")
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
        host_cache_gib=host_cache,
        settings=config_file.parse_assignments(set_ or (), "--set", SET_HINT),
    )
    if seeds is not None:
        simulation.tell_simulated_once(wanted)
    simulation.deliver_knee(
        wanted, target_ttft_p99, jobs, as_json=output_format is TableOrJson.JSON
    )


def _names(workload: list[str] | None, recording: Path | None) -> list[str]:
    """The names of the workloads. A recording is a workload whose name is its path."""
    if recording is not None:
        if workload is not None:
            raise UsageError("--from: not with --workload", f"{HINT}      or      --from FILE")
        return [str(recording) if recording.is_absolute() else f"./{recording}"]
    if not workload:
        raise UsageError("--workload: name a workload", HINT)
    return list(dict.fromkeys(workload))


def _nothing_before(context: typer.Context) -> None:
    """Refuses options before the subcommand: they belong to `simulate` and would be lost."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            command = f"llumctl simulate {context.invoked_subcommand}"
            raise UsageError(f"OPTIONS: must follow {command}", f"{command} --help")


def _check_numbers(
    rates: Sequence[float],
    requests: int | None,
    clients: int | None,
    jobs: int | None,
    warm_up: float,
    host_cache: float,
) -> None:
    for rate in rates:
        arguments.within(0, rate, "--rate", above=True)
    for value, flag in ((requests, "--requests"), (clients, "--clients"), (jobs, "--jobs")):
        arguments.within(1, value, flag)
    arguments.within(0, warm_up, "--warm-up", 0.9)
    arguments.within(0, host_cache, "--host-cache")


_SIZES = re.compile(r"(\d{1,5})(?:\.\.(\d{1,5}))?")


def cluster_sizes(text: str) -> list[int]:
    """The numbers of instances that `16` or `8..16` means."""
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
    """The fewest and the most instances, and their number at first."""
    found = _SIZES.fullmatch(text.strip())
    least, most = (int(found[1]), int(found[2])) if found and found[2] else (0, 0)
    if not 1 <= least <= most <= MAX_INSTANCES:
        raise UsageError(
            f"--autoscale: {text[:60]!r} is not a range from 1 to {MAX_INSTANCES}",
            "--autoscale 1..16",
        )
    if instances is None:
        return least, most, (least + most) // 2
    at_first = cluster_sizes(instances)
    if len(at_first) != 1 or not least <= at_first[0] <= most:
        raise UsageError(
            f"--instances: with --autoscale this is the number at first, from {least} to {most}",
            f"--autoscale {least}..{most} --instances {least}",
        )
    return least, most, at_first[0]


def seed_numbers(first: int, num: int | None) -> list[int]:
    arguments.within(0, first, "--seed")
    arguments.within(1, num, "--seeds", MAX_SEEDS)
    return list(range(first, first + (DEFAULT_SEEDS if num is None else num)))


# -- the figures of the paper -------------------------------------------------------------

PAPER_SEEDS = 10
PAPER_SHARES = (0.9, 1.0, 1.05)

PaperFigure = Annotated[FigureName, typer.Argument(help="Which figure of the paper.")]
PaperWorkloads = Annotated[
    list[str] | None,
    typer.Option("--workload", "-w", metavar="NAME", help="Only this trace; repeatable (all)."),
]
PaperSeeds = Annotated[
    int, typer.Option("--seeds", metavar="N", help="Runs of each case, with different seeds.")
]
PaperMiddle = Annotated[
    bool,
    typer.Option(
        "--middle", help="Simulate only the middle one of the paper's loads of each trace."
    ),
]
PaperModeOption = Annotated[
    Mode | None,
    typer.Option(
        "--mode",
        help="How engines schedule (prefill-first, as in the paper; with --matched chunked).",
    ),
]
PaperMatched = Annotated[
    bool,
    typer.Option(
        "--matched",
        help="Simulate figure11's traces, or figure13's bursts, at shares of the rate at which"
        " infaas++ has a P99 TTFT of 30 s, and add llumnix+.",
    ),
]
PaperShares = Annotated[
    list[float] | None,
    typer.Option("--load", metavar="SHARE", help="Share of that rate; repeatable (0.9, 1, 1.05)."),
]
PaperKnees = Annotated[
    list[str] | None,
    typer.Option(
        "--knee", metavar="NAME=RATE", help="That rate for a trace, if known; repeatable (search)."
    ),
]
PaperInstances = Annotated[
    int, typer.Option("--instances", "-n", metavar="N", help="Number of instances.")
]


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
    """Simulate a figure of the Llumnix paper.

    Each point is shown next to the paper's. Traces, rates and thresholds come from its authors.
    """
    for value, flag in ((requests, "--requests"), (jobs, "--jobs")):
        arguments.within(1, value, flag)
    arguments.within(1, instances, "--instances", MAX_INSTANCES)
    check_plot(plot)
    if plot is not None and str(plot) == "-":
        raise UsageError("--plot: a figure needs a file", "--plot figure.svg")
    if matched and (middle or figure not in (FigureName.FIGURE11, FigureName.FIGURE13)):
        raise UsageError(
            "--matched: only for figure11 and figure13, and not with --middle",
            "llumctl simulate paper figure11 --matched",
        )
    if not matched and (load or knee):
        raise UsageError("--load and --knee: only with --matched", "--matched --load 1.0")
    shares = tuple(dict.fromkeys(load or PAPER_SHARES))
    for share in shares:
        arguments.within(0, share, "--load", above=True)
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
    """The rates by trace, from texts of the form `NAME=RATE`."""
    found = {}
    for text in texts:
        name, _, rate = text.partition("=")
        try:
            found[name.strip()] = float(rate)
        except ValueError:
            raise UsageError(
                f"--knee: {text[:60]!r} is not of the form NAME=RATE", "--knee M-M=6.86"
            ) from None
        arguments.within(0, found[name.strip()], "--knee", above=True)
    return found


app.command("paper")(paper)
app.command("knee")(find_knee)
