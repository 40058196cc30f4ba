"""A pair between which nothing moves does not keep others from their work."""

from controller.core.emptying.openness import FRUITLESS_S, Avoided, fruitless_until_s
from controller.core.settings import ReschedulingConfig
from controller.model.engine_state import ModelRequest
from tests.unit.rescheduling.model_cluster import ModelCluster

CONFIG = ReschedulingConfig()


def test_a_pair_is_left_out_for_a_second_or_some_rounds() -> None:
    pairs: Avoided[tuple[str, str]] = Avoided()
    pairs.avoid(("a", "b"), fruitless_until_s(10.0, CONFIG.interval_s))
    assert list(pairs.at(10.0 + FRUITLESS_S - 0.01)) == [("a", "b")]
    assert list(pairs.at(10.0 + FRUITLESS_S)) == []
    pairs.avoid(("a", "b"), fruitless_until_s(10.0, 60.0))
    assert list(pairs.at(10.0 + 60.0)) == [("a", "b")], "or the next round would be the same"
    pairs.clear()
    assert list(pairs.at(10.0)) == []


def test_a_lone_high_request_does_not_keep_the_best_destination_for_itself() -> None:
    """It is over its target load by itself, so its instance is the lowest for ever, and it stays.
    The other one is full and has one destination only."""
    cluster = ModelCluster(3)
    cluster.add(ModelRequest("high", 2000, 3000, 1), "i-0")
    for number in range(12):
        cluster.add(ModelRequest(f"n{number}", 900, 600), "i-1")
    cluster.run_until(20)
    assert cluster.freeness("i-0") < 0
    assert cluster.at["high"] == "i-0"
    assert {moved.source_id for moved in cluster.moved} == {"i-1"}
    assert {moved.destination_id for moved in cluster.moved} == {"i-2"}
    assert cluster.num_evictions == 0


def test_a_draining_instance_tries_the_next_one_where_the_freest_has_no_room() -> None:
    """In blocks, of 851: i-1 has one request of 700, i-2 ten of 50; one of 200 is to leave i-0."""
    cluster = ModelCluster(3)
    cluster.add(ModelRequest("left", 200 * 16 - 40, 2000), "i-0")
    cluster.add(ModelRequest("large", 700 * 16 - 40, 2000), "i-1")
    for number in range(10):
        cluster.add(ModelRequest(f"n{number}", 50 * 16 - 40, 2000), "i-2")
    cluster.run_until(3)
    assert not cluster.moved
    assert cluster.freeness("i-1") > cluster.freeness("i-2") > CONFIG.destination_above_steps
    assert cluster.snapshot("i-1").num_free_blocks < 200 < cluster.snapshot("i-2").num_free_blocks
    cluster.nodes["i-0"].draining = True
    cluster.run_until(4)
    assert [order[1:] for order in cluster.orders[:2]] == [("i-0", "i-1"), ("i-0", "i-2")]
    assert [(moved.destination_id, moved.reason) for moved in cluster.moved] == [("i-2", "drain")]
