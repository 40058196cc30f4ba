"""The state of one engine: its requests, the place of each request, and their blocks.

A request is in one of four places. It is queued, running, suspended (out of the batch for a move,
with its blocks and its place in the batch), or arriving. An arriving request belongs to another
engine until its move is committed; blocks and a place in the batch are reserved for it, or nothing
if it will be queued. Reserved blocks count as used.

The file begins with the parts: a request, the pool of blocks, the queue. `EngineState` puts them
together."""

import heapq
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from controller.core.load.snapshot import blocks_for
from controller.core.value import value
from controller.model.profile import ModelConfig

NEVER = 1 << 62

Segment = tuple[Hashable, int, int]
"""(name, first block, end block): full blocks of a request that follow each other and share a name.
The name stands for all tokens from the request's beginning to the segment's end. So two requests
that have a segment of the same name have the same blocks up to there, with the same indexes."""
SegmentAt = Callable[[int], Segment]
"""Called with the index of a full block, counted over prompt and outputs. Returns the segment that
the block is part of."""


@value
class ModelRequest:
    """A client's request, as the model needs it.

    The model ends the request after exactly `max_output_tokens` tokens (at least 1), or earlier if
    the engine's `max_model_len` is reached. `rank` is the scheduling priority; a higher rank goes
    first. `segment_at` names the content of the request's full blocks, for full blocks only. If it
    is None, no block of this request is cached or found in a cache."""

    request_id: str
    num_prompt_tokens: int
    max_output_tokens: int
    rank: int = 0
    arrival_time_s: float = 0.0
    segment_at: SegmentAt | None = None


class RequestState:
    """How far a request has got. `num_tokens` counts the prompt and the outputs so far. The KV
    cache holds `num_computed` of these tokens. The present step adds `num_new`, which is 1 after
    the prefill.

    The request holds `num_blocks` blocks, with room for `num_slots` tokens. The first of these
    blocks are full and are listed in `cached`. When the request has `full_at` tokens, its next
    block is full."""

    __slots__ = (
        "arrival_time_s",
        "cached",
        "end_tokens",
        "evicted",
        "full_at",
        "in_prefill",
        "num_blocks",
        "num_computed",
        "num_expected",
        "num_new",
        "num_prompt_tokens",
        "num_slots",
        "num_tokens",
        "queued",
        "rank",
        "request_id",
        "segment_at",
    )

    def __init__(self, request: ModelRequest, end_tokens: int, caching: bool) -> None:
        self.request_id = request.request_id
        self.rank = request.rank
        self.arrival_time_s = request.arrival_time_s
        self.segment_at = request.segment_at if caching else None
        self.num_tokens = self.num_prompt_tokens = request.num_prompt_tokens
        self.num_expected = 0
        """How many of its tokens the prefix cache had when it was queued."""
        self.end_tokens = end_tokens
        self.queued = False
        self.evicted = False
        self.start_over()

    def start_over(self) -> None:
        """Returns to the state before an admission: no tokens are computed, and no blocks are
        held."""
        self.in_prefill = True
        self.num_computed = 0
        self.num_new = 0
        self.num_blocks = 0
        self.num_slots = 0
        self.full_at = NEVER
        self.cached: list[Hold] = []

    @property
    def num_cached(self) -> int:
        """How many of its blocks, from the first one on, are listed in `cached`."""
        return num_held(self.cached)


class CachedRun:
    """Full blocks of one segment with known content: those with the indexes from `first_block` up
    to, but not including, `end_block`.

    Whoever holds blocks of a run holds them from the first one on; `ends` has where each of them
    stops, in ascending order. The blocks behind the last of these ends are free, but can still be
    found. They are in `unused`, the highest indexes first, which are unused for longest."""

    __slots__ = ("end_block", "ends", "first_block", "name", "unused", "whole_at")

    def __init__(self, segment: Segment, first_block: int, end_block: int) -> None:
        self.name, segment_first, segment_end = segment
        self.first_block = first_block
        self.end_block = end_block
        self.whole_at = segment_end if first_block == segment_first else NEVER
        """The `end_block` with which the run is the whole segment; NEVER if it has not got the
        segment's beginning."""
        self.ends = [end_block]
        self.unused: list[_Unused] = []

    @property
    def held_until(self) -> int:
        return self.ends[-1] if self.ends else self.first_block

    @property
    def is_whole(self) -> bool:
        return self.end_block == self.whole_at


