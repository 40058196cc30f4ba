"""Which blocked requests a round helps, and how: those in instances' queues, which lost their
blocks or came before the memory was gone, and those for which an instance is reserved.

A blocked queue head goes to another instance if it fits there at once: nothing is copied. Else
others leave its instance for any that have room.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from controller.core.holding.placement import Placement
from controller.core.holding.room import Room
from controller.core.load.snapshot import InstanceSnapshot


@dataclass(frozen=True, slots=True)
class MoveHead:
    """The queue head `request_id` of `source_id` is to wait on `destination_id`, where it fits."""

    source_id: str
    request_id: str
    destination_id: str


@dataclass(frozen=True, slots=True)
class MakeRoom:
    """`lacking_blocks` are to become free on `source_id` for a request of `rank`, by moves to
    instances of which `spare_blocks` tells what each can take."""

    source_id: str
    request_id: str
    rank: int
    lacking_blocks: int
    spare_blocks: Mapping[str, int]


def help_blocked(
    snapshots: Iterable[InstanceSnapshot], rooms: Mapping[str, Room], placement: Placement
) -> list[MoveHead | MakeRoom]:
    """`rooms` of the schedulable instances, by id."""
    heads = [
        (snapshot, head)
        for snapshot in snapshots
        if (head := snapshot.queue_head) is not None
        and head.demand_blocks > snapshot.admissible_blocks
    ]
    if not heads and not placement.reserved:
        return []
    orders: list[MoveHead | MakeRoom] = []
    spare = {
        room.instance_id: room.spare_blocks
        for room in rooms.values()
        if room.spare_blocks > 0 and room.instance_id not in placement.reserved
    }
    for snapshot, head in heads:
        here = snapshot.instance_id
        others = {i: blocks for i, blocks in spare.items() if i != here}
        fitting = [i for i, blocks in others.items() if blocks >= head.demand_blocks]
        if fitting:
            freest = max(fitting, key=lambda instance_id: (others[instance_id], instance_id))
            spare[freest] -= head.demand_blocks
            orders.append(MoveHead(here, head.request_id, freest))
        elif placement.config.making_room and others:
            lacking = head.demand_blocks - snapshot.admissible_blocks
            orders.append(MakeRoom(here, head.request_id, head.rank, lacking, others))
    if placement.config.making_room and spare:
        for instance_id, key in placement.reserved.items():
            held, room = placement.queue.get(key), rooms.get(instance_id)
            if held is None or room is None:
                continue
            lacking = room.lacking_blocks(held.demand_blocks)
            if lacking > 0:
                orders.append(MakeRoom(instance_id, held.request_id, held.rank, lacking, spare))
    return orders
