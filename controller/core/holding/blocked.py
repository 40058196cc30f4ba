"""What a round does for blocked requests, and for those that would be evicted next.

    queue head    it lost its blocks, or came before the memory was gone. It goes to another
                  instance if it fits there at once: nothing is copied. Else others make room for it
    running       on an instance that is about to evict, some of the lowest rank there leave before
    held          on the instance that is kept for one, others make room for it

Requests leave for any instances that have room; how many steps that must leave there is less than
an admission leaves: what runs goes before what is new.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from controller.core.holding.config import HoldingConfig
from controller.core.holding.placement import Placement
from controller.core.load.room import Room
from controller.core.load.snapshot import InstanceSnapshot


class HelpReason(StrEnum):
    """Why requests leave."""

    BLOCKED_HEAD = "blocked head"
    ROOM = "room"
    BEFORE_EVICTION = "before eviction"


@dataclass(frozen=True, slots=True)
class MoveHead:
    """The queue head `request_id` of `source_id` is to wait on `destination_id`, where it fits."""

    source_id: str
    request_id: str
    destination_id: str


@dataclass(frozen=True, slots=True)
class MakeRoom:
    """`lacking_blocks` are to become free on `source_id`, by moves of requests of at most `rank` to
    instances of which `spare_blocks` tells what each can take. `request_id`: for whom; empty for
    the growth of all that run there."""

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
    spare = {}
    for snapshot in snapshots:
        room = rooms[snapshot.instance_id]
        blocks = room.free_blocks - _growth(snapshot, 2 * config.relief_below_steps)
        if blocks > 0 and room.num_places > 0 and snapshot.instance_id not in placement.reserved:
            spare[snapshot.instance_id] = blocks
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
                lacking = head.demand_blocks - snapshot.admissible_blocks
                orders.append(MakeRoom(here, head.request_id, head.rank, lacking, others))
        elif others:
            free = snapshot.num_free_blocks - snapshot.fill_blocks
            lacking = _growth(snapshot, 2 * config.relief_below_steps) - free
            rank = min(snapshot.num_running_by_rank, default=0)
            orders.append(MakeRoom(here, "", rank, lacking, others))
    if config.making_room and spare:
        for instance_id, key in placement.reserved.items():
            held, kept = placement.queue.get(key), rooms.get(instance_id)
            if held is None or kept is None:
                continue
            lacking = kept.lacking_blocks(held.demand_blocks)
            others = {i: blocks for i, blocks in spare.items() if may_move(instance_id, i)}
            if lacking > 0 and others:
                orders.append(MakeRoom(instance_id, held.request_id, held.rank, lacking, others))
    return orders


def needs_help(snapshot: InstanceSnapshot, config: HoldingConfig) -> bool:
    """Whether a round does anything for the requests of this instance, if others have room."""
    return _is_blocked(snapshot) or _is_short(snapshot, config)


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
