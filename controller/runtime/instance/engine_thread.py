"""The thread of one engine: it runs steps and, between two steps, the commands of other threads.

Only this thread touches the engine. Commands wait in a queue and run between two steps, in their
order. The results of steps and commands go to the event loop in the order in which they came.
"""

import asyncio
import functools
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from controller.core.load.cached_prefixes import CacheReport, CacheReporter
from controller.core.load.snapshot import InstanceSnapshot
from controller.core.record.windows import CountWindow
from controller.ports.engine import Engine, EngineEvent, EngineFactory, StepOutputs, StepPhase
from controller.runtime.controller_link import ControllerLink
from controller.runtime.messages.members import StatusPushed
from controller.runtime.messages.requests import AddRequest

log = logging.getLogger(__name__)

# How often an idle engine thread wakes, so that a hang shows as missing progress.
HEARTBEAT_S = 1.0
# If one turn of the engine's loop takes this long, because the process was stopped or a step hung,
# the instance may have been fenced (core/fleet/liveness).
LONG_TURN_S = 2.0
# After a step that admits or ends a request the engine pauses for this long, so that the event loop
# gets the interpreter. Otherwise the first or final token waits while the next step is scheduled:
# 1.5 ms in the median at 8 streams, 0.4 ms with the pause. The first token of a prompt that takes
# several steps still waits, because the engine reports admissions and not first tokens.
YIELD_S = 50e-6
# If the controller does not answer within this time, it is taken to be away, and the engine goes
# on.
ANSWER_S = 1.0
CPU_WINDOW_S = 1.0

Command = Callable[[Engine], None]
T = TypeVar("T")


class StepTimes:
    """How many steps an engine has taken and how long they took. Times are in seconds, of one
    clock."""

    def __init__(self) -> None:
        self.num_steps = 0
        self.step_time_s = 0.0
        """How long the latest step took."""
        self.busy_s = 0.0
        """The time of all steps together, including the time between steps that followed each
        other."""
        self._ended_s: float | None = None
        """When the latest step ended; None if there was no work since then."""

    def step(self, started_s: float, ended_s: float) -> None:
        self.num_steps += 1
        self.step_time_s = ended_s - started_s
        self.busy_s += ended_s - (started_s if self._ended_s is None else self._ended_s)
        self._ended_s = ended_s

    def rest(self) -> None:
        """Notes that the engine has nothing to do, so that the next step does not count as
        following another one."""
        self._ended_s = None


