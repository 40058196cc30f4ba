"""The policy at work on engine models in virtual time: it does what it is for, and then rests."""

import random

import pytest

from controller.core.settings import ReschedulingConfig
from controller.model.engine_state import ModelRequest
from tests.unit.rescheduling.model_cluster import ModelCluster, arrivals

NO_MOVES = ReschedulingConfig(enabled=False)


def request(request_id: str, prompt: int, output: int, rank: int = 0) -> ModelRequest:
    return ModelRequest(request_id, prompt, output, rank)


# -- what it is for ---------------------------------------------------------------------------


def crowded(config: ReschedulingConfig) -> ModelCluster:
    """Twelve requests that outgrow one instance of four: 12 x 1,200 tokens of 13,616."""
    cluster = ModelCluster(4, config)
    for number in range(12):
        cluster.add(request(f"r{number}", 600, 600), "i-0")
    return cluster


def test_an_overloaded_instance_is_relieved_before_it_evicts() -> None:
    without = crowded(NO_MOVES)
    without.run_until(60)
    assert without.num_evictions > 0
    cluster = crowded(ReschedulingConfig())
    cluster.run_until(60)
    assert cluster.num_evictions == 0
    assert len(cluster.finished) == 12
    assert {moved.reason for moved in cluster.moved} == {"balance"}
    assert len(cluster.moved) <= 4, "no more than it takes"


def fragmented(config: ReschedulingConfig) -> ModelCluster:
    """Each of four instances has 3,600 tokens free; a prompt of 6,000 comes."""
    cluster = ModelCluster(4, config)
    for number in range(4):
        for each in range(5):
            cluster.add(request(f"r{number}-{each}", 2000, 2000), f"i-{number}")
    cluster.at_time(10, lambda: cluster.add(request("long", 6000, 50), "i-2"))
    return cluster


def test_a_long_prompt_that_fits_nowhere_gets_in_because_others_move() -> None:
    cluster = fragmented(NO_MOVES)
    cluster.run_until(20)
    assert "long" not in cluster.first_token_s
    assert all(cluster.snapshot(each).num_free_blocks < 6000 / 16 for each in cluster.nodes)
    cluster = fragmented(ReschedulingConfig())
    cluster.run_until(14)
    assert cluster.num_evictions == 0
    assert "long" in cluster.first_token_s
    assert [(moved.source_id, moved.reason) for moved in cluster.moved] == [
        ("i-2", "queue head")
    ] * 2


def test_neighbours_leave_a_high_requests_instance_down_to_the_target_load() -> None:
    cluster = ModelCluster(4)
    for number in range(8):
        cluster.add(request(f"n{number}", 400, 3000), "i-0")
    cluster.at_time(2, lambda: cluster.add(request("high", 400, 400, rank=1), "i-0"))
    cluster.run_until(1.9)
    assert not cluster.moved
    crowded_step_s = cluster.nodes["i-0"].step_time_s
    cluster.run_until(8)
    assert cluster.at["high"] == "i-0"
    assert {moved.reason for moved in cluster.moved} == {"headroom"}
    used_tokens = 16 * cluster.snapshot("i-0").num_used_blocks
    assert used_tokens <= 1600
    assert cluster.num_emitted["high"] > 20
    assert cluster.nodes["i-0"].step_time_s < crowded_step_s
    assert not cluster.moves_of("high")


def test_a_new_instance_fills() -> None:
    cluster = ModelCluster(2)
    for number in range(32):
        cluster.add(request(f"r{number}", 780, 3000), f"i-{number % 2}")
    cluster.run_until(6)
    assert not cluster.moved, "both are full: there is nowhere to go"
    assert max(cluster.freeness("i-0"), cluster.freeness("i-1")) < 48
    new = cluster.launch()
    cluster.run_until(8)
    assert cluster.num_evictions == 0
    assert cluster.snapshot(new).num_running >= 2
    assert {moved.destination_id for moved in cluster.moved} == {new}
    assert min(cluster.freeness(each) for each in cluster.nodes) > 0


def test_a_draining_instance_empties_and_nobody_comes() -> None:
    cluster = ModelCluster(3)
    for number in range(12):
        cluster.add(request(f"r{number}", 500, 1000), f"i-{number % 3}")
    cluster.run_until(5)
    cluster.add(request("waits", 12000, 100), "i-1")
    cluster.nodes["i-1"].draining = True
    assert not cluster.moved
    assert cluster.snapshot("i-1").num_running == 4
    cluster.run_until(8)
    left = cluster.snapshot("i-1")
    assert (left.num_running, left.num_queued) == (0, 0)
    drained = [moved for moved in cluster.moved if moved.source_id == "i-1"]
    assert drained[0].request_id == "waits", "the queue first"
    assert {moved.reason for moved in drained} == {"drain"}
    assert "i-1" not in {moved.destination_id for moved in cluster.moved}
    cluster.run_until(150)
    assert cluster.finished == set(cluster.requests)
    for each in cluster.requests.values():
        assert cluster.num_emitted[each.request_id] == each.max_output_tokens


# -- and then it rests --------------------------------------------------------------------------


def under_constant_load(seed: int, per_instance: int, config: ReschedulingConfig) -> ModelCluster:
    """As many requests run all the time: where one ends the next one begins, of the same kind.
    They begin at random ages, so that one ends every now and then."""
    rng = random.Random(seed)
    shapes = [(rng.randint(50, 900), rng.randint(300, 900)) for _ in range(per_instance * 4)]
    numbers = iter(range(10**6))

    def another(cluster: ModelCluster, finished: str, _instance_id: str) -> None:
        shape = int(finished.split("-")[0])
        cluster.add(request(f"{shape}-{next(numbers)}", *shapes[shape]))

    cluster = ModelCluster(4, config, on_finished=another)
    arrivals(
        cluster,
        (
            (rng.uniform(0, 20), request(f"{shape}-{next(numbers)}", *shapes[shape]), None)
            for shape in range(len(shapes))
        ),
    )
    return cluster


@pytest.mark.parametrize("seed", range(2))
def test_a_cluster_with_room_rests(seed: int) -> None:
    cluster = under_constant_load(seed, 6, ReschedulingConfig())
    cluster.run_until(60)
    assert cluster.finished
    assert not cluster.moved, f"seed {seed}"


@pytest.mark.parametrize("seed", range(2))
def test_under_constant_load_no_request_moves_back_and_forth(seed: int) -> None:
    """With 15 of them per instance all are near the thresholds, where moves are the most."""
    config = ReschedulingConfig()
    cluster = under_constant_load(seed, 15, config)
    cluster.run_until(75)
    assert cluster.moved
    soon = [pair for pair in cluster.returns() if pair[1].time_s < pair[0].time_s + 10]
    assert not soon, f"seed {seed}"
    assert cluster.max_moves_in_a_minute() <= config.max_moves_per_minute, f"seed {seed}"


def test_without_the_guard_they_do() -> None:
    """What the guard is for, and that the test above would see it."""
    seed = 0
    cluster = under_constant_load(seed, 15, ReschedulingConfig(guard=False))
    cluster.run_until(75)
    soon = [pair for pair in cluster.returns() if pair[1].time_s < pair[0].time_s + 10]
    assert soon, f"seed {seed}"
    guarded = under_constant_load(seed, 15, ReschedulingConfig())
    guarded.run_until(75)
    assert len(guarded.moved) < len(cluster.moved) / 2, f"seed {seed}"
    resting = under_constant_load(seed, 15, NO_MOVES)
    resting.run_until(75)
    assert guarded.num_evictions < resting.num_evictions, f"seed {seed}"