class _Unused:
    """Free blocks of a run that can still be found, all unused since the same moment."""

    __slots__ = ("end_block", "first_block", "run")

    def __init__(self, run: CachedRun, first_block: int, end_block: int) -> None:
        self.run = run
        self.first_block = first_block
        self.end_block = end_block


class Hold:
    """The blocks of a run that one request holds, up to `end_block`."""

    __slots__ = ("end_block", "run")

    def __init__(self, run: CachedRun, end_block: int) -> None:
        self.run = run
        self.end_block = end_block


def num_held(holds: Sequence[Hold]) -> int:
    """How many blocks a request has that holds these, from its first block on."""
    return holds[-1].end_block if holds else 0


class HostCache:
    """Copies of cached blocks in main memory, of whole segments only, by name. Each segment that an
    engine's prefix cache gets whole is copied here. If there is no room for it, the segment goes
    that is unused for longest. What a copy costs the engine is not modelled."""

    def __init__(self, num_total_blocks: int) -> None:
        self._segments: OrderedDict[Hashable, int] = OrderedDict()  # longest unused first
        self._num_free = num_total_blocks
        self._changes: dict[Hashable, bool] = {}

    def store(self, name: Hashable, num_blocks: int) -> None:
        """Copies a segment here, or notes that it was used again."""
        segments = self._segments
        if name not in segments:
            segments[name] = num_blocks
            self._num_free -= num_blocks
            self._changes[name] = True
        segments.move_to_end(name)
        while self._num_free < 0:
            dropped, num_dropped = segments.popitem(last=False)
            self._num_free += num_dropped
            self._changes[dropped] = False

    def find(self, segment_at: SegmentAt, first_block: int, max_blocks: int) -> int:
        """The index up to which the blocks of a prompt are here, from `first_block` on; at most
        `max_blocks`."""
        block = first_block
        while block < max_blocks:
            name, _, end = segment_at(block)
            if name not in self._segments:
                break
            block = min(end, max_blocks)
        return block

    def take_changes(self) -> dict[Hashable, bool]:
        """The segments that have come (True) or gone (False) since the last call, by name."""
        changes, self._changes = self._changes, {}
        return changes

    def check(self, num_total_blocks: int) -> None:
        """Raises AssertionError if blocks are miscounted."""
        assert self._num_free == num_total_blocks - sum(self._segments.values()) >= 0


