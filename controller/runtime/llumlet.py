"""The llumlet: one engine on its own thread, between the frontends and the controller.

Only the engine thread touches the engine; what others want of it queues as commands that
run between two steps. Encoding, sockets and bookkeeping of token positions stay on the
event loop's thread. A dead engine thread ends the process: see `run`.
"""

import asyncio
import functools
import gc
import logging
import queue
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from controller.core.event_log import EventKind, LoggedEvent
from controller.core.instance_ref import InstanceRef
from controller.core.latency_window import LatencyWindow
from controller.core.snapshot import InstanceSnapshot
from controller.ports.engine import Engine, EngineEvent, EngineFactory, StepOutputs
from controller.ports.frames import Frames
from controller.ports.kv_transfer import KvTransfer
from controller.ports.mailbox import Mailbox
from controller.runtime.live_request import Kept, LiveRequest
from controller.runtime.member import Membership
from controller.runtime.message import Message
from controller.runtime.messages import (
    AbortRequests,
    AddRequest,
    DispatchUnused,
    EngineInfo,
    Happened,
    InstanceLost,
    OutputItem,
    OutputsEmitted,
    OutputsMissing,
    OutputsReceived,
    RequestRefused,
    StatusPull,
    StatusPushed,
    Welcome,
    decode,
    encode,
)
from controller.runtime.move_messages import (
    FenceAnswered,
    MoveAsked,
    MoveLimitsSet,
    MoveRefusalAsked,
    MoveSaid,
    MoveTimed,
    OwnerAsked,
    TransferTold,
)
from controller.runtime.moves.desk import MoveDesk
from controller.runtime.moves.orders import MoveOrders

log = logging.getLogger(__name__)

# An idle engine thread wakes this often, so that a hang shows as missing progress.
HEARTBEAT_S = 1.0
# A percentile is computed at most this often; statuses are pushed every few milliseconds.
PERCENTILE_EVERY_S = 1.0

# Moves repeat and give up by the clock; the shortest of their times is 0.2 s.
MOVES_TICK_S = 0.05
# Requests that arrived by a move and finished: so many are kept, because a source that died may
# have taken outputs of theirs along that it had sent.
MAX_FINISHED_KEPT = 64
# The engine thread holds the GIL in Python code; what else this process does for a move waits so
# long for it at most. The default of 5 ms is a whole step of a small model.
SWITCH_INTERVAL_S = 0.0005

Command = Callable[[Engine], None]
T = TypeVar("T")


