"""The ports of the runtime in memory: mailboxes on one network, an engine, a launcher, a clock.

Messages go through the real encoding. The network delivers in order, one event loop turn
later, and can lose a peer the way a socket does: what was sent to it is discarded and whoever
wrote to it is told once.
"""

import asyncio
import queue
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import wraps
from types import SimpleNamespace
from typing import Any, TypeVar
from zlib import crc32

import msgspec

from controller.core.snapshot import InstanceSnapshot, QueueHead, blocks_for
from controller.ports.engine import EmittedTokens, EngineEvent, Frames, StepOutputs
from controller.ports.mailbox import OnLost, OnMessage
from controller.runtime.messages import (
    AnyMessage,
    Directory,
    EngineInfo,
    Hello,
    InstanceEntry,
    Message,
    decode,
    encode,
)

M = TypeVar("M", bound=Message)
PATIENCE_S = 10.0
INFO = EngineInfo(512, 65, 16, ("generate",))


# -- time ---------------------------------------------------------------------------------


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """A loop whose clock jumps to the next timer instead of waiting for it."""

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 1000.0
        select = self._selector.select

        def jump(timeout: float | None = None) -> Any:
            ready = select(0)
            if not ready:
                if timeout is None:
                    raise RuntimeError("the test waits for something that cannot happen")
                self._now_s += max(0.0, timeout)
            return ready

        self._selector.select = jump  # type: ignore[method-assign]

    def time(self) -> float:
        return self._now_s