class BlockPool:
    """The KV blocks of one engine: their number, and an index by name of the blocks whose content
    can be used again. `num_free` blocks can be taken, including free blocks that are still cached.

    Blocks without a name are all alike, so the pool only counts them. If a request names the
    content of its full blocks, these become a `CachedRun` for each segment. When the last request
    that holds a block has let go, the block is free, but it can still be found until its memory is
    needed for a new block. Free blocks without a name are taken first, then the cached blocks,
    beginning with the one that has been unused for the longest time. That is vLLM's order, block by
    block; a run per segment takes a thirtieth of the time with segments of 32 blocks.

    `host`: gets a copy of each segment that becomes whole."""

    def __init__(self, num_total_blocks: int, host: HostCache | None = None) -> None:
        self.num_total_blocks = num_total_blocks
        self._host = host
        self.num_free = num_total_blocks
        self._unused: OrderedDict[_Unused, None] = OrderedDict()  # longest unused first
        self._num_unused = 0
        self._runs: dict[Hashable, list[CachedRun]] = {}  # twins: oldest first
        self._changes: dict[Hashable, bool] = {}

    def take_changes(self) -> dict[Hashable, bool]:
        """The segments that have become whole (True), or are not whole any more (False), since the
        last call, by name."""
        changes, self._changes = self._changes, {}
        return changes

    def take(self, num_blocks: int) -> None:
        """Takes free blocks; their content is lost. Raises ValueError, and takes nothing, if too
        few blocks are free."""
        if num_blocks > self.num_free:
            raise ValueError(f"{num_blocks} blocks wanted, {self.num_free} free")
        self.num_free -= num_blocks
        while (num_lost := self._num_unused - self.num_free) > 0:
            self._lose(next(iter(self._unused)), num_lost)

    def _lose(self, unused: _Unused, num_blocks: int) -> None:
        """Forgets up to `num_blocks` of these blocks, the last ones first."""
        run = unused.run
        was_whole = run.is_whole
        end = run.end_block = max(unused.first_block, unused.end_block - num_blocks)
        if was_whole and not any(twin.is_whole for twin in self._runs[run.name]):
            self._changes[run.name] = False
        self._num_unused -= unused.end_block - end
        unused.end_block = end
        if end > unused.first_block:
            return
        del self._unused[unused]
        run.unused.remove(unused)
        if end == run.first_block:
            twins = self._runs[run.name]
            twins.remove(run)
            if not twins:
                del self._runs[run.name]

    def give_back(self, num_blank_blocks: int, cached: Sequence[Hold]) -> None:
        """Frees the blocks that one request held: the blocks without a name, and the cached blocks
        in the request's order.

        The request's last blocks count as unused for longer than its first blocks, because more
        requests share the first ones."""
        self.num_free += num_blank_blocks
        for hold in reversed(cached):
            run, end = hold.run, hold.end_block
            if self._host is not None and run.is_whole:
                self._host.store(run.name, run.end_block - run.first_block)
            del run.ends[bisect_left(run.ends, end)]
            held_until = run.held_until
            if held_until < end:
                unused = _Unused(run, held_until, end)
                self._unused[unused] = None
                run.unused.append(unused)
                self._num_unused += end - held_until
                self.num_free += end - held_until

    def remember(self, cached: list[Hold], segment_at: SegmentAt, end_block: int) -> None:
        """Names blocks that a request took before and that are full by now, up to `end_block`.
        `cached`: the blocks of the request that have a name; the new ones are added to it."""
        block = num_held(cached)
        while block < end_block:
            run = cached[-1].run if cached else None
            segment = segment_at(block)
            name, _, limit = segment
            if run is not None and run.end_block == block and run.name == name:
                run.end_block = min(end_block, limit)
                run.ends.pop()  # the greatest end: nobody holds more than there was
                run.ends.append(run.end_block)
                cached[-1].end_block = run.end_block
            else:
                run = CachedRun(segment, block, min(end_block, limit))
                self._runs.setdefault(name, []).append(run)
                cached.append(Hold(run, run.end_block))
            if run.is_whole:
                self._changes[name] = True
                if self._host is not None:
                    self._host.store(name, run.end_block - run.first_block)
            block = run.end_block

    def find(self, segment_at: SegmentAt, max_blocks: int) -> list[Hold]:
        """The longest beginning of a request that is cached, of at most `max_blocks`. The request
        does not hold it yet. Of twins the longest one is taken, and a twin that begins in the
        middle of another one is not found; with segments of one block there is no difference."""
        found: list[Hold] = []
        block = 0
        while block < max_blocks:
            longest: CachedRun | None = None
            for run in self._runs.get(segment_at(block)[0], ()):
                if run.first_block == block and (
                    longest is None or longest.end_block < run.end_block
                ):
                    longest = run
            if longest is None:
                break
            block = min(longest.end_block, max_blocks)
            found.append(Hold(longest, block))
        return found

    def hold(self, holds: Iterable[Hold]) -> None:
        """Notes that one more request holds these blocks."""
        for hold in holds:
            run, end, held_until = hold.run, hold.end_block, hold.run.held_until
            insort(run.ends, end)
            if end <= held_until:
                continue
            self.num_free -= end - held_until
            self._num_unused -= end - held_until
            while run.unused and (unused := run.unused[-1]).first_block < end:
                if unused.end_block <= end:
                    del self._unused[run.unused.pop()]
                else:
                    unused.first_block = end

    @staticmethod
    def num_used_again(holds: Iterable[Hold]) -> int:
        """How many free blocks `hold` would take."""
        return sum(max(0, hold.end_block - hold.run.held_until) for hold in holds)

    def check(self, num_blank_held: int, held: Iterable[Sequence[Hold]]) -> None:
        """Compares the pool with the blocks that the requests hold. Raises AssertionError if a
        block is lost, counted twice or miscounted."""
        ends: dict[CachedRun, list[int]] = {}
        for holds in held:
            for hold in holds:
                ends.setdefault(hold.run, []).append(hold.end_block)
        known = [run for twins in self._runs.values() for run in twins]
        assert len(known) == len(set(known)), "a run is cached twice"
        assert set(ends) <= set(known), "a held run is forgotten"
        num_used = num_unused = 0
        for run in known:
            assert run in self._runs[run.name], "a run is under another name"
            assert run.ends == sorted(ends.get(run, [])), "who holds a run is miscounted"
            assert run.first_block < run.end_block
            block = run.held_until
            num_used += block - run.first_block
            for unused in reversed(run.unused):
                assert unused in self._unused, "unused blocks that cannot be taken"
                assert block == unused.first_block < unused.end_block
                num_unused += unused.end_block - block
                block = unused.end_block
            assert block == run.end_block, "blocks that are neither held nor unused"
        assert len(self._unused) == sum(len(run.unused) for run in known)
        assert num_unused == self._num_unused
        assert self.num_free == self.num_total_blocks - num_blank_held - num_used, "blocks lost"
        assert 0 <= num_unused <= self.num_free <= self.num_total_blocks


