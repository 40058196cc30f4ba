"""An engine in memory with real blocks: its tokens are right only where its KV cache is.

The KV of a token is one byte, a fixed function of the request and the position. A request that
finds another byte anywhere in its blocks answers with `WRONG` from there on, like a real engine:
without any other sign. With `num_states` a request has so many more blocks, each of which every
step writes anew, like the state of a Mamba layer; a wrong state makes wrong tokens too.
"""

import queue
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import lru_cache
from zlib import crc32

import msgspec

from controller.core.emptying.relief import Candidate
from controller.core.fleet.adapters import Adapter
from controller.core.load.snapshot import InstanceSnapshot, QueueHead, blocks_for
from controller.core.load.step_times import StepLimit
from controller.core.migration.refusals import MOVABLE, MoveFacts, MoveRefusal
from controller.ports.engine import (
    EmittedTokens,
    Engine,
    EngineEvent,
    Frames,
    PinnedBlocks,
    ReservedBlocks,
    ReservedPrefix,
    StepOutputs,
    StepPhase,
    SuspendedRequest,
)
from tests.unit.runtime.fakes import PATIENCE_S

BLOCK_SIZE = 16
WRONG = -1


class FakeRequest(msgspec.Struct, array_like=True):
    request_id: str
    num_prompt_tokens: int
    max_tokens: int
    frontend_index: int = 0
    num_output_tokens: int = 0
    rank: int = 0

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + self.num_output_tokens

    @property
    def num_blocks(self) -> int:
        return blocks_for(self.num_tokens, BLOCK_SIZE)


class FakeOutput(msgspec.Struct, array_like=True):
    """What `Router.accept` wants of an output: an id and its tokens."""

    request_id: str
    tokens: list[int]
    finished: bool

    @property
    def new_token_ids(self) -> list[int]:
        return self.tokens

    @property
    def emitted(self) -> EmittedTokens:
        return EmittedTokens(self.request_id, len(self.tokens), "length" if self.finished else None)


def token_at(request_id: str, position: int) -> int:
    """A token is a fixed function of these: one lost, doubled or moved shows."""
    return crc32(f"{request_id}:{position}".encode()) % 50_000


def tokens_of(request_id: str, num_tokens: int) -> list[int]:
    return [token_at(request_id, position) for position in range(num_tokens)]


@lru_cache(maxsize=256)
def kv_of(request_id: str) -> bytes:
    return bytes(crc32(f"{request_id}/{position}".encode()) & 0xFF for position in range(1100))


def state_of(request_id: str, index: int, num_computed: int) -> bytes:
    return crc32(f"{request_id}/{index}/{num_computed}".encode()).to_bytes(BLOCK_SIZE)


def request_frames(request_id: str, num_prompt_tokens: int = 4, max_tokens: int = 5) -> Frames:
    return [msgspec.msgpack.encode(FakeRequest(request_id, num_prompt_tokens, max_tokens))]


def decode_outputs(payload: Sequence[bytes | memoryview]) -> list[FakeOutput]:
    return msgspec.msgpack.decode(payload[0], type=list[FakeOutput])


