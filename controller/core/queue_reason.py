"""Why the first request in an instance's queue is not running."""

from collections.abc import Iterable
from enum import StrEnum

from controller.core.snapshot import InstanceSnapshot


class QueueReason(StrEnum):
    BATCH_FULL = "batch-full"
    """As many requests run as the batch has places."""
    MEMORY = "memory"
    """Its demand exceeds what is free in the whole cluster."""
    FRAGMENTED = "fragmented"
    """Its demand exceeds what is free here, but not what is free in all."""
    NEXT_STEP = "next-step"
    """There is room: it waits for its turn within the steps' token budget."""


def queue_reason(
    snapshot: InstanceSnapshot, cluster: Iterable[InstanceSnapshot]
) -> QueueReason | None:
    """None without a queue. `cluster` holds all instances that may take requests."""
    head = snapshot.queue_head
    if head is None:
        return None
    if snapshot.max_num_running and snapshot.num_running >= snapshot.max_num_running:
        return QueueReason.BATCH_FULL
    if head.demand_blocks <= _admissible_blocks(snapshot):
        return QueueReason.NEXT_STEP
    in_all = sum(_admissible_blocks(other) for other in cluster)
    return QueueReason.FRAGMENTED if head.demand_blocks <= in_all else QueueReason.MEMORY


def _admissible_blocks(snapshot: InstanceSnapshot) -> int:
    return max(0, snapshot.num_free_blocks - snapshot.watermark_blocks)
