"""The controller of the simulation: the real process, with all of its machines and their runners,
on an event loop in virtual time. It dies and comes back, and then knows what is on disk.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol

from controller.api.errors import LlumctlError
from controller.core.fleet.cluster_spec import ClusterSpec
from controller.core.fleet.incarnations import LastIncarnation
from controller.core.load.snapshot import InstanceRef
from controller.ports.processes import LauncherLoss, LauncherLostError, OnLost, OnMessage
from controller.runtime.controller.cluster import ControllerProcess
from controller.runtime.controller.operations.operated_cluster import SpecKeeper
from controller.runtime.controller.roster import LiveConfig
from controller.runtime.messages.members import Message
from tools.fault_histories.simulated_messages import CONTROLLER
from tools.fault_histories.simulated_moves import Violation

EPOCH_S = 1_000_000.0
"""Virtual time begins so many seconds since the epoch."""
ME = InstanceRef(CONTROLLER, 0, CONTROLLER)


class Clock(Protocol):
    now_s: float

    def at(self, time_s: float, do: Callable[..., None], *args: Any) -> None: ...


class VirtualLoop(asyncio.AbstractEventLoop):
    """As much of an event loop as a controller needs. What is due happens at its virtual time, one
    callback after the other; while it stands still, nothing does. Of a dead one nothing happens."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ready: deque[asyncio.Handle] = deque()
        self._stands_still = False
        self._is_awake = False
        """`_turn` will be called, or is under way."""
        self.is_dead = False
        self.errors: list[str] = []

    def time(self) -> float:
        return self._clock.now_s

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return self.is_dead

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.is_dead:
            self.errors.append(f"{context.get('message')}: {context.get('exception')!r}")

    # mypy does not match the type variables of the next three with Any.
    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._put(handle)
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._clock.at(max(when, self._clock.now_s), self._put, handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Any, *, name: str | None = None, context: Any = None
    ) -> "asyncio.Task[Any]":
        return asyncio.Task(coro, loop=self, name=name, context=context)

    # -- what the simulation does with it ------------------------------------------------------

    def do(self, work: Callable[..., object], *args: Any) -> None:
        """As if it came by a socket."""
        self.call_soon(work, *args)

    def stand_still(self, for_s: float) -> None:
        self._stands_still = True
        self._clock.at(self.time() + for_s, self.go_on)

    def go_on(self) -> None:
        self._stands_still = False
        self._wake()

    def die(self) -> None:
        """Its tasks are ended as far as they must not complain that nobody ended them."""
        self.is_dead = True
        while tasks := sorted(asyncio.all_tasks(self), key=lambda each: each.get_name()):
            for task in tasks:
                task.cancel()
            self._run()

    def _put(self, handle: asyncio.Handle) -> None:
        if not handle.cancelled():
            self._ready.append(handle)
            self._wake()

    def _wake(self) -> None:
        if self._ready and not (self._is_awake or self._stands_still or self.is_dead):
            self._is_awake = True
            self._clock.at(self.time(), self._turn)

    def _turn(self) -> None:
        self._is_awake = False
        if not (self._stands_still or self.is_dead):
            self._run()

    def _run(self) -> None:
        self._is_awake = True
        asyncio._set_running_loop(self)
        try:
            while self._ready:
                handle = self._ready.popleft()
                if not handle.cancelled():
                    handle._run()
        finally:
            asyncio._set_running_loop(None)
            self._is_awake = False


class DiskError(LlumctlError):
    def __init__(self) -> None:
        super().__init__("the disk is full", "")


class Disk:
    """What another controller finds: a SpecStore and an IncarnationStore."""

    def __init__(self, spec: ClusterSpec) -> None:
        self.spec = spec
        self.is_full = False
        self._incarnations: dict[str, LastIncarnation] = {}

    def save(self, spec: ClusterSpec) -> None:
        if self.is_full:
            raise DiskError
        spec.check()
        self.spec = spec

    def load(self) -> Mapping[str, LastIncarnation]:
        return dict(self._incarnations)

    def keep(self, member_id: str, last: LastIncarnation) -> None:
        known = self._incarnations.get(member_id)
        if known is not None and last.incarnation < known.incarnation:
            raise Violation(f"{member_id} gets incarnation {last.incarnation} again")
        self._incarnations[member_id] = last


class Processes(Protocol):
    """What starts and ends processes."""

    def launch(self, member_id: str) -> None: ...

    def end(self, member_id: str, *, for_good: bool) -> None: ...

    def is_misplaced(self, member_id: str) -> bool: ...

    def drained_machines(self) -> Mapping[str, float | None]: ...


