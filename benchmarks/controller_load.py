"""A controller alone in its process, and two more processes that stand in for its cluster.

The controller is the real one with its real, encrypted mailbox. One process stands in for all
instances: each pushes a status every few milliseconds through a socket of its own. The other one
stands in for a frontend that asks for dispatches in an open loop. There is no engine and no HTTP.
"""

import asyncio
import ctypes
import gc
import os
import random
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import uvloop
import zmq

from controller.adapters.zmq.zmq_mailbox import ClusterKey, ZmqMailbox, new_secret_key
from controller.core.fleet.cluster_spec import ClusterSpec
from controller.core.load.snapshot import InstanceSnapshot
from controller.core.record.event_log import EventKind
from controller.core.scheduler_events import DispatchRequested
from controller.runtime.controller.cluster import ControllerProcess
from controller.runtime.controller.operations.operated_cluster import SpecKeeper
from controller.runtime.controller.roster import LiveConfig
from controller.runtime.controller_link import ControllerLink
from controller.runtime.messages.codec import decode, encode
from controller.runtime.messages.members import EngineInfo, StatusPushed, Welcome
from controller.runtime.messages.requests import DispatchAsked, Dispatched

# How late an event loop runs its callbacks: one is due every millisecond by the kernel's clock. The
# loop's own timers cannot show this: uvloop counts whole milliseconds on a clock that it reads once
# per turn, so its timers are up to 0.4 ms early and 1 ms late on an idle loop. Linux only.

PERIOD_S = 0.001
_TFD_NONBLOCK = os.O_NONBLOCK
_TFD_TIMER_ABSTIME = 1


class _TimeSpec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


class _TimerSpec(ctypes.Structure):
    _fields_ = [("interval", _TimeSpec), ("first", _TimeSpec)]


class LoopProbe:
    """Measures the running loop from its creation until `stop`. There is one value in seconds for
    each period: if two periods passed before a callback ran, both were late."""

    def __init__(self) -> None:
        self.late_s: list[float] = []
        self._loop = asyncio.get_running_loop()
        libc = ctypes.CDLL(None, use_errno=True)
        self._timer = libc.timerfd_create(time.CLOCK_MONOTONIC, _TFD_NONBLOCK)
        if self._timer < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._due_ns = time.monotonic_ns() + 10_000_000
        first = _TimeSpec(*divmod(self._due_ns, 1_000_000_000))
        spec = _TimerSpec(_TimeSpec(0, int(PERIOD_S * 1e9)), first)
        if libc.timerfd_settime(self._timer, _TFD_TIMER_ABSTIME, ctypes.byref(spec), None):
            raise OSError(ctypes.get_errno(), "timerfd_settime")
        self._loop.add_reader(self._timer, self._on_time)

    def stop(self) -> list[float]:
        self._loop.remove_reader(self._timer)
        os.close(self._timer)
        return self.late_s

    def _on_time(self) -> None:
        num_periods = int.from_bytes(os.read(self._timer, 8), "little")
        now_ns = time.monotonic_ns()
        for _ in range(num_periods):
            self.late_s.append((now_ns - self._due_ns) / 1e9)
            self._due_ns += int(PERIOD_S * 1e9)


# The processes

HOST = "127.0.0.1"
READY_TIMEOUT_S = 60.0
SETTLE_S = 2.0
INFO = EngineInfo(8192, 852, 16, ("generate",))
# The shortest wait of the process that stands in for the instances: messages that are due by then
# are sent together.
PUSH_TURN_S = 0.0002


@dataclass(frozen=True, slots=True)
class Load:
    """What the controller has to do. `status_every_s`: of each instance; None for no statuses."""

    name: str
    status_every_s: float | None
    asks_per_s: float


@dataclass(frozen=True, slots=True)
class Seen:
    """What was measured, in seconds. `loop_cores`: of the loop's thread; `cores`: of the whole
    process. `num_statuses` and `num_dispatches`: how many the controller handled."""

    load: Load
    stall_s: list[float]
    dispatch_s: list[float]
    duration_s: float
    loop_cores: float
    cores: float
    num_statuses: int
    num_dispatches: int


class NoLauncher:
    """Launches nothing: the members are there already."""

    def loss(self) -> None:
        return None

    def launch_instance(self, instance_id: str) -> None: ...

    def launch_frontend(self, frontend_id: str) -> None: ...

    def no_room(self, num_instances: int) -> str:
        raise AssertionError(f"{num_instances} more instances: nothing scales here")

    def restart(self, member_id: str) -> None: ...

    def is_misplaced(self, _instance_id: str) -> bool:
        return False

    def terminate(self, member_id: str) -> None: ...

    def leaving(self) -> dict[str, float | None]:
        return {}

    def avoid(self, machines: frozenset[str]) -> None: ...


