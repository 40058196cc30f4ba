"""What an instance does, between two steps, when it is to make room: who leaves, and where to. Live
instances and simulated ones ask here.

    guard       a request that has moved as often as it may within a minute stays
    on its way  the blocks of those that leave already count as free
    let go      those that wait behind a blocked head leave first, and take their room over there
    whole       a plan of which not all moves may begin now is not begun; when one of them fails,
                the others are given up
"""

from collections.abc import Iterable
from dataclasses import replace
from enum import StrEnum

from controller.core.holding.blocked import MakeRoom, MoveHead
from controller.core.holding.room_plan import RoomMove, plan_leaving, plan_room
from controller.core.migration.refusals import ReliefRefusal
from controller.core.rescheduling.candidate import Candidate
from controller.core.rescheduling.relief import MINUTE_S
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
