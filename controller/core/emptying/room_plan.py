"""Room for a blocked request, and for requests that would be evicted next.

In each round the controller decides for which requests room is made, and where:

    queue head    A queue head lost its blocks, or came before the memory was gone. It moves to
                  another instance if it fits on that instance at once, and nothing is copied.
                  Otherwise other requests make room for it, and the requests behind it move to
                  instances where they fit.
    running       On an instance that is about to evict, some requests of the lowest rank leave
                  before that.
    waiting       If an instance is reserved for a request that waits at the controller, other
                  requests of that instance make room for it.

Requests may leave for any instance that has room. When a new request is admitted to an instance,
more room has to stay free than when a running request moves there, because running requests go
before new ones. No room is offered twice in one round.

The source then decides, between two steps, which requests leave; simulated instances use the same
functions:

    guard       A request that has moved as often as it may within a minute stays.
    on its way  The blocks of requests that are leaving already count as free.
    let go      Requests behind a blocked head leave first, and take their room elsewhere.
    whole       A plan begins only if all of its moves may begin now. When one of them fails, the
                others are given up.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum

from controller.core.admission.placement import Placement
from controller.core.admission.waiting_requests import Key
from controller.core.emptying.relief import MINUTE_S, Candidate
from controller.core.load.freeness import Room
from controller.core.load.snapshot import InstanceSnapshot
from controller.core.migration.refusals import ReliefRefusal
from controller.core.settings import HoldingConfig, ReschedulingConfig
from controller.core.value import value

ENOUGH_ROOM = 2
"""An order to make room is offered rooms until they sum to this many times the blocks that it
lacks; then the next order chooses. More than once is needed, because a request takes one block more
at its destination than it frees at its source, and requests seldom fit exactly."""


@value
class MoveHead:
    """The queue head `request_id` of `source_id` is to move to the queue of `destination_id`, where
    it fits."""

    source_id: str
    request_id: str
    destination_id: str


@value
class MakeRoom:
    """Moves of requests of at most `rank` are to free `lacking_blocks` on `source_id`.
    `spare_blocks` says how much each destination can take. `request_id`: the request that gets the
    room; empty if the room is for the growth of all running requests. If the request is the queue
    head of that instance, the requests behind it leave too, for instances where they fit at once
    (`plan_leaving`)."""

    source_id: str
    request_id: str
    rank: int
    lacking_blocks: int
    spare_blocks: Mapping[str, int]


@value
class _Wanted:
    """Room that an order wants. `own`: by instance, the blocks that only this order may take."""

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
    """What a round orders for blocked requests. `sources`: the instances where moves may begin.
    `destinations`: the instances to which moves may go. `rooms`: the rooms of the schedulable
    instances, by id. `may_move`: whether a move from one instance to another may begin now. `turn`:
    the number of the round; in the next round a different order chooses first."""
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
            lacking = _growth(snapshot, 2 * config.evict_margin_steps) - free
            rank = min(snapshot.num_running_by_rank, default=0)
            wanted.append(_Wanted(here, "", rank, lacking, {}))
            continue
        demand = head.demand_blocks
        fitting = [i for i, b in spare.items() if b >= demand and i != here and may_move(here, i)]
        if fitting:
            freest = min(fitting, key=lambda instance_id: (-spare[instance_id], instance_id))
            spare[freest] -= demand
            heads.append(MoveHead(here, head.request_id, freest))
        elif config.making_room:
            lacking = demand - snapshot.arrivable_blocks
            wanted.append(_Wanted(here, head.request_id, head.rank, lacking, {}))
    if config.making_room:
        wanted += _for_waiting(placement, {each.instance_id for each in sources}, rooms, left)
    return [*heads, *_shared(wanted, spare, may_move, turn)]


def _for_waiting(
    placement: Placement,
    sources: Collection[str],
    rooms: Mapping[str, Room],
    left: Mapping[str, int],
) -> Iterator[_Wanted]:
    """The orders for room for the waiting requests. A request gets room on one of its reserved
    instances: the one that lacks the least. Requests may leave that instance for the other
    instances that are reserved for the request. `sources`: the ids of the instances where moves may
    begin."""
    reserved: dict[Key, list[str]] = {}
    for instance_id, key in placement.reserved.items():
        if instance_id in rooms:
            reserved.setdefault(key, []).append(instance_id)
    for key, instance_ids in reserved.items():
        waiting = placement.queue.get(key)
        if waiting is None:
            continue
        lacking = {
            i: rooms[i].lacking_blocks(waiting.demand_blocks) for i in instance_ids if i in sources
        }
        best = min(lacking, key=lambda i: (lacking[i], i), default="")
        if lacking.get(best, 0) > 0:
            own = {i: left[i] for i in instance_ids if i != best and left.get(i, 0) > 0}
            yield _Wanted(best, waiting.request_id, waiting.rank, lacking[best], own)


def _shared(
    wanted: Sequence[_Wanted],
    spare: Mapping[str, int],
    may_move: Callable[[str, str], bool],
    turn: int,
) -> Iterator[MakeRoom]:
    """Offers the room of each instance to one order only, because two plans that count on the same
    blocks would both be given up. Each order in turn takes the largest rooms until it can probably
    make a plan; the first order gets the rooms that nobody took."""
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
    """Whether a round does anything for the requests of this instance, if other instances have
    room."""
    return _is_blocked(snapshot) or _near_eviction(snapshot, config)


def _left(snapshot: InstanceSnapshot, room: Room, config: HoldingConfig) -> int:
    """How many blocks a request that leaves another instance may take on this one."""
    growth_blocks = _growth(snapshot, 2 * config.evict_margin_steps)
    return room.free_blocks - growth_blocks if room.num_places > 0 else 0


def _is_blocked(snapshot: InstanceSnapshot) -> bool:
    head = snapshot.queue_head
    return head is not None and head.demand_blocks > snapshot.admissible_blocks


def _near_eviction(snapshot: InstanceSnapshot, config: HoldingConfig) -> bool:
    if not config.evict_margin_steps:
        return False
    free = snapshot.num_free_blocks - snapshot.fill_blocks
    return free < _growth(snapshot, config.evict_margin_steps)


def _growth(snapshot: InstanceSnapshot, num_steps: float) -> int:
    """How many more blocks the batch takes in `num_steps` steps."""
    return math.ceil(snapshot.num_running * num_steps / snapshot.block_size)


# -- at the source ---------------------------------------------------------------------------------


PLAN_FAILED = "plan_failed"
"""The code of a move that is given up because the plan to which it belongs is given up."""
_HARMLESS = frozenset({"finished", "client_left", "evicted", PLAN_FAILED})


class NoRoom(StrEnum):
    """Why there is no plan; `core.migration.refusals` has a sentence for each code."""

    NO_PLAN = "no_plan"
    PLAN_TOO_LARGE = "plan_too_large"


@value
class RoomMove:
    candidate: Candidate
    destination_id: str


@value
class RoomPlan:
    """The moves by which a source makes room. `let_go`: moves of requests that wait behind the
    blocked head. `plan`: moves that free `lacking_blocks`: the blocks that are lacking and that no
    move under way frees. If the plan is empty, `refusal` says why; None then means that no blocks
    are lacking, or that too many moves are under way. `num_movable`: how many running requests may
    leave."""

    let_go: tuple[RoomMove, ...] = ()
    plan: tuple[RoomMove, ...] = ()
    lacking_blocks: int = 0
    refusal: NoRoom | None = None
    num_movable: int = 0


def room_plan_for(
    order: MakeRoom,
    candidates: Iterable[Candidate],
    block_size: int,
    num_may_begin: int,
    max_moves: int,
    config: ReschedulingConfig,
) -> RoomPlan:
    """The source's plan for an order. `num_may_begin`: how many more moves may begin now;
    `max_moves`: how many the instance may have at a time."""
    rested = [_guarded(each, config) for each in candidates]
    on_their_way = sum(c.num_freed_blocks for c in rested if c.outgoing and not c.queued)
    lacking_blocks = order.lacking_blocks - on_their_way
    if lacking_blocks <= 0 or num_may_begin <= 0:
        return RoomPlan()
    spare = dict(order.spare_blocks)
    behind = plan_leaving(rested, order.request_id, spare, block_size)
    let_go = tuple(behind[:num_may_begin])
    for each in let_go:
        spare[each.destination_id] -= each.candidate.demand_blocks(block_size)
    plan = tuple(plan_room(rested, lacking_blocks, spare, block_size, order.rank))
    num_movable = sum(_may_leave(each) and not each.queued for each in rested)
    if not plan:
        return RoomPlan(let_go, (), lacking_blocks, NoRoom.NO_PLAN, num_movable)
    if len(plan) > max_moves:
        return RoomPlan(let_go, (), lacking_blocks, NoRoom.PLAN_TOO_LARGE, num_movable)
    if len(plan) > num_may_begin - len(let_go):
        plan = ()
    return RoomPlan(let_go, plan, lacking_blocks, None, num_movable)


def head_to_leave(
    order: MoveHead, candidates: Iterable[Candidate], config: ReschedulingConfig
) -> Candidate | None:
    """The queue head that the order names, if it still waits and may leave."""
    for each in candidates:
        if each.request_id == order.request_id:
            return each if each.queued and _may_leave(_guarded(each, config)) else None
    return None


def ends_plan(code: str) -> bool:
    """Whether a plan is given up when one of its moves failed for this reason: half a plan makes no
    room. If a request has ended meanwhile, it has made room anyway, and the plan goes on."""
    return code not in _HARMLESS


def _may_leave(candidate: Candidate) -> bool:
    return candidate.refusal is None and not candidate.outgoing


def _guarded(candidate: Candidate, config: ReschedulingConfig) -> Candidate:
    """The candidate, with a refusal if it has moved as often as it may."""
    if candidate.refusal or not config.guard:
        return candidate
    num_moves = sum(ago_s < MINUTE_S for _, ago_s in candidate.moves)
    if num_moves < config.max_moves_per_minute:
        return candidate
    return replace(candidate, refusal=ReliefRefusal.MOVES_OFTEN)


def plan_room(
    candidates: Iterable[Candidate],
    lacking_blocks: int,
    spare_blocks: Mapping[str, int],
    block_size: int,
    highest_rank: int,
) -> list[RoomMove]:
    """Moves that free at least `lacking_blocks` and copy the fewest blocks, as far as a greedy
    search finds them; [] if it finds no set of moves that is enough.

    `spare_blocks`: by destination. Each leaving request takes one block more at its destination
    than it holds here, because it decodes on. Only requests of at most `highest_rank` leave.
    """
    if sum(spare_blocks.values()) <= lacking_blocks:
        return []  # A request takes more blocks at its destination than it frees at this instance.
    movable = [
        c
        for c in candidates
        if not c.queued
        and c.refusal is None
        and not c.outgoing
        and c.num_freed_blocks > 0
        and c.rank <= highest_rank
    ]
    movable.sort(key=lambda c: (-c.num_freed_blocks, c.request_id))
    best: list[RoomMove] = []
    least = 1 << 62
    # Each attempt leaves out one more of the largest requests, because a smaller one may fit
    # better.
    for first in range(len(movable)):
        plan = _largest_first(movable[first:], lacking_blocks, spare_blocks, block_size)
        if plan is None:
            break  # if still more of them are left out, no room is made either
        num_copied = sum(each.candidate.num_blocks for each in plan)
        if num_copied < least:
            best, least = plan, num_copied
    return best


def plan_leaving(
    candidates: Iterable[Candidate],
    head_id: str,
    spare_blocks: Mapping[str, int],
    block_size: int,
) -> list[RoomMove]:
    """Moves of the requests behind the blocked head `head_id`, in order, to queues where they fit
    at once; nothing is copied. Without this, some requests behind an evicted request waited as long
    as the largest requests. [] if the request `head_id` does not wait here."""
    left, plan = dict(spare_blocks), list[RoomMove]()
    queued = [c for c in candidates if c.queued]
    if all(c.request_id != head_id for c in queued):
        return []
    for candidate in sorted(queued, key=lambda c: c.queue_order):
        if candidate.request_id == head_id or candidate.refusal or candidate.outgoing:
            continue
        needed = candidate.demand_blocks(block_size)
        freest = min(left, key=lambda instance_id: (-left[instance_id], instance_id), default=None)
        if freest is not None and left[freest] >= needed:
            left[freest] -= needed
            plan.append(RoomMove(candidate, freest))
    return plan


def _largest_first(
    movable: list[Candidate], lacking_blocks: int, spare: Mapping[str, int], block_size: int
) -> list[RoomMove] | None:
    left, plan, num_freed = dict(spare), list[RoomMove](), 0
    for candidate in movable:
        if num_freed >= lacking_blocks:
            break
        needed = candidate.blocks_there(block_size) + 1
        fitting = [instance_id for instance_id, blocks in left.items() if blocks >= needed]
        if fitting:
            tightest = min(fitting, key=lambda instance_id: (left[instance_id], instance_id))
            left[tightest] -= needed
            num_freed += candidate.num_freed_blocks
            plan.append(RoomMove(candidate, tightest))
    return plan if num_freed >= lacking_blocks else None