class ControllerBench:
    """Three processes from `start` to `stop`."""

    def __init__(self, num_instances: int) -> None:
        self._num_instances = num_instances
        self._context = get_context("spawn")
        self._processes: list[BaseProcess] = []
        self._pipes: list[Connection] = []

    def start(self) -> None:
        key = new_secret_key()
        seqs = self._context.Array(ctypes.c_longlong, self._num_instances, lock=False)
        controller = self._spawn(_controller, key, self._num_instances)
        address = controller.recv()
        self._spawn(_instances, key, address, self._num_instances, seqs)
        self._spawn(_frontend, key, address, seqs)
        self._ask(controller, "ready")

    def measure(self, load: Load, seconds: float) -> Seen:
        controller, instances, frontend = self._pipes
        self._ask(instances, load.status_every_s)
        self._ask(frontend, load.asks_per_s)
        time.sleep(SETTLE_S)
        self._ask(frontend, "begin")
        found = self._ask(controller, seconds)
        dispatch_s = self._ask(frontend, "end")
        return Seen(load=load, dispatch_s=dispatch_s, **found)

    def stop(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join()

    def _spawn(self, play: Any, *arguments: Any) -> Connection:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=play, args=(theirs, *arguments), daemon=True)
        process.start()
        theirs.close()  # so that this process notices the end of the other
        self._processes.append(process)
        self._pipes.append(ours)
        return ours

    @staticmethod
    def _ask(pipe: Connection, question: Any) -> Any:
        pipe.send(question)
        return pipe.recv()


# -- the controller -------------------------------------------------------------------------


def _controller(pipe: Connection, key: str, num_instances: int) -> None:
    uvloop.run(_serve_controller(pipe, key, num_instances))


async def _serve_controller(pipe: Connection, key: str, num_instances: int) -> None:
    mailbox = ZmqMailbox(HOST, key=ClusterKey(key))
    keeper = SpecKeeper(ClusterSpec.first(num_instances))
    controller = ControllerProcess(mailbox, NoLauncher(), LiveConfig(), keeper)
    controller.start(1)
    gc.freeze()  # as the controller's process does
    pipe.send(mailbox.address)
    working = asyncio.create_task(controller.run())
    while True:
        question = await asyncio.to_thread(pipe.recv)
        if question == "ready":
            async with asyncio.timeout(READY_TIMEOUT_S):
                while not controller.was_ready and not working.done():
                    await asyncio.sleep(0.05)
            pipe.send(None)
        else:
            pipe.send(await _observe(controller, question))
        if working.done():
            working.result()


async def _observe(controller: ControllerProcess, seconds: float) -> dict[str, Any]:
    counts = controller.journal.counts
    num_dispatches = counts[EventKind.DISPATCHED]
    probe = LoopProbe()
    began_s, loop_s, all_s = time.perf_counter(), time.thread_time(), time.process_time()
    num_before = _num_statuses(controller)
    await asyncio.sleep(seconds)
    duration_s = time.perf_counter() - began_s
    return {
        "loop_cores": (time.thread_time() - loop_s) / duration_s,
        "cores": (time.process_time() - all_s) / duration_s,
        "duration_s": duration_s,
        "stall_s": probe.stop(),
        "num_statuses": _num_statuses(controller) - num_before,
        "num_dispatches": counts[EventKind.DISPATCHED] - num_dispatches,
    }


def _num_statuses(controller: ControllerProcess) -> int:
    """Counts statuses: each has its number in the count of steps."""
    return sum(status.num_steps for status in controller.statuses.values())


# -- the instances --------------------------------------------------------------------------


def _instances(
    pipe: Connection, key: str, address: str, num_instances: int, seqs: Sequence[int]
) -> None:
    uvloop.run(_serve_instances(pipe, ClusterKey(key), address, num_instances, seqs))


async def _serve_instances(
    pipe: Connection, key: ClusterKey, address: str, num_instances: int, seqs: Sequence[int]
) -> None:
    """Sends statuses from a thread and everything else from the loop: a status must not wait for a
    Hello."""
    mailbox = ZmqMailbox(HOST, key=key)
    members = [
        ControllerLink("instance", f"i-{n}", mailbox, address, "node", lambda: 0)
        for n in range(num_instances)
    ]
    pusher = _Pusher(key, address, members, seqs)

    def on_message(head: bytes | memoryview, _payload: Sequence[memoryview]) -> None:
        match decode(head):
            case Welcome() as welcome:
                for member in members:
                    member.welcomed(welcome)

    mailbox.start(on_message, lambda address: None)
    for member in members:
        member.report("active", info=INFO)
    helloing = [asyncio.create_task(member.keep_saying_hello()) for member in members]
    while not all(member.incarnation for member in members):
        await asyncio.sleep(0.01)
    threading.Thread(target=pusher.run, daemon=True).start()
    while helloing:
        pusher.every_s = await asyncio.to_thread(pipe.recv)
        pipe.send(None)


