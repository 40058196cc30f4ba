"""Virtual usage: one number per request and per instance that makes every goal a load balance.

Paper section 4.4.2, Algorithm 1 (CalcVirtualUsage and GetHeadroom). All amounts are in
blocks. To empty a place, pretend that it is full: a queue head counts before it runs, a
priority reserves room that nobody uses, and a draining instance is full beyond measure.

    running          blocks held + blocks its prefill still takes + its share of the headroom
    head of line     what it needs in order to start
    other queued     nothing: only the next one can be helped by making room
    terminating      one fake request of infinite usage
"""

import math
from collections.abc import Sequence

from controller.core.snapshot import InstanceSnapshot, Level, RequestSnapshot, blocks_for


def headroom_blocks(level: Level, snapshot: InstanceSnapshot) -> int:
    """h(p): what one instance keeps free beside running requests of `level`.

    It is whatever M leaves over the level's target load, so that the load beside such a
    request stays at the target. The same however many of them run there.
    """
    if level.target_load_tokens is None:
        return 0
    target_blocks = blocks_for(level.target_load_tokens, snapshot.block_size)
    return max(0, snapshot.capacity_blocks - target_blocks)


def total_headroom_blocks(snapshot: InstanceSnapshot, levels: Sequence[Level]) -> int:
    """H: the headrooms of the levels that have a running request here, at most M."""
    running = snapshot.num_running_by_rank
    wanted = sum(headroom_blocks(p, snapshot) for p in levels if running.get(p.rank, 0) > 0)
    return min(wanted, max(0, snapshot.capacity_blocks))


def headroom_share_blocks(rank: int, snapshot: InstanceSnapshot, levels: Sequence[Level]) -> float:
    """h(p) / num_running(p): what each running request of `rank` carries (GetHeadroom).

    0 for a rank that `levels` does not name.
    """
    for level in levels:
        if level.rank == rank:
            num_sharing = max(1, snapshot.num_running_by_rank.get(rank, 0))
            return headroom_blocks(level, snapshot) / num_sharing
    return 0.0


def demand_blocks(request: RequestSnapshot, block_size: int) -> int:
    """Blocks for the whole request, its outputs so far included, cached prefixes too."""
    return blocks_for(request.num_tokens, block_size)


def fill_blocks(request: RequestSnapshot, block_size: int) -> int:
    """Blocks that a prefill under way will still take; 0 outside of a prefill."""
    if not request.in_prefill:
        return 0
    return max(0, demand_blocks(request, block_size) - request.num_held_blocks)


def running_usage(
    request: RequestSnapshot, snapshot: InstanceSnapshot, levels: Sequence[Level]
) -> float:
    """The rule for a running request: physical usage, pending fill, share of the headroom."""
    physical = request.num_held_blocks + fill_blocks(request, snapshot.block_size)
    return physical + headroom_share_blocks(request.rank, snapshot, levels)


def head_of_line_usage(request: RequestSnapshot, block_size: int) -> float:
    """The rule for the first request in queue order: all that it needs in order to start."""
    return float(demand_blocks(request, block_size))


def other_queued_usage() -> float:
    """The rule for a queued request behind the head."""
    return 0.0


def terminating_usage() -> float:
    """The rule for the fake request on a draining instance."""
    return math.inf


def request_virtual_usage(
    request: RequestSnapshot, snapshot: InstanceSnapshot, levels: Sequence[Level]
) -> float:
    """V(r) of a real request on the instance that `snapshot` describes."""
    if request.running:
        return running_usage(request, snapshot, levels)
    head = snapshot.queue_head
    if head is not None and head.request_id == request.request_id:
        return head_of_line_usage(request, snapshot.block_size)
    return other_queued_usage()


def instance_virtual_usage(snapshot: InstanceSnapshot, levels: Sequence[Level]) -> float:
    """Sum of V over one instance: used + fill + H + demand(head); infinite when draining.

    From the instance's own counters rather than from its requests, because `used` counts a
    shared block once. It also counts H at most M, which the requests' shares do not.
    """
    if snapshot.draining:
        return terminating_usage()
    head = snapshot.queue_head
    return float(
        snapshot.num_used_blocks
        + snapshot.fill_blocks
        + total_headroom_blocks(snapshot, levels)
        + (head.demand_blocks if head is not None else 0)
    )