_Entry = tuple[int, float, str, int, RequestState]


class WaitingQueue:
    """The waiting requests of one engine in queue order, and the figures about them that the
    cluster needs.

    With `by_arrival`, requests are ordered by rank (the highest first), arrival and id, and an
    evicted request gets its old place again. Without it, requests of the same rank are served in
    the order in which they came, and an evicted request goes to the front. A request that is set
    aside for a move keeps its place, but cannot be admitted. `demand_blocks`: the sum of the blocks
    that all these requests need in order to start, including requests that are set aside.
    `prefill_tokens`, `prefill_pairs`: what is left to compute of their tokens, and of the pairs of
    tokens that attention compares, once the prefix cache has given what it is expected to have."""

    def __init__(self, block_size: int, *, by_arrival: bool) -> None:
        self.num_queued = 0
        self.num_queued_by_rank: dict[int, int] = {}
        self.num_evicted = 0
        self.demand_blocks = 0
        self.prefill_tokens = 0
        self.prefill_pairs = 0
        self._block_size = block_size
        self._by_arrival = by_arrival
        self._num_pushed = 0
        # A discarded request stays in the heap, with `queued` unset, until it is the first.
        self._heap: list[_Entry] = []
        self._aside: dict[str, _Entry] = {}

    def __len__(self) -> int:
        """The number of requests that can be admitted."""
        return self.num_queued - len(self._aside)

    def push(self, request: RequestState) -> None:
        """Adds a new request, or a request that was `evicted`."""
        self._num_pushed += 1
        turn = self._num_pushed
        if self._by_arrival:
            order, name = request.arrival_time_s, request.request_id
        else:
            order, name = float(-turn if request.evicted else turn), ""
        heapq.heappush(self._heap, (-request.rank, order, name, turn, request))
        request.queued = True
        self._count(request, 1)

    def head(self) -> RequestState:
        """The first request that can be admitted. Raises IndexError if there is none."""
        while not self._heap[0][-1].queued:
            heapq.heappop(self._heap)
        return self._heap[0][-1]

    def next_ones(self, number: int) -> list[RequestState]:
        """The first requests that can be admitted, in order. Takes time in proportion to the
        queue."""
        entries = heapq.nsmallest(number, (each for each in self._heap if each[-1].queued))
        return [entry[-1] for entry in entries]

    def first(self) -> RequestState:
        """The first request, which may be set aside. Raises ValueError if no request waits."""
        entries = list(self._aside.values())
        if len(self):
            self.head()  # makes a request that still waits the first in the heap
            entries.append(self._heap[0])
        return min(entries)[-1]

    def pop(self) -> RequestState:
        """Removes and returns the first request that can be admitted; it may be pushed again.
        Raises IndexError if no request can be admitted."""
        request = self.head()
        heapq.heappop(self._heap)
        self.discard(request)
        return request

    def discard(self, request: RequestState) -> None:
        """Takes a request out of the queue for good."""
        request.queued = False
        self._aside.pop(request.request_id, None)
        self._count(request, -1)

    def set_aside(self, request: RequestState) -> None:
        """Keeps the request's place, but prevents its admission. Takes time in proportion to the
        queue."""
        (entry,) = (entry for entry in self._heap if entry[-1] is request)
        self._heap.remove(entry)
        heapq.heapify(self._heap)
        self._aside[request.request_id] = entry

    def put_back(self, request: RequestState) -> None:
        heapq.heappush(self._heap, self._aside.pop(request.request_id))

    def set_rank(self, request: RequestState, rank: int) -> None:
        """Moves the request to the place that it would have if it had come with this rank. Takes
        time in proportion to the queue."""
        aside = self.is_aside(request)
        if not aside:
            self.set_aside(request)
        self._count_rank(request, -1)
        request.rank = rank
        self._count_rank(request, 1)
        self._aside[request.request_id] = (-rank, *self._aside[request.request_id][1:])
        if not aside:
            self.put_back(request)

    def is_aside(self, request: RequestState) -> bool:
        return request.request_id in self._aside

    def in_order(self) -> list[RequestState]:
        """All waiting requests, including requests that are set aside. Takes n log n."""
        everybody = sorted([*self._heap, *self._aside.values()])
        return [entry[-1] for entry in everybody if entry[-1].queued]

    def check(self) -> None:
        """Raises AssertionError if a figure is miscounted or a request is out of place."""
        queued = self.in_order()
        assert len(queued) == self.num_queued
        assert not queued or self.first() is queued[0]
        ready = [r for r in queued if not self.is_aside(r)]
        assert len(ready) == len(self)
        assert not ready or self.head() is ready[0]
        ranks = [r.rank for r in queued]
        assert self.num_queued_by_rank == {rank: ranks.count(rank) for rank in ranks}
        assert self.num_evicted == sum(r.evicted for r in queued)
        assert self.demand_blocks == sum(blocks_for(r.num_tokens, self._block_size) for r in queued)
        assert self.prefill_tokens == sum(r.num_tokens - r.num_expected for r in queued)
        assert self.prefill_pairs == sum(r.num_tokens**2 - r.num_expected**2 for r in queued)

    def _count(self, request: RequestState, sign: int) -> None:
        self.num_queued += sign
        self._count_rank(request, sign)
        self.num_evicted += sign * request.evicted
        num_tokens, num_expected = request.num_tokens, request.num_expected
        self.demand_blocks += sign * blocks_for(num_tokens, self._block_size)
        self.prefill_tokens += sign * (num_tokens - num_expected)
        self.prefill_pairs += sign * (num_tokens * num_tokens - num_expected * num_expected)

    def _count_rank(self, request: RequestState, sign: int) -> None:
        num = self.num_queued_by_rank.get(request.rank, 0) + sign
        self.num_queued_by_rank[request.rank] = num
        if not num:
            del self.num_queued_by_rank[request.rank]


