"""Room that is made on orders in a simulated cluster, as on live instances."""

from collections.abc import Callable
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


def give_order(cluster: SimCluster, order: MakeRoom | MoveHead) -> None:
    emptying = cluster.emptying
    given = emptying.rounds.room_order(order, "round-1")
    emptying.source(order.source_id).handle(RoomGiven(given))


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
        for order in orders:
            give_order(cluster, order)

    cluster.events.at(at_s, give)
    outcome = cluster.run(requests(rows))
    for instance in cluster.instances.values():
        instance.engine.check()
    return cluster, outcome


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
        assert ordered(rows, order, config=config)[1].num_moved == num_moved


@pytest.mark.parametrize(("spare", "num_moved"), [(20, 1), (40, 2)])
def test_a_plan_does_not_count_on_the_room_of_those_behind_a_head(spare, num_moved) -> None:
    """r-3 waits, blocked, and r-6 behind it; i-1 can take r-6 with 10 blocks, or r-0 with 12."""
    rows = [(0.0, 180, 200), (0.0, 16, 200), (0.0, 16, 200), (0.5, 850, 5)]
    rows += [(0.6, 16, 5), (0.7, 16, 5), (0.8, 160, 5)]
    order = MakeRoom("i-0", "r-3", 0, 12, {"i-1": spare})
    assert ordered(rows, order)[1].num_moved == num_moved


PLAN = MakeRoom("i-0", "", 0, 30, {"i-1": 25, "i-2": 25})
FULL = [(0.0, 320, 300), (0.0, 16, 300), (0.0, 700, 190), (0.5, 320, 300)]
"""r-0 and r-3 are on i-0; i-2 has no room for either, whatever the order says."""


def test_a_plan_is_given_up_whole_when_one_of_its_moves_fails() -> None:
    _, outcome = ordered(FULL, PLAN)
    assert outcome.num_failed_moves == {"no_blocks": 1, "plan_failed": 1}
    assert outcome.num_moved == 0
    assert len(outcome.rows) == len(FULL)
    roomy = [FULL[0], FULL[1], (0.0, 160, 40), FULL[3]]
    assert ordered(roomy, PLAN)[1].num_moved == 2


def test_a_request_that_ends_before_it_has_moved_keeps_nobody_of_its_plan_here() -> None:
    """r-3 ends on i-0 while its blocks are copied over a slow link."""

    def slow(cluster: SimCluster) -> None:
        cluster.emptying.slow_link("i-0", 5.0)

    rows = [(0.0, 320, 300), (0.0, 16, 300), (0.0, 16, 40), (0.5, 320, 30)]
    _, outcome = ordered(rows, PLAN, at_s=1.5, also=slow)
    assert outcome.num_failed_moves == {"finished": 1}
    assert outcome.num_moved == 1


def test_of_all_orders_that_come_within_a_step_the_last_one_counts() -> None:
    """i-0 computes a long prompt when they come."""
    rows = [*SMALL_ONES, (1.95, 640, 20)]
    stale = MakeRoom("i-0", "r-9", 0, 5, {"i-1": 40})
    last = replace(stale, spare_blocks={"i-2": 40})
    cluster, outcome = ordered(rows, stale, last, replace(last, lacking_blocks=60))
    assert outcome.num_moved == 0
    cluster, outcome = ordered(rows, replace(stale, lacking_blocks=60), last)
    assert outcome.num_moved == 1
    assert cluster.emptying.num_failed == {}
