"""Virtual usage, freeness, and room: how free an instance is.

Virtual usage is one number per instance. It turns every goal into the balancing of load. Freeness
says how many more decode steps the instance's batch can run; a larger number is freer. `Room` says
what the instance can take now: free blocks and places that no known request will take.

Paper section 4.4.2, Algorithm 1 (CalcVirtualUsage and GetHeadroom), summed over an instance. All
amounts are in blocks. An instance that is to be emptied is treated as full: a queue head counts
before it runs, a priority reserves room that nobody uses, and a draining instance is infinitely
full.

    running          blocks held + blocks its prefill still takes + its share of the headroom
    head of line     what it needs in order to start
    other queued     nothing: only the next one can be helped by making room
    terminating      one fake request of infinite usage

Section 4.4: F = (M - sum V) / B, in tokens of room per request, which are decode steps, as each
running request takes one token per step. F can be negative, because the queue head does not fit or
the headroom is not kept. `freeness` guides migration, `dispatch_freeness` the dispatch of new
requests, which must also see the whole queue and the requests on their way.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from controller.core.load.snapshot import (
    NOT_MEASURED,
    InstanceSnapshot,
    Level,
    PrefillSpeed,
    Unreported,
    blocks_for,
    with_batch,
)


def headroom_blocks(level: Level, snapshot: InstanceSnapshot) -> int:
    """h(p): the blocks that one instance keeps free while it runs requests of `level`. This is M
    less the level's target load, so that the load next to a running request of this level stays at
    the target. h(p) does not depend on how many requests of the level run on the instance.
    """
    if level.target_load_tokens is None:
        return 0
    target_blocks = blocks_for(level.target_load_tokens, snapshot.block_size)
    return max(0, snapshot.capacity_blocks - target_blocks)


def total_headroom_blocks(snapshot: InstanceSnapshot, levels: Sequence[Level]) -> int:
    """H: the sum of the headrooms of the levels that have a running request on this instance; at
    most M."""
    wanted, running = 0, snapshot.num_running_by_rank
    for level in levels:  # `headroom_by_rank` is too slow for each round
        if level.target_load_tokens is not None and running.get(level.rank, 0) > 0:
            wanted += headroom_blocks(level, snapshot)
    return min(wanted, max(0, snapshot.capacity_blocks)) if wanted else 0


def headroom_by_rank(snapshot: InstanceSnapshot, levels: Sequence[Level]) -> dict[int, int]:
    """By rank, h(p) of each level that keeps a headroom and has a running request on this
    instance.
    """
    running = snapshot.num_running_by_rank
    headrooms = {p.rank: headroom_blocks(p, snapshot) for p in levels if running.get(p.rank, 0) > 0}
    return {rank: blocks for rank, blocks in headrooms.items() if blocks}


def instance_virtual_usage(snapshot: InstanceSnapshot, levels: Sequence[Level]) -> float:
    """Sum of V over one instance: used + fill + H + demand(head); infinite when draining.

    The sum is taken over the instance's own counters, plus H, which is at most M. The counters
    count a shared block once. A sum over single requests, each with its share of the headroom,
    would count shared blocks several times and could count more headroom than M.
    """
    if snapshot.draining:
        return math.inf
    head = snapshot.queue_head
    return float(
        snapshot.num_total_blocks
        - snapshot.num_free_blocks
        + snapshot.fill_blocks
        + total_headroom_blocks(snapshot, levels)
        + (head.demand_blocks if head is not None else 0)
    )


NOTHING_UNREPORTED = Unreported()


def num_in_batch(snapshot: InstanceSnapshot) -> int:
    """The running requests, and one more if any is queued, as the head joins next."""
    return snapshot.num_running + 1 if snapshot.num_queued else snapshot.num_running


def batch_size(snapshot: InstanceSnapshot) -> int:
    """B: `num_in_batch`, at least 1. `num_in_batch` is not called, because each round computes B
    for each instance, and a call would cost time."""
    return (snapshot.num_running + 1 if snapshot.num_queued else snapshot.num_running) or 1


def freeness(snapshot: InstanceSnapshot, levels: Sequence[Level]) -> float:
    """F in decode steps. -inf when draining, else finite; an idle instance has bs * M."""
    if snapshot.draining:
        return -math.inf
    # `capacity_blocks` is written out, as each round asks for the freeness of each instance.
    capacity_blocks = snapshot.num_total_blocks - snapshot.watermark_blocks
    free_blocks = capacity_blocks - instance_virtual_usage(snapshot, levels)
    return snapshot.block_size * free_blocks / batch_size(snapshot)


def freest_first(steps: float, instance_id: str) -> tuple[float, str]:
    """The sort key by which every destination is chosen: the freest first, ties by id."""
    return -steps, instance_id


def with_another_rank(snapshot: InstanceSnapshot, before: int, after: int) -> InstanceSnapshot:
    """The same instance after one of its running requests changed its rank from `before` to
    `after`."""
    running = dict(snapshot.num_running_by_rank)
    running[before] = running.get(before, 0) - 1
    running[after] = running.get(after, 0) + 1
    left = {rank: number for rank, number in running.items() if number > 0}
    return with_batch(snapshot, snapshot.num_free_blocks, snapshot.num_running, left)


def finite(steps: float) -> float | None:
    """Freeness as a figure for an event: None for a draining instance, whose freeness is -inf."""
    return steps if math.isfinite(steps) else None


def dispatch_headroom_blocks(
    snapshot: InstanceSnapshot, level: Level, levels: Sequence[Level]
) -> int:
    """C(p): the blocks of headroom that count as taken for a new request of `level`; at most M, the
    instance's blocks.

    They are the headroom of every other level with running requests on the instance, which the new
    request may not use. If no request of its own level runs on the instance yet, the headroom of
    its own level is added, because the new request would bring that headroom with it. So the
    requests of one level gather on few instances.
    """
    running = snapshot.num_running_by_rank
    total = 0
    for other in levels:
        if other.target_load_tokens is None:
            continue
        if (running.get(other.rank, 0) > 0) != (other.rank == level.rank):
            total += headroom_blocks(other, snapshot)
    return min(total, max(0, snapshot.capacity_blocks)) if total else 0


def dispatch_freeness(
    snapshot: InstanceSnapshot,
    level: Level,
    levels: Sequence[Level],
    unreported: Unreported = NOTHING_UNREPORTED,
) -> float:
    """F_dispatch(p) in decode steps, for a new request of `level`. -inf when draining.

    Unlike F, this subtracts all queued demand and divides by all requests, because a new request
    waits behind all of them. A level outside `levels` brings no headroom of its own.
    """
    if snapshot.draining:
        return -math.inf
    # `admissible_blocks` is not called: this runs for each status, and the call adds 35 ns to 380.
    free_blocks = (
        snapshot.num_free_blocks
        - snapshot.watermark_blocks
        - snapshot.fill_blocks
        - snapshot.queued_demand_blocks
        - unreported.demand_blocks
        - dispatch_headroom_blocks(snapshot, level, levels)
    )
    if free_blocks <= 0:
        # A value of 0 or less is not divided by the number of requests: otherwise an overload would
        # seem smaller with every further request, and a whole burst would go to one instance
        # (docs/decisions/0001).
        return snapshot.block_size * float(free_blocks)
    num_reqs = snapshot.num_running + snapshot.num_queued + unreported.num_requests
    return snapshot.block_size * free_blocks / (num_reqs or 1)


# -- room ------------------------------------------------------------------------------------------


_NO_LIMIT = 1 << 30
MAX_QUEUED = 4
"""How many requests may wait on an instance until its next step admits them. The memory may be gone
by then: with a larger limit, dozens went to the freest instance at once, and the last of them
waited behind an evicted request for longer than any other request (S-L: 129 s)."""
STEP_TOKENS = 2048
"""While no instance is short of memory, more than `MAX_QUEUED` requests may wait on an instance,
until their tokens to compute fill one step of the engine. This is the size of a step if the
engine's own is not known.