@dataclass(slots=True)
class Pin:
    """Full blocks that stay in use even if their request leaves.

    Blocks with a name are in `cached`, which holds them as a request does: from the request's first
    block on. Blocks without a name are of two kinds. The blocks from `first_block` up to, but not
    including, `end_block` belong to the request as well as to the pin. `num_left` blocks belong
    to the pin alone, because the request has left them."""

    cached: list[Hold] = field(default_factory=list)
    first_block: int = 0
    end_block: int = 0
    num_left: int = 0

    def add(self, first_block: int, end_block: int) -> None:
        """Pins these blocks without a name as well. They must follow or overlap the blocks that are
        pinned."""
        if end_block <= max(first_block, self.end_block):
            return
        if self.first_block == self.end_block:
            self.first_block = first_block
        else:
            assert self.first_block <= first_block <= self.end_block
        self.end_block = end_block

    def keep(self) -> int:
        """Notes that the request leaves its blocks. Returns how many of the blocks without a name
        stay used."""
        num_kept = self.end_block - self.first_block
        self.num_left += num_kept
        self.first_block = self.end_block = 0
        return num_kept


@dataclass(slots=True)
class HeldPrefix:
    """Blocks that belong to no request: cached ones, from a prompt's first block on, and
    `num_blank` blocks for those that follow."""

    cached: list[Hold]
    num_blank: int = 0


