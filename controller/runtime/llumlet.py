"""The llumlet: one engine on its own thread, between the frontends and the controller.

The engine has a thread of its own (`engine_thread`); encoding, sockets and bookkeeping of token
positions (`emission`) stay on the event loop's thread. A dead engine thread ends the process: see
`run`.
"""

import asyncio
import gc
import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import msgspec

from controller.core.event_log import EventKind, LoggedEvent
from controller.core.instance_ref import InstanceRef
from controller.core.migration.refusals import MoveRefusal
from controller.ports.engine import Engine, EngineEvent, EngineFactory, StepOutputs
from controller.ports.frames import Frames
from controller.ports.kv_transfer import KvTransfer
from controller.ports.mailbox import Mailbox
from controller.runtime.emission import Emission
from controller.runtime.engine_thread import EngineListener, EngineThread
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
    MoveAnswered,
    MoveAsked,
    MoveLimitsSet,
    MoveRefusalAsked,
    MoveSaid,
    OwnerAsked,
    TransferTold,
)
from controller.runtime.moves.desk import MoveDesk
from controller.runtime.moves.links import Links
from controller.runtime.moves.orders import MoveOrders
from controller.runtime.moves.reliever import Reliever
from controller.runtime.steer_messages import (
    DrainSet,
    RankNoted,
    RankSet,
    ReliefOrdered,
    StatusIntervalSet,
)

log = logging.getLogger(__name__)