class ProcessCpu:
    """How many cores this process keeps busy, with all of its threads."""

    def __init__(
        self,
        cpu_s: Callable[[], float] = time.process_time,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cpu_s, self._now_s = cpu_s, now_s
        self._from_cpu_s, self._from_s = cpu_s(), now_s()
        self._cores: float | None = None

    def cores(self) -> float | None:
        """The average number of busy cores over the latest full window of CPU_WINDOW_S, or over a
        longer time if this method is called less often. None before the first window is over."""
        passed_s = self._now_s() - self._from_s
        if passed_s >= CPU_WINDOW_S:
            cpu_s = self._cpu_s()
            self._cores = (cpu_s - self._from_cpu_s) / passed_s
            self._from_cpu_s, self._from_s = cpu_s, self._from_s + passed_s
        return self._cores


class CacheUse:
    """How many tokens of the requests that entered the batch came from the prefix cache. A request
    that was evicted counts again, with its outputs so far, because they are computed again."""

    def __init__(self) -> None:
        self.num_prompt_tokens = 0
        self.num_cached_tokens = 0
        self._prompt, self._cached = CountWindow(), CountWindow()

    def note(self, events: Iterable[EngineEvent], now_s: float) -> None:
        for event in events:
            if event.kind == "admitted":
                self.num_prompt_tokens += event.num_tokens
                self.num_cached_tokens += event.num_cached_tokens
                self._prompt.add(event.num_tokens, now_s)
                self._cached.add(event.num_cached_tokens, now_s)

    def last_minute(self, now_s: float) -> tuple[int, int]:
        """The tokens of the last minute: all, and those from the cache."""
        return self._prompt.total(now_s), self._cached.total(now_s)


class StepListener(Protocol):
    """Called on the event loop's thread."""

    def happened(self, events: Sequence[EngineEvent], num_steps: int) -> None:
        """Called with the events of a step, before its outputs, because a request is admitted
        before its first token. `num_steps`: the number of the step."""

    def stepped(self, outputs: Sequence[StepOutputs], step_time_s: float) -> None: ...

    def rested(self) -> None:
        """Called when the engine has nothing left to do."""

    def report(self, status: StatusPushed) -> None: ...


@dataclass(frozen=True, slots=True)
class EngineListener:
    """Called on the event loop's thread."""

    on_loading: Callable[[str], None]
    on_built: Callable[[Engine], StepListener | None]
    """Returns the listener of the engine's steps; None if the engine is not to take steps."""
    on_failed: Callable[[str], None]
    """The engine could not start. It is not started again, as the same start would fail again."""
    on_died: Callable[[BaseException], None]
    on_long_turn: Callable[[], None]
    """The engine was away for long. It takes no step until `EngineThread.cleared` is called, or for
    `ANSWER_S`; requests that are to be dropped must be dropped by then."""


class EngineThread:
    def __init__(
        self,
        member: ControllerLink,
        build_engine: EngineFactory,
        status_interval_s: float,
        listener: EngineListener,
    ) -> None:
        self._member = member
        self._build_engine = build_engine
        self.status_interval_s = status_interval_s
        self.status_phases: Sequence[StepPhase] = ("before-return",)
        """The phases of a step at which statuses may be pushed. If it is empty, statuses are only
        sent when somebody asks. Any thread may set this at any time, as it may set
        `status_interval_s`."""
        self._listener = listener
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self.command = self._commands.put
        """Lets a command run between two steps; may be called from any thread."""
        self._last_dispatch_seq = 0
        self._status_wanted = False
        """Whether a status is wanted before it is due. Either there is more room than in the latest
        status, for which requests may wait at the controller; or somebody asked. At most one such
        status is sent for each request that ends or leaves. Used on the engine's thread."""
        self._pushed_s = 0.0
        self._cache, self._host_cache = CacheReporter(), CacheReporter()
        """Used on the engine's thread, as is the next one."""
        self._cache_use = CacheUse()
        self._cpu = ProcessCpu()
        self._is_clear = threading.Event()
        self._loop: asyncio.AbstractEventLoop

    # -- for any thread ------------------------------------------------------------------

    def start(self) -> None:
        """Starts the thread. Must be called on the event loop's thread."""
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._run, name="engine", daemon=True).start()

    def between_steps(
        self, work: Callable[[Engine], T], then: Callable[[T], None] | None = None
    ) -> None:
        """Runs `work` between two steps; `then` gets its result on the event loop's thread."""

        def command(engine: Engine) -> None:
            result = work(engine)
            if then is not None:
                self._call(then, result)

        self.command(command)

    def add(
        self, add: AddRequest, prepared: Any, refuse: Callable[[AddRequest, str], None]
    ) -> None:
        """Adds a request before the next step. `refuse` is called on the event loop's thread."""
        self.command(functools.partial(self._add, add, prepared, refuse))

    def account(self, dispatch_seq: int) -> None:
        """Lets the next status count this dispatch."""
        self.command(lambda engine: self._account(dispatch_seq))

    def push_status(self) -> None:
        """Sends a status after the commands so far and before the next step, because a step with a
        long prompt takes half a second. Does nothing if statuses are only sent when they are asked
        for."""
        self.command(lambda _: self._want_status(bool(self.status_phases)))

    def answer_pull(self) -> None:
        """Sends a status after the commands so far, because somebody asked for a status."""
        self.command(lambda _: self._want_status(True))

    def report_cache_anew(self) -> None:
        """Lets the reports of the caches start over."""
        self.command(lambda _: self._cache.start_over())
        self.command(lambda _: self._host_cache.start_over())

    def cleared(self) -> None:
        """Lets the engine go on once the commands so far have run."""
        self._is_clear.set()

    # -- engine thread -------------------------------------------------------------------

    def _run(self) -> None:
        listener = self._listener
        try:
            engine = self._build_engine(lambda detail: self._call(listener.on_loading, detail))
        except BaseException as error:
            log.exception("the engine could not start")
            self._call(listener.on_failed, f"{type(error).__name__}: {error}")
            return
        try:
            built: Future[StepListener | None] = Future()
            self._call(self._tell_built, engine, built)
            if (serving := built.result()) is not None:
                self._step_for_ever(engine, serving)
        except BaseException as error:
            log.exception("the engine thread died")
            self._call(listener.on_died, error)

    def _tell_built(self, engine: Engine, built: "Future[StepListener | None]") -> None:
        """Tells the listener that the engine is built, and passes its answer to the engine's
        thread, which waits for it. If this fails, the engine's thread ends. Runs on the event
        loop's thread."""
        try:
            built.set_result(self._listener.on_built(engine))
        except BaseException as error:
            built.set_exception(error)

    def _step_for_ever(self, engine: Engine, listener: StepListener) -> None:
        took = StepTimes()

        def at_phase(phase: StepPhase) -> None:
            if phase in self.status_phases and self._is_due():
                self._report(engine, listener, took)

        engine.on_phase = at_phase
        turned_s, was_busy = time.monotonic(), False
        while True:
            if not engine.has_work():
                took.rest()
                if was_busy:
                    was_busy = False
                    self._call(listener.rested)
            self._run_commands(engine)
            if time.monotonic() - turned_s >= LONG_TURN_S:
                self._wait_until_clear()
                turned_s = time.monotonic()
                continue
            turned_s = time.monotonic()
            if engine.has_work():
                was_busy = True
                if self._status_wanted:
                    self._report(engine, listener, took)
                at_phase("begin")
                started_s = time.perf_counter()
                outputs = engine.step()
                took.step(started_s, time.perf_counter())
                if events := engine.take_events():
                    self._cache_use.note(events, time.monotonic())
                    self._call(listener.happened, events, took.num_steps)
                if outputs:
                    self._call(listener.stepped, outputs, took.step_time_s)
                made_room = _made_room(outputs, events)
                self._want_status(bool(self.status_phases) and made_room)
                if events or made_room:
                    time.sleep(YIELD_S)
            is_idle = bool(self.status_phases) and not engine.has_work()
            if self._status_wanted or is_idle:
                self._report(engine, listener, took)
            else:
                at_phase("before-return")

    def _wait_until_clear(self) -> None:
        self._is_clear.clear()
        self._call(self._listener.on_long_turn)
        self._is_clear.wait(ANSWER_S)

    def _is_due(self) -> bool:
        return time.monotonic() - self._pushed_s >= self.status_interval_s

    def _report(self, engine: Engine, listener: StepListener, took: StepTimes) -> None:
        self._status_wanted = False
        self._pushed_s = time.monotonic()
        self._call(listener.report, self._status(engine, took))

    def _run_commands(self, engine: Engine) -> None:
        """Runs the queued commands. If there is no work, it waits for a command or for the
        heartbeat."""
        try:
            command = self._commands.get(block=not engine.has_work(), timeout=HEARTBEAT_S)
            while True:
                command(engine)
                command = self._commands.get_nowait()
        except queue.Empty:
            return

    def _add(
        self,
        add: AddRequest,
        prepared: Any,
        refuse: Callable[[AddRequest, str], None],
        engine: Engine,
    ) -> None:
        self._account(add.dispatch_seq)
        try:
            engine.add(prepared)
        except ValueError as error:
            self._call(refuse, add, str(error))

    def _want_status(self, wanted: bool) -> None:
        self._status_wanted |= wanted

    def _account(self, dispatch_seq: int) -> None:
        self._last_dispatch_seq = max(self._last_dispatch_seq, dispatch_seq)

    def _status(self, engine: Engine, took: StepTimes) -> StatusPushed:
        snapshot: InstanceSnapshot = engine.snapshot(
            self._member.member_id, self._member.incarnation
        )
        use = self._cache_use
        num_prompt_tokens, num_cached_tokens = use.last_minute(time.monotonic())
        return StatusPushed(
            snapshot,
            self._last_dispatch_seq,
            took.num_steps,
            took.step_time_s,
            engine.emulation,
            cpu_cores=self._cpu.cores(),
            busy_s=took.busy_s,
            cache=self._cache_report(engine),
            host_cache=self._host_cache_report(engine),
            num_prompt_tokens=use.num_prompt_tokens,
            num_cached_tokens=use.num_cached_tokens,
            num_prompt_tokens_last_minute=num_prompt_tokens,
            num_cached_tokens_last_minute=num_cached_tokens,
        )

    def _cache_report(self, engine: Engine) -> CacheReport | None:
        self._cache.changed(engine.take_cache_changes())
        return self._cache.take()

    def _host_cache_report(self, engine: Engine) -> CacheReport | None:
        changes = engine.take_host_cache_changes()
        if changes is None:
            return None
        self._host_cache.changed(changes)
        return self._host_cache.take()

    def _call(self, function: Callable[..., object], *args: Any) -> None:
        self._loop.call_soon_threadsafe(functools.partial(function, *args))


def _made_room(outputs: Sequence[StepOutputs], events: Sequence[EngineEvent]) -> bool:
    """Whether a request ended in the step, or lost its blocks."""
    return any(event.kind == "evicted" for event in events) or any(
        emitted.finish_reason is not None for each in outputs for emitted in each.emitted
    )
