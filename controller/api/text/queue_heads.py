"""What a queue head has waited for, and what room there is for it."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from controller.api.wire.models import InstanceStatus, QueueHeadStatus


def head_wait_s(head: "QueueHeadStatus") -> float | None:
    """How long a queue head has waited: since it arrived or, if it has run before, since it was
    evicted; None for an evicted one that ended a moment ago."""
    return head.evicted_for_s if head.evicted else head.waited_s


def free_blocks(item: "InstanceStatus") -> int | None:
    """Blocks that a queued request may take: free ones above the watermark."""
    if item.num_free_blocks is None:
        return None
    return max(0, item.num_free_blocks - (item.watermark_blocks or 0))


def in_need(item: "InstanceStatus") -> bool:
    """Whether more memory is wanted than there is, beyond the headroom that is kept beside
    requests of a high priority."""
    return _is_negative(item) and not _by_headroom(item)


def is_reserved(item: "InstanceStatus") -> bool:
    """Whether the instance is kept free: for a held request, or its freeness is negative only
    because of headroom."""
    return _by_headroom(item) or (item.kept_for is not None and not in_need(item))


def _by_headroom(item: "InstanceStatus") -> bool:
    if not _is_negative(item) or item.virtual_usage_blocks is None or not item.num_total_blocks:
        return False
    capacity = item.num_total_blocks - (item.watermark_blocks or 0)
    return item.virtual_usage_blocks - (item.headroom_blocks or 0) <= capacity


def _is_negative(item: "InstanceStatus") -> bool:
    return item.freeness_steps is not None and item.freeness_steps < 0