# Moves repeat and give up by the clock; the shortest of their times is 0.2 s.
MOVES_TICK_S = 0.05
# The engine thread holds the GIL in Python code; what else this process does for a move waits so
# long for it at most. The default of 5 ms is a whole step of a small model.
SWITCH_INTERVAL_S = 0.0005

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
        listener = EngineListener(
            on_loading=lambda detail: member.report("starting", detail),
            on_built=self._serve,
            on_failed=lambda error: member.report("failed", error),
            on_events=self._tell,
            on_outputs=self._emit,
            on_status=self._push_status,
            on_refused=self._refuse,
            on_died=lambda error: self._stopped.set_exception(error),
        )
        self._thread = EngineThread(member, build_engine, status_interval_s, listener)
        self.requests: dict[str, LiveRequest] = {}
        self.transfer = transfer
        self._desk: MoveDesk | None = None
        self._orders: MoveOrders | None = None
        self._reliever: Reliever | None = None
        self._frontends: list[str] = []  # an engine's frontend_index is a position here
        self._engine: Engine | None = None
        self._emission: Emission | None = None
        self._ticking: asyncio.Task[None] | None = None
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
        hellos = asyncio.create_task(self._member.keep_saying_hello())
        self._thread.start()
        try:
            await self._stopped
        finally:
            hellos.cancel()
            if self._ticking is not None:
                self._ticking.cancel()
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
                    self._thread.account(seq)
            case OutputsReceived(items=items):
                for request_id, next_index in items:
                    if live := self.requests.get(request_id):
                        live.received(next_index)
            case StatusPull():
                self._thread.push_status()
            case StatusIntervalSet(status_interval_s=status_interval_s):
                self._thread.status_interval_s = status_interval_s
            case Welcome() as welcome:
                if self._member.welcomed(welcome):
                    log.warning("fenced: dropping %d requests", len(self.requests))
                    if self._desk is not None:
                        assert self._reliever is not None
                        self._reliever.fenced()
                        self._desk.fenced()
                    self._abort(tuple(self.requests))
                    self._thread.restart_account()
            case InstanceLost(instance_id=instance_id, incarnation=incarnation):
                self._peer_lost(lambda peer: peer.key == (instance_id, incarnation))
            case MoveAsked(query_id=query_id) if self._desk is None:
                unknown = MoveAnswered(query_id, MoveRefusal.UNKNOWN)
                self.send(self._member.controller_address, unknown)
            case other:
                if self._desk is None or not self._on_move_message(other, payload):
                    log.warning("unexpected message %s", type(other).__name__)

    def _on_move_message(self, message: Message, payload: Sequence[memoryview]) -> bool:
        """False for what has nothing to do with moves."""
        assert self._desk is not None
        assert self._orders is not None
        assert self._reliever is not None
        assert self._emission is not None
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
            case ReliefOrdered() as ordered:
                self._reliever.ordered(ordered)
            case DrainSet(draining=draining):
                self._desk.draining = draining
                if not draining:
                    self._reliever.drain_ended()
                self._thread.push_status()
            case FenceAnswered() as answer:
                self._desk.fence_answered(answer)
            case OwnerAsked() as asked:
                self._desk.owner_asked(asked)
            case OutputsMissing() as missing:
                self._emission.send_again(missing)
            case RankSet() as wanted:
                self._take_rank(wanted)
            case _:
                return False
        return True

    def _is_mine(self, said: MoveSaid) -> bool:
        """Nothing arrives for an incarnation before this one; what is said of moves that it had
        counts, as they are still remembered here."""
        return said.arriving is None or said.destination.key == self.me.key

    def _take_rank(self, wanted: RankSet) -> None:
        """Of a request that is not here its frontend asks the next owner."""
        live = self.requests.get(wanted.request_id)
        if live is None:
            return
        if wanted.change > live.rank_change:
            live.rank_change = wanted.change
            self.set_rank(wanted.request_id, wanted.rank)
        noted = RankNoted(
            wanted.request_id,
            live.rank_change,
            self._member.member_id,
            self._member.incarnation,
            live.hop,
        )
        self.send(live.frontend, noted)

    def _take_in(self, add: AddRequest, payload: Sequence[memoryview]) -> None:
        engine = self._engine
        if engine is None or add.incarnation != self._member.incarnation:
            self._refuse(add, "its instance has restarted; send it again", retryable=True)
            return
        try:
            prepared = engine.prepare(payload, self._frontend_index(add.reply_to))
        except ValueError as error:
            self._refuse(add, str(error))
            self._thread.account(add.dispatch_seq)
            return
        self.requests[add.request_id] = LiveRequest(
            add.reply_to,
            add.attempt,
            add.hop,
            add.arrival_time_s,
            [bytes(frame) for frame in payload],
        )
        self._thread.add(add, prepared)

    def _refuse(self, add: AddRequest, message: str, *, retryable: bool = False) -> None:
        self.requests.pop(add.request_id, None)
        refused = RequestRefused(add.request_id, message, retryable)
        self._mailbox.send(add.reply_to, encode(refused))

    def _abort(self, request_ids: Sequence[str]) -> None:
        hops = {r: live.hop for r in request_ids if (live := self.requests.pop(r, None))}
        self._thread.command(lambda engine: engine.abort(request_ids))
        if self._desk is not None:
            for request_id in request_ids:
                self._desk.client_left(request_id, hops.get(request_id, 0))

    def _on_lost(self, address: str) -> None:
        """A frontend that is gone reads nothing more: its requests' blocks are freed."""
        self._peer_lost(lambda peer: peer.address == address)
        if self._desk is not None:
            self._desk.frontend_lost(address)
        orphans = [r for r, live in self.requests.items() if live.frontend == address]
        if orphans:
            log.warning("frontend at %s is gone: aborting %d requests", address, len(orphans))
            self._abort(orphans)

    def _peer_lost(self, is_lost: Callable[[InstanceRef], bool]) -> None:
        if self._desk is not None:
            assert self._reliever is not None
            self._reliever.peer_lost(is_lost)
            self._desk.peer_lost(is_lost)

    def _emit(self, outputs: Sequence[StepOutputs], step_time_s: float) -> None:
        assert self._emission is not None
        assert self._reliever is not None
        self._reliever.stepped(step_time_s)
        self._emission.emit(outputs, step_time_s)

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
        assert self._desk is not None
        assert self._emission is not None
        status = msgspec.structs.replace(
            status,
            snapshot=replace(status.snapshot, draining=self._desk.draining),
            ttft_p99_s=self._emission.ttft_p99_s(),
            moves=self._desk.in_flight(),
            num_moves_in=self._desk.num_moves_in,
        )
        self._mailbox.send(self._member.controller_address, encode(status), droppable=True)

    def _serve(self, engine: Engine) -> None:
        self._engine = engine
        self.blocks, self.fingerprint = engine.moves.blocks, engine.moves.fingerprint
        self.transfer.start(self.blocks, self._tell_transfer)
        self._desk = MoveDesk(self, engine.block_size)
        links, controller = Links(), self._member.controller_address
        self._orders = MoveOrders(self, self._desk, links, controller)
        self._reliever = Reliever(self, self._desk, links, controller)
        self._emission = Emission(
            self._member,
            self._mailbox,
            engine,
            self.requests,
            self._frontends,
            self._desk.request_finished,
        )
        self._ticking = asyncio.create_task(self._tick_moves(self._desk))
        gc.freeze()  # the engine's objects, which no collection needs to walk again
        info = EngineInfo(
            engine.max_model_len, engine.num_gpu_blocks, engine.block_size, engine.supported_tasks
        )
        self._member.report("active", info=info)

    async def _tick_moves(self, desk: MoveDesk) -> None:
        """Sleeps while there is no move: an idle instance takes no time for them."""
        while True:
            await desk.busy.wait()
            await asyncio.sleep(MOVES_TICK_S)
            try:
                desk.tick()
            except Exception:  # a defect in one move must not leave the others without an end
                log.exception("moves: a tick failed")

    # -- what moves need (runtime/moves/host.py) -----------------------------------------

    @property
    def me(self) -> InstanceRef:
        return InstanceRef(self._member.member_id, self._member.incarnation, self._mailbox.address)

    def now_s(self) -> float:
        return self._loop.time()

    def between_steps(self, work: Callable[[Engine], T], then: Callable[[T], None]) -> None:
        self._thread.between_steps(work, then)

    def send(self, address: str, message: Message, payload: Sequence[Any] = ()) -> None:
        self._mailbox.send(address, encode(message), payload)

    def tell(self, event: LoggedEvent, frontend: str) -> None:
        self._member.tell(event)
        self.send(frontend, Happened((event,)))

    def prepare(self, frames: Sequence[Any], frontend: str) -> Any:
        assert self._engine is not None
        return self._engine.prepare(frames, self._frontend_index(frontend))

    def encode_kept(self, kept: Kept, request_id: str) -> Frames:
        assert self._emission is not None
        return self._emission.encode_kept(kept, request_id)

    def set_rank(self, request_id: str, rank: int) -> None:
        assert self._desk is not None
        self._desk.set_rank(request_id, rank)

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
