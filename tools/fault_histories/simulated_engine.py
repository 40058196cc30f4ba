"""An engine made of counters, quick enough for thousands of histories: block ids, the content of
each block, and tokens that follow from all tokens before them.

A token's value depends on the token before it and, for an unseeded request, on the engine that drew
it. So if two engines both go on with a request, their outputs differ, and a mixture of them is
noticed; so is a copy of the wrong bytes.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from controller.core.emptying.relief import Candidate
from controller.core.load.snapshot import InstanceSnapshot, QueueHead
from controller.core.migration.refusals import MoveFacts

BLOCK_SIZE = 4
MAX_RUNNING = 4

Written = tuple[str, int, int]
"""(request, index of the token, value) of the last token in a block."""


@dataclass(frozen=True, slots=True)
class Token:
    value: int
    drawn_by: int
    """Which engine; 0 for a seeded request."""


def next_value(value: int, drawn_by: int) -> int:
    return (value * 1_000_003 + drawn_by * 7919 + 12345) % (1 << 61)


def blocks_for(num_tokens: int) -> int:
    return -(-num_tokens // BLOCK_SIZE)


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as its frontend sent it."""

    request_id: str
    num_prompt_tokens: int
    max_output_tokens: int
    seeded: bool
    rank: int
    arrival: int

    def prompt(self) -> list[int]:
        values = [next_value(self.arrival, 1)]
        while len(values) < self.num_prompt_tokens:
            values.append(next_value(values[-1], 0))
        return values


@dataclass(slots=True)
class HeldRequest:
    asked: Asked
    rank: int
    values: list[int]
    outputs: list[Token]
    place: str = "queued"
    blocks: list[int] = field(default_factory=list)
    evicted: bool = False
    """It lost its blocks, and waits."""

    @property
    def num_tokens(self) -> int:
        return len(self.values)

    @property
    def order(self) -> tuple[int, int, str]:
        return (-self.rank, self.asked.arrival, self.asked.request_id)


@dataclass(frozen=True, slots=True)
class State:
    """What COMMIT carries."""

    outputs: tuple[Token, ...]
    rank: int
    queued: bool


@dataclass(frozen=True, slots=True)
class Output:
    request_id: str
    first_index: int
    token: Token
    finished: bool


class EngineError(AssertionError):
    """The engine was asked for something that would make a real one crash or compute rubbish."""


