"""The short cuts that make a simulated cluster fast change no outcome."""

import random
from unittest import mock

import pytest

from controller.core.load.snapshot import InstanceSnapshot
from controller.core.settings import HoldingConfig, ReschedulingConfig
from controller.sim.cluster import SimCluster, SimEmptying
from controller.sim.outcome import Outcome
from controller.sim.setup import SIM_POLICIES, ClusterSetup, Fault, SimPolicy
from controller.sim.workload.trace import Trace
from tests.unit.sim.runs import SMALL, requests

SEEDS = range(8)
MOVES = ReschedulingConfig(guard=False, source_below_steps=40, destination_above_steps=60)
FAULTS = (
    Fault(1.5, "kill", "i-1"),
    Fault(2.0, "slow-steps", "i-2", 2.0),
    Fault(2.5, "drain", "i-0"),
)

pytestmark = pytest.mark.long


def everything(outcome: Outcome) -> tuple[object, ...]:
    return (
        {name: bytes(column) for name, column in outcome.rows.columns.items()},
        outcome.sampled,
        outcome.num_failed_moves,
        outcome.downtimes_s,
        outcome.num_steps,
        outcome.duration_s,
    )


def every_status(emptying: SimEmptying, _now_s: float) -> list[InstanceSnapshot]:
    return [each.status() for each in emptying._instances.values() if each.alive]


def the_long_way(setup: ClusterSetup, trace: object) -> Outcome:
    """All instances report before each dispatch and in each round, which looks at all of them."""
    with (
        mock.patch.object(SimCluster, "_report_for", lambda cluster, _: cluster._report_all()),
        mock.patch.object(SimCluster, "_may_help", return_value=True),
        mock.patch.object(SimEmptying, "statuses", every_status),
    ):
        return SimCluster(setup).run(trace)  # type: ignore[arg-type]


def drawn(seed: int) -> Trace:
    """Within seconds, so that most wait for room, or within a minute, so that most decode alone."""
    dice = random.Random(seed)
    last_s = dice.choice((5, 20, 60))
    times = sorted(dice.uniform(0, last_s) for _ in range(60))
    return requests((at, dice.randint(1, 500), dice.randint(1, 300)) for at in times)


def same_the_long_way(setup: ClusterSetup, trace: Trace) -> None:
    assert everything(SimCluster(setup).run(trace)) == everything(the_long_way(setup, trace))


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("faults", [(), FAULTS])
def test_moves_and_late_binding_are_the_same_as_when_all_is_looked_at(late, faults) -> None:
    holding = HoldingConfig(room_to_grow_tokens=32) if late else None
    policy = SimPolicy("test", "llumnix", MOVES, holding=holding)
    for seed in SEEDS:
        same_the_long_way(ClusterSetup(SMALL, policy, 4, faults=faults), drawn(seed))


@pytest.mark.parametrize("name", sorted(SIM_POLICIES))
def test_every_policy_dispatches_as_if_all_had_reported(name) -> None:
    for seed in SEEDS[:3]:
        same_the_long_way(ClusterSetup(SMALL, SIM_POLICIES[name], 4), drawn(seed))


@pytest.mark.parametrize("seed", [73, 97, 221])
def test_memory_that_becomes_short_by_decoding_alone_counts_for_all_instances(seed) -> None:
    """While one decodes long outputs, bursts of short requests come to the other."""
    dice = random.Random(seed)
    num_first = dice.randint(8, 20)
    rows = [(n / 1000, dice.randint(16, 40), 300 if n % 2 else 2) for n in range(num_first)]
    for _ in range(14):
        at = dice.uniform(1, 14)
        burst = range(dice.randint(8, 30))
        rows += [(at + n / 10_000, dice.randint(1, 16), dice.randint(1, 4)) for n in burst]
    same_the_long_way(ClusterSetup(SMALL, SIM_POLICIES["llumnix+"], 2), requests(sorted(rows)))
