"""Free memory that nobody can use: it would do for queue heads, if it were in one place."""

from collections.abc import Iterable, Sequence

from controller.core.load.snapshot import InstanceSnapshot


def fragmented_blocks(
    snapshots: Sequence[InstanceSnapshot], held_demands: Iterable[int] = ()
) -> int:
    """The demands of blocked queue heads, the smallest first, while their sum fits the cluster's
    free blocks. `held_demands` are those of blocked requests outside of the instances."""
    blocked = list(held_demands)
    num_free = 0
    for snapshot in snapshots:
        num_free += max(0, snapshot.admissible_blocks)
        head = snapshot.queue_head
        if head is not None and head.demand_blocks > snapshot.admissible_blocks:
            blocked.append(head.demand_blocks)
    total = 0
    for demand in sorted(blocked):
        if total + demand > num_free:
            break
        total += demand
    return total
