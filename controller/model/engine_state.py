"""What one engine holds: its requests, where each of them is, and their blocks.

A request is in one place: queued, running, suspended (out of the batch for a move, with its blocks
and its place in the batch), or arriving (blocks and a place are kept for it, or nothing if it is to
be queued; it belongs to another engine until its move is committed). Its blocks count as used.
"""

from dataclasses import dataclass, field

from controller.core.load.snapshot import blocks_for
from controller.model.block_pool import BlockPool, CachedBlock
from controller.model.config import ModelConfig
from controller.model.request import ModelRequest, RequestState
from controller.model.waiting_queue import WaitingQueue


@dataclass(slots=True)
class Pin:
    """Full blocks that stay used whatever becomes of their request.

    Each in `cached` has a reference for the pin. Of the blocks without a hash those from
    `first_block` to before `end_block` still belong to the request too, and `num_left` only to the
    pin, since the request left them.
    """

    cached: list[CachedBlock] = field(default_factory=list)
    first_block: int = 0
    end_block: int = 0
    num_left: int = 0

    def add(self, first_block: int, end_block: int) -> None:
        """Pins these blocks without a hash too. They follow those that are pinned, or overlap."""
        if end_block <= max(first_block, self.end_block):
            return
        if self.first_block == self.end_block:
            self.first_block = first_block
        else:
            assert self.first_block <= first_block <= self.end_block
        self.end_block = end_block

    def keep(self) -> int:
        """The request leaves its blocks: how many of those without a hash stay used."""
        num_kept = self.end_block - self.first_block
        self.num_left += num_kept
        self.first_block = self.end_block = 0
        return num_kept


