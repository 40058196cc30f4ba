"""What a move costs and wins, and both instances as they will be."""

from dataclasses import replace

import pytest

from controller.core.emptying.relief import (
    Candidate,
    HeadWait,
    Link,
    head_wait,
    weigh,
    with_arrivals,
    with_queued,
    without,
)
from tests.unit.rescheduling.relief_builders import (
    BLOCK_BYTES,
    STEP_TIME_S,
    instance,
    queued,
    running,
)

LINK = Link(BLOCK_BYTES, 1e9)
BATCH = [running("x", 60, num_tokens_left=300), running("y", 20, num_tokens_left=100)]
LONG = queued("long", 50)


def test_a_copy_takes_bytes_over_bandwidth() -> None:
    assert LINK.copy_time_s(20) == pytest.approx(0.02)
    assert Link(BLOCK_BYTES, None).copy_time_s(20) == 0, "nothing was measured yet"


ENDLESS = [replace(each, num_tokens_left=None) for each in BATCH]


@pytest.mark.parametrize(
    ("batch", "head", "watermark", "lacking", "steps"),
    [
        (BATCH, LONG, 0, 30, 300),  # `y` frees 20 blocks after 100 steps, `x` the rest after 300
        (BATCH, queued("short", 40), 0, 20, 100),
        (BATCH, queued("short", 40), 1, 21, 300),
        (BATCH, queued("small", 20), 0, 0, 0),
        (ENDLESS, LONG, 0, 30, 0),  # of requests without a limit nothing is known
    ],
)
def test_the_head_waits_until_enough_of_the_others_end(
    batch: list[Candidate], head: Candidate, watermark: int, lacking: int, steps: int
) -> None:
    source = replace(instance(*batch, head), watermark_blocks=watermark)
    found = head_wait(source, batch, STEP_TIME_S)
    assert found == HeadWait(lacking, pytest.approx(steps * STEP_TIME_S))
    assert head_wait(instance(*batch), batch, STEP_TIME_S) == HeadWait()


def test_a_move_is_credited_with_what_it_frees_of_what_the_head_lacks() -> None:
    source, head = instance(*BATCH, LONG), HeadWait(30, 6.0)
    part = weigh(BATCH[1], source, head, LINK, STEP_TIME_S, -100)
    assert part.head_wait_s == pytest.approx(6.0 * 20 / 30)
    assert part.relief_s == pytest.approx(16 * 20 / 3 * STEP_TIME_S)
    assert part.gain_s == pytest.approx(part.relief_s + part.head_wait_s)
    assert weigh(BATCH[0], source, head, LINK, STEP_TIME_S, -100).head_wait_s == 6.0
    itself = weigh(LONG, source, head, LINK, STEP_TIME_S, -100)
    assert (itself.copy_time_s, itself.head_wait_s) == (0, 6.0)
    assert itself.relief_s == pytest.approx(16 * 50 / 3 * STEP_TIME_S)


def test_the_wait_of_the_head_makes_a_slow_copy_worth_it() -> None:
    source, slow = instance(*BATCH, LONG), Link(BLOCK_BYTES, 20 * BLOCK_BYTES / 5)
    assert weigh(BATCH[1], source, HeadWait(), slow, STEP_TIME_S, 0).costs_more
    assert not weigh(BATCH[1], source, HeadWait(30, 6.0), slow, STEP_TIME_S, 0).costs_more


def test_what_the_destination_lacks_afterwards_counts_against_it() -> None:
    """Below its own threshold, which may be higher than the source's."""
    source = instance(*BATCH)
    worth = weigh(BATCH[1], source, HeadWait(), LINK, STEP_TIME_S, 25)
    assert worth.destination_loss_s == pytest.approx(25 * STEP_TIME_S)
    assert worth.gain_s == pytest.approx(worth.relief_s - 0.5)


# -- projection ---------------------------------------------------------------------------------


def test_a_running_request_that_leaves_takes_its_blocks_place_and_rank() -> None:
    requests = [running("x", 30), running("h", 20, rank=1), running("s", 20, num_freed_blocks=5)]
    before = instance(*requests)
    after = without(before, requests, {"h", "s"})
    assert after.num_free_blocks == before.num_free_blocks + 20 + 5
    assert after.num_running == 1
    assert dict(after.num_running_by_rank) == {0: 1}


def test_the_next_in_the_queue_takes_the_place_of_a_head_that_leaves() -> None:
    requests = [
        queued("third", 3, arrival_time_s=3),
        queued("first", 9, arrival_time_s=1, evicted=True),
        queued("second", 5, arrival_time_s=2),
    ]
    after = without(instance(*requests), requests, {"first"})
    assert after.queue_head is not None
    assert (after.queue_head.request_id, after.queue_head.demand_blocks) == ("second", 5)
    assert (after.num_queued, after.queued_demand_blocks, after.num_evicted_queued) == (2, 8, 0)
    assert without(after, requests[:1] + requests[2:], {"second", "third"}).queue_head is None
    behind = without(instance(*requests), requests, {"third"})
    assert behind.queue_head == instance(*requests).queue_head
    assert (behind.num_queued, behind.queued_demand_blocks) == (2, 14)
    assert behind.num_queued_by_rank == {0: 2}


def test_who_comes_runs_also_out_of_a_queue() -> None:
    assert with_arrivals(instance(*BATCH), []) == instance(*BATCH)
    after = with_arrivals(instance(*BATCH), [running("h", 3, rank=1), queued("q", 7)])
    assert (after.num_free_blocks, after.num_running, after.num_queued) == (10, 4, 0)
    assert dict(after.num_running_by_rank) == {0: 3, 1: 1}


def test_who_comes_to_wait_waits_in_the_order_of_the_queue() -> None:
    later = [queued("z", 7)]
    assert with_queued(instance(LONG), later).queue_head == instance(LONG).queue_head
    waiting = [queued("urgent", 9, rank=1), queued("q", 7, evicted=True)]
    after = with_queued(instance(*BATCH, LONG), waiting)
    assert after.queue_head == instance(waiting[0]).queue_head
    assert (after.num_queued, after.queued_demand_blocks, after.num_evicted_queued) == (3, 66, 1)
    assert (after.num_free_blocks, after.num_running) == (20, 2)


def test_who_comes_to_wait_where_nobody_does_is_the_head() -> None:
    after = with_queued(instance(*BATCH), [queued("q", 7), queued("urgent", 9, rank=1)])
    assert after == instance(*BATCH, queued("urgent", 9, rank=1), queued("q", 7))
