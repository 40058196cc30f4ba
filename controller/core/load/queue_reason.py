"""Why the first request in an instance's queue is not running."""

from collections.abc import Iterable
from enum import StrEnum

from controller.core.load.snapshot import InstanceSnapshot


class QueueReason(StrEnum):
    BATCH_FULL = "batch-full"
    """As many requests run as the batch has places."""
    MEMORY = "memory"
    """The head's demand exceeds what is free in the whole cluster."""
    FRAGMENTED = "fragmented"
    """The head's demand exceeds what is free here, but not what is free in the cluster."""
    NEXT_STEP = "next-step"
    """There is room: the head waits for its turn within the steps' token budget."""


def queue_reason(
    snapshot: InstanceSnapshot, cluster: Iterable[InstanceSnapshot]
) -> QueueReason | None:
    """None without a queue. `cluster` holds all instances that may take requests."""
    head = snapshot.queue_head
    if head is None:
        return None
    if snapshot.max_num_running and snapshot.num_running >= snapshot.max_num_running:
        return QueueReason.BATCH_FULL
    if head.demand_blocks <= snapshot.admissible_blocks:
        return QueueReason.NEXT_STEP
    in_all = sum(max(0, other.admissible_blocks) for other in cluster)
    return QueueReason.FRAGMENTED if head.demand_blocks <= in_all else QueueReason.MEMORY