class EngineState:
    """`running` is in the order in which a step serves it: that of the admissions, behind those
    that a move put in front. `requests` has all but the arriving ones."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self.pool = BlockPool(config.num_total_blocks)
        self.waiting = WaitingQueue(config.block_size, by_arrival=config.mode == "chunked")
        self.running: list[RequestState] = []
        self.suspended: dict[str, RequestState] = {}
        self.arriving: dict[str, RequestState] = {}
        self.requests: dict[str, RequestState] = {}
        self.pins: dict[str, Pin] = {}
        self.chunked: set[RequestState] = set()  # running, and part of the prefill is done
        self.num_running_by_rank: dict[int, int] = {}
        """Counts also suspended requests, and arriving ones that have a place."""
        self.moved_in = False
        """Whether a move put a request in front since the last step."""

    @property
    def num_kept_places(self) -> int:
        """Places in the batch that are kept for requests which a step does not serve."""
        num_arriving = 0
        for r in self.arriving.values():  # without a generator: each status asks, mostly for none
            num_arriving += r.num_blocks > 0
        return len(self.suspended) + num_arriving

    @property
    def num_free_places(self) -> int:
        return self.config.max_num_running - len(self.running) - self.num_kept_places

    def new_state(self, request: ModelRequest) -> RequestState:
        """Raises ValueError: the id is in use, a count is not positive, or it can never run."""
        config, request_id = self.config, request.request_id
        if request_id in self.requests or request_id in self.arriving:
            raise ValueError(f"request {request_id} is already there")
        refusal = config.refusal(request.num_prompt_tokens, request.max_output_tokens)
        if refusal:
            raise ValueError(f"request {request_id} {refusal}")
        end_tokens = config.end_tokens(request.num_prompt_tokens, request.max_output_tokens)
        return RequestState(request, end_tokens, config.prefix_caching)

    def forget(self, request_id: str) -> None:
        """Forgets a request in any place but arriving. Raises KeyError if it is not there."""
        request = self.requests.pop(request_id)
        if request.queued:
            self.waiting.discard(request)
            return
        if self.suspended.pop(request_id, None) is None:
            self.running.remove(request)
        self.leave(request)

    def enter(self, request: RequestState) -> None:
        """The request takes a place in the batch."""
        rank = request.rank
        self.num_running_by_rank[rank] = self.num_running_by_rank.get(rank, 0) + 1

    def leave(self, request: RequestState) -> None:
        """The request gives back its place, and its blocks but for the pinned ones."""
        num_blank_blocks = request.num_blocks - len(request.cached)
        if pin := self.pins.get(request.request_id):
            num_blank_blocks -= pin.keep()
        self.pool.give_back(num_blank_blocks, request.cached)
        self.chunked.discard(request)
        self._leave_rank(request)

    def change_rank(self, request: RequestState, rank: int) -> None:
        """For a request that has a place in the batch."""
        self._leave_rank(request)
        request.rank = rank
        self.enter(request)

    def put_in_front(self, request: RequestState) -> None:
        """The next step serves it first: no prefill may take the step's tokens before it."""
        self.running.insert(0, request)
        self.moved_in = True

    def find_cached(self, request: RequestState) -> list[CachedBlock]:
        """The longest cached prefix; the last token is left out, since its output is wanted."""
        found: list[CachedBlock] = []
        if request.block_hash is not None:
            for index in range((request.num_tokens - 1) // self.config.block_size):
                block = self.pool.find(request.block_hash(index))
                if block is None:
                    break
                found.append(block)
        return found

    def hold(self, request: RequestState, found: list[CachedBlock]) -> None:
        """Makes these cached blocks the request's first ones."""
        self.pool.hold(found)
        request.cached = found
        request.num_blocks = len(found)

    def take(self, request: RequestState, num_blocks: int) -> None:
        """Takes what the request lacks of `num_blocks`. Raises ValueError if too few are free."""
        self.pool.take(num_blocks - request.num_blocks)
        request.num_blocks = num_blocks
        request.num_slots = num_blocks * self.config.block_size

    def remember_full(self, request: RequestState, num_tokens: int) -> None:
        """Caches the blocks that so many tokens fill, before they are computed, as vLLM does:
        a request that is admitted in the same step may already share them."""
        bs, block_hash = self.config.block_size, request.block_hash
        assert block_hash is not None
        for index in range(len(request.cached), num_tokens // bs):
            request.cached.append(self.pool.remember(block_hash(index)))
        request.full_at = (len(request.cached) + 1) * bs

    def fill_blocks(self) -> int:
        """The blocks that running prefills still take."""
        bs = self.config.block_size
        return sum(max(0, blocks_for(r.num_tokens, bs) - r.num_blocks) for r in self.chunked)

    def check(self) -> None:
        """Compares the books with themselves; walks everything.

        Raises:
            AssertionError: something does not add up.
        """
        queued, suspended = self.waiting.in_order(), list(self.suspended.values())
        arriving = [r for r in self.arriving.values() if r.num_blocks]
        batch = [*self.running, *suspended]
        assert len(batch) + len(arriving) <= self.config.max_num_running
        assert len(arriving) + len(suspended) == self.num_kept_places
        assert {id(r) for r in self.requests.values()} == {id(r) for r in [*batch, *queued]}
        assert len(self.requests) == len(batch) + len(queued), "in two places at once"
        assert not set(self.requests) & set(self.arriving), "here, and still arriving"
        self.waiting.check()
        for r in queued:
            assert r.num_blocks == r.num_computed == len(r.cached) == 0, "queued, but has blocks"
        for r in batch:
            self._check_running(r)
        for r in suspended:
            assert not r.in_prefill
        for r in self.requests.values():
            assert r.num_computed < r.num_tokens < r.end_tokens, "over, and still there"
        for r in self.arriving.values():
            assert not r.queued
            assert r.num_computed == 0
            assert len(r.cached) <= r.num_blocks
        ranks = [r.rank for r in [*batch, *arriving]]
        assert self.num_running_by_rank == {rank: ranks.count(rank) for rank in ranks}
        assert self.chunked <= set(self.running)
        self._check_pins()
        held = [*batch, *arriving]
        self.pool.check(
            sum(r.num_blocks - len(r.cached) for r in held)
            + sum(pin.num_left for pin in self.pins.values()),
            [*(r.cached for r in held), *(pin.cached for pin in self.pins.values())],
        )

    def _leave_rank(self, request: RequestState) -> None:
        self.num_running_by_rank[request.rank] -= 1
        if not self.num_running_by_rank[request.rank]:
            del self.num_running_by_rank[request.rank]

    def _check_running(self, r: RequestState) -> None:
        bs = self.config.block_size
        assert not r.queued
        assert not r.evicted
        assert r.num_slots == r.num_blocks * bs
        # A request that has arrived may have the block of its next token already.
        most = r.num_computed if r.in_prefill else r.num_tokens
        least = blocks_for(r.num_computed, bs)
        assert least <= r.num_blocks <= blocks_for(most, bs), "blocks for what is computed"
        assert r.in_prefill == (r in self.chunked)
        assert r.in_prefill or (r.num_new == 1 and r.num_computed == r.num_tokens - 1)
        if r.block_hash is not None:
            assert len(r.cached) == r.num_computed // bs, "full blocks are cached"
            assert r.full_at == (len(r.cached) + 1) * bs

    def _check_pins(self) -> None:
        for request_id, pin in self.pins.items():
            if pin.first_block == pin.end_block:
                continue
            r = self.requests[request_id]
            assert not r.queued, "a pin claims blocks of one that has none"
            assert r.block_hash is None, "a cached block is pinned as if it had no hash"
            assert pin.end_block <= r.num_computed // self.config.block_size, "pinned, not full"
