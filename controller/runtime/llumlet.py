"""The llumlet: one engine on its own thread, between the frontends and the controller.

Only the engine thread touches the engine; what others want of it queues as commands that
run between two steps. Encoding, sockets and bookkeeping of token positions stay on the
event loop's thread. A dead engine thread ends the process: see `run`.
"""

import asyncio
import functools
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from controller.core.event_log import EventKind, LoggedEvent
from controller.core.latency_window import LatencyWindow
from controller.core.snapshot import InstanceSnapshot
from controller.ports.engine import Engine, EngineEvent, EngineFactory, StepOutputs
from controller.ports.mailbox import Mailbox
from controller.runtime.member import Membership
from controller.runtime.messages import (
    AbortRequests,
    AddRequest,
    DispatchUnused,
    EngineInfo,
    Happened,
    OutputItem,
    OutputsEmitted,
    RequestRefused,
    StatusPull,
    StatusPushed,
    Welcome,
    decode,
    encode,
)

log = logging.getLogger(__name__)

# An idle engine thread wakes this often, so that a hang shows as missing progress.
HEARTBEAT_S = 1.0
# A percentile is computed at most this often; statuses are pushed every few milliseconds.
PERCENTILE_EVERY_S = 1.0

Command = Callable[[Engine], None]


@dataclass(slots=True)
class _Emitting:
    """Where a live request's tokens go and how many have gone."""

    frontend: str
    attempt: int
    hop: int
    arrival_time_s: float
    next_index: int = 0


