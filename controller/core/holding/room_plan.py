"""Which requests of an instance leave for which others: so that a blocked one fits there, and from
behind one that does not."""

from collections.abc import Iterable, Mapping

from controller.core.rescheduling.candidate import Candidate
from controller.core.value import value


@value
class RoomMove:
    candidate: Candidate
    destination_id: str


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
