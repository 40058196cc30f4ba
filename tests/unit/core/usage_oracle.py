"""Virtual usage request by request, as in the paper; an instance's usage must be the sum."""

from collections.abc import Sequence

from controller.core.load.freeness import headroom_blocks
from controller.core.load.snapshot import InstanceSnapshot, Level, blocks_for
from tests.unit.core.core_builders import RequestSnapshot


def headroom_share_blocks(rank: int, snapshot: InstanceSnapshot, levels: Sequence[Level]) -> float:
    """h(p) / num_running(p): what each running request of `rank` carries (GetHeadroom).

    0 for a rank that `levels` does not name.
    """
    for level in levels:
        if level.rank == rank:
            num_sharing = max(1, snapshot.num_running_by_rank.get(rank, 0))
            return headroom_blocks(level, snapshot) / num_sharing
    return 0.0


def request_virtual_usage(
    request: RequestSnapshot, snapshot: InstanceSnapshot, levels: Sequence[Level]
) -> float:
    """V(r) of a real request on the instance that `snapshot` describes (CalcVirtualUsage)."""
    demand = blocks_for(request.num_tokens, snapshot.block_size)
    if request.running:
        fill = max(0, demand - request.num_held_blocks) if request.in_prefill else 0
        share = headroom_share_blocks(request.rank, snapshot, levels)
        return request.num_held_blocks + fill + share
    head = snapshot.queue_head
    return float(demand) if head is not None and head.request_id == request.request_id else 0.0