class Llumlet:
    """An engine that cannot start is reported as failed and held, not restarted for ever."""

    def __init__(
        self,
        member: Membership,
        mailbox: Mailbox,
        build_engine: EngineFactory,
        status_interval_s: float,
    ) -> None:
        self._member = member
        self._mailbox = mailbox
        self._build_engine = build_engine
        self._status_interval_s = status_interval_s
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._emitting: dict[str, _Emitting] = {}
        self._frontends: list[str] = []  # an engine's frontend_index is a position here
        self._last_dispatch_seq = 0
        self._ttft = LatencyWindow()
        self._ttft_p99_s: float | None = None
        self._percentile_at_s = 0.0
        self._engine: Engine | None = None
        self._stopped: asyncio.Future[None]
        self._loop: asyncio.AbstractEventLoop

    @property
    def num_live_reqs(self) -> int:
        return len(self._emitting)

    async def run(self) -> None:
        """Serve until the engine thread dies; raises what it died of."""
        self._loop = asyncio.get_running_loop()
        self._stopped = self._loop.create_future()
        self._mailbox.start(self._on_message, self._on_lost)
        hellos = asyncio.create_task(self._member.keep_saying_hello())
        threading.Thread(target=self._engine_thread, name="engine", daemon=True).start()
        try:
            await self._stopped
        finally:
            hellos.cancel()
            await self._mailbox.close()

    # -- event loop's thread -------------------------------------------------------------

    def _on_message(self, head: bytes | memoryview, payload: Sequence[memoryview]) -> None:
        match decode(head):
            case AddRequest() as add:
                self._take_in(add, payload)
            case AbortRequests(request_ids=ids):
                self._abort(ids)
            case DispatchUnused(incarnation=incarnation, dispatch_seq=seq):
                if incarnation == self._member.incarnation:
                    self._commands.put(lambda engine: self._account(seq))
            case StatusPull():
                self._commands.put(lambda engine: None)
            case Welcome() as welcome:
                if self._member.welcomed(welcome):
                    log.warning("fenced: dropping %d requests", len(self._emitting))
                    self._abort(tuple(self._emitting))
                    self._commands.put(lambda engine: self._restart_account())
            case other:
                log.warning("unexpected message %s", type(other).__name__)

    def _take_in(self, add: AddRequest, payload: Sequence[memoryview]) -> None:
        engine = self._engine
        if engine is None or add.incarnation != self._member.incarnation:
            self._refuse(add, "its instance has restarted; send it again", retryable=True)
            return
        if add.reply_to not in self._frontends:
            self._frontends.append(add.reply_to)
        try:
            prepared = engine.prepare(payload, self._frontends.index(add.reply_to))
        except ValueError as error:
            self._refuse(add, str(error))
            self._commands.put(lambda engine: self._account(add.dispatch_seq))
            return
        self._emitting[add.request_id] = _Emitting(
            add.reply_to, add.attempt, add.hop, add.arrival_time_s
        )
        self._commands.put(functools.partial(self._add, add, prepared))

    def _refuse(self, add: AddRequest, message: str, *, retryable: bool = False) -> None:
        self._emitting.pop(add.request_id, None)
        refused = RequestRefused(add.request_id, message, retryable)
        self._mailbox.send(add.reply_to, encode(refused))

    def _abort(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            self._emitting.pop(request_id, None)
        self._commands.put(lambda engine: engine.abort(request_ids))

    def _on_lost(self, address: str) -> None:
        """A frontend that is gone reads nothing more: its requests' blocks are freed."""
        orphans = [r for r, emitting in self._emitting.items() if emitting.frontend == address]
        if orphans:
            log.warning("frontend at %s is gone: aborting %d requests", address, len(orphans))
            self._abort(orphans)

    def _emit(self, outputs: Sequence[StepOutputs]) -> None:
        assert self._engine is not None
        for step in outputs:
            items = []
            for emitted in step.emitted:
                emitting = self._emitting.get(emitted.request_id)
                if emitting is None:  # aborted since
                    continue
                items.append(
                    OutputItem(
                        emitted.request_id,
                        emitting.attempt,
                        emitting.hop,
                        emitting.next_index,
                        emitted.num_tokens,
                        emitted.finish_reason,
                    )
                )
                if emitting.next_index == 0 and emitted.num_tokens:
                    ttft_s = time.time() - emitting.arrival_time_s
                    self._ttft.add(time.monotonic(), ttft_s)
                emitting.next_index += emitted.num_tokens
                if emitted.finished:
                    del self._emitting[emitted.request_id]
            if not items:
                continue
            header = OutputsEmitted(self._member.member_id, self._member.incarnation, tuple(items))
            frontend = self._frontends[step.frontend_index]
            self._mailbox.send(frontend, encode(header), self._engine.encode(step.body))

    def _tell(self, events: Sequence[EngineEvent], num_steps: int) -> None:
        """The controller, for its log, and each request's frontend, for its history."""
        cause_id = f"step-{self._member.member_id}-{self._member.incarnation}-{num_steps}"
        by_frontend: dict[str, list[LoggedEvent]] = {}
        for event in (self._logged(event, cause_id) for event in events):
            self._member.tell(event)
            if emitting := self._emitting.get(event.request_id or ""):
                by_frontend.setdefault(emitting.frontend, []).append(event)
        for frontend, its_events in by_frontend.items():
            self._mailbox.send(frontend, encode(Happened(tuple(its_events))))

    def _logged(self, event: EngineEvent, cause_id: str) -> LoggedEvent:
        numbers = {"num_tokens": event.num_tokens}
        if event.kind == "admitted":
            kind, reason = EventKind.ADMITTED, "into the batch"
            numbers["num_cached_tokens"] = event.num_cached_tokens
        else:
            kind, reason = EventKind.EVICTED, "memory pressure"
        return LoggedEvent(
            kind,
            event.time_s,
            cause_id,
            reason,
            instance_id=self._member.member_id,
            incarnation=self._member.incarnation,
            request_id=event.request_id,
            numbers=numbers,
        )

    def _push_status(self, status: StatusPushed) -> None:
        now_s = time.monotonic()
        if now_s >= self._percentile_at_s:
            self._percentile_at_s = now_s + PERCENTILE_EVERY_S
            self._ttft_p99_s = self._ttft.percentile(0.99, now_s)
        status = msgspec.structs.replace(status, ttft_p99_s=self._ttft_p99_s)
        self._mailbox.send(self._member.controller_address, encode(status), droppable=True)

    def _serve(self, engine: Engine) -> None:
        self._engine = engine
        info = EngineInfo(
            engine.max_model_len, engine.num_gpu_blocks, engine.block_size, engine.supported_tasks
        )
        self._member.report("active", info=info)

    # -- engine thread -------------------------------------------------------------------

    def _engine_thread(self) -> None:
        try:
            engine = self._build_engine(self._call_report)
        except BaseException as error:
            log.exception("the engine could not start")
            self._call(self._member.report, "failed", f"{type(error).__name__}: {error}")
            return  # held, not restarted: the same start would fail again
        try:
            self._call(self._serve, engine)
            self._step_for_ever(engine)
        except BaseException as error:
            log.exception("the engine thread died")
            self._call(self._stopped.set_exception, error)

    def _step_for_ever(self, engine: Engine) -> None:
        pushed_s = num_steps = 0
        step_time_s = 0.0
        while True:
            self._run_commands(engine)
            if engine.has_work():
                started_s = time.perf_counter()
                outputs = engine.step()
                ended_s = time.perf_counter()
                step_time_s = ended_s - started_s
                num_steps += 1
                # Before the outputs: a request is admitted before its first token.
                if events := engine.take_events():
                    self._call(self._tell, events, num_steps)
                if outputs:
                    self._call(self._emit, outputs)
            now_s = time.monotonic()
            if now_s - pushed_s >= self._status_interval_s or not engine.has_work():
                pushed_s = now_s
                self._call(self._push_status, self._status(engine, num_steps, step_time_s))

    def _run_commands(self, engine: Engine) -> None:
        """Between two steps; with nothing to do, wait for a command or the heartbeat."""
        try:
            command = self._commands.get(block=not engine.has_work(), timeout=HEARTBEAT_S)
            while True:
                command(engine)
                command = self._commands.get_nowait()
        except queue.Empty:
            return

    def _add(self, add: AddRequest, prepared: Any, engine: Engine) -> None:
        self._account(add.dispatch_seq)
        try:
            engine.add(prepared)
        except ValueError as error:
            self._call(self._refuse, add, str(error))

    def _account(self, dispatch_seq: int) -> None:
        """From the next status on, this dispatch is part of what is reported."""
        self._last_dispatch_seq = max(self._last_dispatch_seq, dispatch_seq)

    def _restart_account(self) -> None:
        self._last_dispatch_seq = 0

    def _status(self, engine: Engine, num_steps: int, step_time_s: float) -> StatusPushed:
        snapshot: InstanceSnapshot = engine.snapshot(
            self._member.member_id, self._member.incarnation
        )
        return StatusPushed(
            snapshot, self._last_dispatch_seq, num_steps, step_time_s, engine.emulation
        )

    def _call_report(self, detail: str) -> None:
        self._call(self._member.report, "starting", detail)

    def _call(self, function: Callable[..., object], *args: Any) -> None:
        self._loop.call_soon_threadsafe(functools.partial(function, *args))
