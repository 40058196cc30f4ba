"""Sources and destinations for the tests of relief: an instance counts its candidates' blocks."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from controller.core.emptying.relief import Candidate, ReliefView
from controller.core.load.snapshot import DEFAULT_LEVELS, InstanceSnapshot, QueueHead
from controller.core.settings import ReschedulingConfig

BLOCK_SIZE = 16
BLOCK_BYTES = 1_000_000
BYTES_PER_S = 1e9
"""A block in 1 ms."""
STEP_TIME_S = 0.02
EASY = ReschedulingConfig(source_below_steps=48, destination_above_steps=48)


def running(request_id: str, num_blocks: int, rank: int = 0, **more: Any) -> Candidate:
    """A decoding request whose blocks are full."""
    freed = more.pop("num_freed_blocks", num_blocks)
    num_tokens = num_blocks * BLOCK_SIZE
    return Candidate(request_id, rank, num_tokens, num_blocks, freed, queued=False, **more)


def queued(request_id: str, demand_blocks: int, rank: int = 0, **more: Any) -> Candidate:
    return Candidate(request_id, rank, demand_blocks * BLOCK_SIZE, 0, 0, queued=True, **more)


def instance(
    *requests: Candidate, instance_id: str = "a", total_blocks: int = 100, **more: Any
) -> InstanceSnapshot:
    """No block is shared."""
    batch = [r for r in requests if not r.queued]
    waiting = sorted((r for r in requests if r.queued), key=lambda r: r.queue_order)
    head = waiting[0] if waiting else None
    return InstanceSnapshot(
        instance_id=instance_id,
        incarnation=1,
        block_size=BLOCK_SIZE,
        num_total_blocks=total_blocks,
        num_free_blocks=total_blocks - sum(r.num_blocks for r in batch),
        num_running=len(batch),
        num_running_by_rank=Counter(r.rank for r in batch),
        num_queued=len(waiting),
        num_queued_by_rank=Counter(r.rank for r in waiting),
        queued_demand_blocks=sum(r.demand_blocks(BLOCK_SIZE) for r in waiting),
        queue_head=None
        if head is None
        else QueueHead(
            head.request_id,
            head.rank,
            head.demand_blocks(BLOCK_SIZE),
            head.arrival_time_s,
            head.evicted,
        ),
        num_evicted_queued=sum(r.evicted for r in waiting),
        **more,
    )


def view_of(
    source: Sequence[Candidate],
    destination: Sequence[Candidate] = (),
    *,
    total_blocks: int = 100,
    draining: bool = False,
    config: ReschedulingConfig = EASY,
    **more: Any,
) -> ReliefView:
    view = ReliefView(
        source=instance(*source, total_blocks=total_blocks, draining=draining),
        candidates=tuple(source),
        destination=instance(*destination, instance_id="b", total_blocks=total_blocks),
        sent=(),
        levels=DEFAULT_LEVELS,
        config=config,
        block_bytes=BLOCK_BYTES,
        bytes_per_s=BYTES_PER_S,
        step_time_s=STEP_TIME_S,
    )
    return replace(view, **more)


def begun(view: ReliefView, chosen: Candidate) -> ReliefView:
    """The next question, once the move of `chosen` is under way."""
    return replace(
        view,
        candidates=tuple(
            replace(c, outgoing=True) if c.request_id == chosen.request_id else c
            for c in view.candidates
        ),
        sent=(*view.sent, chosen),
    )


ARRIVALS = [
    running("old", 30, arrival_time_s=1),
    running("mid", 20, arrival_time_s=2),
    running("new", 40, arrival_time_s=3),
    queued("first", 25, arrival_time_s=4),
    queued("second", 5, arrival_time_s=5),
]