Measured on a simulated H100 with prompts of 30 tokens and one output token: at 600 requests/s the
mean TTFT is 1.6 s with only four prompts in each step, and 13 ms if the prompts may fill 2,048
tokens. At 1,200 requests/s it is 2.4 s with 2,048 tokens, and 1.7 s with the engine's 8,192."""
GROWTH_DIVISOR = 16
"""The share of the memory that an admission leaves free for growth is at most a sixteenth.
Otherwise an admission would leave 320 tokens free, which are a third of a memory of 64 blocks. With
such a memory a prompt of 57 blocks waited until a request of 2 blocks ended."""


@dataclass(slots=True)
class Room:
    """What one instance can take now. `free_blocks` and `num_places` are what remains after all
    requests that run on the instance, wait on it or are on their way to it. While it has such
    requests, `growth_blocks` and the watermark stay free for their growth; an idle instance takes
    whatever its memory can hold, as its engine does. `claimed_blocks`: all blocks that these
    requests have or wait for. `ready_s`: when their prompts will be computed, by the clock of the
    decisions; `speed`: how fast prompts are computed there; `full_step_s`: the time of a step that
    computes as many tokens of prompts as it can; `copy_token_s`, `load_token_s`, `corrupt_links`:
    as in `InstanceSnapshot`; `fetched_s`: when the prefixes that it fetches from other instances
    will have arrived; `loaded_s`: when it will have loaded what it loads from its host cache;
    `num_cached_tokens`: how many tokens its prefix cache has."""

    instance_id: str
    free_blocks: int
    num_places: int
    num_requests: int
    capacity_blocks: int
    growth_blocks: int
    claimed_blocks: int
    ready_s: float = -math.inf
    speed: PrefillSpeed = NOT_MEASURED
    decode_step_s: float = 0.0
    full_step_s: float = 0.0
    copy_token_s: float = 0.0
    fetched_s: float = -math.inf
    corrupt_links: tuple[str, ...] = ()
    load_token_s: float = 0.0
    loaded_s: float = -math.inf
    num_cached_tokens: int = 0
    spare_blocks: int = field(init=False)
    """The most blocks that a request may need in order to fit; 0 if no place is free. It is stored
    because a decision looks at many rooms, and few of them have changed since the last decision."""

    def __post_init__(self) -> None:
        self._count_spare()

    @classmethod
    def of(
        cls,
        snapshot: InstanceSnapshot,
        room_to_grow_tokens: int,
        unreported: Unreported = NOTHING_UNREPORTED,
        *,
        by_step: bool = False,
        ready_s: float = -math.inf,
        speed: PrefillSpeed = NOT_MEASURED,
        fetched_s: float = -math.inf,
        loaded_s: float = -math.inf,
        num_cached_tokens: int = 0,
    ) -> Self:
        """The room that a snapshot leaves. `by_step`: requests may wait until their tokens fill one
        step, because no instance is `below_half_free`."""
        num_waiting = snapshot.num_queued + unreported.num_requests
        num_requests = snapshot.num_running + num_waiting
        prefill_blocks = (
            snapshot.fill_blocks + snapshot.queued_demand_blocks + unreported.demand_blocks
        )
        free_blocks = snapshot.num_free_blocks - prefill_blocks
        claimed_blocks = snapshot.num_total_blocks - free_blocks
        if num_requests:
            free_blocks -= snapshot.watermark_blocks
        num_places = MAX_QUEUED - num_waiting
        step_tokens = snapshot.max_step_tokens or STEP_TOKENS
        if by_step and num_places <= 0 and prefill_blocks * snapshot.block_size < step_tokens:
            num_places = 1  # enough for now: the room is computed anew for the next request
        return cls(
            snapshot.instance_id,
            free_blocks,
            min((snapshot.max_num_running or _NO_LIMIT) - num_requests, num_places),
            num_requests,
            snapshot.num_total_blocks,
            min(
                blocks_for(room_to_grow_tokens, snapshot.block_size),
                snapshot.num_total_blocks // GROWTH_DIVISOR,
            ),
            claimed_blocks,
            ready_s,
            speed,
            snapshot.decode_step_s,
            _full_step_s(snapshot, speed.token_s * step_tokens),
            snapshot.copy_token_s,
            fetched_s,
            snapshot.corrupt_links,
            snapshot.load_token_s,
            loaded_s,
            num_cached_tokens,
        )

    @property
    def below_half_free(self) -> bool:
        """Whether less than half of the memory is free."""
        return 2 * self.free_blocks < self.capacity_blocks

    def backlog_s(self, now_s: float) -> float:
        """How long the instance computes prompts before it begins with a new one."""
        return max(0.0, self.ready_s - now_s)

    def lacking_blocks(self, demand_blocks: int) -> int:
        """How many more blocks must be free so that the request fits; may be negative. If the
        memory can hold the request, this is at most all claimed blocks: once those are free, the
        instance is idle."""
        margin_blocks = self.growth_blocks if self.num_requests else 0
        lacking_blocks = demand_blocks + margin_blocks - self.free_blocks
        if lacking_blocks > self.claimed_blocks and demand_blocks <= self.capacity_blocks:
            return self.claimed_blocks
        return lacking_blocks

    def exceeds(self, before: Self) -> bool:
        """Whether a request that did not fit in the instance's room `before` may fit now, or may
        lack fewer blocks now."""
        if self.num_requests == before.num_requests and self.num_places == before.num_places:
            return self.free_blocks > before.free_blocks  # as with most statuses
        return (
            self.spare_blocks > before.spare_blocks
            or self.claimed_blocks < before.claimed_blocks
            or self.lacking_blocks(0) < before.lacking_blocks(0)
        )

    def take(self, demand_blocks: int) -> None:
        self.free_blocks -= demand_blocks
        self.num_places -= 1
        self.num_requests += 1
        self.claimed_blocks += demand_blocks
        self._count_spare()

    def _count_spare(self) -> None:
        if self.num_places <= 0:
            self.spare_blocks = 0
        elif self.num_requests:
            self.spare_blocks = self.free_blocks - self.growth_blocks
        else:
            self.spare_blocks = self.free_blocks


def _full_step_s(snapshot: InstanceSnapshot, whole_s: float) -> float:
    """How long a step takes that computes as many tokens of prompts as it may. `whole_s`: without a
    limit. Only what decodes limits a step."""
    limit_s = snapshot.step_limit_s if snapshot.decode_step_s else 0.0
    return min(whole_s, limit_s) if limit_s else whole_s


def below_half_free(snapshot: InstanceSnapshot) -> bool:
    """`Room.below_half_free` of an instance to which no request is on its way. It does not make a
    `Room`, because a simulated run asks this for each status."""
    return 2 * snapshot.unclaimed_blocks < snapshot.num_total_blocks
