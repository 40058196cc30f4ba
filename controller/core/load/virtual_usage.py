"""Virtual usage: one number per instance that makes every goal a load balance.

Paper section 4.4.2, Algorithm 1 (CalcVirtualUsage and GetHeadroom), summed over an instance. All
amounts are in blocks. To empty a place, pretend that it is full: a queue head counts before it
runs, a priority reserves room that nobody uses, and a draining instance is full beyond measure.

    running          blocks held + blocks its prefill still takes + its share of the headroom
    head of line     what it needs in order to start
    other queued     nothing: only the next one can be helped by making room
    terminating      one fake request of infinite usage
"""

import math
from collections.abc import Sequence

from controller.core.load.snapshot import InstanceSnapshot, Level, blocks_for


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
