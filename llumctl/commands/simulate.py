"""`llumctl simulate`: policies compared on clusters in virtual time."""

from collections.abc import Sequence
from pathlib import Path

import typer

from controller.api.errors import EXIT_FAILED, UsageError
from llumctl.commands import simulate_options as options
from llumctl.commands import simulate_paper
from llumctl.commands.options import TableOrJson, positive
from llumctl.commands.simulate_options import within
from llumctl.config import config_file

app = typer.Typer(name="simulate", rich_markup_mode=None)
app.command("paper")(simulate_paper.paper)
HINT = "llumctl simulate --workload M-M --rate 7.5"
SET_HINT = "--set migration.source_below_steps=160"


@app.callback(invoke_without_command=True)
def simulate(
    context: typer.Context,
    workload: options.Workloads = None,
    recording: options.From = None,
    rate: options.Rates = None,
    instances: options.MaybeInstances = None,
    autoscale: options.Autoscale = None,
    policy: options.Policies = None,
    seeds: options.NumSeeds = None,
    seed: options.FirstSeed = 1,
    requests: options.NumRequests = None,
    cv: options.Cv = None,
    shape: options.ShapeOption = None,
    high_fraction: options.HighFraction = None,
    clients: options.NumClients = None,
    speed: options.Speed = None,
    start: options.Start = None,
    duration: options.Duration = None,
    drop_too_long: options.DropTooLong = False,
    profile: options.Profile = options.DEFAULT_PROFILE,
    mode: options.ModeOption = options.Mode.CHUNKED,
    prefix_caching: options.PrefixCaching = False,
    set_: options.Assignments = None,
    faults: options.Faults = None,
    warm_up: options.WarmUp = 0.0,
    target_ttft_p99: options.TtftTarget = None,
    target_tpot_p99: options.TpotTarget = None,
    strict: options.Strict = False,
    jobs: options.Jobs = None,
    output_format: options.OutputFormat = TableOrJson.TABLE,
    plot: options.Plot = None,
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
    options.check_plot(plot)
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
    bounds = None if autoscale is None else options.autoscale(autoscale, instances)
    sizes = options.sizes(instances or "16") if bounds is None else [bounds[2]]
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
        policies=list(dict.fromkeys(policy or options.DEFAULT_POLICIES)),
        seeds=options.seeds(seed, seeds),
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


@app.command("knee")
def find_knee(
    workload: options.Workload,
    instances: options.NumInstances = "16",
    policy: options.Policy = options.KNEE_POLICY,
    seeds: options.NumSeeds = None,
    seed: options.FirstSeed = 1,
    requests: options.NumRequests = None,
    cv: options.Cv = None,
    shape: options.ShapeOption = None,
    high_fraction: options.HighFraction = None,
    drop_too_long: options.DropTooLong = False,
    profile: options.Profile = options.DEFAULT_PROFILE,
    mode: options.ModeOption = options.Mode.CHUNKED,
    prefix_caching: options.PrefixCaching = False,
    set_: options.Assignments = None,
    target_ttft_p99: options.KneeTarget = options.KNEE_TARGET_S,
    jobs: options.Jobs = None,
    output_format: options.OutputFormat = TableOrJson.TABLE,
) -> None:
    """Find the rate at which a policy's P99 TTFT, its mean over seeds, is 30 s.

    Loads that are as far from it are comparable, whatever the workload.
    """
    _check_numbers((), requests, None, jobs, 0.0)
    positive(target_ttft_p99, "--target-ttft-p99")
    (size, *more) = options.sizes(instances)
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
        seeds=options.seeds(seed, seeds),
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