class FakeBlocks:
    """Blocks 1 to `num_gpu_blocks` - 1, counted by who refers to them."""

    block_bytes = BLOCK_SIZE

    def __init__(self, num_gpu_blocks: int) -> None:
        self.memory = bytearray(num_gpu_blocks * self.block_bytes)
        self.refs: Counter[int] = Counter()
        self.free = list(range(num_gpu_blocks - 1, 0, -1))

    def take(self, num_blocks: int) -> list[int] | None:
        if num_blocks > len(self.free):
            return None
        taken = [self.free.pop() for _ in range(num_blocks)]
        self.refs.update(taken)
        return taken

    def share(self, block_ids: Sequence[int]) -> None:
        assert all(self.refs[block_id] > 0 for block_id in block_ids)
        self.refs.update(block_ids)

    def drop(self, block_ids: Sequence[int]) -> None:
        for block_id in block_ids:
            assert self.refs[block_id] > 0, f"block {block_id} is free already"
            self.refs[block_id] -= 1
            if not self.refs[block_id]:
                del self.refs[block_id]
                self.memory[block_id * BLOCK_SIZE : (block_id + 1) * BLOCK_SIZE] = bytes(BLOCK_SIZE)
                self.free.append(block_id)

    def buffer(self, num_blocks: int) -> bytearray:
        return bytearray(num_blocks * self.block_bytes)

    def gather(self, block_ids: Sequence[int], into: bytearray) -> memoryview:
        for place, block_id in enumerate(block_ids):
            at = block_id * BLOCK_SIZE
            into[place * BLOCK_SIZE : (place + 1) * BLOCK_SIZE] = self.memory[at : at + BLOCK_SIZE]
        return memoryview(into)[: len(block_ids) * BLOCK_SIZE]

    def scatter(self, block_ids: Sequence[int], buffer: bytearray) -> None:
        for place, block_id in enumerate(block_ids):
            part = buffer[place * BLOCK_SIZE : (place + 1) * BLOCK_SIZE]
            self.memory[block_id * BLOCK_SIZE : (block_id + 1) * BLOCK_SIZE] = part

    def writable(self, buffer: bytearray, num_blocks: int) -> memoryview:
        return memoryview(buffer)[: num_blocks * BLOCK_SIZE]

    def write(self, table: Sequence[int], request_id: str, first: int, end: int) -> None:
        kv = kv_of(request_id)
        for position in range(first, end):
            block_id = table[position // BLOCK_SIZE]
            self.memory[block_id * BLOCK_SIZE + position % BLOCK_SIZE] = kv[position]

    def holds(self, table: Sequence[int], request_id: str, num_tokens: int) -> bool:
        found = self.gather(table, self.buffer(len(table)))
        return found[:num_tokens] == kv_of(request_id)[:num_tokens]

    def write_states(self, states: Sequence[int], request_id: str, num_computed: int) -> None:
        for index, block_id in enumerate(states):
            self.scatter([block_id], bytearray(state_of(request_id, index, num_computed)))

    def has_states(self, states: Sequence[int], request_id: str, num_computed: int) -> bool:
        return all(
            self.gather([block_id], self.buffer(1)) == state_of(request_id, index, num_computed)
            for index, block_id in enumerate(states)
        )


class FakePrefixes:
    """All prompts begin alike: with the blocks that `text` names, whose contents these names are.
    Cached blocks are never evicted, and requests do not use them."""

    def __init__(self, blocks: FakeBlocks) -> None:
        self.blocks = blocks
        self.cached: list[int] = []
        self.in_host: list[int] = []
        self.arriving: dict[str, list[int]] = {}
        self.lent: dict[str, list[int]] = {}

    @staticmethod
    def text(num_blocks: int) -> list[bytes]:
        return [f"the block {number:06}".encode() for number in range(num_blocks)]

    def fill(self, num_blocks: int) -> None:
        """Caches the first blocks, as if they had been computed."""
        new = self.blocks.take(num_blocks - len(self.cached))
        assert new is not None
        contents = bytearray(b"".join(self.text(num_blocks)[len(self.cached) :]))
        self.blocks.scatter(new, contents)
        self.cached += new

    def fill_host(self, num_blocks: int) -> None:
        """Lets the host cache have the first blocks."""
        new = self.blocks.take(num_blocks)
        assert new is not None
        self.blocks.scatter(new, bytearray(b"".join(self.text(num_blocks))))
        self.in_host = new

    def forget(self) -> None:
        """Caches nothing any more."""
        self.blocks.drop([*self.cached, *self.in_host])
        self.cached, self.in_host = [], []

    def is_right(self) -> bool:
        """Whether the cached blocks have the right contents."""
        found = self.blocks.gather(self.cached, self.blocks.buffer(len(self.cached)))
        return bytes(found) == b"".join(self.text(len(self.cached)))

    def prompt(self, frames: Frames) -> FakeRequest:
        return msgspec.msgpack.decode(frames[0], type=FakeRequest)

    def names(self, prepared: FakeRequest) -> list[bytes]:
        return self.text((prepared.num_tokens - 1) // BLOCK_SIZE)

    def reserve(self, key: str, prepared: FakeRequest, num_tokens: int) -> ReservedPrefix | None:
        num_blocks = min(num_tokens, prepared.num_tokens - 1) // BLOCK_SIZE
        names = self.text(num_blocks)[len(self.cached) :]
        if not names:
            return ReservedPrefix((), b"")
        new = self.blocks.take(len(names))
        if new is None:
            return None
        self.arriving[key] = new
        return ReservedPrefix(tuple(new), msgspec.msgpack.encode(names))

    def store(self, key: str, num_blocks: int) -> None:
        new = self.arriving.pop(key)
        self.cached += new[:num_blocks]
        self.blocks.drop(new[num_blocks:])

    def lend(self, key: str, names: bytes) -> tuple[int, ...]:
        wanted = msgspec.msgpack.decode(names) if names else []
        known = dict(zip(self.text(len(self.in_host)), self.in_host, strict=True))
        known |= dict(zip(self.text(len(self.cached)), self.cached, strict=True))
        lent = [known[name] for name in wanted if name in known]
        self.blocks.share(lent)
        self.lent[key] = lent
        return tuple(lent)

    def take_back(self, key: str) -> None:
        self.blocks.drop(self.lent.pop(key))


class FakeAdapterFiles:
    """Copies of adapters that need no disk."""

    def __init__(self) -> None:
        self.here: set[int] = set()
        self.why_not = ""
        """Why nothing can be fetched; empty if it can."""

    def fetch(self, adapter: Adapter) -> str:
        if self.why_not:
            raise ValueError(self.why_not)
        self.here.add(adapter.number)
        return f"/copies/{adapter.digest}"

    def drop(self, adapter: Adapter) -> None:
        self.here.remove(adapter.number)


class FakeEngine:
    """One token per running request and step; first come, first served. It evicts the last
    admitted where a block is missing, and on `evict`."""

    max_model_len = 512
    block_size = BLOCK_SIZE
    max_num_running = 64
    emulation = None
    supported_tasks: tuple[str, ...] = ("generate",)

    def __init__(
        self,
        num_gpu_blocks: int = 65,
        on_step: Callable[[], None] = lambda: None,
        num_states: int = 0,
    ) -> None:
        self.num_states = num_states
        self.states: dict[str, list[int]] = {}
        self.num_gpu_blocks = num_gpu_blocks
        self.blocks = FakeBlocks(num_gpu_blocks)
        self.running: dict[str, FakeRequest] = {}
        self.waiting: dict[str, FakeRequest] = {}
        self.tables: dict[str, list[int]] = {}
        self.moves = FakeMoves(self)
        self.prefixes = FakePrefixes(self.blocks)
        self.admits = True
        self.tells_each_step = False
        """Whether a step without tokens has outputs, as vLLM's have: the scheduler's statistics."""
        self.refuses_at_add: set[str] = set()
        self.step_limit = StepLimit()
        self.adapters: dict[int, str] = {}
        """The folder of each loaded adapter, by number."""
        self.adapters_in_use: set[int] = set()
        self.refuses_adapters = ""
        """Why it takes no adapter; empty if it takes them."""
        self.aborted: list[str] = []
        self.evicted: set[str] = set()
        """Ever."""
        self.events: list[EngineEvent] = []
        self.cache_changes: Mapping[int, bool] = {}
        self.host_cache_changes: dict[int, bool] | None = None
        self.num_begun = 0
        """Steps, those that wait until they may be taken too."""
        self.num_steps = 0
        self.steps: threading.Semaphore | None = None
        """Steps that may be taken; None: as many as there is work for."""
        self.blocks_thread = True
        """Whether the thread waits for a step that may be taken, or goes on without it."""
        self.on_step = on_step
        self.on_phase: Callable[[StepPhase], None] = lambda phase: None
        self._death: BaseException | None = None

    def limit_steps(self, limit: StepLimit) -> None:
        self.step_limit = limit

    def prepare(self, frames: Frames, frontend_index: int) -> FakeRequest:
        request = msgspec.msgpack.decode(frames[0], type=FakeRequest)
        request.frontend_index = frontend_index
        if request.num_prompt_tokens >= self.max_model_len:
            raise ValueError("the prompt is too long")
        return request

    def add(self, prepared: FakeRequest) -> None:
        if prepared.request_id in self.refuses_at_add:
            raise ValueError("no adapter of that name")
        self.waiting[prepared.request_id] = prepared

    def load_adapter(self, adapter: Adapter, folder: str) -> None:
        if self.refuses_adapters:
            raise ValueError(self.refuses_adapters)
        self.adapters[adapter.number] = folder

    def unload_adapter(self, number: int) -> bool:
        if number in self.adapters_in_use:
            return False
        del self.adapters[number]
        return True

    def abort(self, request_ids: Sequence[str]) -> None:
        self.aborted.extend(request_ids)
        for request_id in request_ids:
            self.forget(request_id)

    def forget(self, request_id: str) -> None:
        self.running.pop(request_id, None)
        self.waiting.pop(request_id, None)
        self.moves.suspended.pop(request_id, None)
        self.blocks.drop(self.tables.pop(request_id, []))
        self.blocks.drop(self.states.pop(request_id, []))

    def has_work(self) -> bool:
        if self._death is not None and self.steps is None:
            raise self._death
        return bool(self.running or self.waiting)

    def step(self) -> Sequence[StepOutputs]:
        self.num_begun += 1
        steps = self.steps  # `go_on` may take it away at any moment
        if steps is not None and not steps.acquire(timeout=None if self.blocks_thread else 0.001):
            return []
        if self._death is not None:
            raise self._death
        self.on_step()
        self.num_steps += 1
        self._admit()
        self.on_phase("after-schedule")
        by_frontend: dict[int, list[FakeOutput]] = {}
        for request in list(self.running.values()):
            if request.request_id not in self.running or not self._grow(request):
                continue  # evicted for, or by, another one
            output = self._next(request)
            by_frontend.setdefault(request.frontend_index, []).append(output)
        self.on_phase("after-update")
        if self.tells_each_step and not by_frontend:
            return [StepOutputs(0, (), [])]
        return [
            StepOutputs(index, tuple(each.emitted for each in outputs), outputs)
            for index, outputs in by_frontend.items()
        ]

    def encode(self, body: list[FakeOutput]) -> Frames:
        return [msgspec.msgpack.encode(body)]

    def encode_rest(self) -> Frames:
        return self.encode([])

    def encode_one(self, body: list[FakeOutput], request_id: str) -> Frames:
        return self.encode([output for output in body if output.request_id == request_id])

    def take_events(self) -> Sequence[EngineEvent]:
        events, self.events = self.events, []
        return events

    def take_cache_changes(self) -> Mapping[int, bool]:
        changes, self.cache_changes = self.cache_changes, {}
        return changes

    def take_host_cache_changes(self) -> Mapping[int, bool] | None:
        changes = self.host_cache_changes
        if changes is not None:
            self.host_cache_changes = {}
        return changes

    def snapshot(self, instance_id: str, incarnation: int) -> InstanceSnapshot:
        head = next(iter(self.waiting.values()), None)
        queue_head = None
        if head is not None:
            is_evicted = head.request_id in self.evicted
            queue_head = QueueHead(head.request_id, 0, head.num_blocks, 0.0, is_evicted)
        num_running = len(self.running) + self.moves.num_running
        return InstanceSnapshot(
            instance_id=instance_id,
            incarnation=incarnation,
            block_size=self.block_size,
            num_total_blocks=self.num_gpu_blocks - 1,
            num_free_blocks=len(self.blocks.free),
            num_running=num_running,
            num_running_by_rank=Counter({0: num_running}),
            num_queued=len(self.waiting),
            queued_demand_blocks=sum(r.num_blocks for r in self.waiting.values()),
            queue_head=queue_head,
            num_evicted_queued=sum(request_id in self.evicted for request_id in self.waiting),
            adapters=tuple(self.adapters),
            live_adapters=tuple(self.adapters_in_use),
            max_live_adapters=2,
        )

    def shutdown(self) -> None:
        pass

    def evict(self, request_id: str) -> None:
        """On the engine's thread. It waits until the blocks of all its tokens are free again."""
        request = self.running.pop(request_id)
        self.blocks.drop(self.tables.pop(request_id) + self.states.pop(request_id))
        self.waiting = {request_id: request, **self.waiting}
        self.evicted.add(request_id)
        self.events.append(EngineEvent("evicted", request_id, 7.0, request.num_tokens))

    # what tests do to it, from any thread

    def hold(self, *, blocks_thread: bool = True) -> None:
        """No step is taken until `allow`. Unless the thread is blocked, commands still run."""
        self.blocks_thread = blocks_thread
        self.steps = threading.Semaphore(0)

    def allow(self, num_steps: int) -> None:
        assert self.steps is not None
        self.steps.release(num_steps)

    def go_on(self) -> None:
        steps, self.steps = self.steps, None
        if steps is not None:
            steps.release(1)

    def die(self, error: BaseException) -> None:
        """The next time that the engine thread asks something of it."""
        self._death = error
        self.go_on()

    def check(self) -> None:
        """Every block is free or belongs to what refers to it. Only while its thread rests."""
        held: Counter[int] = Counter()
        for table in (*self.tables.values(), *self.states.values()):
            held.update(table)
        held.update(self.moves.held())
        for blocks in (
            self.prefixes.cached,
            self.prefixes.in_host,
            *self.prefixes.arriving.values(),
        ):
            held.update(blocks)
        for blocks in self.prefixes.lent.values():
            held.update(blocks)
        assert held == self.blocks.refs
        assert len(held) + len(self.blocks.free) == self.num_gpu_blocks - 1

    def _admit(self) -> None:
        for request in list(self.waiting.values()):
            there = [*self.running.values(), *self.moves.in_the_batch()]
            whole = sum(
                blocks_for(r.num_prompt_tokens + r.max_tokens, BLOCK_SIZE) + self.num_states
                for r in (*there, request)
            )
            if not self.admits or whole > self.num_gpu_blocks - 1:
                return
            taken = self.blocks.take(request.num_blocks + self.num_states)
            if taken is None:
                return
            request_id = request.request_id
            states, table = taken[: self.num_states], taken[self.num_states :]
            self.states[request_id] = states
            self.blocks.write_states(states, request_id, request.num_tokens - 1)
            self.blocks.write(table, request_id, 0, request.num_tokens - 1)
            self.tables[request_id] = table
            self.running[request_id] = self.waiting.pop(request_id)
            continued = bool(states) and request.num_output_tokens > 0
            self.events.append(
                EngineEvent("admitted", request_id, 7.0, request.num_tokens, 0, continued)
            )

    def _grow(self, request: FakeRequest) -> bool:
        table = self.tables[request.request_id]
        while len(table) < request.num_blocks:
            if taken := self.blocks.take(1):
                table += taken
                continue
            last = next(reversed(self.running))
            self.evict(last)
            if last == request.request_id:
                return False
        return True

    def _next(self, request: FakeRequest) -> FakeOutput:
        request_id, num_tokens = request.request_id, request.num_tokens
        table = self.tables[request_id]
        self.blocks.write(table, request_id, num_tokens - 1, num_tokens)
        states = self.states[request_id]
        right = self.blocks.holds(table, request_id, num_tokens) and self.blocks.has_states(
            states, request_id, num_tokens - 1
        )
        self.blocks.write_states(states, request_id, num_tokens)
        token = token_at(request_id, request.num_output_tokens) if right else WRONG
        request.num_output_tokens += 1
        finished = request.num_output_tokens == request.max_tokens
        if finished:
            self.forget(request_id)
        return FakeOutput(request_id, [token], finished)


@dataclass(slots=True)
class _Moving:
    """A request that is suspended, or one that arrives in the blocks of `table`."""

    request: FakeRequest
    queued: bool
    table: list[int] = field(default_factory=list)
    states: list[int] = field(default_factory=list)
    num_cached: int = 0

    def reserved(self) -> ReservedBlocks:
        return ReservedBlocks(tuple(self.table), self.num_cached, tuple(self.states))


class FakeMoves:
    fingerprint = "fake"

    def __init__(self, engine: FakeEngine) -> None:
        self.blocks = engine.blocks
        self.suspended: dict[str, _Moving] = {}
        self.arriving: dict[str, _Moving] = {}
        self.pins: dict[str, list[int]] = {}
        self._engine = engine
        # what tests set
        self.refusals: dict[str, MoveRefusal] = {}
        self.num_cached = 0
        """How many first blocks of an arriving request the prefix cache has."""
        self.reluctant = False
        """A step that includes the request is under way for ever."""
        self.commits = True
        self.compiles: dict[str, Future[None]] = {}
        """Of the grammars of arriving requests, by request."""

    def set_rank(self, request_id: str, rank: int) -> None:
        if (request := self._find(request_id)) is not None:
            request.rank = rank

    def rank(self, request_id: str) -> int | None:
        """None: it is not here."""
        request = self._find(request_id)
        return None if request is None else request.rank

    def _find(self, request_id: str) -> FakeRequest | None:
        engine, out = self._engine, self.suspended.get(request_id)
        found = engine.running.get(request_id) or engine.waiting.get(request_id)
        return found or (None if out is None else out.request)

    # for the engine

    @property
    def num_running(self) -> int:
        return len(self.in_the_batch())

    def in_the_batch(self) -> list[FakeRequest]:
        both = (*self.suspended.values(), *self.arriving.values())
        return [each.request for each in both if not each.queued]

    def held(self) -> list[int]:
        both = [each.table + each.states for each in self.arriving.values()]
        arriving = [block_id for held in both for block_id in held]
        return arriving + [block_id for pinned in self.pins.values() for block_id in pinned]

    # source

    def facts(self, request_id: str) -> MoveFacts | None:
        if request_id in self.suspended or request_id in self.pins:
            return MoveFacts(leaving=True)
        if request_id not in self._engine.running and request_id not in self._engine.waiting:
            return None
        return MoveFacts(never=self.refusals.get(request_id))

    def is_queued(self, request_id: str) -> bool:
        if (out := self.suspended.get(request_id)) is not None:
            return out.queued
        if request_id in self._engine.waiting:
            return True
        if request_id in self._engine.running:
            return False
        raise KeyError(request_id)

    def candidates(self) -> Sequence[Candidate]:
        out = [each.request for each in self.suspended.values() if not each.queued]
        running = [*self._engine.running.values(), *out]
        found = [self._candidate(request, queued=False) for request in running]
        waiting = self._engine.waiting.values()
        return found + [self._candidate(request, queued=True) for request in waiting]

    def _candidate(self, request: FakeRequest, *, queued: bool) -> Candidate:
        request_id = request.request_id
        num_blocks = 0 if queued else len(self._engine.tables[request_id])
        return Candidate(
            request_id,
            request.rank,
            request.num_tokens,
            num_blocks,
            num_blocks,
            queued,
            evicted=queued and request_id in self._engine.evicted,
            num_tokens_left=request.max_tokens - request.num_output_tokens,
            facts=self.facts(request_id) or MOVABLE,
        )

    def outputs(self, request_id: str) -> Sequence[int]:
        engine = self._engine
        request = engine.running.get(request_id) or engine.waiting[request_id]
        return tokens_of(request_id, request.num_output_tokens)

    def pin(self, request_id: str, first_block: int) -> PinnedBlocks | None:
        request = self._engine.running.get(request_id)
        if request is None:
            return None
        table = self._engine.tables[request_id]
        full = table[first_block : (request.num_tokens - 1) // BLOCK_SIZE]
        self.blocks.share(full)
        self.pins.setdefault(request_id, []).extend(full)
        return PinnedBlocks(tuple(full), request.num_tokens, self._engine.num_states)

    def unpin(self, request_id: str) -> None:
        self.blocks.drop(self.pins.pop(request_id, []))

    def suspend(self, request_id: str) -> SuspendedRequest | None:
        out = self.suspended.get(request_id)
        if out is None:
            queued = self.is_queued(request_id)
            engine_state = self._engine.waiting if queued else self._engine.running
            out = self.suspended[request_id] = _Moving(engine_state.pop(request_id), queued)
        if self.reluctant:
            return None
        num_tokens = out.request.num_tokens
        table = self._engine.tables.get(request_id, [])
        return SuspendedRequest(
            tuple(table[: blocks_for(num_tokens - 1, BLOCK_SIZE)]),
            [msgspec.msgpack.encode((out.request.num_output_tokens, out.queued, out.request.rank))],
            num_tokens,
            () if out.queued else tuple(self._engine.states[request_id]),
        )

    def resume(self, request_id: str) -> None:
        out = self.suspended.pop(request_id, None)
        if out is not None:
            engine_state = self._engine.waiting if out.queued else self._engine.running
            engine_state[request_id] = out.request

    def release(self, request_id: str) -> None:
        if request_id in self.suspended:
            self._engine.forget(request_id)

    # destination

    def compiling(self, prepared: FakeRequest) -> Future[None] | None:
        return self.compiles.get(prepared.request_id)

    def reserve(
        self, prepared: FakeRequest, output_token_ids: Sequence[int], num_blocks: int
    ) -> ReservedBlocks | MoveRefusal:
        request_id, engine = prepared.request_id, self._engine
        known = (engine.running, engine.waiting, self.suspended, self.arriving)
        if any(request_id in engine_state for engine_state in known):
            return MoveRefusal.NOT_TAKEN
        if list(output_token_ids) != tokens_of(request_id, len(output_token_ids)):
            return MoveRefusal.NOT_TAKEN
        if num_blocks and len(engine.running) + self.num_running >= engine.max_num_running:
            return MoveRefusal.NO_SLOT
        num_states = engine.num_states if num_blocks else 0
        taken = self.blocks.take(num_blocks + num_states)
        if taken is None:
            return MoveRefusal.NO_BLOCKS
        states, table = taken[:num_states], taken[num_states:]
        num_cached = min(self.num_cached, num_blocks)
        self.blocks.write(table, request_id, 0, num_cached * BLOCK_SIZE)
        prepared.num_output_tokens = len(output_token_ids)
        moving = _Moving(prepared, num_blocks == 0, table, states, num_cached)
        self.arriving[request_id] = moving
        return moving.reserved()

    def extend(self, request_id: str, num_blocks: int) -> ReservedBlocks | None:
        arrival = self.arriving[request_id]
        taken = self.blocks.take(max(0, num_blocks - len(arrival.table)))
        if taken is None:
            return None
        arrival.table += taken
        return arrival.reserved()

    def cancel(self, request_id: str) -> None:
        if (arrival := self.arriving.pop(request_id, None)) is not None:
            self.blocks.drop(arrival.table + arrival.states)

    def commit(self, request_id: str, state: Frames) -> None:
        arrival = self.arriving[request_id]
        num_outputs, queued, rank = msgspec.msgpack.decode(state[0], type=tuple[int, bool, int])
        num_tokens = arrival.request.num_prompt_tokens + num_outputs
        if not self.commits or queued != arrival.queued:
            raise ValueError("the state does not fit")
        compiling = self.compiles.get(request_id)
        if num_outputs and compiling is not None and not compiling.done():
            raise ValueError("its grammar is not compiled")
        if not queued and blocks_for(num_tokens, BLOCK_SIZE) > len(arrival.table):
            raise ValueError("more tokens than blocks")
        del self.arriving[request_id]
        arrival.request.num_output_tokens, arrival.request.rank = num_outputs, rank
        if queued:
            self._engine.waiting[request_id] = arrival.request
        else:
            self._engine.running[request_id] = arrival.request
            self._engine.tables[request_id] = arrival.table
            self._engine.states[request_id] = arrival.states

    def drop(self, request_id: str) -> None:
        self._engine.forget(request_id)

    # replay

    def drawn_generator(self, prepared: FakeRequest, num_output_tokens: int) -> tuple[str, int]:
        return prepared.request_id, num_output_tokens

    def reenter(
        self, prepared: FakeRequest, output_token_ids: Sequence[int], generator: tuple[str, int]
    ) -> None:
        assert generator == (prepared.request_id, len(output_token_ids))
        if self.reserve(prepared, output_token_ids, 0) is MoveRefusal.NOT_TAKEN:
            raise ValueError("its outputs are not its own")
        self._engine.waiting[prepared.request_id] = self.arriving.pop(prepared.request_id).request
        self._engine.evicted.add(prepared.request_id)


@dataclass
class Scripted:
    """An engine factory that waits for the test, then builds or fails."""

    engine: FakeEngine
    error: BaseException | None = None
    details: tuple[str, ...] = ("loading",)
    start: "queue.SimpleQueue[None] | None" = None

    def __call__(self, report: Callable[[str], None]) -> FakeEngine:
        for detail in self.details:
            report(detail)
        if self.start is not None:
            self.start.get(timeout=PATIENCE_S)
        if self.error is not None:
            raise self.error
        return self.engine


def assert_empty(engine: Engine) -> None:
    assert isinstance(engine, FakeEngine)
    engine.check()
    assert not engine.running
    assert not engine.waiting
    assert not engine.moves.suspended
    assert not engine.moves.arriving
    assert not engine.prefixes.arriving
    assert not engine.prefixes.lent
    cached = [*engine.prefixes.cached, *engine.prefixes.in_host]
    assert sorted(engine.blocks.refs.elements()) == sorted(cached)
