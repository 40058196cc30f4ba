"""Virtual usage, one number per instance that makes every goal a load balance, and freeness: how
many more decode steps an instance's batch can run. Larger is freer.

Paper section 4.4.2, Algorithm 1 (CalcVirtualUsage and GetHeadroom), summed over an instance. All
amounts are in blocks. To empty a place, pretend that it is full: a queue head counts before it
runs, a priority reserves room that nobody uses, and a draining instance is full beyond measure.

    running          blocks held + blocks its prefill still takes + its share of the headroom
    head of line     what it needs in order to start
    other queued     nothing: only the next one can be helped by making room
    terminating      one fake request of infinite usage

Section 4.4: F = (M - sum V) / B, in tokens of room per request, which are decode steps, as each
running request takes one token per step. F may be negative: a queue head that does not fit, or a
headroom that is not kept. `freeness` guides migration, `dispatch_freeness` the dispatch of new
requests, which must also see the whole queue and the requests on their way.
"""

import math
from collections.abc import Sequence

from controller.core.load.snapshot import (
    InstanceSnapshot,
    Level,
    Unreported,
    blocks_for,
    with_batch,
)


def headroom_blocks(level: Level, snapshot: InstanceSnapshot) -> int:
    """h(p): what one instance keeps free beside running requests of `level`.

    It is what M leaves over the level's target load, so that the load beside such a request stays
    at the target, and is the same however many of them run there.
    """
    if level.target_load_tokens is None:
        return 0
    target_blocks = blocks_for(level.target_load_tokens, snapshot.block_size)
    return max(0, snapshot.capacity_blocks - target_blocks)


def total_headroom_blocks(snapshot: InstanceSnapshot, levels: Sequence[Level]) -> int:
    """H: the headrooms of the levels that have a running request here, at most M."""
    wanted, running = 0, snapshot.num_running_by_rank
    for level in levels:  # not by `headroom_by_rank`: a round asks this of each instance
        if level.target_load_tokens is not None and running.get(level.rank, 0) > 0:
            wanted += headroom_blocks(level, snapshot)
    return min(wanted, max(0, snapshot.capacity_blocks)) if wanted else 0


def headroom_by_rank(snapshot: InstanceSnapshot, levels: Sequence[Level]) -> dict[int, int]:
    """h(p) of each level that has a running request here and keeps a headroom."""
    running = snapshot.num_running_by_rank
    found = {p.rank: headroom_blocks(p, snapshot) for p in levels if running.get(p.rank, 0) > 0}
    return {rank: blocks for rank, blocks in found.items() if blocks}


def instance_virtual_usage(snapshot: InstanceSnapshot, levels: Sequence[Level]) -> float:
    """Sum of V over one instance: used + fill + H + demand(head); infinite when draining.

    The instance's own counters count a shared block once, and H at most M. The requests' shares of
    the headroom, h(p) over the running requests of that level, would do neither.
    """
    if snapshot.draining:
        return math.inf
    head = snapshot.queue_head
    return float(
        snapshot.num_total_blocks
        - snapshot.num_free_blocks
        + snapshot.fill_blocks
        + total_headroom_blocks(snapshot, levels)
        + (head.demand_blocks if head is not None else 0)
    )


NOTHING_UNREPORTED = Unreported()


def num_in_batch(snapshot: InstanceSnapshot) -> int:
    """Running requests, and one more if anything is queued: the head joins next."""
    return snapshot.num_running + 1 if snapshot.num_queued else snapshot.num_running


def batch_size(snapshot: InstanceSnapshot) -> int:
    """B: `num_in_batch`, at least 1. Written out, as each round asks it of each instance."""
    return (snapshot.num_running + 1 if snapshot.num_queued else snapshot.num_running) or 1


def freeness(snapshot: InstanceSnapshot, levels: Sequence[Level]) -> float:
    """F in decode steps. -inf when draining, else finite; an idle instance has bs * M."""
    if snapshot.draining:
        return -math.inf
    # `capacity_blocks` is written out: each round asks for the freeness of each instance.
    capacity_blocks = snapshot.num_total_blocks - snapshot.watermark_blocks
    free_blocks = capacity_blocks - instance_virtual_usage(snapshot, levels)
    return snapshot.block_size * free_blocks / batch_size(snapshot)


def freest_first(steps: float, instance_id: str) -> tuple[float, str]:
    """A key by which destinations are chosen everywhere: ties by id."""
    return -steps, instance_id


def with_another_rank(snapshot: InstanceSnapshot, before: int, after: int) -> InstanceSnapshot:
    """The same instance once a request that runs there has the rank `after` instead of `before`."""
    running = dict(snapshot.num_running_by_rank)
    running[before] = running.get(before, 0) - 1
    running[after] = running.get(after, 0) + 1
    left = {rank: number for rank, number in running.items() if number > 0}
    return with_batch(snapshot, snapshot.num_free_blocks, snapshot.num_running, left)


def finite(steps: float) -> float | None:
    """Freeness as a figure of an event: a draining instance has none."""
    return steps if math.isfinite(steps) else None


def dispatch_headroom_blocks(
    snapshot: InstanceSnapshot, level: Level, levels: Sequence[Level]
) -> int:
    """C(p) in blocks, at most M: headroom that a new `level` request intrudes on or brings along.

    Every other level that runs here keeps its headroom from the newcomer. The newcomer's own level
    counts only where none of it runs: there the headroom would be new, so one level gathers.
    """
    running = snapshot.num_running_by_rank
    total = 0
    for other in levels:
        if other.target_load_tokens is None:
            continue
        if (running.get(other.rank, 0) > 0) != (other.rank == level.rank):
            total += headroom_blocks(other, snapshot)
    return min(total, max(0, snapshot.capacity_blocks)) if total else 0


def dispatch_freeness(
    snapshot: InstanceSnapshot,
    level: Level,
    levels: Sequence[Level],
    unreported: Unreported = NOTHING_UNREPORTED,
) -> float:
    """F_dispatch(p) in decode steps, for a new request of `level`. -inf when draining.

    Unlike F it charges all queued demand and divides by all requests, as a newcomer waits
    behind every one of them. A level outside `levels` brings no headroom of its own.
    """
    if snapshot.draining:
        return -math.inf
    # `admissible_blocks` is written out: this runs for each status, in 380 ns; with it, 415 ns.
    free_blocks = (
        snapshot.num_free_blocks
        - snapshot.watermark_blocks
        - snapshot.fill_blocks
        - snapshot.queued_demand_blocks
        - unreported.demand_blocks
        - dispatch_headroom_blocks(snapshot, level, levels)
    )
    if free_blocks <= 0:
        # If divided, an overload would shrink with every further request, and a whole burst would
        # go to one instance (docs/decisions/0001).
        return snapshot.block_size * float(free_blocks)
    num_reqs = snapshot.num_running + snapshot.num_queued + unreported.num_requests
    return snapshot.block_size * free_blocks / (num_reqs or 1)
