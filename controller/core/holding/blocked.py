"""What a round does for blocked requests, and for those that would be evicted next.

    queue head    it lost its blocks, or came before the memory was gone. It goes to another
                  instance if it fits there at once: nothing is copied. Else others make room for
                  it, and those that wait behind it go where they fit
    running       on an instance that is about to evict, some of the lowest rank there leave before
    held          on an instance that is kept for one, others make room for it

Requests leave for any instances that have room; how many steps that must leave there is less than
an admission leaves: what runs goes before what is new.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping

from controller.core.holding.config import HoldingConfig
from controller.core.holding.held_queue import Key
from controller.core.holding.placement import Placement
from controller.core.load.room import Room
from controller.core.load.snapshot import InstanceSnapshot
from controller.core.value import value


@value
class MoveHead:
    """The queue head `request_id` of `source_id` is to wait on `destination_id`, where it fits."""

    source_id: str
    request_id: str
    destination_id: str


@value
class MakeRoom:
    """`lacking_blocks` are to become free on `source_id`, by moves of requests of at most `rank` to
    instances of which `spare_blocks` tells what each can take. `request_id`: for whom; empty for
    the growth of all that run there. If it is the queue head there, those that wait behind it leave
    too, where they fit at once (`room_plan.plan_leaving`)."""

    source_id: str
    request_id: str
    rank: int
    lacking_blocks: int
    spare_blocks: Mapping[str, int]


def help_blocked(
    snapshots: Iterable[InstanceSnapshot],
    rooms: Mapping[str, Room],
    placement: Placement,
    may_move: Callable[[str, str], bool] = lambda source_id, destination_id: True,
) -> list[MoveHead | MakeRoom]:
    """`rooms` of the schedulable instances, by id. `may_move`: from one to another now."""
    config = placement.config
    orders: list[MoveHead | MakeRoom] = []
    snapshots = list(snapshots)
    left = {each.instance_id: _left(each, rooms[each.instance_id], config) for each in snapshots}
    spare = {i: blocks for i, blocks in left.items() if blocks > 0 and i not in placement.reserved}
    for snapshot in snapshots:
        here, head = snapshot.instance_id, snapshot.queue_head
        if not needs_help(snapshot, config):
            continue
        others = {i: blocks for i, blocks in spare.items() if i != here and may_move(here, i)}
        if head is not None and _is_blocked(snapshot):
            fitting = [i for i, blocks in others.items() if blocks >= head.demand_blocks]
            if fitting:
                freest = max(fitting, key=lambda instance_id: (others[instance_id], instance_id))
                spare[freest] -= head.demand_blocks
                orders.append(MoveHead(here, head.request_id, freest))
            elif config.making_room and others:
                lacking = head.demand_blocks - snapshot.arrivable_blocks
                orders.append(MakeRoom(here, head.request_id, head.rank, lacking, others))
        elif others:
            free = snapshot.num_free_blocks - snapshot.fill_blocks
            lacking = _growth(snapshot, 2 * config.relief_below_steps) - free
            rank = min(snapshot.num_running_by_rank, default=0)
            orders.append(MakeRoom(here, "", rank, lacking, others))
    if config.making_room:
        orders += _for_held(placement, rooms, spare, left, may_move)
    return orders


def _for_held(
    placement: Placement,
    rooms: Mapping[str, Room],
    spare: Mapping[str, int],
    left: Mapping[str, int],
    may_move: Callable[[str, str], bool],
) -> Iterator[MakeRoom]:
    """Room for each held request on that of its instances that lacks the least; requests may leave
    for its other ones too."""
    kept: dict[Key, list[str]] = {}
    for instance_id, key in placement.reserved.items():
        if instance_id in rooms:
            kept.setdefault(key, []).append(instance_id)
    for key, instance_ids in kept.items():
        held = placement.queue.get(key)
        if held is None:
            continue
        lacking = {i: rooms[i].lacking_blocks(held.demand_blocks) for i in instance_ids}
        best = min(instance_ids, key=lambda i: (lacking[i], i))
        if lacking[best] <= 0:
            continue
        own = {i: left[i] for i in instance_ids if i != best and left[i] > 0}
        others = {i: blocks for i, blocks in {**spare, **own}.items() if may_move(best, i)}
        if others:
            yield MakeRoom(best, held.request_id, held.rank, lacking[best], others)


def needs_help(snapshot: InstanceSnapshot, config: HoldingConfig) -> bool:
    """Whether a round does anything for the requests of this instance, if others have room."""
    return _is_blocked(snapshot) or _is_short(snapshot, config)


def _left(snapshot: InstanceSnapshot, room: Room, config: HoldingConfig) -> int:
    """What a request that leaves another instance may take of this one."""
    growth_blocks = _growth(snapshot, 2 * config.relief_below_steps)
    return room.free_blocks - growth_blocks if room.num_places > 0 else 0


def _is_blocked(snapshot: InstanceSnapshot) -> bool:
    head = snapshot.queue_head
    return head is not None and head.demand_blocks > snapshot.admissible_blocks


def _is_short(snapshot: InstanceSnapshot, config: HoldingConfig) -> bool:
    if not config.relief_below_steps:
        return False
    free = snapshot.num_free_blocks - snapshot.fill_blocks
    return free < _growth(snapshot, config.relief_below_steps)


def _growth(snapshot: InstanceSnapshot, num_steps: float) -> int:
    """The blocks that the batch takes in so many steps."""
    return math.ceil(snapshot.num_running * num_steps / snapshot.block_size)