class SimulatedLauncher:
    """Its calls fail while it is lost."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self.lost = False

    def loss(self) -> LauncherLoss | None:
        return LauncherLoss("the launcher is away", 1.0, None) if self.lost else None

    def _check(self) -> None:
        if self.lost:
            raise LauncherLostError

    def launch_instance(self, instance_id: str) -> None:
        self._check()
        self._processes.launch(instance_id)

    def launch_frontend(self, frontend_id: str) -> None:
        self._processes.launch(frontend_id)

    def no_room(self, num_instances: int) -> str:
        return "" if num_instances <= 2 and not self.lost else "no room"

    def restart(self, member_id: str) -> None:
        self._check()
        self._processes.end(member_id, for_good=False)

    def is_misplaced(self, instance_id: str) -> bool:
        return self._processes.is_misplaced(instance_id)

    def terminate(self, member_id: str) -> None:
        self._check()
        self._processes.end(member_id, for_good=True)

    def leaving(self) -> Mapping[str, float | None] | None:
        return None if self.lost else self._processes.drained_machines()

    def avoid(self, machines: frozenset[str]) -> None:
        """Whatever is launched in a history may come to any machine."""


class ControllerMailbox:
    """Messages are not encoded (`simulation.run_seed`)."""

    def __init__(self, send: Callable[..., None]) -> None:
        self.address = CONTROLLER
        self.is_dead = False
        self._send = send

    def start(self, on_message: OnMessage, on_lost: OnLost) -> None:
        pass

    def send(
        self, address: str, message: Any, _payload: Any = (), *, droppable: bool = False
    ) -> None:
        if not self.is_dead:
            self._send(ME, address, message, droppable=droppable)

    def forget(self, _address: str) -> None:
        pass

    async def close(self) -> None:
        pass


class SimulatedController:
    """One process. `orders`: the tasks of orders by hand that somebody waits for."""

    def __init__(
        self,
        clock: Clock,
        send: Callable[..., None],
        launcher: SimulatedLauncher,
        disk: Disk,
        config: LiveConfig,
        num_frontends: int,
    ) -> None:
        self.loop = VirtualLoop(clock)  # type: ignore[abstract]  # the rest nobody calls
        self._clock = clock
        self._mailbox = ControllerMailbox(send)
        self.orders: set[asyncio.Task[Any]] = set()
        self.controller: ControllerProcess
        self._launcher, self._disk, self._config = launcher, disk, config
        self._num_frontends = num_frontends
        asyncio._set_running_loop(self.loop)
        try:
            self._start()
        finally:
            asyncio._set_running_loop(None)

    def _start(self) -> None:
        keeper = SpecKeeper(self._disk.spec, self._disk)  # type: ignore[arg-type]  # it loads no spec
        self.controller = controller = ControllerProcess(
            self._mailbox,
            self._launcher,
            self._config,
            keeper,
            incarnations=self._disk,
            wall_clock=self.wall_s,
        )
        self._handlers = controller._handlers()
        controller.start(self._num_frontends)
        self.running = self.loop.create_task(controller.run())

    def wall_s(self) -> float:
        return EPOCH_S + self._clock.now_s

    def receive(self, message: Message) -> None:
        self.loop.do(self._handlers[type(message)], message)

    def address_lost(self, address: str) -> None:
        self.loop.do(self.controller.member_events.lost, address)

    def order(self, order: Coroutine[Any, Any, Any]) -> None:
        """Somebody waits for its end."""
        task = self.loop.create_task(order)
        self.orders.add(task)
        task.add_done_callback(self._over)

    def _over(self, task: "asyncio.Task[Any]") -> None:
        self.orders.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.loop.errors.append(f"an order failed: {error!r}")

    def die(self) -> None:
        self._mailbox.is_dead = True
        self.loop.die()

    # -- what must hold ------------------------------------------------------------------------

    def check(self) -> None:
        controller, now_s = self.controller, self._clock.now_s
        if self.loop.errors:
            raise Violation("; ".join(self.loop.errors))
        if self.running.done():
            raise Violation(f"the controller has ended: {self.running.exception()!r}")
        controller.scheduler.check()
        controller.rescheduler.machine.check()
        controller.operator_moves.machine.check()
        controller.drains.machine.check()
        controller.fleet._liveness.check(now_s)
        controller.fleet._slowness.check()
        controller.rolling._machine.check()
        controller.autoscaling.machine.check(now_s)
        controller.keeper.spec.check()

    def unsettled(self) -> str:
        """What goes on, or is kept for nobody, though all is well by now; empty: nothing."""
        asyncio._set_running_loop(self.loop)
        try:
            return self._unsettled()
        finally:
            asyncio._set_running_loop(None)

    def _unsettled(self) -> str:
        controller = self.controller
        spec, scheduler = controller.keeper.spec, controller.scheduler
        for instance_id, claims in spec.drains.items():
            progress = controller.drains.progress(instance_id)
            if claims.goes or claims.restarts or not progress.safe_to_delete:
                return f"{instance_id} is {progress.state}: {claims.strongest}"
        if controller.rolling.goes:
            return f"a rolling restart goes on: {spec.rolling}"
        if self.orders or controller.operator_moves.machine._orders:
            return "an order by hand is not over"
        if controller.queries._pending:
            return "an answer is awaited"
        if scheduler.num_waiting or (scheduler.placement and scheduler.placement.reserved):
            return "requests are held"
        members = controller.roster.members
        if set(spec.instance_ids) != {each.member_id for each in controller.roster.instances()}:
            return f"the roster has {sorted(members)}, the spec {spec.instance_ids}"
        if away := [each.member_id for each in members.values() if not each.serving]:
            return f"{away} do not serve"
        for record in scheduler.instances.values():
            if not record.reports or record.unreported.num_requests:
                return f"{record.instance_id}: {record.closed_by}, {record.unreported}"
        if not set(controller.statuses) <= set(members):
            return "the status of an instance is kept that is gone"
        return ""


class ErrorsAreViolations(logging.Handler):
    """What a runner caught and logged as a defect ends the history."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and not isinstance(record.exc_info[1], LlumctlError | LauncherLostError):
            self.found.append(f"{record.getMessage()}: {record.exc_info[1]!r}")
