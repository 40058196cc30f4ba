"""Rules of rescheduling that only the simulator has: victims' turns, and the pairing `balanced`."""

from dataclasses import replace

import pytest

from controller.core.emptying.relief import ReliefRules, next_move
from controller.core.emptying.rounds import InstanceLoad
from controller.core.load.snapshot import DEFAULT_LEVELS, InstanceSnapshot
from controller.sim.baselines import (
    BALANCED,
    DEFRAG,
    LLUMNIX,
    VICTIMS,
    balanced_pairs,
    relief_rules,
)
from controller.sim.cluster import SimCluster
from controller.sim.setup import ClusterSetup, SimPolicy
from tests.unit.rescheduling.relief_builders import ARRIVALS, EASY, instance, running, view_of
from tests.unit.sim.runs import SMALL, requests

TURNS = {
    "llumnix": ["mid", "first", "old", "new"],
    "SR": ["mid", "old", "new"],
    "LR": ["new", "old", "mid"],
    "LCR": ["new", "mid", "old"],
    "FCW": ["first"],
    "FCWSR": ["first", "mid", "old", "new"],
}
TIGHT = replace(EASY, source_below_steps=96, destination_above_steps=96)


@pytest.mark.parametrize("victim", VICTIMS)
def test_each_victim_policy_has_its_turns(victim: str) -> None:
    immovable = [replace(c, refusal="multimodal") for c in ARRIVALS]
    decision = next_move(view_of(immovable, config=TIGHT), relief_rules(DEFRAG, victim))
    assert [each.request_id for each in decision.refused] == TURNS[victim]
    assert relief_rules(DEFRAG, LLUMNIX) is ReliefRules, "the live cluster's"


# -- balanced ---------------------------------------------------------------------------------

Loaded = tuple[InstanceLoad, InstanceSnapshot]


def batch(name: str, num_requests: int, num_blocks: int = 10, total_blocks: int = 100) -> Loaded:
    snapshot = instance(
        *(running(f"{name}{i}", num_blocks) for i in range(num_requests)),
        instance_id=name,
        total_blocks=total_blocks,
    )
    load = InstanceLoad.of(snapshot, DEFAULT_LEVELS, may_send=True, may_receive=True)
    return load, snapshot


def ids(loads: list[Loaded], *left_out: tuple[str, str]) -> list[tuple[str, str]]:
    return [(p.source_id, p.destination_id) for p in balanced_pairs(loads, left_out)]


@pytest.mark.parametrize(
    ("left", "right", "pairs"),
    [
        (3, 3, []),
        (4, 3, []),  # 3 and 4 would be no better
        (4, 2, [("a", "b")]),
        (1, 0, []),
        (2, 0, [("a", "b")]),
    ],
)
def test_balanced_pairs_while_the_destination_stays_the_freer_one(
    left: int, right: int, pairs: list[tuple[str, str]]
) -> None:
    assert ids([batch("a", left), batch("b", right)]) == pairs


def test_balanced_leaves_out_pairs_and_sources_whose_requests_are_too_large() -> None:
    """The large one would only change places; one of the many small ones helps."""
    loads = [batch("a", 6), batch("b", 4), batch("c", 3), batch("d", 1)]
    assert ids(loads) == [("a", "d")]
    assert ids(loads, ("a", "d")) == [("a", "c"), ("b", "d")]
    assert ids(loads, ("a", "d"), ("a", "c"), ("a", "b")) == [("b", "d")]
    assert ids([batch("a", 1, 96), batch("b", 24, 2, 200), batch("c", 1, 6)]) == [("b", "c")]
    load, snapshot = batch("a", 1)
    assert ids([(replace(load, draining=True), snapshot), batch("b", 9)]) == [("a", "b")]


def test_a_simulated_cluster_goes_by_them() -> None:
    """All requests come to round-robin's instances in turn, the long ones to the first."""
    trace = requests((n / 100, 400 if n % 2 == 0 else 16, 200) for n in range(20))
    policy = SimPolicy("test", "round-robin", EASY, pairing=BALANCED, victim="LCR")
    outcome = SimCluster(ClusterSetup(SMALL, policy, 2)).run(trace)
    assert len(outcome.rows) == 20
    assert outcome.num_moved > 0