def virtual_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test on a VirtualTimeLoop. Not for tests with threads or sockets."""

    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            runner.run(test(*args, **kwargs))

    return run


# -- mailboxes ----------------------------------------------------------------------------


class FakeNetwork:
    def __init__(self) -> None:
        self.mailboxes: dict[str, FakeMailbox] = {}
        self.errors: list[Exception] = []

    def mailbox(self, address: str) -> "FakeMailbox":
        self.mailboxes[address] = FakeMailbox(self, address)
        return self.mailboxes[address]

    def peer(self, address: str) -> "FakePeer":
        return FakePeer(self.mailbox(address))

    def lose(self, address: str) -> None:
        """That process ends."""
        self.mailboxes.pop(address).lost = True
        for mailbox in self.mailboxes.values():
            if address in mailbox.connected:
                mailbox.connected.discard(address)
                asyncio.get_running_loop().call_soon(mailbox.on_lost, address)


class FakeMailbox:
    def __init__(self, network: FakeNetwork, address: str) -> None:
        self.address = address
        self.connected: set[str] = set()
        self.forgotten: list[str] = []
        self.lost = False
        self.deaf = False
        """Whether what is sent from here disappears."""
        self.on_lost: OnLost = lambda address: None
        self._on_message: OnMessage | None = None
        self._early: list[tuple[bytes, tuple[bytes, ...]]] = []
        self._network = network

    def start(self, on_message: OnMessage, on_lost: OnLost) -> None:
        self._on_message, self.on_lost = on_message, on_lost
        for frame, payload in self._early:
            self._deliver(frame, payload)

    def send(
        self,
        address: str,
        frame: bytes,
        payload: Sequence[Any] = (),
        *,
        droppable: bool = False,  # noqa: ARG002
    ) -> None:
        if self.lost or self.deaf:
            return
        self.connected.add(address)
        sealed = tuple(bytes(part) for part in payload)
        asyncio.get_running_loop().call_soon(self._arrive, address, bytes(frame), sealed)

    def forget(self, address: str) -> None:
        self.connected.discard(address)
        self.forgotten.append(address)

    async def close(self) -> None:
        self._network.mailboxes.pop(self.address, None)

    def _arrive(self, address: str, frame: bytes, payload: tuple[bytes, ...]) -> None:
        there = self._network.mailboxes.get(address)
        if there is not None and address in self.connected:
            there._deliver(frame, payload)

    def _deliver(self, frame: bytes, payload: tuple[bytes, ...]) -> None:
        if self._on_message is None:
            self._early.append((frame, payload))
            return
        try:
            self._on_message(memoryview(frame), [memoryview(part) for part in payload])
        except Exception as error:
            self._network.errors.append(error)
            raise


class FakePeer:
    """A process of which the test speaks the lines."""

    def __init__(self, mailbox: FakeMailbox) -> None:
        self.mailbox = mailbox
        self.address = mailbox.address
        self.inbox: list[tuple[AnyMessage, list[bytes]]] = []
        self._arrived = asyncio.Event()
        mailbox.start(self._on_message, lambda address: None)

    def send(self, address: str, message: Message, payload: Sequence[bytes] = ()) -> None:
        self.mailbox.send(address, encode(message), payload)

    async def receive_with_payload(
        self, kind: type[M], where: Callable[[M], bool] = lambda message: True
    ) -> tuple[M, list[bytes]]:
        """The next one of that kind; it and those of other kinds before it are kept or taken
        only by who asks for them."""

        async def found() -> tuple[M, list[bytes]]:
            while True:
                for index, (message, payload) in enumerate(self.inbox):
                    if isinstance(message, kind) and where(message):
                        del self.inbox[index]
                        return message, payload
                self._arrived.clear()
                await self._arrived.wait()

        return await asyncio.wait_for(found(), PATIENCE_S)

    async def receive(self, kind: type[M], where: Callable[[M], bool] = lambda message: True) -> M:
        return (await self.receive_with_payload(kind, where))[0]

    def received(self, kind: type[M]) -> list[M]:
        return [message for message, _ in self.inbox if isinstance(message, kind)]

    def _on_message(self, head: bytes | memoryview, payload: Sequence[memoryview]) -> None:
        self.inbox.append((decode(head), [bytes(part) for part in payload]))
        self._arrived.set()


async def settle(turns: int = 10) -> None:
    """Let everything that is under way in memory arrive."""
    for _ in range(turns):
        await asyncio.sleep(0)


# -- what members say ---------------------------------------------------------------------


def hello(
    member_id: str = "i-0",
    *,
    nonce: str = "a",
    incarnation: int = 0,
    phase: str = "active",
    address: str | None = None,
    num_live_reqs: int = 0,
) -> Hello:
    return Hello(
        kind="instance" if member_id.startswith("i") else "frontend",
        member_id=member_id,
        nonce=nonce,
        incarnation=incarnation,
        address=address or f"mem://{member_id}",
        node="n",
        pid=1,
        phase=phase,  # type: ignore[arg-type]
        info=INFO if member_id.startswith("i") else None,
        num_live_reqs=num_live_reqs,
    )


def idle_snapshot(
    instance_id: str = "i-0", incarnation: int = 1, *, free: int = 64, **fields: Any
) -> InstanceSnapshot:
    return InstanceSnapshot(
        instance_id=instance_id,
        incarnation=incarnation,
        block_size=16,
        num_total_blocks=64,
        num_free_blocks=free,
        **fields,
    )


def directory(*snapshots: InstanceSnapshot) -> Directory:
    return Directory(
        tuple(
            InstanceEntry(s.instance_id, s.incarnation, f"mem://{s.instance_id}", INFO, s)
            for s in snapshots
        )
    )


# -- the launcher -------------------------------------------------------------------------


class FakeLauncher:
    def __init__(self) -> None:
        self.launched: list[str] = []
        self.terminated: list[str] = []

    def launch_instance(self, instance_id: str) -> None:
        self.launched.append(instance_id)

    def launch_frontend(self, frontend_id: str) -> None:
        self.launched.append(frontend_id)

    def terminate(self, member_id: str) -> None:
        self.terminated.append(member_id)


# -- the engine ---------------------------------------------------------------------------


class FakeRequest(msgspec.Struct, array_like=True):
    request_id: str
    num_prompt_tokens: int
    max_tokens: int
    frontend_index: int = 0
    num_output_tokens: int = 0

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + self.num_output_tokens


class FakeOutput(msgspec.Struct, array_like=True):
    """What `Router.accept` wants of an output: an id and whether it is the last."""

    request_id: str
    tokens: list[int]
    finished: bool


def token_at(request_id: str, position: int) -> int:
    """A token is a fixed function of these: one lost, doubled or moved shows."""
    return crc32(f"{request_id}:{position}".encode()) % 50_000


def tokens_of(request_id: str, num_tokens: int) -> list[int]:
    return [token_at(request_id, position) for position in range(num_tokens)]


def request_frames(request_id: str, num_prompt_tokens: int = 4, max_tokens: int = 5) -> Frames:
    return [msgspec.msgpack.encode(FakeRequest(request_id, num_prompt_tokens, max_tokens))]


def decode_outputs(payload: Sequence[bytes | memoryview]) -> list[FakeOutput]:
    return msgspec.msgpack.decode(payload[0], type=list[FakeOutput])


class FakeEngine:
    """One token per running request and step; first come, first served; never evicts."""

    max_model_len = 512
    block_size = 16
    max_num_running = 64
    emulation = None
    supported_tasks = ("generate",)

    def __init__(self, num_gpu_blocks: int = 65, on_step: Callable[[], None] = lambda: None):
        self.num_gpu_blocks = num_gpu_blocks
        self.running: dict[str, FakeRequest] = {}
        self.waiting: dict[str, FakeRequest] = {}
        self.refuses_at_add: set[str] = set()
        self.aborted: list[str] = []
        self.events: list[EngineEvent] = []
        self.num_steps = 0
        self.steps: threading.Semaphore | None = None
        """Steps that may be taken; None: as many as there is work for."""
        self._on_step = on_step
        self._death: BaseException | None = None

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

    def abort(self, request_ids: Sequence[str]) -> None:
        self.aborted.extend(request_ids)
        for request_id in request_ids:
            self.running.pop(request_id, None)
            self.waiting.pop(request_id, None)

    def has_work(self) -> bool:
        if self._death is not None and self.steps is None:
            raise self._death
        return bool(self.running or self.waiting)

    def step(self) -> Sequence[StepOutputs]:
        if self.steps is not None:
            self.steps.acquire()
        if self._death is not None:
            raise self._death
        self._on_step()
        self.num_steps += 1
        self._admit()
        by_frontend: dict[int, list[FakeOutput]] = {}
        for request in list(self.running.values()):
            token = token_at(request.request_id, request.num_output_tokens)
            request.num_output_tokens += 1
            finished = request.num_output_tokens == request.max_tokens
            output = FakeOutput(request.request_id, [token], finished)
            by_frontend.setdefault(request.frontend_index, []).append(output)
            if finished:
                del self.running[request.request_id]
        return [
            StepOutputs(
                index,
                tuple(
                    EmittedTokens(o.request_id, len(o.tokens), "length" if o.finished else None)
                    for o in outputs
                ),
                outputs,
            )
            for index, outputs in by_frontend.items()
        ]

    def encode(self, body: Any) -> Frames:
        return [msgspec.msgpack.encode(body)]

    def take_events(self) -> Sequence[EngineEvent]:
        events, self.events = self.events, []
        return events

    def snapshot(self, instance_id: str, incarnation: int) -> InstanceSnapshot:
        head = next(iter(self.waiting.values()), None)
        return InstanceSnapshot(
            instance_id=instance_id,
            incarnation=incarnation,
            block_size=self.block_size,
            num_total_blocks=self.num_gpu_blocks - 1,
            num_free_blocks=self._num_free_blocks(),
            num_running=len(self.running),
            num_running_by_rank=Counter(0 for _ in self.running),
            num_queued=len(self.waiting),
            queued_demand_blocks=sum(self._blocks(r) for r in self.waiting.values()),
            queue_head=head and QueueHead(head.request_id, 0, self._blocks(head), 0.0),
        )

    def shutdown(self) -> None:
        pass

    # what tests do to it, from any thread

    def hold(self) -> None:
        """No step is taken until `allow`."""
        self.steps = threading.Semaphore(0)

    def allow(self, num_steps: int) -> None:
        assert self.steps is not None
        self.steps.release(num_steps)

    def go_on(self) -> None:
        steps, self.steps = self.steps, None
        assert steps is not None
        steps.release(1)

    def die(self, error: BaseException) -> None:
        """The next time that the engine thread asks something of it."""
        self._death = error
        if self.steps is not None:
            self.go_on()

    def _admit(self) -> None:
        for request in list(self.waiting.values()):
            whole = blocks_for(request.num_prompt_tokens + request.max_tokens, self.block_size)
            reserved = sum(
                blocks_for(r.num_prompt_tokens + r.max_tokens, self.block_size)
                for r in self.running.values()
            )
            if reserved + whole > self.num_gpu_blocks - 1:
                return
            self.running[request.request_id] = self.waiting.pop(request.request_id)
            self.events.append(
                EngineEvent("admitted", request.request_id, 7.0, request.num_tokens, 0)
            )

    def _num_free_blocks(self) -> int:
        return self.num_gpu_blocks - 1 - sum(self._blocks(r) for r in self.running.values())

    def _blocks(self, request: FakeRequest) -> int:
        return blocks_for(request.num_tokens, self.block_size)


@dataclass
class FakeClock:
    """Stands in for the module `time`, as far as the llumlet reads it; moved by the test."""

    now_s: float = 10_000.0
    module: SimpleNamespace = field(init=False)

    def __post_init__(self) -> None:
        self.module = SimpleNamespace(
            monotonic=lambda: self.now_s,
            perf_counter=lambda: self.now_s,
            time=lambda: self.now_s,
        )

    def advance(self, seconds: float) -> None:
        self.now_s += seconds


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