class SimulatedEngine:
    """`place` of a request: queued, running or suspended. Blocks have as many references as
    there are holders: a request, a pin, a reservation."""

    def __init__(self, number: int, num_blocks: int) -> None:
        self.number = number
        """Unlike that of any other engine, earlier incarnations among them."""
        self.num_blocks = num_blocks
        self.refs = [0] * num_blocks
        self.written: list[Written | None] = [None] * num_blocks
        self.requests: dict[str, HeldRequest] = {}
        self.pins: dict[str, list[int]] = {}
        self.reserved: dict[str, list[int]] = {}
        """By request; an empty list for one that arrives queued."""
        self.num_evictions = 0

    # -- as any engine -------------------------------------------------------------------

    def add(self, asked: Asked) -> None:
        if asked.request_id in self.requests:
            raise EngineError(f"{asked.request_id} came twice")
        request = HeldRequest(asked, asked.rank, asked.prompt(), [])
        self.requests[asked.request_id] = request

    def reenter(self, asked: Asked, outputs: Sequence[Token]) -> None:
        """As if it had been evicted here."""
        if asked.request_id in self.requests or asked.request_id in self.reserved:
            raise EngineError(f"{asked.request_id} comes again while it is here")
        values = [*asked.prompt(), *(token.value for token in outputs)]
        self.requests[asked.request_id] = HeldRequest(asked, asked.rank, values, list(outputs))

    def abort(self, request_id: str) -> None:
        if request := self.requests.pop(request_id, None):
            self._give_back(request)

    def set_rank(self, request_id: str, rank: int) -> None:
        if request := self.requests.get(request_id):
            request.rank = rank

    def step(self) -> tuple[list[Output], list[str]]:
        """Tokens, and who was evicted."""
        outputs: list[Output] = []
        evicted: list[str] = []
        self._admit()
        for request in self._running():
            if request.place == "running" and self._grow(request, evicted):
                outputs.append(self._decode(request))
        return outputs, evicted

    def evict_one(self) -> str | None:
        """As if blocks were short."""
        if not (running := self._running()):
            return None
        self._evict(running[-1])
        return running[-1].asked.request_id

    def _running(self) -> list[HeldRequest]:
        running = [each for each in self.requests.values() if each.place == "running"]
        return sorted(running, key=lambda each: each.order)

    def _admit(self) -> None:
        queued = [each for each in self.requests.values() if each.place == "queued"]
        for request in sorted(queued, key=lambda each: each.order):
            needed = blocks_for(request.num_tokens)
            if needed > self.num_free or self.num_places >= MAX_RUNNING:
                return
            request.place, request.evicted = "running", False
            request.blocks = self._take(needed)
            for index in range(request.num_tokens - 1):
                self._write(request, index)

    def _grow(self, request: HeldRequest, evicted: list[str]) -> bool:
        self._check_held(request)
        while len(request.blocks) < blocks_for(request.num_tokens):
            if self.num_free:
                request.blocks += self._take(1)
                continue
            victim = self._running()[-1]
            self._evict(victim)
            evicted.append(victim.asked.request_id)
            if victim is request:
                return False
        return True

    def _decode(self, request: HeldRequest) -> Output:
        asked = request.asked
        self._write(request, request.num_tokens - 1)
        drawn_by = 0 if asked.seeded else self.number
        token = Token(next_value(request.values[-1], drawn_by), drawn_by)
        request.values.append(token.value)
        request.outputs.append(token)
        finished = len(request.outputs) >= asked.max_output_tokens
        if finished:
            del self.requests[asked.request_id]
            self._give_back(request)
        return Output(asked.request_id, len(request.outputs) - 1, token, finished)

    def _write(self, request: HeldRequest, index: int) -> None:
        block = request.blocks[index // BLOCK_SIZE]
        self.written[block] = (request.asked.request_id, index, request.values[index])

    def _evict(self, request: HeldRequest) -> None:
        self._give_back(request)
        request.place, request.evicted = "queued", True
        self.num_evictions += 1

    # -- what is told of it ----------------------------------------------------------------

    def snapshot(self, instance_id: str, incarnation: int) -> InstanceSnapshot:
        """A suspended request counts as if it ran, or waited, still."""
        batch = [each for each in self.requests.values() if each.blocks]
        queue = sorted((r for r in self.requests.values() if not r.blocks), key=lambda r: r.order)
        head = None
        if queue:
            first = queue[0].asked
            demand, evicted = blocks_for(queue[0].num_tokens), queue[0].evicted
            head = QueueHead(first.request_id, queue[0].rank, demand, float(first.arrival), evicted)
        return InstanceSnapshot(
            instance_id,
            incarnation,
            BLOCK_SIZE,
            self.num_blocks,
            self.num_free,
            max_num_running=MAX_RUNNING,
            num_running=len(batch),
            num_running_by_rank=Counter(each.rank for each in batch),
            num_queued=len(queue),
            num_queued_by_rank=Counter(each.rank for each in queue),
            queued_demand_blocks=sum(blocks_for(each.num_tokens) for each in queue),
            queue_head=head,
            num_evicted_queued=sum(each.evicted for each in queue),
            num_evictions=self.num_evictions,
        )

    def candidates(self) -> list[Candidate]:
        return [
            Candidate(
                each.asked.request_id,
                each.rank,
                each.num_tokens,
                len(each.blocks),
                len(each.blocks),
                queued=not each.blocks,
                evicted=each.evicted,
                arrival_time_s=float(each.asked.arrival),
                num_tokens_left=each.asked.max_output_tokens - len(each.outputs),
                facts=self._facts(each),
            )
            for each in self.requests.values()
        ]

    def facts(self, request_id: str) -> MoveFacts | None:
        request = self.requests.get(request_id)
        return None if request is None else self._facts(request)

    def _facts(self, request: HeldRequest) -> MoveFacts:
        return MoveFacts(
            leaving=request.asked.request_id in self.pins or request.place == "suspended"
        )

    # -- blocks --------------------------------------------------------------------------

    @property
    def num_free(self) -> int:
        return self.refs.count(0)

    @property
    def num_places(self) -> int:
        """Kept in the batch: for running, suspended and arriving ones."""
        batch = sum(1 for each in self.requests.values() if each.blocks)
        return batch + sum(1 for blocks in self.reserved.values() if blocks)

    def _take(self, number: int) -> list[int]:
        found = [block for block, refs in enumerate(self.refs) if not refs][:number]
        if len(found) < number:
            raise EngineError("more blocks taken than are free")
        for block in found:
            self.refs[block] = 1
        return found

    def _let_go(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self.refs[block] -= 1

    def _give_back(self, request: HeldRequest) -> None:
        self._let_go(request.blocks)
        request.blocks = []

    # -- source --------------------------------------------------------------------------

    def is_queued(self, request_id: str) -> bool:
        return self.requests[request_id].place == "queued"

    def pin(self, request_id: str, first_block: int) -> tuple[list[int], int] | None:
        """Full blocks from that one on, and how many tokens there are."""
        request = self.requests.get(request_id)
        if request is None or request.place != "running":
            return None
        blocks = request.blocks[first_block : (request.num_tokens - 1) // BLOCK_SIZE]
        for block in blocks:
            self.refs[block] += 1
        self.pins.setdefault(request_id, []).extend(blocks)
        return blocks, request.num_tokens

    def unpin(self, request_id: str) -> None:
        self._let_go(self.pins.pop(request_id, []))

    def suspend(self, request_id: str) -> State:
        """Raises KeyError if it is gone."""
        request = self.requests[request_id]
        state = State(tuple(request.outputs), request.rank, request.place == "queued")
        request.place = "suspended"
        return state

    def resume(self, request_id: str) -> None:
        request = self.requests.get(request_id)
        if request is None:
            return
        if request.place != "suspended":
            raise EngineError(f"{request_id} resumes, but is {request.place}")
        request.place = "running" if request.blocks else "queued"

    def release(self, request_id: str) -> None:
        request = self.requests.get(request_id)
        if request is None:
            return
        if request.place != "suspended":
            raise EngineError(f"{request_id} is released, but is {request.place}")
        self.abort(request_id)

    # -- destination ---------------------------------------------------------------------

    def reserve(self, request_id: str, num_blocks: int) -> bool:
        if request_id in self.requests or request_id in self.reserved:
            return False
        if num_blocks and self.num_places >= MAX_RUNNING:
            return False
        if num_blocks > self.num_free:
            return False
        self.reserved[request_id] = self._take(num_blocks)
        return True

    def extend(self, request_id: str, num_blocks: int) -> bool:
        more = num_blocks - len(self.reserved[request_id])
        if more > self.num_free:
            return False
        self.reserved[request_id] += self._take(max(0, more))
        return True

    def cancel(self, request_id: str) -> None:
        self._let_go(self.reserved.pop(request_id, []))

    def commit(self, asked: Asked, state: State) -> None:
        """Every byte that the next step reads must be there."""
        blocks = self.reserved.pop(asked.request_id)
        values = [*asked.prompt(), *(token.value for token in state.outputs)]
        request = HeldRequest(asked, state.rank, values, list(state.outputs), blocks=blocks)
        self.requests[asked.request_id] = request
        if state.queued:
            return
        request.place = "running"
        needed = blocks_for(request.num_tokens)
        self._let_go(blocks[needed:])
        request.blocks = blocks[:needed]
        self._check_written(request)

    def drop(self, request_id: str) -> None:
        self.abort(request_id)

    def read(self, block: int) -> Written | None:
        return self.written[block]

    def write(self, block: int, what: Written | None) -> None:
        self.written[block] = what

    # ------------------------------------------------------------------------------------

    def _check_held(self, request: HeldRequest) -> None:
        if len(request.blocks) < blocks_for(request.num_tokens - 1):
            raise EngineError(f"{request.asked.request_id} runs without blocks")

    def _check_written(self, request: HeldRequest) -> None:
        num_computed = request.num_tokens - 1
        for index in range(blocks_for(num_computed)):
            last = min((index + 1) * BLOCK_SIZE, num_computed) - 1
            expected = (request.asked.request_id, last, request.values[last])
            if index >= len(request.blocks) or self.written[request.blocks[index]] != expected:
                raise EngineError(f"{request.asked.request_id} decodes on bytes that did not come")

    def check(self) -> None:
        held = [0] * self.num_blocks
        for request in self.requests.values():
            if request.place == "running":
                self._check_held(request)
            if request.place == "queued" and request.blocks:
                raise EngineError(f"{request.asked.request_id} is queued and holds blocks")
            for block in request.blocks:
                held[block] += 1
        for blocks in (*self.pins.values(), *self.reserved.values()):
            for block in blocks:
                held[block] += 1
        if held != self.refs:
            raise EngineError("free, used and reserved blocks do not add up")
