"""What an instance does, between two steps, when it is to make room: which requests leave, and
where to. Live instances and simulated ones ask here.

    guard       a request that has moved as often as it may within a minute stays
    on its way  the blocks of those that leave already count as free
    let go      those that wait behind a blocked head leave first, and take their room over there
    whole       a plan of which not all moves may begin now is not begun; when one of them fails,
                the others are given up
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import StrEnum

from controller.core.admission.room_orders import MakeRoom, MoveHead
from controller.core.emptying.relief import MINUTE_S, Candidate
from controller.core.migration.refusals import ReliefRefusal
from controller.core.settings import ReschedulingConfig
from controller.core.value import value

PLAN_FAILED = "plan_failed"
"""Why a move is given up with its plan."""
_HARMLESS = frozenset({"finished", "client_left", "evicted", PLAN_FAILED})


class NoRoom(StrEnum):
    """Why there is no plan; `core.migration.refusals` says each in a sentence."""

    NO_PLAN = "no_plan"
    PLAN_TOO_LARGE = "plan_too_large"


@value
class RoomMove:
    candidate: Candidate
    destination_id: str


@value
class RoomPlan:
    """`let_go` wait behind the blocked head. `plan` frees `lacking_blocks`, those that nothing on
    its way frees, or is empty: then `refusal` says why, and None that nothing is lacking or that
    too many moves are under way. `num_movable`: running requests that may leave."""

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
    """`num_may_begin` of the `max_moves` that the instance may have at a time."""
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
    """The queue head of the order, if it still waits and may leave."""
    for each in candidates:
        if each.request_id == order.request_id:
            return each if each.queued and _may_leave(_guarded(each, config)) else None
    return None


def ends_plan(code: str) -> bool:
    """Whether a move that came to nothing for this reason takes its plan along: half a plan makes
    no room. A request that has ended meanwhile has made its room all the same."""
    return code not in _HARMLESS


def _may_leave(candidate: Candidate) -> bool:
    return candidate.refusal is None and not candidate.outgoing


def _guarded(candidate: Candidate, config: ReschedulingConfig) -> Candidate:
    """With the refusal of one that has moved as often as it may."""
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
    """Moves that free at least `lacking_blocks` with the fewest blocks copied, as far as a greedy
    search finds them; [] if no set of them would do: half a plan makes no room.

    `spare_blocks` by destination. Each leaving request takes one block more there than it holds,
    as it decodes on. Only requests of at most `highest_rank` leave.
    """
    if sum(spare_blocks.values()) <= lacking_blocks:
        return []  # A request takes more there than it frees here.
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
    # Each try leaves the largest ones out; the first request may then be a better fit.
    for first in range(len(movable)):
        plan = _largest_first(movable[first:], lacking_blocks, spare_blocks, block_size)
        if plan is None:
            break  # without still more of them there is no room either
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
    """Who waits behind the blocked head `head_id` goes, in order, to wait where it fits at once;
    nothing is copied. Behind an evicted request some waited for as long as the largest ones. []
    if no request of that name waits here."""
    left, plan = dict(spare_blocks), list[RoomMove]()
    queued = [c for c in candidates if c.queued]
    if all(c.request_id != head_id for c in queued):
        return []
    for candidate in sorted(queued, key=lambda c: c.queue_order):
        if candidate.request_id == head_id or candidate.refusal or candidate.outgoing:
            continue
        needed = candidate.demand_blocks(block_size)
        freest = max(left, key=lambda instance_id: (left[instance_id], instance_id), default=None)
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
