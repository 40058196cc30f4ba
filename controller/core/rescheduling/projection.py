"""Snapshots as they will be: without the requests that are leaving, with those on their way."""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import replace

from controller.core.load.snapshot import InstanceSnapshot, QueueHead, with_batch
from controller.core.rescheduling.candidate import Candidate


def without(
    snapshot: InstanceSnapshot, candidates: Iterable[Candidate], leaving: Collection[str]
) -> InstanceSnapshot:
    """The instance once the requests `leaving`, which are among its `candidates`, are gone.

    If the queue's head leaves, the next in the queue becomes the head.
    """
    candidates = tuple(candidates)
    gone = [c for c in candidates if c.request_id in leaving]
    running, queued = [c for c in gone if not c.queued], [c for c in gone if c.queued]
    if running:
        num_freed_blocks = sum(c.num_freed_blocks for c in running)
        by_rank = dict(snapshot.num_running_by_rank)
        for c in running:
            by_rank[c.rank] = by_rank.get(c.rank, 0) - 1
        snapshot = with_batch(
            snapshot,
            snapshot.num_free_blocks + num_freed_blocks,
            snapshot.num_running - len(running),
            {rank: num for rank, num in by_rank.items() if num > 0},
        )
    if not queued:
        return snapshot
    bs = snapshot.block_size
    queued_by_rank = Counter(snapshot.num_queued_by_rank)
    queued_by_rank.subtract(c.rank for c in queued)
    head = snapshot.queue_head
    if head is not None and any(c.request_id == head.request_id for c in queued):
        waiting = [c for c in candidates if c.queued and c.request_id not in leaving]
        waiting.sort(key=lambda c: c.queue_order)
        head = _as_head(waiting[0], bs) if waiting else None
    return replace(
        snapshot,
        num_queued=snapshot.num_queued - len(queued),
        num_queued_by_rank=+queued_by_rank,
        queued_demand_blocks=snapshot.queued_demand_blocks
        - sum(c.demand_blocks(bs) for c in queued),
        queue_head=head,
        num_evicted_queued=snapshot.num_evicted_queued - sum(c.evicted for c in queued),
    )


def with_arrivals(snapshot: InstanceSnapshot, arriving: Iterable[Candidate]) -> InstanceSnapshot:
    """The instance once all of these requests run there, also those that were queued."""
    arriving = tuple(arriving)
    if not arriving:
        return snapshot
    by_rank = dict(snapshot.num_running_by_rank)
    num_blocks = 0
    for c in arriving:
        by_rank[c.rank] = by_rank.get(c.rank, 0) + 1
        num_blocks += c.blocks_there(snapshot.block_size)
    return with_batch(
        snapshot,
        snapshot.num_free_blocks - num_blocks,
        snapshot.num_running + len(arriving),
        by_rank,
    )


def with_queued(snapshot: InstanceSnapshot, arriving: Iterable[Candidate]) -> InstanceSnapshot:
    """The instance once all of these requests wait there, in the order of its queue."""
    waiting = sorted(arriving, key=lambda c: c.queue_order)
    if not waiting:
        return snapshot
    bs, by_rank = snapshot.block_size, Counter(snapshot.num_queued_by_rank)
    by_rank.update(c.rank for c in waiting)
    return replace(
        snapshot,
        num_queued=snapshot.num_queued + len(waiting),
        num_queued_by_rank=by_rank,
        queued_demand_blocks=snapshot.queued_demand_blocks
        + sum(c.demand_blocks(bs) for c in waiting),
        queue_head=_first(snapshot.queue_head, _as_head(waiting[0], bs)),
        num_evicted_queued=snapshot.num_evicted_queued + sum(c.evicted for c in waiting),
    )


def _first(present: QueueHead | None, arriving: QueueHead) -> QueueHead:
    if present is None:
        return arriving
    return min(present, arriving, key=lambda h: (-h.rank, h.arrival_time_s, h.request_id))


def _as_head(candidate: Candidate, block_size: int) -> QueueHead:
    return QueueHead(
        candidate.request_id,
        candidate.rank,
        candidate.demand_blocks(block_size),
        candidate.arrival_time_s,
        candidate.evicted,
    )
