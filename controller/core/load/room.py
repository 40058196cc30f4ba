"""What one instance can take now: free blocks and places that nothing known will take."""

from dataclasses import dataclass, field
from typing import Self

from controller.core.load.freeness import NOTHING_UNREPORTED
from controller.core.load.snapshot import InstanceSnapshot, Unreported, blocks_for

_NO_LIMIT = 1 << 30
MAX_QUEUED = 4
"""So many may wait on an instance until its next step admits them. The memory may be gone by then:
with more, dozens went to the freest instance at once, and the last of them waited behind an evicted
one for longer than any other request (S-L: 129 s)."""
STEP_TOKENS = 2048
"""While memory is short on no instance, more may wait, until they are as many tokens to compute as
a step of the engine takes, or so many if that is not known. With four prompts of 30 tokens in each
step a simulated H100 is saturated by 600 requests/s of one output token: mean TTFT 1.6 s, and 13 ms
with 2,048 tokens. At 1,200 requests/s it is 2.4 s with 2,048, and 1.7 with the engine's 8,192."""
GROWTH_DIVISOR = 16
"""An admission leaves a sixteenth of the memory free for growth at most. 320 tokens are a third of
a memory of 64 blocks: a prompt of 57 of them waited until a request of 2 ended."""


@dataclass(slots=True)
class Room:
    """`free_blocks` and `num_places` are left by all that runs, waits or is on its way there; while
    anything does, `growth_blocks` stay free for its growth, and the watermark. An idle instance
    takes what its memory holds, as its engine does. `prefill_blocks` are those whose tokens all of
    these are still to compute; what a prefix cache may spare of them is not known. `claimed_blocks`
    are all that they have or wait for."""

    instance_id: str
    free_blocks: int
    num_places: int
    num_requests: int
    capacity_blocks: int
    growth_blocks: int
    block_size: int
    prefill_blocks: int
    claimed_blocks: int
    spare_blocks: int = field(init=False)
    """What a request may need at most, in order to fit; 0 without a place. It is kept, as a
    decision asks each of many rooms, of which few have changed since the last one."""

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
    ) -> Self:
        """`by_step`: no instance is `below_half_free`, so as many may wait as a step computes."""
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
            num_places = 1  # the next one is counted anew
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
            snapshot.block_size,
            prefill_blocks,
            claimed_blocks,
        )

    @property
    def below_half_free(self) -> bool:
        """Whether less than half of the memory is free."""
        return 2 * self.free_blocks < self.capacity_blocks

    @property
    def prefill_tokens(self) -> int:
        """How many tokens, in whole blocks, are computed before those of a new request."""
        return self.block_size * self.prefill_blocks

    def lacking_blocks(self, demand_blocks: int) -> int:
        """How much more must be free for a request to fit; it may be negative. Where the memory
        holds the request, no more than all claimed blocks: without those the instance is idle."""
        margin_blocks = self.growth_blocks if self.num_requests else 0
        lacking_blocks = demand_blocks + margin_blocks - self.free_blocks
        if lacking_blocks > self.claimed_blocks and demand_blocks <= self.capacity_blocks:
            return self.claimed_blocks
        return lacking_blocks

    def exceeds(self, before: Self) -> bool:
        """Whether something may fit that did not before, of the same instance, or lacks less."""
        if self.num_requests == before.num_requests and self.num_places == before.num_places:
            return self.free_blocks > before.free_blocks  # so with most statuses
        return (
            self.spare_blocks > before.spare_blocks
            or self.claimed_blocks < before.claimed_blocks
            or self.lacking_blocks(0) < before.lacking_blocks(0)
        )

    def take(self, demand_blocks: int) -> None:
        self.free_blocks -= demand_blocks
        self.num_places -= 1
        self.num_requests += 1
        self.prefill_blocks += demand_blocks
        self.claimed_blocks += demand_blocks
        self._count_spare()

    def _count_spare(self) -> None:
        if self.num_places <= 0:
            self.spare_blocks = 0
        elif self.num_requests:
            self.spare_blocks = self.free_blocks - self.growth_blocks
        else:
            self.spare_blocks = self.free_blocks


def below_half_free(snapshot: InstanceSnapshot) -> bool:
    """`Room.below_half_free` of an instance to which nothing is on its way, without making a room:
    a simulated run asks this of each status."""
    return 2 * snapshot.unclaimed_blocks < snapshot.num_total_blocks