class _Pusher:
    """`every_s`: how often each instance pushes; None for once per second, as idle ones do."""

    def __init__(
        self, key: ClusterKey, address: str, members: Sequence[ControllerLink], seqs: Sequence[int]
    ) -> None:
        self.every_s: float | None = None
        self._members = members
        self._seqs = seqs
        self._key = key
        self._address = address
        self._num_pushed = [0] * len(members)
        self._dice = random.Random(1)

    def run(self) -> None:
        context = zmq.Context()
        sockets = []
        for _ in self._members:
            socket = context.socket(zmq.PUSH)
            self._key.show(socket)
            socket.connect(self._address)
            sockets.append(socket)
        now_s = time.perf_counter()
        due_s = [now_s + self._dice.random() * 0.005 for _ in sockets]
        while True:
            now_s = time.perf_counter()
            every_s = self.every_s or 1.0
            for index, socket in enumerate(sockets):
                if due_s[index] <= now_s:
                    due_s[index] = max(due_s[index] + every_s, now_s - every_s)
                    with suppress(zmq.Again):
                        socket.send(self._status(index), zmq.NOBLOCK)
                elif due_s[index] > now_s + every_s:  # its rate was lower before
                    due_s[index] = now_s + self._dice.random() * every_s
            time.sleep(PUSH_TURN_S)

    def _status(self, index: int) -> bytes:
        member, dice = self._members[index], self._dice
        self._num_pushed[index] += 1
        num_running = dice.randint(8, 24)
        snapshot = InstanceSnapshot(
            member.member_id,
            member.incarnation,
            16,
            851,
            dice.randint(100, 800),
            watermark_blocks=8,
            max_num_running=256,
            num_running=num_running,
            num_running_by_rank={0: num_running},
        )
        return encode(StatusPushed(snapshot, self._seqs[index], self._num_pushed[index], 0.05))


# -- the frontend ---------------------------------------------------------------------------


def _frontend(pipe: Connection, key: str, address: str, seqs: Any) -> None:
    uvloop.run(_serve_frontend(pipe, ClusterKey(key), address, seqs))


async def _serve_frontend(pipe: Connection, key: ClusterKey, address: str, seqs: Any) -> None:
    mailbox = ZmqMailbox(HOST, key=key)
    member = ControllerLink("frontend", "f-0", mailbox, address, "node", lambda: 0)
    frontend = _Frontend(mailbox, member, seqs)
    mailbox.start(frontend.on_message, lambda address: None)
    member.report("active")
    tasks = [
        asyncio.create_task(member.keep_saying_hello()),
        asyncio.create_task(frontend.keep_asking()),
    ]
    while tasks:
        match await asyncio.to_thread(pipe.recv):
            case "begin":
                frontend.taken_s.clear()
                pipe.send(None)
            case "end":
                pipe.send(list(frontend.taken_s))
            case rate:
                frontend.asks_per_s = rate
                pipe.send(None)


class _Frontend:
    def __init__(self, mailbox: ZmqMailbox, member: ControllerLink, seqs: Any) -> None:
        self.asks_per_s = 0.0
        self.taken_s: list[float] = []
        self._mailbox = mailbox
        self._member = member
        self._seqs = seqs
        self._asked_s: dict[str, float] = {}
        self._num_asked = 0
        self._dice = random.Random(2)

    async def keep_asking(self) -> None:
        """Asks in an open loop, however long answers take."""
        due_s = time.perf_counter()
        while True:
            if not self.asks_per_s:
                await asyncio.sleep(0.05)
                due_s = time.perf_counter()
                continue
            due_s += self._dice.expovariate(self.asks_per_s)
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            self._num_asked += 1
            request_id = f"r-{self._num_asked}"
            tokens = self._dice.randint(16, 512)
            self._asked_s[request_id] = time.perf_counter()
            asked = DispatchAsked(DispatchRequested(request_id, "f-0", tokens, 0, time.time()))
            self._mailbox.send(self._member.controller_address, encode(asked))

    def on_message(self, head: bytes | memoryview, _payload: Sequence[memoryview]) -> None:
        now_s = time.perf_counter()
        match decode(head):
            case Dispatched(dispatch):
                self.taken_s.append(now_s - self._asked_s.pop(dispatch.request_id))
                # The instance has the request: its next status says so.
                self._seqs[int(dispatch.instance_id[2:])] = dispatch.seq
            case Welcome() as welcome:
                self._member.welcomed(welcome)
