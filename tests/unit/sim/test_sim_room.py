"""Room that is made on order in a simulated cluster: as on live instances."""

from collections.abc import Callable
from dataclasses import replace

from controller.core.holding.blocked import MakeRoom, MoveHead
from controller.core.rescheduling.config import ReschedulingConfig
from controller.sim.cluster import SimCluster
from controller.sim.outcome import Outcome
from controller.sim.setup import ClusterSetup
from tests.unit.sim.runs import SMALL, STAY, policy, requests

# Round robin over three instances: i-0 gets the first of each three. Nothing moves by itself.
SMALL_ONES = [(0.0, 160, 200), (0.0, 160, 200), (0.0, 160, 200)]
TO_OTHERS = {"i-1": 40, "i-2": 40}


def ordered(
    rows: list[tuple[float, int, int]],
    *orders: MakeRoom | MoveHead,
    at_s: float = 2.0,
    also: Callable[[SimCluster], None] = lambda _: None,
    config: ReschedulingConfig = STAY,
) -> tuple[SimCluster, Outcome]:
    """What came of the orders, given at `at_s` at once."""
    cluster = SimCluster(ClusterSetup(SMALL, policy(config, "round-robin"), 3))

    def give() -> None:
        also(cluster)
        cluster.rescheduler.help_blocked(orders)

    cluster.events.at(at_s, give)
    outcome = cluster.run(requests(rows))
    for instance in cluster.instances.values():
        instance.engine.check()
    return cluster, outcome


def test_a_request_moves_only_so_often_within_a_minute() -> None:
    order = MakeRoom("i-0", "", 0, 5, TO_OTHERS)
    assert ordered(SMALL_ONES, order)[1].num_moved == 1
    never = replace(STAY, max_moves_per_minute=0)
    assert ordered(SMALL_ONES, order, config=never)[1].num_moved == 0
    unguarded = replace(never, guard=False)
    assert ordered(SMALL_ONES, order, config=unguarded)[1].num_moved == 1


def test_nor_does_a_head() -> None:
    """i-0 runs r-0 and has no room for r-3."""
    rows = [(0.0, 600, 200), (0.0, 160, 200), (0.0, 160, 200), (0.5, 480, 5)]
    order = MoveHead("i-0", "r-3", "i-1")
    assert ordered(rows, order)[1].num_moved == 1
    never = replace(STAY, max_moves_per_minute=0)
    assert ordered(rows, order, config=never)[1].num_moved == 0


def test_a_plan_does_not_count_on_the_room_of_those_behind_a_head() -> None:
    """r-3 waits, blocked, and r-6 behind it; i-1 can take r-6 with 10 blocks, or r-0 with 12."""
    rows = [
        (0.0, 180, 200),
        (0.0, 16, 200),
        (0.0, 16, 200),
        (0.5, 850, 5),
        (0.6, 16, 5),
        (0.7, 16, 5),
        (0.8, 160, 5),
    ]
    held_by = {}
    for spare in (20, 40):
        order = MakeRoom("i-0", "r-3", 0, 12, {"i-1": spare})
        held_by[spare] = ordered(rows, order)[1].num_moved
    assert held_by == {20: 1, 40: 2}
