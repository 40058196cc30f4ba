"""What a queue head has waited for, and what room there is for it."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from controller.api.wire.models import InstanceStatus, QueueHeadStatus


def head_wait_s(head: "QueueHeadStatus") -> float | None:
    """How long a queue head has waited: since it arrived or, if it has run before, since it was
    evicted; None in a recording of an older version, which does not tell the latter."""
    return head.evicted_for_s if head.evicted else head.waited_s


def free_blocks(item: "InstanceStatus") -> int | None:
    """Blocks that a queued request may take: free ones above the watermark."""
    if item.num_free_blocks is None:
        return None
    return max(0, item.num_free_blocks - (item.watermark_blocks or 0))
