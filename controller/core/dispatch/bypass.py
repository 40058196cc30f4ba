"""Dispatch by a frontend alone, while the controller is gone (paper section 5).

A frontend knows each instance's last status and its own live requests. It goes by its own
requests first: going by a stale freeness alone would send everything to one instance.
"""

from collections.abc import Iterable, Mapping

from controller.core.load.snapshot import InstanceSnapshot


def choose_without_controller(
    snapshots: Iterable[InstanceSnapshot], num_own_reqs: Mapping[str, int]
) -> InstanceSnapshot | None:
    """The instance with the fewest own requests, then the most free blocks, then the first id; None
    if all drain."""
    return min(
        (snapshot for snapshot in snapshots if not snapshot.draining),
        key=lambda s: (num_own_reqs.get(s.instance_id, 0), -s.num_free_blocks, s.instance_id),
        default=None,
    )