class Llumlet:
    """An engine that cannot start is reported as failed and held, not restarted for ever."""

    def __init__(
        self,
        member: Membership,
        mailbox: Mailbox,
        build_engine: EngineFactory,
        status_interval_s: float,
        transfer: KvTransfer,
    ) -> None:
        self._member = member
        self._mailbox = mailbox
        self._build_engine = build_engine
        self._status_interval_s = status_interval_s
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self.requests: dict[str, LiveRequest] = {}
        self._finished: OrderedDict[str, LiveRequest] = OrderedDict()
        self.transfer = transfer
        self._desk: MoveDesk | None = None
        self._orders: MoveOrders | None = None
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
        return len(self.requests)

    async def run(self) -> None:
        """Serve until the engine thread dies; raises what it died of."""
        self._loop = asyncio.get_running_loop()
        self._stopped = self._loop.create_future()
        self._mailbox.start(self._on_message, self._on_lost)
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        tasks = [
            asyncio.create_task(self._member.keep_saying_hello()),
            asyncio.create_task(self._tick_moves()),
        ]
        threading.Thread(target=self._engine_thread, name="engine", daemon=True).start()
        try:
            await self._stopped
        finally:
            for task in tasks:
                task.cancel()
            await self.transfer.close()
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
            case OutputsReceived(items=items):
                for request_id, next_index in items:
                    if live := self.requests.get(request_id):
                        live.received(next_index)
            case StatusPull():
                self._commands.put(lambda engine: None)
            case Welcome() as welcome:
                if self._member.welcomed(welcome):
                    log.warning("fenced: dropping %d requests", len(self.requests))
                    if self._desk is not None:
                        self._desk.fenced()
                    self._abort(tuple(self.requests))
                    self._commands.put(lambda engine: self._restart_account())
            case InstanceLost(instance_id=instance_id, incarnation=incarnation):
                if self._desk is not None:
                    self._desk.peer_lost(lambda peer: peer.key == (instance_id, incarnation))
            case other:
                if self._desk is None or not self._on_move_message(other, payload):
                    log.warning("unexpected message %s", type(other).__name__)

    def _on_move_message(self, message: Message, payload: Sequence[memoryview]) -> bool:
        """False for what has nothing to do with moves."""
        assert self._desk is not None
        assert self._orders is not None
        match message:
            case TransferTold(sender=sender):
                self.transfer.told(sender, payload)
            case MoveSaid() as said:
                if self._is_mine(said):
                    self._desk.said(said, payload)
            case MoveAsked() as asked:
                self._orders.asked(asked)
            case MoveRefusalAsked() as asked:
                self._orders.refusals_asked(asked)
            case MoveLimitsSet(max_moves=max_moves, max_bytes_per_s=max_bytes_per_s):
                self._desk.max_moves = max_moves
                self.transfer.max_bytes_per_s = max_bytes_per_s
            case FenceAnswered() as answer:
                self._desk.fence_answered(answer)
            case OwnerAsked() as asked:
                self._desk.owner_asked(asked)
            case OutputsMissing() as missing:
                self._send_again(missing)
            case _:
                return False
        return True

    def _is_mine(self, said: MoveSaid) -> bool:
        """Nothing arrives for an incarnation before this one; what is said of moves that it had
        counts, as they are still remembered here."""
        return said.arriving is None or said.destination.key == self.me.key

    def _take_in(self, add: AddRequest, payload: Sequence[memoryview]) -> None:
        engine = self._engine
        if engine is None or add.incarnation != self._member.incarnation:
            self._refuse(add, "its instance has restarted; send it again", retryable=True)
            return
        try:
            prepared = engine.prepare(payload, self._frontend_index(add.reply_to))
        except ValueError as error:
            self._refuse(add, str(error))
            self._commands.put(lambda engine: self._account(add.dispatch_seq))
            return
        self.requests[add.request_id] = LiveRequest(
            add.reply_to,
            add.attempt,
            add.hop,
            add.arrival_time_s,
            [bytes(frame) for frame in payload],
        )
        self._commands.put(functools.partial(self._add, add, prepared))

    def _refuse(self, add: AddRequest, message: str, *, retryable: bool = False) -> None:
        self.requests.pop(add.request_id, None)
        refused = RequestRefused(add.request_id, message, retryable)
        self._mailbox.send(add.reply_to, encode(refused))

    def _abort(self, request_ids: Sequence[str]) -> None:
        hops = {r: live.hop for r in request_ids if (live := self.requests.pop(r, None))}
        self._commands.put(lambda engine: engine.abort(request_ids))
        if self._desk is not None:
            for request_id in request_ids:
                self._desk.client_left(request_id, hops.get(request_id, 0))

    def _on_lost(self, address: str) -> None:
        """A frontend that is gone reads nothing more: its requests' blocks are freed."""
        if self._desk is not None:
            self._desk.peer_lost(lambda peer: peer.address == address)
            self._desk.frontend_lost(address)
        orphans = [r for r, live in self.requests.items() if live.frontend == address]
        if orphans:
            log.warning("frontend at %s is gone: aborting %d requests", address, len(orphans))
            self._abort(orphans)

    def _emit(self, outputs: Sequence[StepOutputs], step_time_s: float) -> None:
        assert self._engine is not None
        assert self._desk is not None
        for step in outputs:
            items: list[OutputItem] = []
            timed: list[MoveTimed] = []
            for emitted in step.emitted:
                live = self.requests.get(emitted.request_id)
                if live is None:  # aborted since
                    continue
                items.append(
                    OutputItem(
                        emitted.request_id,
                        live.attempt,
                        live.hop,
                        live.next_index,
                        emitted.num_tokens,
                        emitted.finish_reason,
                    )
                )
                if live.next_index == 0 and emitted.num_tokens:
                    ttft_s = time.time() - live.arrival_time_s
                    self._ttft.add(time.monotonic(), ttft_s)
                if live.arrived_by is not None:
                    timed.append(MoveTimed(live.arrived_by, step_time_s))
                    live.arrived_by = None
                live.keep(emitted.num_tokens, step.body)
                live.next_index += emitted.num_tokens
                if emitted.finished:
                    self._forget_finished(emitted.request_id)
                    self._desk.request_finished(emitted.request_id)
            if not items:
                continue
            header = OutputsEmitted(self._member.member_id, self._member.incarnation, tuple(items))
            frontend = self._frontends[step.frontend_index]
            for move in timed:
                self.send(frontend, move)
            self._mailbox.send(frontend, encode(header), self._engine.encode(step.body))

    def _forget_finished(self, request_id: str) -> None:
        live = self.requests.pop(request_id)
        if any(kept.encoded for kept in live.kept):
            self._finished[request_id] = live
            if len(self._finished) > MAX_FINISHED_KEPT:
                self._finished.popitem(last=False)

    def _send_again(self, missing: OutputsMissing) -> None:
        """In the epoch that the request has here, whoever produced them."""
        live = self.requests.get(missing.request_id) or self._finished.get(missing.request_id)
        if live is None:
            return
        for kept in live.kept:
            if kept.first_index < missing.end_index:
                item = OutputItem(
                    missing.request_id, live.attempt, live.hop, kept.first_index, kept.num_tokens
                )
                header = OutputsEmitted(self._member.member_id, self._member.incarnation, (item,))
                self.send(live.frontend, header, self.encode_kept(kept, missing.request_id))

    def _tell(self, events: Sequence[EngineEvent], num_steps: int) -> None:
        """The controller, for its log, and each request's frontend, for its history."""
        cause_id = f"step-{self._member.member_id}-{self._member.incarnation}-{num_steps}"
        by_frontend: dict[str, list[LoggedEvent]] = {}
        for event in (self._logged(event, cause_id) for event in events):
            self._member.tell(event)
            if live := self.requests.get(event.request_id or ""):
                by_frontend.setdefault(live.frontend, []).append(event)
        for frontend, its_events in by_frontend.items():
            self._mailbox.send(frontend, encode(Happened(tuple(its_events))))
        if self._desk is not None:
            for event in events:
                if event.kind == "evicted":
                    self._desk.request_evicted(event.request_id)

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
        assert self._desk is not None
        status = msgspec.structs.replace(
            status,
            ttft_p99_s=self._ttft_p99_s,
            moves=self._desk.in_flight(),
            num_moves_in=self._desk.num_moves_in,
        )
        self._mailbox.send(self._member.controller_address, encode(status), droppable=True)

    def _serve(self, engine: Engine) -> None:
        self._engine = engine
        self.blocks, self.fingerprint = engine.moves.blocks, engine.moves.fingerprint
        self.transfer.start(self.blocks, self._tell_transfer)
        self._desk = MoveDesk(self, engine.block_size)
        self._orders = MoveOrders(self, self._desk, self._member.controller_address)
        gc.freeze()  # the engine's objects, which no collection needs to walk again
        info = EngineInfo(
            engine.max_model_len, engine.num_gpu_blocks, engine.block_size, engine.supported_tasks
        )
        self._member.report("active", info=info)

    async def _tick_moves(self) -> None:
        while True:
            await asyncio.sleep(MOVES_TICK_S)
            if self._desk is not None and not self._desk.quiet:
                try:
                    self._desk.tick()
                except Exception:  # a defect in one move must not leave the others without an end
                    log.exception("moves: a tick failed")

    # -- what moves need (runtime/moves/host.py) -----------------------------------------

    @property
    def me(self) -> InstanceRef:
        return InstanceRef(self._member.member_id, self._member.incarnation, self._mailbox.address)

    def now_s(self) -> float:
        return self._loop.time()

    def between_steps(self, work: Callable[[Engine], T], then: Callable[[T], None]) -> None:
        self._commands.put(lambda engine: self._call(then, work(engine)))

    def send(self, address: str, message: Message, payload: Sequence[Any] = ()) -> None:
        self._mailbox.send(address, encode(message), payload)

    def tell(self, event: LoggedEvent, frontend: str) -> None:
        self._member.tell(event)
        self.send(frontend, Happened((event,)))

    def prepare(self, frames: Sequence[Any], frontend: str) -> Any:
        assert self._engine is not None
        return self._engine.prepare(frames, self._frontend_index(frontend))

    def encode_kept(self, kept: Kept, request_id: str) -> Frames:
        assert self._engine is not None
        return kept.body if kept.encoded else self._engine.encode_one(kept.body, request_id)

    def end(self, request_id: str, hop: int) -> None:
        if request_id in self.requests:
            self._abort((request_id,))
        elif self._desk is not None:
            self._desk.client_left(request_id, hop)

    def _frontend_index(self, address: str) -> int:
        if address not in self._frontends:
            self._frontends.append(address)
        return self._frontends.index(address)

    def _tell_transfer(self, peer: InstanceRef, frames: Frames) -> None:
        self.send(peer.address, TransferTold(self.me), frames)

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
        num_steps = 0
        pushed_s = step_time_s = 0.0
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
                    self._call(self._emit, outputs, step_time_s)
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
