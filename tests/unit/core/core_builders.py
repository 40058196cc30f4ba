"""Snapshots and events for the core's tests, counted the way a llumlet counts."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pytest

from controller.core import scheduler_events as events
from controller.core.admission.policies import Prompt
from controller.core.load.cached_prefixes import CacheReport
from controller.core.load.closed import OPEN, Closed
from controller.core.load.snapshot import InstanceSnapshot, Level, QueueHead, blocks_for
from controller.core.scheduler import GlobalScheduler
from controller.core.scheduler_events import DispatchRequested, StatusReported

DRAINS = frozenset({Closed.DRAINING})
"""What the spec has against an instance that drains."""
CORDONED = frozenset({Closed.CORDONED})

T = TypeVar("T")
BLOCK_SIZE = 16
THREE_LEVELS = (
    Level("normal", 0),
    Level("high", 1, target_load_tokens=1600),
    Level("urgent", 2, target_load_tokens=160),
)


@dataclass(frozen=True, slots=True)
class RequestSnapshot:
    """One request on one instance. `num_tokens` counts prompt and outputs so far."""

    request_id: str
    rank: int
    num_tokens: int
    num_held_blocks: int
    running: bool
    in_prefill: bool = False
    arrival_time_s: float = 0.0


def running(request_id: str, held_blocks: int, rank: int = 0) -> RequestSnapshot:
    """A decoding request whose blocks are full."""
    return RequestSnapshot(request_id, rank, held_blocks * BLOCK_SIZE, held_blocks, running=True)


def queued(request_id: str, demand_blocks: int, rank: int = 0) -> RequestSnapshot:
    return RequestSnapshot(request_id, rank, demand_blocks * BLOCK_SIZE, 0, running=False)


def snapshot_of(
    requests: Sequence[RequestSnapshot] = (),
    *,
    instance_id: str = "a",
    incarnation: int = 1,
    total_blocks: int = 100,
    watermark_blocks: int = 0,
    draining: bool = False,
) -> InstanceSnapshot:
    """The counters of an instance that holds `requests`, no block shared; queue in list order."""
    active = [r for r in requests if r.running]
    waiting = [r for r in requests if not r.running]
    head = waiting[0] if waiting else None

    def demand(request: RequestSnapshot) -> int:
        return blocks_for(request.num_tokens, BLOCK_SIZE)

    return InstanceSnapshot(
        instance_id=instance_id,
        incarnation=incarnation,
        block_size=BLOCK_SIZE,
        num_total_blocks=total_blocks,
        num_free_blocks=total_blocks - sum(r.num_held_blocks for r in active),
        watermark_blocks=watermark_blocks,
        fill_blocks=sum(max(0, demand(r) - r.num_held_blocks) for r in active if r.in_prefill),
        num_running=len(active),
        num_running_by_rank=Counter(r.rank for r in active),
        num_queued=len(waiting),
        num_queued_by_rank=Counter(r.rank for r in waiting),
        queued_demand_blocks=sum(demand(r) for r in waiting),
        queue_head=None
        if head is None
        else QueueHead(head.request_id, head.rank, demand(head), head.arrival_time_s),
        draining=draining,
    )


def status(
    instance_id: str = "a",
    *,
    seen: int = 0,
    requests: Sequence[RequestSnapshot] = (),
    **more: Any,
) -> StatusReported:
    snapshot = snapshot_of(requests, instance_id=instance_id, **more)
    return StatusReported(snapshot, last_dispatch_seq=seen)


def scheduler_with(config: Any, **used_blocks: int) -> GlobalScheduler:
    """With instances that have reported, each with a request of so many of its 100 blocks; 0: idle,
    and -1: it has not reported."""
    scheduler = GlobalScheduler(config)
    for instance_id, used in used_blocks.items():
        scheduler.handle(events.InstanceStarted(instance_id, 1), 0.0)
        if used >= 0:
            there = [running("x", used)] if used else []
            scheduler.handle(status(instance_id, requests=there), 0.0)
    return scheduler


def any_event(
    dice: random.Random, scheduler: GlobalScheduler, number: int, ids: Sequence[str]
) -> events.Event:
    """What may happen to a scheduler: mostly statuses, which are full more often than not, and
    requests."""
    instance_id, frontend_id = dice.choice(ids), dice.choice("fg")
    record = scheduler.instances.get(instance_id)
    incarnation, seq = (1, 0) if record is None else (record.incarnation, record.last_dispatch_seq)
    kinds = ("status", "request", "tick", "cancel", "closed", "change")
    match dice.choices(kinds, (60, 20, 10, 3, 3, 4))[0]:
        case "status":
            held = min(100, dice.choice((dice.randint(0, 100), dice.randint(80, 100))))
            there = [running("x", held, dice.choice((0, 0, 1, 7)))] if held else []
            there += [queued("q", 30)] if dice.random() < 0.2 else []
            seen, draining = dice.choice((seq, max(0, seq - 1))), dice.random() < 0.05
            found = status(
                instance_id, incarnation=incarnation, seen=seen, requests=there, draining=draining
            )
            stored, dropped = (tuple(dice.sample(range(1, 6), dice.randint(0, 3))) for _ in "sd")
            told = CacheReport(dice.randint(1, 3), stored, dropped)
            return replace(found, cache=dice.choice((None, told)))
        case "request":
            asked = request(
                f"r{number}",
                frontend_id=frontend_id,
                tokens=dice.randint(1, 1500),
                rank=dice.choice((0, 0, 0, 1, 2, dice.randint(-99, 99))),
                arrival=float(number),
                prefix_hashes=dice.choice(((), (1,), (1, 2), (1, 2, 3), (4,), (4, 5))),
            )
            return replace(asked, prefix_hash_tokens=300)
        case "tick":
            return events.Ticked()
        case "cancel":
            return events.DispatchCancelled(f"r{number - dice.randint(1, 20)}", frontend_id)
        case "closed":
            by = dice.choice((OPEN, OPEN, DRAINS, CORDONED, DRAINS | CORDONED))
            return events.ClosedBy(instance_id, by)
        case _:
            started = events.InstanceStarted(instance_id, incarnation + dice.randrange(2))
            changes = (
                started,
                started,
                events.InstanceDied(instance_id, incarnation),
                events.InstanceStalled(instance_id, incarnation, dice.random() < 0.3),
                events.InstanceRemoved(instance_id),
                events.FrontendDied(frontend_id),
            )
            return dice.choice(changes)


def all_as_soon(_key: object) -> Prompt:
    """Of any request: its first token comes at once wherever it goes."""
    return Prompt(0, {})


def request(
    request_id: str,
    *,
    frontend_id: str = "f",
    tokens: int = 160,
    rank: int = 0,
    arrival: float = 0.0,
    prefix_hashes: tuple[int, ...] = (),
) -> DispatchRequested:
    """Each prefix hash is of one more block."""
    return DispatchRequested(
        request_id,
        frontend_id,
        tokens,
        rank,
        arrival,
        prefix_hashes=prefix_hashes,
        prefix_hash_tokens=BLOCK_SIZE,
    )


def few_seeds(number: int, in_all: int) -> list[Any]:
    """The seeds of a test of which so many are enough every day."""
    seldom = [pytest.param(seed, marks=pytest.mark.long) for seed in range(number, in_all)]
    return [*range(number), *seldom]


def run_seeds(number: int, run: Callable[[int], T]) -> list[T]:
    """What comes of each seed; a seed that fails is named."""
    found = []
    for seed in range(number):
        try:
            found.append(run(seed))
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
    return found