class EngineState:
    """All requests of one engine, and their blocks. `running` is in the order in which a step
    serves the requests: first the requests that a move put in front, then the others in the order
    of their admissions. `requests` has all requests except the arriving ones."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        num_host_blocks = config.num_host_blocks
        self.host_cache = HostCache(num_host_blocks) if num_host_blocks else None
        self.pool = BlockPool(config.num_total_blocks, self.host_cache)
        self.waiting = WaitingQueue(config.block_size, by_arrival=config.mode == "chunked")
        self.running: list[RequestState] = []
        self.suspended: dict[str, RequestState] = {}
        self.arriving: dict[str, RequestState] = {}
        self.requests: dict[str, RequestState] = {}
        self.pins: dict[str, Pin] = {}
        self.held_prefixes: dict[str, HeldPrefix] = {}
        """Prefixes that are sent to other engines, or come from them, by any name."""
        self.chunked: set[RequestState] = set()  # running, and part of the prefill is done
        self.num_running_by_rank: dict[int, int] = {}
        """Includes suspended requests, and arriving requests that have a place in the batch."""
        self.moved_in = False
        """Whether a move has put a request in front since the last step."""

    @property
    def num_kept_places(self) -> int:
        """How many places in the batch are reserved for requests that a step does not serve."""
        num_arriving = 0
        for r in self.arriving.values():  # no generator: each status runs this, mostly without any
            num_arriving += r.num_blocks > 0
        return len(self.suspended) + num_arriving

    @property
    def num_free_places(self) -> int:
        return self.config.max_num_running - len(self.running) - self.num_kept_places

    def new_state(self, request: ModelRequest) -> RequestState:
        """Makes the state of a new request. Raises ValueError if the id is in use, a count is not
        positive, or the request can never run."""
        config, request_id = self.config, request.request_id
        if request_id in self.requests or request_id in self.arriving:
            raise ValueError(f"request {request_id} is already there")
        refusal = config.refusal(request.num_prompt_tokens, request.max_output_tokens)
        if refusal:
            raise ValueError(f"request {request_id} {refusal}")
        end_tokens = config.end_tokens(request.num_prompt_tokens, request.max_output_tokens)
        return RequestState(request, end_tokens, config.prefix_caching)

    def forget(self, request_id: str) -> None:
        """Forgets a request, wherever it is, unless it is arriving. Raises KeyError if it is not
        here."""
        request = self.requests.pop(request_id)
        if request.queued:
            self.waiting.discard(request)
            return
        if self.suspended.pop(request_id, None) is None:
            self.running.remove(request)
        self.leave(request)

    def enter(self, request: RequestState) -> None:
        """Gives the request a place in the batch."""
        rank = request.rank
        self.num_running_by_rank[rank] = self.num_running_by_rank.get(rank, 0) + 1

    def leave(self, request: RequestState) -> None:
        """Takes back the request's place and its blocks, except for the pinned blocks."""
        num_blank_blocks = request.num_blocks - request.num_cached
        if pin := self.pins.get(request.request_id):
            num_blank_blocks -= pin.keep()
        self.pool.give_back(num_blank_blocks, request.cached)
        self.chunked.discard(request)
        self._leave_rank(request)

    def change_rank(self, request: RequestState, rank: int) -> None:
        """Changes the rank of a request that has a place in the batch."""
        self._leave_rank(request)
        request.rank = rank
        self.enter(request)

    def put_in_front(self, request: RequestState) -> None:
        """Lets the next step serve the request first, so that no prefill can use up the step's
        tokens before."""
        self.running.insert(0, request)
        self.moved_in = True

    def find_cached(self, request: RequestState, max_blocks: int = NEVER) -> list[Hold]:
        """The longest prefix of the request that is cached, of at most `max_blocks`. The prefix
        never includes the last token, because that token must be computed to get its output."""
        if request.segment_at is None:
            return []
        num_full = (request.num_tokens - 1) // self.config.block_size
        return self.pool.find(request.segment_at, min(num_full, max_blocks))

    def hold(self, request: RequestState, found: list[Hold]) -> None:
        """Makes these cached blocks the request's first ones."""
        self.pool.hold(found)
        request.cached = found
        request.num_blocks = num_held(found)

    def take(self, request: RequestState, num_blocks: int) -> None:
        """Takes the blocks that the request still needs to have `num_blocks`. Raises ValueError if
        too few are free."""
        self.pool.take(num_blocks - request.num_blocks)
        request.num_blocks = num_blocks
        request.num_slots = num_blocks * self.config.block_size

    def remember_full(self, request: RequestState, num_tokens: int) -> None:
        """Caches the blocks that the first `num_tokens` tokens fill, before these are computed, as
        vLLM does: a request that is admitted in the same step may already share these blocks."""
        bs = self.config.block_size
        assert request.segment_at is not None
        self.pool.remember(request.cached, request.segment_at, num_tokens // bs)
        request.full_at = (request.num_cached + 1) * bs

    def fill_blocks(self) -> int:
        """The number of blocks that running prefills will still take."""
        bs = self.config.block_size
        return sum(max(0, blocks_for(r.num_tokens, bs) - r.num_blocks) for r in self.chunked)

    def check(self) -> None:
        """Checks that the whole state is consistent. Raises AssertionError if it is not."""
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
            assert r.num_blocks == r.num_computed == r.num_cached == 0, "queued, but has blocks"
        for r in batch:
            self._check_running(r)
        for r in suspended:
            assert not r.in_prefill
        for r in self.requests.values():
            assert r.num_computed < r.num_tokens < r.end_tokens, "over, and still there"
        for r in self.arriving.values():
            assert not r.queued
            assert r.num_computed == 0
            assert r.num_cached <= r.num_blocks
        ranks = [r.rank for r in [*batch, *arriving]]
        assert self.num_running_by_rank == {rank: ranks.count(rank) for rank in ranks}
        assert self.chunked <= set(self.running)
        self._check_pins()
        held = [*batch, *arriving]
        if self.host_cache is not None:
            self.host_cache.check(self.config.num_host_blocks)
        self.pool.check(
            sum(r.num_blocks - r.num_cached for r in held)
            + sum(pin.num_left for pin in self.pins.values())
            + sum(each.num_blank for each in self.held_prefixes.values()),
            [
                *(r.cached for r in held),
                *(pin.cached for pin in self.pins.values()),
                *(each.cached for each in self.held_prefixes.values()),
            ],
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
        if r.segment_at is not None:
            assert r.num_cached == r.num_computed // bs, "full blocks are cached"
            assert r.full_at == (r.num_cached + 1) * bs

    def _check_pins(self) -> None:
        for request_id, pin in self.pins.items():
            if pin.first_block == pin.end_block:
                continue
            r = self.requests[request_id]
            assert not r.queued, "a pin claims blocks of one that has none"
            assert r.segment_at is None, "a cached block is pinned as if it had no name"
            assert pin.end_block <= r.num_computed // self.config.block_size, "pinned, not full"
