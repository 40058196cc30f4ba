"""What a decision may look at: plain values, without behaviour beyond derived sums.

Units: blocks inside, tokens in configuration and on screens (docs/metrics.md).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from controller.core.settings import BACKGROUND_LEVEL, WhenLate
from controller.core.value import value


@dataclass(frozen=True, slots=True)
class InstanceRef:
    instance_id: str
    incarnation: int
    address: str

    @property
    def key(self) -> tuple[str, int]:
        """The instance's id and its incarnation: two incarnations of one instance have different
        keys."""
        return self.instance_id, self.incarnation


def blocks_for(num_tokens: int, block_size: int) -> int:
    """How many blocks of full attention hold `num_tokens`: ceil(num_tokens / block_size).
    `InstanceSnapshot.demand_for` adds the blocks of an engine's other layers."""
    return -(-num_tokens // block_size)


DemandFor = Callable[[int], int]
"""How many blocks a request with so many tokens needs: `InstanceSnapshot.demand_for`."""


def one_block_each(num_tokens: int) -> int:
    """While nothing is known of an instance: a block for each token."""
    return num_tokens


@dataclass(frozen=True, slots=True)
class Level:
    """A priority level.

    `rank` is the scheduling priority (larger goes first). `target_load_tokens` is the execution
    priority: the load that an instance may have while it runs a request of this level; None means
    that the level has no headroom. The targets are the time to first token that a request of the
    level should have, and the time per output token after it; None: no target. `when_late` says
    what becomes of a request that has waited at the controller for `target_ttft_s`.
    """

    name: str
    rank: int
    target_load_tokens: int | None = None
    target_ttft_s: float | None = None
    target_tpot_s: float | None = None
    when_late: WhenLate = "serve"

    @property
    def has_targets(self) -> bool:
        return self.target_ttft_s is not None or self.target_tpot_s is not None

    def is_met(self, ttft_s: float, tpot_s: float | None) -> bool:
        """Whether a request keeps the targets. `tpot_s`: None if it has emitted one token only."""
        if self.target_ttft_s is not None and ttft_s > self.target_ttft_s:
            return False
        return self.target_tpot_s is None or tpot_s is None or tpot_s <= self.target_tpot_s


NORMAL = Level("normal", rank=0)
HIGH = Level("high", rank=1, target_load_tokens=1600)
DEFAULT_LEVELS = (NORMAL, HIGH)
BACKGROUND = Level(BACKGROUND_LEVEL, rank=-101)
"""The level of requests that nobody waits for: the lines of batches, and copies. No client can ask
for it. Ranks of declared levels are at least -100, so it is below all of them."""


@value
class PrefillSpeed:
    """How fast an engine computes prompts: the time per token, and the time per pair of a token and
    an earlier one, which attention compares (`prefill_per_token_s` and
    `prefill_per_token_squared_s` of a profile)."""

    token_s: float
    pair_s: float

    def time_s(self, num_computed: int, num_tokens: int) -> float:
        """The time to compute a prompt from `num_computed` tokens on up to `num_tokens`."""
        pairs = num_tokens * num_tokens - num_computed * num_computed
        return self.token_s * (num_tokens - num_computed) + self.pair_s * pairs


NOT_MEASURED = PrefillSpeed(0.0, 0.0)


@value
class QueueHead:
    """The first request in queue order on an instance."""

    request_id: str
    rank: int
    demand_blocks: int
    arrival_time_s: float
    evicted: bool = False
    evicted_at_s: float | None = None
    """When the request arrived, in seconds since the epoch. The llumlet sets this, because the
    engine does not know it."""


@value
class InstanceSnapshot:
    """One instance at one moment, as its llumlet counted it between two steps.

    `num_total_blocks` leaves out the null block; `num_used_blocks` counts a shared block once, and
    does not count cached blocks that no request uses. `fill_blocks` is summed over the requests in
    mid-prefill, `queued_demand_blocks` over everything queued. `max_num_running` is how many
    requests the batch has places for (0: not known).
    """

    instance_id: str
    incarnation: int
    block_size: int
    num_total_blocks: int
    num_free_blocks: int
    watermark_blocks: int = 0
    fill_blocks: int = 0
    max_num_running: int = 0
    num_running: int = 0
    num_running_by_rank: Mapping[int, int] = field(default_factory=dict)
    num_queued: int = 0
    num_queued_by_rank: Mapping[int, int] = field(default_factory=dict)
    queued_demand_blocks: int = 0
    queue_head: QueueHead | None = None
    num_evicted_queued: int = 0
    num_evictions: int = 0
    draining: bool = False
    max_step_tokens: int = 0
    """The most tokens that a step computes, `max_num_batched_tokens`; 0: not known."""
    num_tail_blocks: int = 0
    """How many blocks a long request needs in order to start, beside those of full attention: for
    sliding windows and states."""
    adapters: tuple[int, ...] = ()
    """The numbers of the LoRA adapters that the engine has loaded."""
    live_adapters: tuple[int, ...] = ()
    """The adapters of the requests that run or wait here."""
    failed_adapters: Mapping[int, str] = field(default_factory=dict)
    """For each adapter that cannot be used here, the reason. The llumlet sets this, because the
    engine does not know it."""
    max_live_adapters: int = 0
    """How many different adapters a step can have (vLLM's `max_loras`). Requests with further ones
    wait, however much memory is free. 0: the engine takes no adapters."""
    backlog_s: float = 0.0
    """How long the engine still computes prompts: the rest of running prefills, and the requests
    that wait, without the part of them that its prefix cache has."""
    prefill_speed: PrefillSpeed = NOT_MEASURED
    """How fast the engine computes prompts, beside the requests that decode now. While that is not
    measured, `backlog_s` is 0."""
    decode_step_s: float = 0.0
    """How long a step of the present batch takes that only decodes; 0: nothing decodes, or it is
    not known."""
    copy_token_s: float = 0.0
    """How long it takes to copy the KV of one token from another instance; 0: the instance fetches
    no cached prefixes."""
    load_token_s: float = 0.0
    """How long it takes to load the KV of one token from the instance's host cache; 0: the instance
    has no host cache."""
    step_limit_s: float = 0.0
    """How long a step may take that computes prompts while requests decode; 0: any time, or it is
    not known yet how long steps take."""
    corrupt_links: tuple[str, ...] = ()
    """The instances from which this one fetches nothing for a while, because a copy from there was
    corrupt. The llumlet sets this, because the engine does not know it."""
    is_attached: bool = False
    """Whether requests run on a server that is attached to the cluster (`fleet/attached.py`), which
    not every request can use."""

    @property
    def capacity_blocks(self) -> int:
        """M: how many blocks requests may use."""
        return self.num_total_blocks - self.watermark_blocks

    @property
    def admissible_blocks(self) -> int:
        """M - used: what the engine's queue head may take; negative if other requests grew into the
        watermark."""
        return self.num_free_blocks - self.watermark_blocks

    @property
    def arrivable_blocks(self) -> int:
        """M - used - fill: what a request that moves to this instance may take. Blocks for the rest
        of their prompts were promised to running prefills; if a move took those blocks, requests
        would be evicted."""
        return self.admissible_blocks - self.fill_blocks

    @property
    def unclaimed_blocks(self) -> int:
        """M - used - fill - queued demand: what no request on this instance has or waits for;
        negative if the requests want more blocks than there are."""
        return self.arrivable_blocks - self.queued_demand_blocks

    @property
    def num_used_blocks(self) -> int:
        return self.num_total_blocks - self.num_free_blocks

    def demand_for(self, num_tokens: int) -> int:
        """How many blocks a request with so many tokens needs here in order to start. Short
        requests may need fewer."""
        return blocks_for(num_tokens, self.block_size) + self.num_tail_blocks


def with_batch(
    snapshot: InstanceSnapshot,
    num_free_blocks: int,
    num_running: int,
    num_running_by_rank: Mapping[int, int],
) -> InstanceSnapshot:
    """The same instance with another batch. Simulations call this hundreds of thousands of times,
    so it does not use `dataclasses.replace`, which takes 12 us. This function takes 1.1 us."""
    return InstanceSnapshot(
        snapshot.instance_id,
        snapshot.incarnation,
        snapshot.block_size,
        snapshot.num_total_blocks,
        num_free_blocks,
        snapshot.watermark_blocks,
        snapshot.fill_blocks,
        snapshot.max_num_running,
        num_running,
        num_running_by_rank,
        snapshot.num_queued,
        snapshot.num_queued_by_rank,
        snapshot.queued_demand_blocks,
        snapshot.queue_head,
        snapshot.num_evicted_queued,
        snapshot.num_evictions,
        snapshot.draining,
        snapshot.max_step_tokens,
        snapshot.num_tail_blocks,
        snapshot.adapters,
        snapshot.live_adapters,
        snapshot.failed_adapters,
        snapshot.max_live_adapters,
        snapshot.backlog_s,
        snapshot.prefill_speed,
        snapshot.decode_step_s,
        snapshot.copy_token_s,
        snapshot.load_token_s,
        snapshot.step_limit_s,
        snapshot.corrupt_links,
        snapshot.is_attached,
    )


@value
class Unreported:
    """Requests that were dispatched to an instance and that no status of it counts yet."""

    num_requests: int = 0
    demand_blocks: int = 0
