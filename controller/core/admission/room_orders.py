"""What a round does for blocked requests, and for those that would be evicted next.

    queue head    it lost its blocks, or came before the memory was gone. It goes to another
                  instance if it fits there at once: nothing is copied. Else others make room for
                  it, and those that wait behind it go where they fit
    running       on an instance that is about to evict, some of the lowest rank there leave before
    held          on an instance that is reserved for one, others make room for it

Requests leave for any instances that have room; how many steps that must leave there is less than
an admission leaves: what runs goes before what is new. In one round no room is offered twice.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from controller.core.admission.placement import Placement
from controller.core.admission.waiting_requests import Key
from controller.core.load.room import Room
from controller.core.load.snapshot import InstanceSnapshot
from controller.core.settings import HoldingConfig
from controller.core.value import value

ENOUGH_ROOM = 2
"""An order is offered so many times what it lacks while others want room: each request takes a
block more there than it frees here, and seldom do some fit exactly."""


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


@value
class _Wanted:
    """Room that is to be made. `own`: what only this order may take, by instance."""

    source_id: str
    request_id: str
    rank: int
    lacking_blocks: int
    own: Mapping[str, int]


def help_blocked(
    sources: Sequence[InstanceSnapshot],
    destinations: Iterable[InstanceSnapshot],
    rooms: Mapping[str, Room],
    placement: Placement,
    may_move: Callable[[str, str], bool] = lambda source_id, destination_id: True,
    turn: int = 0,
) -> list[MoveHead | MakeRoom]:
    """`sources` are instances where moves may begin, `destinations` those to which moves may go,
    `rooms` those of the schedulable ones, by id. `may_move`: from one to another now. `turn`: the
    number of the round, by which another order chooses first."""
    config = placement.config
    heads, wanted = list[MoveHead](), list[_Wanted]()
    left = {
        each.instance_id: _left(each, rooms[each.instance_id], config)
        for each in destinations
        if each.instance_id in rooms
    }
    spare = {i: blocks for i, blocks in left.items() if blocks > 0 and i not in placement.reserved}
    for snapshot in sources:
        here, head = snapshot.instance_id, snapshot.queue_head
        if not needs_help(snapshot, config):
            continue
        if head is None or not _is_blocked(snapshot):
            free = snapshot.num_free_blocks - snapshot.fill_blocks
            lacking = _growth(snapshot, 2 * config.relief_below_steps) - free
            rank = min(snapshot.num_running_by_rank, default=0)
            wanted.append(_Wanted(here, "", rank, lacking, {}))
            continue
        demand = head.demand_blocks
        fitting = [i for i, b in spare.items() if b >= demand and i != here and may_move(here, i)]
        if fitting:
            freest = max(fitting, key=lambda instance_id: (spare[instance_id], instance_id))
            spare[freest] -= demand
            heads.append(MoveHead(here, head.request_id, freest))
        elif config.making_room:
            lacking = demand - snapshot.arrivable_blocks
            wanted.append(_Wanted(here, head.request_id, head.rank, lacking, {}))
    if config.making_room:
        wanted += _for_held(placement, {each.instance_id for each in sources}, rooms, left)
    return [*heads, *_shared(wanted, spare, may_move, turn)]


def _for_held(
    placement: Placement,
    sources: Collection[str],
    rooms: Mapping[str, Room],
    left: Mapping[str, int],
) -> Iterator[_Wanted]:
    """Room for each held request on that of its instances that lacks the least; requests may leave
    for its other ones too. `sources`: ids of the instances where moves may begin."""
    reserved: dict[Key, list[str]] = {}
    for instance_id, key in placement.reserved.items():
        if instance_id in rooms:
            reserved.setdefault(key, []).append(instance_id)
    for key, instance_ids in reserved.items():
        held = placement.queue.get(key)
        if held is None:
            continue
        lacking = {
            i: rooms[i].lacking_blocks(held.demand_blocks) for i in instance_ids if i in sources
        }
        best = min(lacking, key=lambda i: (lacking[i], i), default="")
        if lacking.get(best, 0) > 0:
            own = {i: left[i] for i in instance_ids if i != best and left.get(i, 0) > 0}
            yield _Wanted(best, held.request_id, held.rank, lacking[best], own)


def _shared(
    wanted: Sequence[_Wanted],
    spare: Mapping[str, int],
    may_move: Callable[[str, str], bool],
    turn: int,
) -> Iterator[MakeRoom]:
    """Offers the room of each instance to one order: two plans that count on the same blocks would
    both be given up. Each order in turn takes the largest rooms until it may well find a plan, and
    the first one what nobody took."""
    left = {i: blocks for i, blocks in spare.items() if blocks > 0}
    first = turn % len(wanted) if wanted else 0
    in_turn = [*wanted[first:], *wanted[:first]]
    offers = [{i: b for i, b in w.own.items() if may_move(w.source_id, i)} for w in in_turn]
    for enough in (ENOUGH_ROOM, math.inf):
        for each, offered in zip(in_turn, offers, strict=True):
            for instance_id in sorted(left, key=lambda i: (-left[i], i)):
                if sum(offered.values()) >= enough * each.lacking_blocks:
                    break
                if instance_id != each.source_id and may_move(each.source_id, instance_id):
                    offered[instance_id] = left.pop(instance_id)
    for each, offered in zip(in_turn, offers, strict=True):
        if offered:
            yield MakeRoom(each.source_id, each.request_id, each.rank, each.lacking_blocks, offered)


def needs_help(snapshot: InstanceSnapshot, config: HoldingConfig) -> bool:
    """Whether a round does anything for the requests of this instance, if others have room."""
    return _is_blocked(snapshot) or _near_eviction(snapshot, config)


def _left(snapshot: InstanceSnapshot, room: Room, config: HoldingConfig) -> int:
    """What a request that leaves another instance may take of this one."""
    growth_blocks = _growth(snapshot, 2 * config.relief_below_steps)
    return room.free_blocks - growth_blocks if room.num_places > 0 else 0


def _is_blocked(snapshot: InstanceSnapshot) -> bool:
    head = snapshot.queue_head
    return head is not None and head.demand_blocks > snapshot.admissible_blocks


def _near_eviction(snapshot: InstanceSnapshot, config: HoldingConfig) -> bool:
    if not config.relief_below_steps:
        return False
    free = snapshot.num_free_blocks - snapshot.fill_blocks
    return free < _growth(snapshot, config.relief_below_steps)


def _growth(snapshot: InstanceSnapshot, num_steps: float) -> int:
    """The blocks that the batch takes in so many steps."""
    return math.ceil(snapshot.num_running * num_steps / snapshot.block_size)
