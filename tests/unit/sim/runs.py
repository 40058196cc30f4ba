"""Small clusters and traces in virtual time, for tests."""

from collections.abc import Iterable
from dataclasses import replace

from controller.core.settings import ReschedulingConfig
from controller.model.profile import load_profile
from controller.sim.cluster import SimCluster
from controller.sim.outcome import Outcome
from controller.sim.setup import ClusterSetup, SimPolicy
from controller.sim.workload.trace import Trace, TraceRequest

A10 = load_profile("a10-llama-7b")
SMALL = replace(A10, num_total_blocks=60, max_model_len=900, watermark_ratio=0.02)
STAY = ReschedulingConfig(enabled=False)
MOVE = ReschedulingConfig(guard=False)


def policy(rescheduling: ReschedulingConfig = MOVE, dispatch: str = "llumnix") -> SimPolicy:
    return SimPolicy("test", dispatch, rescheduling)


def requests(rows: Iterable[tuple[float, int, int]]) -> Trace:
    """Of (arrival in seconds, prompt tokens, output tokens)."""
    return Trace("test", [TraceRequest(*row) for row in rows])


def run(setup: ClusterSetup, trace: Trace) -> tuple[SimCluster, Outcome]:
    cluster = SimCluster(setup)
    return cluster, cluster.run(trace)


def column(outcome: Outcome, name: str) -> list[float]:
    return list(outcome.rows.columns[name])
