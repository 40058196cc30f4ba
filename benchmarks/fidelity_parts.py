"""What `make bench-fidelity` compares: two clusters, the trace of each, and how each is simulated.

emulated    4 instances of `a10-llama-7b` with 300 KV blocks each, so that memory runs short within
            minutes and requests move. Their step times are the profile's by construction: what is
            compared is all that is around them.
vllm        one real engine of the embedded model. Two would share two cores with the frontend and
            the client, and slow each other's steps, which no profile of one engine can tell.

The load of the probe is one request at a time: what the client then waits for beside the engine is
the overhead that is added to the simulator's TTFT.
"""

import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.engine_plan import EnginePlan, make_plan
from benchmarks.policy_cluster import Cast, emulated_cluster
from benchmarks.same_trace import LIMIT_FACTOR, live_settings, smaller
from benchmarks.servers import LlumctlServer, ServerError, llumctl
from controller.model.profile import LatencyProfile, load_profile
from controller.sim.rates import saturation_rate
from controller.sim.run import Load, fitting
from controller.sim.setup import ClusterSetup, Fault, SimPolicy, sim_policy, with_settings
from controller.sim.workload.trace import Trace, TraceRequest
from llumctl.lab.paper import settings as paper_settings

LENGTHS = "S-S"
NUM_EMULATED = 4
NUM_BLOCKS = 300
RATE = 4.6
"""On the emulated instances: 0.7 of the rate at which they saturate, by the simulator's estimate;
requests move, and hardly any is evicted."""
LOAD_OF_ONE = 0.6
"""Of the rate at which the real engine saturates by that estimate."""
PROBE_LENGTHS = (32, 96, 192)
PROBE_GAP_S = 0.5
NUM_PROBES = 24
PROFILE_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Size:
    num_requests: int
    num_runs: int


@dataclass(frozen=True, slots=True)
class Part:
    """`profile` is what the simulator has; live engines are `speed` times as fast."""

    name: str
    profile: LatencyProfile
    policy: SimPolicy
    num_instances: int
    speed: float
    make_cluster: Callable[[], LlumctlServer]

    def setup(self) -> ClusterSetup:
        return ClusterSetup(
            self.profile, self.policy, self.num_instances, limit_factor=LIMIT_FACTOR
        )

    def busy_setup(self, slowdown: float) -> ClusterSetup:
        """Steps take so many times as long as the profile says."""
        faults = tuple(
            Fault(0.0, "slow-steps", f"i-{number}", slowdown)
            for number in range(self.num_instances)
        )
        return replace(self.setup(), faults=faults)

    def trace(self, num_requests: int, seed: int) -> Trace:
        """Without requests that are too long for an instance."""
        setup = self.setup()
        load = Load(LENGTHS, RATE, num_requests, drop_too_long=True)
        trace, _ = fitting(load.trace(seed), setup, load)
        if self.name == "emulated":
            return trace
        rate = LOAD_OF_ONE * saturation_rate(trace, setup.profile, 1, setup.mode)
        faster = [each.arriving(each.arrival_s * RATE / rate) for each in trace.requests]
        return Trace(trace.name, faster)

    def probe(self) -> Trace:
        """One request at a time, from when the one before is long over."""
        gap_s = PROBE_GAP_S * self.speed
        return Trace(
            "probe",
            [
                TraceRequest(number * gap_s, PROBE_LENGTHS[number % len(PROBE_LENGTHS)], 2)
                for number in range(NUM_PROBES)
            ],
        )


def emulated(speed: float) -> Part:
    profile = smaller(load_profile("a10-llama-7b"), NUM_BLOCKS)
    policy = _policy()
    cast = Cast(policy, NUM_EMULATED, "a10-llama-7b", speed, NUM_BLOCKS)
    return Part("emulated", profile, policy, NUM_EMULATED, speed, lambda: emulated_cluster(cast))


def vllm(folder: Path) -> Part:
    """Measures the engine's profile once; the file stays in the folder. Raises ServerError."""
    plan, policy = make_plan(1), _policy()
    path = folder / "embedded.toml"
    if not path.exists():
        _measure_profile(plan, path)
    # As the profile is measured; without it an evicted request finds its blocks again.
    settings = live_settings(policy, 1.0) | {"engine.enable_prefix_caching": False}
    return Part(
        *("vllm", load_profile(str(path)), policy, 1, 1.0),
        lambda: LlumctlServer(plan, settings=settings),
    )


def _policy() -> SimPolicy:
    return with_settings(sim_policy("llumnix"), paper_settings("llumnix", LENGTHS))


def _measure_profile(plan: EnginePlan, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    arguments: Mapping[str, object] = {
        "kv_cache_memory_bytes": plan.engine_args["kv_cache_memory_bytes"]
    }
    given = [part for item in arguments.items() for part in ("--engine-arg", "{}={}".format(*item))]
    command = [llumctl(), "profile", "-n", "1", "-o", str(path), *given]
    try:
        subprocess.run(command, check=True, timeout=PROFILE_TIMEOUT_S)
    except (subprocess.SubprocessError, OSError) as error:
        raise ServerError(f"llumctl profile: {error}") from error
