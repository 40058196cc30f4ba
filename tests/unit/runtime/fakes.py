"""The ports of the runtime in memory: mailboxes on one network, an engine, a launcher, a clock.

Messages go through the real encoding. The network delivers in order, one event loop turn
later, and can lose a peer the way a socket does: what was sent to it is discarded and whoever
wrote to it is told once.
"""

import asyncio
import selectors
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
import pytest

from controller.core.load.snapshot import InstanceSnapshot
from controller.ports.processes import LauncherLoss, LauncherLostError, OnLost, OnMessage
from controller.runtime.messages.codec import decode, encode, wire_version
from controller.runtime.messages.members import (
    Directory,
    EngineInfo,
    Hello,
    InstanceEntry,
    Message,
    Phase,
)

M = TypeVar("M", bound=Message)
PATIENCE_S = 10.0
INFO = EngineInfo(512, 65, 16, ("generate",))


# -- time ---------------------------------------------------------------------------------


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """A loop whose clock jumps to the next timer instead of waiting for it. No callback may
    raise."""

    _selector: selectors.BaseSelector

    def __init__(self) -> None:
        super().__init__()
        self.num_turns = 0
        self._now_s = 1000.0
        self._in_callbacks: list[dict[str, Any]] = []
        self.set_exception_handler(lambda _, what: self._in_callbacks.append(what))
        select = self._selector.select

        def jump(timeout: float | None = None) -> Any:
            self.num_turns += 1
            ready = select(0)
            if not ready:
                if timeout is None:
                    raise RuntimeError("the test waits for something that cannot happen")
                self._now_s += max(0.0, timeout)
            return ready

        self._selector.select = jump  # type: ignore[method-assign]  # of this loop only

    def time(self) -> float:
        return self._now_s

    def close(self) -> None:
        super().close()
        assert not self._in_callbacks, self._in_callbacks


virtual_time = pytest.mark.asyncio(loop_factories=["virtual"])
"""Runs a test and its fixtures on a VirtualTimeLoop. Not for tests with threads or sockets."""


def loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The hook `pytest_asyncio_loop_factories` of a conftest.py, which `virtual_time` needs."""
    marked = item.get_closest_marker("asyncio")
    is_virtual = marked is not None and "loop_factories" in marked.kwargs
    return {"virtual": VirtualTimeLoop} if is_virtual else {"real": asyncio.SelectorEventLoop}


# -- mailboxes ----------------------------------------------------------------------------


class FakeNetwork:
    def __init__(self) -> None:
        self.mailboxes: dict[str, FakeMailbox] = {}
        self.errors: list[Exception] = []
        self.gone: set[str] = set()
        self.drops: Callable[[Message], bool] = lambda message: False
        """What never arrives."""
        self.doubles: Callable[[Message], bool] = lambda message: False
        """What arrives twice."""
        self._holds: Callable[[Message], bool] = lambda message: False
        self._held: list[tuple[FakeMailbox, str, bytes, tuple[bytes, ...]]] = []
        self._held_links: set[tuple[str, str]] = set()

    def mailbox(self, address: str) -> "FakeMailbox":
        self.mailboxes[address] = FakeMailbox(self, address)
        self.gone.discard(address)
        return self.mailboxes[address]

    def peer(self, address: str) -> "FakePeer":
        return FakePeer(self.mailbox(address))

    def hold(self, which: Callable[[Message], bool]) -> None:
        """The first such message waits for `release`, and all behind it on the same way."""
        self._holds = which

    @property
    def num_held(self) -> int:
        return len(self._held)

    def release(self) -> None:
        self._holds = lambda message: False
        self._held_links.clear()
        held, self._held = self._held, []
        for mailbox, address, frame, payload in held:
            mailbox.send(address, frame, payload)

    def stops(
        self, mailbox: "FakeMailbox", address: str, frame: bytes, payload: tuple[bytes, ...]
    ) -> bool:
        try:
            message, link = decode(frame), (mailbox.address, address)
        except msgspec.DecodeError:  # of another version
            return False
        if self.drops(message):
            return True
        if link in self._held_links or self._holds(message):
            self._held_links.add(link)
            self._held.append((mailbox, address, frame, payload))
            return True
        return False

    def is_doubled(self, frame: bytes) -> bool:
        try:
            return self.doubles(decode(frame))
        except msgspec.DecodeError:
            return False

    def lose(self, address: str) -> None:
        """That process ends."""
        self.mailboxes.pop(address).lost = True
        self.gone.add(address)
        for mailbox in self.mailboxes.values():
            if address in mailbox.connected:
                mailbox.connected.discard(address)
                mailbox.hear_lost(address)


class FakeMailbox:
    def __init__(self, network: FakeNetwork, address: str) -> None:
        self.address = address
        self.connected: set[str] = set()
        self.forgotten: list[str] = []
        self.lost = False
        self.on_lost: OnLost = lambda address: None
        self._on_message: OnMessage | None = None
        self._early: list[tuple[bytes, tuple[bytes, ...]]] = []
        self._network = network

    def start(self, on_message: OnMessage, on_lost: OnLost) -> None:
        self._on_message, self.on_lost = on_message, on_lost
        for frame, payload in self._early:
            self.deliver(frame, payload)

    def send(
        self, address: str, frame: bytes, payload: Sequence[Any] = (), *, droppable: bool = False
    ) -> None:
        assert address, "nobody listens there"
        if self.lost:
            return
        if address in self._network.gone:
            if not droppable:
                self.hear_lost(address)
            return
        self.connected.add(address)
        sealed = tuple(bytes(part) for part in payload)
        if self._network.stops(self, address, frame, sealed):
            return
        for _ in range(2 if self._network.is_doubled(frame) else 1):
            asyncio.get_running_loop().call_soon(self._arrive, address, bytes(frame), sealed)

    def forget(self, address: str) -> None:
        self.connected.discard(address)
        self.forgotten.append(address)

    def hear_lost(self, address: str) -> None:
        asyncio.get_running_loop().call_soon(self._call, self.on_lost, address)

    async def close(self) -> None:
        self._network.mailboxes.pop(self.address, None)

    def _arrive(self, address: str, frame: bytes, payload: tuple[bytes, ...]) -> None:
        there = self._network.mailboxes.get(address)
        if there is not None and address in self.connected:
            there.deliver(frame, payload)

    def deliver(self, frame: bytes, payload: tuple[bytes, ...]) -> None:
        if self._on_message is None:
            self._early.append((frame, payload))
            return
        self._call(self._on_message, memoryview(frame), [memoryview(part) for part in payload])

    def _call(self, handler: Callable[..., None], *arguments: Any) -> None:
        """The loop only logs what a callback raises."""
        try:
            handler(*arguments)
        except Exception as error:
            self._network.errors.append(error)
            raise


class FakePeer:
    """A process whose messages the test sends."""

    def __init__(self, mailbox: FakeMailbox) -> None:
        self.mailbox = mailbox
        self.address = mailbox.address
        self.inbox: list[tuple[Message, list[bytes]]] = []
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


async def until(condition: Callable[[], object]) -> None:
    """Of what threads do too."""

    async def holds() -> None:
        while not condition():
            await asyncio.sleep(0.001)

    await asyncio.wait_for(holds(), PATIENCE_S)


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
    phase: Phase = "active",
    address: str | None = None,
    num_live_reqs: int = 0,
    asks: bool = False,
    python: str = "",
) -> Hello:
    return Hello(
        wire=wire_version(),
        kind="instance" if member_id.startswith("i") else "frontend",
        member_id=member_id,
        nonce=nonce,
        incarnation=incarnation,
        address=address or f"mem://{member_id}",
        node="n",
        pid=1,
        phase=phase,
        info=INFO if member_id.startswith("i") else None,
        num_live_reqs=num_live_reqs,
        asks=asks,
        python=python,
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
            InstanceEntry(
                s.instance_id, s.incarnation, f"mem://{s.instance_id}", INFO, s, not s.draining
            )
            for s in snapshots
        )
    )


# -- the launcher -------------------------------------------------------------------------


class FakeLauncher:
    def __init__(self) -> None:
        self.launched: list[str] = []
        self.terminated: list[str] = []
        self.restarted: list[str] = []
        self.misplaced: set[str] = set()
        self.why_no_room = ""
        self.drains: dict[str, float | None] = {}
        """The machines that will be taken away."""
        self.avoided: frozenset[str] = frozenset()
        self.lost: LauncherLoss | None = None
        self.num_refused = 0
        """How many calls found that the launcher is lost."""
        self.failures: Counter[str] = Counter()
        """How often what is wanted of a member's process still fails."""

    def loss(self) -> LauncherLoss | None:
        return self.lost

    def launch_instance(self, instance_id: str) -> None:
        self._answer(instance_id, self.launched)

    def launch_frontend(self, frontend_id: str) -> None:
        self.launched.append(frontend_id)

    def no_room(self, _num_instances: int) -> str:
        return self.lost.what if self.lost else self.why_no_room

    def restart(self, member_id: str) -> None:
        self._answer(member_id, self.restarted)

    def is_misplaced(self, instance_id: str) -> bool:
        return instance_id in self.misplaced and instance_id not in self.restarted

    def terminate(self, member_id: str) -> None:
        self._answer(member_id, self.terminated)

    def leaving(self) -> dict[str, float | None] | None:
        return None if self.lost else self.drains

    def avoid(self, machines: frozenset[str]) -> None:
        self.avoided = machines

    def _answer(self, member_id: str, done: list[str]) -> None:
        if self.lost is not None:
            self.num_refused += 1
            raise LauncherLostError(self.lost.what)
        if self.failures[member_id]:
            self.failures[member_id] -= 1
            raise RuntimeError("Ray does not answer")
        done.append(member_id)
