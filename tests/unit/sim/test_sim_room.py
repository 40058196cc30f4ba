"""Room that is made on orders in a simulated cluster, as on live instances."""

from dataclasses import replace

import pytest

from controller.core.emptying.relieving import RoomGiven
from controller.core.emptying.room_plan import MakeRoom, MoveHead
from controller.core.settings import ReschedulingConfig
from controller.sim.cluster import SimCluster
from controller.sim.outcome import Outcome
from controller.sim.setup import ClusterSetup
from tests.unit.sim.runs import SMALL, STAY, policy, requests

# Round robin over three instances: i-0 gets the first of each three. Nothing moves by itself.
SMALL_ONES = [(0.0, 160, 200), (0.0, 160, 200), (0.0, 160, 200)]
TO_OTHERS = {"i-1": 40, "i-2": 40}


def ordered(
    rows: list[tuple[float, int, int]],
    order: MakeRoom | MoveHead,
    config: ReschedulingConfig = STAY,
) -> Outcome:
    """What came of the order, given at 2 s."""
    cluster = SimCluster(ClusterSetup(SMALL, policy(config, "round-robin"), 3))
    rounds = cluster.emptying.rounds

    def give() -> None:
        given = rounds.room_order(order, "round-1")
        cluster.emptying.source(order.source_id).handle(RoomGiven(given))

    cluster.events.at(2.0, give)
    outcome = cluster.run(requests(rows))
    for instance in cluster.instances.values():
        instance.engine.check()
    return outcome


# i-0 runs r-0 and has no room for r-3.
BLOCKED = [(0.0, 600, 200), (0.0, 160, 200), (0.0, 160, 200), (0.5, 480, 5)]


@pytest.mark.parametrize(
    ("rows", "order"),
    [
        (SMALL_ONES, MakeRoom("i-0", "", 0, 5, TO_OTHERS)),
        (BLOCKED, MoveHead("i-0", "r-3", "i-1")),
    ],
    ids=["for another", "a head"],
)
def test_a_request_moves_only_so_often_within_a_minute(rows, order) -> None:
    never = replace(STAY, max_moves_per_minute=0)
    for config, num_moved in ((STAY, 1), (never, 0), (replace(never, guard=False), 1)):
        assert ordered(rows, order, config).num_moved == num_moved


PLAN = MakeRoom("i-0", "", 0, 30, {"i-1": 25, "i-2": 25})
FULL = [(0.0, 320, 300), (0.0, 16, 300), (0.0, 700, 190), (0.5, 320, 300)]
"""r-0 and r-3 are on i-0; i-2 has no room for either, whatever the order says."""


def test_a_plan_is_given_up_whole_when_one_of_its_moves_fails() -> None:
    outcome = ordered(FULL, PLAN)
    assert outcome.num_failed_moves == {"no_blocks": 1, "plan_failed": 1}
    assert outcome.num_moved == 0
    assert len(outcome.rows) == len(FULL)
    roomy = [FULL[0], FULL[1], (0.0, 160, 40), FULL[3]]
    assert ordered(roomy, PLAN).num_moved == 2
