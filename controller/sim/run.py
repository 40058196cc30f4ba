"""One run from its description to its figures. A description is plain values, so that it can be
sent to another process.
"""

from collections.abc import Callable
from dataclasses import dataclass

from controller.core.load.snapshot import NORMAL
from controller.core.settings import ReschedulingConfig
from controller.model.profile import ModelConfig
from controller.sim.bounds import ORACLES, PooledCluster
from controller.sim.cluster import SimCluster
from controller.sim.outcome import Summary, summarize
from controller.sim.rates import saturation_rate
from controller.sim.setup import ClusterSetup, SimPolicy, sim_policy
from controller.sim.workload.named import SHAPES, workload
from controller.sim.workload.trace import Trace, TraceRequest

NUM_REPORTS = 200
"""How often progress is reported while requests arrive."""


class CannotRunError(ValueError):
    """The cluster cannot run this workload; the message says why."""


@dataclass(frozen=True, slots=True)
class Load:
    """A workload by its name, with the options of `workload.named.workload`; `shape` is a name in
    `workload.named.SHAPES`.

    `drop_too_long`: leaves out requests that no instance could run to their end; otherwise they are
    an error.
    """

    workload: str
    rate: float | None = None
    num_requests: int | None = None
    cv: float | None = None
    shape: str | None = None
    high_fraction: float | None = None
    num_clients: int | None = None
    speed: float | None = None
    start_s: float | None = None
    duration_s: float | None = None
    drop_too_long: bool = False

    def trace(self, seed: int) -> Trace:
        """Makes the trace. Raises ValueError: see `workload.named.workload`."""
        return workload(
            self.workload,
            rate=self.rate,
            num_requests=self.num_requests,
            seed=seed,
            cv=self.cv,
            shape=None if self.shape is None else SHAPES[self.shape],
            high_fraction=self.high_fraction,
            num_clients=self.num_clients,
            speed=self.speed,
            start_s=self.start_s,
            duration_s=self.duration_s,
        )


@dataclass(frozen=True, slots=True)
class Run:
    """The description of a run. `settings`: the settings that the policy in `setup` got, as texts
    for the record. `warm_up`: the share of the first requests that is left out of the figures."""

    load: Load
    setup: ClusterSetup
    seed: int = 1
    warm_up: float = 0.0
    settings: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Ran:
    """The figures of a run that was carried out. `rate`: the mean rate at which the requests
    arrived, even if the load gives none. `saturation_rate`: the highest rate of these requests that
    the instances could serve; with auto-scaling, the largest number of instances counts."""

    run: Run
    rate: float
    saturation_rate: float
    num_requests: int
    num_dropped: int
    summary: Summary


def carry_out(run: Run, on_progress: Callable[[float], None] | None = None) -> Ran:
    """Simulates the run; the same run gives the same figures. `on_progress` is called with the
    share of requests that has ended.

    Raises:
        CannotRunError: a request is too long for an instance.
        ValueError: there is no such workload, or its file is wrong.
    """
    trace, num_dropped = fitting(run.load.trace(run.seed), run.setup, run.load)
    cluster = cluster_of(run.setup)
    if on_progress is not None:
        _tell(cluster, trace, on_progress)
    outcome = cluster.run(trace)
    arrivals_s = [each.arrival_s for each in trace.requests]
    summary = summarize(outcome, arrivals_s, run.warm_up, run.setup.policy.levels)
    rate = trace.rate if run.load.rate is None else run.load.rate
    setup = run.setup
    limit = saturation_of(trace, setup)
    return Ran(run, rate, limit, len(trace.requests), num_dropped, summary)


def saturation_of(trace: Trace, setup: ClusterSetup) -> float:
    """The highest rate of these requests that the cluster could serve, by the estimate."""
    return saturation_rate(
        trace,
        setup.profile,
        setup.max_instances,
        setup.mode,
        prefix_caching=setup.prefix_caching,
    )


def policy_named(name: str) -> SimPolicy:
    """The policy of this name. For a bound (a name in `bounds.ORACLES`) it returns a policy of
    which only the name matters. Raises ValueError naming the nearest valid one."""
    if name.upper() in ORACLES:
        return SimPolicy(name.upper(), "llumnix", ReschedulingConfig(enabled=False), (NORMAL,))
    try:
        return sim_policy(name)
    except ValueError as error:
        raise ValueError(f"{error}, and the bounds {', '.join(ORACLES)}") from error


def cluster_of(setup: ClusterSetup) -> SimCluster | PooledCluster:
    """The cluster of this setup. Raises ValueError if the setup has something that a bound cannot
    have."""
    bound = ORACLES.get(setup.policy.name)
    return SimCluster(setup) if bound is None else bound(setup)


def fitting(trace: Trace, setup: ClusterSetup, load: Load) -> tuple[Trace, int]:
    """The requests that an instance can run to their end, and how many were left out.

    Raises:
        CannotRunError: a request is too long, and is not to be left out; or no request is left.
    """
    config = ModelConfig.of(setup.profile, mode=setup.mode, prefix_caching=setup.prefix_caching)
    found = too_long(trace, config)
    if not found:
        return trace, 0
    if not load.drop_too_long:
        more = f", and {len(found) - 1} more are too long" if len(found) > 1 else ""
        raise CannotRunError(f"{trace.name} on instances of {setup.profile.name}: {found[0]}{more}")
    dropped = {each.index for each in found}
    kept = [each for index, each in enumerate(trace.requests) if index not in dropped]
    if not kept:
        raise CannotRunError(
            f"{trace.name} on instances of {setup.profile.name}: all requests are too long"
        )
    return Trace(trace.name, kept, trace.prefix_hash_tokens), len(dropped)


def _tell(
    cluster: SimCluster | PooledCluster, trace: Trace, on_progress: Callable[[float], None]
) -> None:
    """Reports progress from time to time, without changing what happens in the cluster."""
    events, outcome, num = cluster.events, cluster.outcome, len(trace.requests)
    every_s = max(trace.span_s / NUM_REPORTS, 1.0)

    def look() -> None:
        on_progress((len(outcome.rows) + outcome.num_failed) / num)
        events.after(every_s, look)

    events.at(0.0, look)


@dataclass(frozen=True, slots=True)
class TooLong:
    """A request that is too long for an instance. `index`: its place in the trace. `why`: what it
    would need."""

    index: int
    request: TraceRequest
    why: str

    def __str__(self) -> str:
        return f"request {self.index} (at {self.request.arrival_s:.3f} s) {self.why}"


def too_long(trace: Trace, config: ModelConfig) -> list[TooLong]:
    """The requests that an engine of this configuration refuses, or ends before their final output
    token, in order of arrival."""
    return [
        TooLong(index, request, why)
        for index, request in enumerate(trace.requests)
        if (why := _why(request, config))
    ]


def _why(request: TraceRequest, config: ModelConfig) -> str:
    num_prompt_tokens, num_output_tokens = request.num_prompt_tokens, request.num_output_tokens
    refusal = config.refusal(num_prompt_tokens, num_output_tokens)
    wanted = num_prompt_tokens + num_output_tokens
    if not refusal and config.end_tokens(num_prompt_tokens, num_output_tokens) < wanted:
        return f"wants {wanted} tokens, but max_model_len is {config.max_model_len}"
    return refusal
