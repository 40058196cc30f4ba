"""Why: the part of an alarm that names a cause, so that nobody has to look for it in the panes."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from controller.api.text.closed import no_requests
from controller.api.text.held_words import blocks, why
from controller.api.text.quantities import duration
from controller.api.text.queue_heads import free_blocks, is_reserved

if TYPE_CHECKING:
    from controller.api.wire.holding import HeldHeadStatus
    from controller.api.wire.models import ClusterStatus, InstanceStatus

GIANT_RATIO = 0.25
"""A queue head that needs so much of an instance is told as a share of it."""
FEW_REQS = 10
"""So few requests that hold most of an instance are giants; what fits is some 30 of usual ones."""
MOST_RATIO = 0.75

_WHYS: Mapping[str, str] = {
    "memory": "memory is full everywhere",
    "batch-full": "its batch is full",
}


def share(demand_blocks: int, num_total_blocks: int | None) -> str:
    """`, 81% of an instance`, for what is a giant."""
    if not num_total_blocks or demand_blocks < GIANT_RATIO * num_total_blocks:
        return ""
    return f", {demand_blocks / num_total_blocks:.0%} of an instance"


def of_queue(item: "InstanceStatus", status: "ClusterStatus") -> Iterator[str]:
    """Why what waits at the instance does wait."""
    head = item.queue_head
    if head is not None:
        if head.why == "fragmented":
            yield _fragmented(item, head.demand_blocks, status)
        elif head.why in _WHYS:
            yield _WHYS[head.why]
    yield from _giants(item, "it")


def _giants(item: "InstanceStatus", name: str) -> Iterator[str]:
    """Few requests that hold most of the instance."""
    running, usage = item.num_running_reqs or 0, item.kv_cache_usage or 0.0
    if 0 < running <= FEW_REQS and usage >= MOST_RATIO:
        yield f"{running} request{'s hold' if running > 1 else ' holds'} {usage:.0%} of {name}"


def held_head(head: "HeldHeadStatus", status: "ClusterStatus") -> str:
    """`head for 45s needs 688 blocks, lacks 198 on i-3, kept for it, 81% of an instance`; of
    another one that has waited longest: `longest 45s (normal) needs ...`."""
    waited = duration(head.waited_s)
    words = f"head for {waited}" if head.place == 1 else f"longest {waited} ({head.level})"
    if head.demand_blocks is None:
        return words
    words += f" needs {blocks(head.demand_blocks)}"
    if head.why == "kept" and head.lacking_blocks:
        words += f", lacks {head.lacking_blocks} on {head.instance_id}, kept for it"
    largest = max((item.num_total_blocks or 0 for item in status.instances), default=0)
    return words + share(head.demand_blocks, largest)


def of_held(head: "HeldHeadStatus", status: "ClusterStatus") -> Iterator[str]:
    """Why the request waits at the controller."""
    if head.why != "kept" or not head.lacking_blocks:
        yield why(head)
    for item in status.instances:
        if item.id == head.instance_id:
            yield from _giants(item, item.id)
    if head.place > 1:
        yield f"{head.place - 1} before it"


def _fragmented(item: "InstanceStatus", demand_blocks: int, status: "ClusterStatus") -> str:
    """Free blocks of an instance that is reserved, or gets no requests, are no room for it."""
    active = [each for each in status.instances if each.state == "active" and each.id != item.id]
    others = [each for each in active if not no_requests(each)]
    rooms = [(free_blocks(each) or 0, each.id) for each in others if not is_reserved(each)]
    blocks, freest = max(rooms, default=(0, ""))
    if freest and blocks >= demand_blocks:
        return f"{freest} has room for it ({blocks} blocks)"
    kept = [(free_blocks(each) or 0, each.id) for each in others if is_reserved(each)]
    num_kept, reserved = max(kept, default=(0, ""))
    if reserved and num_kept >= demand_blocks:
        return f"{reserved} has room ({num_kept} blocks), but it is reserved"
    return "memory is fragmented" + (f", {freest} has most: {blocks}" if freest else "")


def of_levels(item: "InstanceStatus", status: "ClusterStatus") -> Iterator[str]:
    """Whether most of what runs there is of a priority that keeps a headroom."""
    running = item.num_running_reqs or 0
    for level in status.levels:
        number = item.num_running_by_level.get(level.name, 0)
        if level.target_load_tokens is not None and number > running / 2:
            yield f"{number} of {running} running are {level.name}"


def of_silence(item: "InstanceStatus") -> Iterator[str]:
    """Whom it hurts that an instance does not answer."""
    number = (item.num_running_reqs or 0) + (item.num_waiting_reqs or 0)
    if number:
        yield f"{number} request{'s stand' if number > 1 else ' stands'} still there"


def of_drain(item: "InstanceStatus", status: "ClusterStatus") -> Iterator[str]:
    """Why the last moves away from an instance came to nothing."""
    moves = [each for each in status.ended_moves if each.from_instance_id == item.id]
    failed = Counter(each.why for each in moves if each.outcome != "migrated" and each.why)
    if failed and len(moves) <= 2 * failed.total():
        yield f"its moves fail: {failed.most_common(1)[0][0]}"


def slow_moves(status: "ClusterStatus", limit_s: float) -> tuple[str, str, float] | None:
    """(who, what, for how long): the instance that most of the moves come from or go to that have
    been under way for longer than that."""
    slow = [each for each in status.moves if limit_s and each.age_s >= limit_s]
    if not slow:
        return None
    to = Counter(each.to_instance_id for each in slow)
    of = Counter(each.from_instance_id for each in slow)
    (most_to, num_to), (most_of, num_of) = to.most_common(1)[0], of.most_common(1)[0]
    towards = num_to >= num_of
    who, number = (most_to, num_to) if towards else (most_of, num_of)
    oldest = max(
        (each for each in slow if who in (each.to_instance_id, each.from_instance_id)),
        key=lambda each: each.age_s,
    )
    words = (
        f"{number} slow move{'s' if number > 1 else ''} {'to' if towards else 'from'} it:"
        f" {oldest.num_blocks_copied} of {oldest.num_blocks} blocks in {duration(oldest.age_s)}"
    )
    return who, words, oldest.age_s
