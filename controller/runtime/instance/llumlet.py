"""The llumlet: an instance's process around its engine, from its first Hello to its death, and what
it does while its engine serves (`Serving`): requests come in, outputs go out, and requests move. A
request that comes again in a later attempt is taken in by `Reentries`, which carries out what
`core/replay/reentry_machine.py` decides.

All of this runs on the event loop's thread, with encoding, sockets and the bookkeeping of token
positions; the engine has its own thread (`engine_thread`). When the engine's thread dies, the
process ends: see `run`.
"""

import asyncio
import gc
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import msgspec

from controller.core.load.snapshot import InstanceRef, InstanceSnapshot, QueueHead
from controller.core.migration.copy_checks import LinkChecks
from controller.core.migration.ownership import FIRST_EPOCH, Epoch
from controller.core.migration.refusals import MoveRefusal
from controller.core.record.event_log import EventKind, LoggedEvent
from controller.core.replay.reentry_machine import (
    Aborted,
    Account,
    Begin,
    CallOff,
    Came,
    Drop,
    EndEarlier,
    Entered,
    Event,
    NotPrepared,
    Prepare,
    Prepared,
    PutIn,
    ReentryMachine,
    Refuse,
    WakeAt,
    Woken,
)
from controller.ports.engine import (
    Engine,
    EngineEvent,
    EngineFactory,
    EngineMoves,
    Frames,
    KvTransfer,
    StepOutputs,
)
from controller.ports.processes import AdapterFiles, Mailbox
from controller.runtime.controller_link import ControllerLink
from controller.runtime.instance.adapters import AdapterFailedError, AdapterRunner
from controller.runtime.instance.engine_thread import EngineListener, EngineThread
from controller.runtime.instance.handovers import Handovers
from controller.runtime.instance.instance_moves import ChosenMoves, InstanceMoves, OrderedMoves
from controller.runtime.instance.live_requests import CorruptCopy, Emission, LiveRequest
from controller.runtime.instance.prefix_fetches import PrefixFetches
from controller.runtime.messages.codec import (
    Handlers,
    Inbox,
    PayloadHandlers,
    decode_tokens,
    encode,
)
from controller.runtime.messages.members import (
    AdaptersSet,
    CacheAsked,
    DrainSet,
    EngineInfo,
    InstanceLost,
    Message,
    StatusPull,
    StatusPushed,
    StatusPushSet,
    StepTimeSet,
    Welcome,
)
from controller.runtime.messages.move_messages import (
    FenceAnswered,
    HandoverOrdered,
    HeadMoveOrdered,
    MoveAnswered,
    MoveAsked,
    MoveEnvelope,
    MoveLimitsSet,
    MoveRefusalAsked,
    OwnerAsked,
    OwnerConfirmed,
    PrefixAsked,
    PrefixDigest,
    PrefixUnwanted,
    PromptOffered,
    PromptTaken,
    ReliefOrdered,
    RequestLost,
    RoomOrdered,
    TransferMessage,
)
from controller.runtime.messages.requests import (
    AbortRequests,
    AddRequest,
    DispatchUnused,
    OutputsMissing,
    OutputsReceived,
    OutputsUnread,
    RankConfirmed,
    RankSet,
    ReplayTaken,
    RequestEvents,
    RequestRefused,
)
from controller.runtime.repeating import repeat

log = logging.getLogger(__name__)

# The same limit as in the engine's own guard, which sees only requests that the engine has. The
# grammar was admitted once, so if this instance is too busy to compile it, the request is left to
# another instance.
GRAMMAR_TIMEOUT_S = 60.0
NO_GRAMMAR = "its grammar does not compile there"
NOT_YET = "its instance was too busy to compile its grammar; send it again"
NOT_MADE = "its state cannot be made again there"
CANNOT_USE_ADAPTER = "its instance cannot use its LoRA adapter"
ADAPTER_NOT_YET = "its instance has not loaded its LoRA adapter yet; send it again"


class NotYetError(Exception):
    """This instance took too long; another one may be faster."""


@dataclass(slots=True)
class _Entering:
    add: AddRequest
    frames: list[bytes]
    outputs: Sequence[int] = ()
    prepared: Any = None
    generator: Any = None
    compiling: Future[Any] | None = None
    """The compilation of the request's grammar, if the request has one."""


class Reentries:
    """Used on the event loop's thread. `account` lets the next status count a dispatch."""

    def __init__(self, host: "Serving", moves: EngineMoves, account: Callable[[int], None]) -> None:
        self._host = host
        self._moves = moves
        self._account = account
        self.machine = ReentryMachine()
        self._num_entries = 0
        self._entering: dict[int, _Entering] = {}
        """The entries under way, by the numbers under which the machine knows them."""
        self._tasks: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    # -- events --------------------------------------------------------------------------

    def take(self, add: AddRequest, payload: Sequence[Any]) -> None:
        """Takes a request in its second or a later attempt."""
        self._num_entries += 1
        number = self._num_entries
        self._entering[number] = _Entering(add, [bytes(frame) for frame in payload])
        came = Came(number, add.request_id, add.attempt, add.reply_to, add.dispatch_seq)
        self._tell(came)

    def forget(self, request_ids: Sequence[str]) -> None:
        """Aborts these requests, in whatever state their entries are."""
        self._tell(Aborted(request_ids))

    def _is_arriving(self, number: int) -> bool:
        return self._host.instance_moves.is_arriving(self._entering[number].add.request_id)

    def _tell(self, event: Event) -> None:
        for instruction in self.machine.handle(event, self._host.now_s()):
            match instruction:
                case Drop(request_id):
                    self._host.abort_here((request_id,))
                case Prepare(number):
                    self._begin(self._prepare(number, self._entering[number]))
                case WakeAt(number, time_s):
                    self._begin(self._wake(number, time_s))
                case EndEarlier(request_id, epoch):
                    self._host.end(request_id, epoch)
                case PutIn(number):
                    self._put_in(number, self._entering[number])
                case Begin(number):
                    self._run(self._entering.pop(number))
                case Refuse(number, why, retryable):
                    add = self._entering.pop(number).add
                    self._host.refuse(add, why, retryable=retryable)
                case CallOff(number):
                    compiling = self._entering.pop(number).compiling
                    if compiling is not None:
                        compiling.cancel()  # if it has not begun yet
                case Account(dispatch_seq):
                    self._account(dispatch_seq)

    # -- instructions --------------------------------------------------------------------

    def _begin(self, work: "Coroutine[Any, Any, None]") -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _prepare(self, number: int, entering: _Entering) -> None:
        if number not in self._entering:
            return  # the entry was called off before it began
        try:
            await self._make(entering)
        except ValueError as error:
            self._tell(NotPrepared(number, str(error)))
        except NotYetError as error:
            self._tell(NotPrepared(number, str(error), retryable=True))
        except Exception:
            log.exception("request %s cannot come in again", entering.add.request_id)
            self._tell(NotPrepared(number, NOT_MADE))
        else:
            if number in self._entering:
                self._tell(Prepared(number, self._is_arriving(number)))

    async def _make(self, entering: _Entering) -> None:
        """Prepares the entry. Raises ValueError, and NotYetError if this instance took too long and
        another instance may be faster."""
        add = entering.add
        try:
            await self._host.adapters.wait_for(add.adapter)
        except AdapterFailedError as error:
            raise ValueError(f"{CANNOT_USE_ADAPTER}: {error}") from None
        except TimeoutError:
            raise NotYetError(ADAPTER_NOT_YET) from None
        if add.num_output_tokens:
            entering.outputs = decode_tokens(entering.frames.pop())
        entering.prepared = self._host.prepare(entering.frames, add.reply_to)
        entering.compiling = self._moves.compiling(entering.prepared)
        if not entering.outputs:
            return
        if entering.compiling is not None:
            await _compiled(entering.compiling)
        drawn = self._moves.drawn_generator
        num_outputs = len(entering.outputs)
        entering.generator = await asyncio.to_thread(drawn, entering.prepared, num_outputs)

    async def _wake(self, number: int, time_s: float) -> None:
        await asyncio.sleep(time_s - self._host.now_s())
        if number in self._entering:
            self._tell(Woken(number, self._is_arriving(number)))

    def _put_in(self, number: int, entering: _Entering) -> None:
        self._host.between_steps(
            partial(_enter, entering.prepared, entering.outputs, entering.generator),
            lambda why_not: self._tell(Entered(number, why_not)),
        )

    def _run(self, entering: _Entering) -> None:
        add = entering.add
        self._host.requests[add.request_id] = LiveRequest(
            add.reply_to,
            add.attempt,
            add.hop,
            add.arrival_time_s,
            entering.frames,
            add.num_output_tokens,
            rank=add.rank,
            evicted_at_s=time.time() if add.num_output_tokens else None,
        )


def _enter(prepared: Any, outputs: Sequence[int], generator: Any, engine: Engine) -> str | None:
    """Has the engine take the request. Returns why the engine does not take it, or None. Runs on
    the engine's thread."""
    try:
        if outputs:
            engine.moves.reenter(prepared, outputs, generator)
        else:
            engine.add(prepared)
    except ValueError as error:
        return str(error)
    return None


async def _compiled(compiling: "Future[Any]") -> None:
    try:
        await asyncio.wait_for(asyncio.wrap_future(compiling), GRAMMAR_TIMEOUT_S)
    except TimeoutError:
        raise NotYetError(NOT_YET) from None
    except asyncio.CancelledError:
        if not compiling.cancelled():
            raise
        raise NotYetError(NOT_YET) from None  # no entry here waits for the compilation any more
    except Exception:  # the error's text may quote the grammar
        raise ValueError(NO_GRAMMAR) from None


# How long other threads, which work for moves, wait at most for the GIL while the engine's thread
# holds it. Python's default of 5 ms is a whole step of a small model.
SWITCH_INTERVAL_S = 0.0005
# If the controller does not end a process that must go, the process ends itself this long after
# that moment.
END_MARGIN_S = 2.0
# How often an instance looks whether its machine will be taken away.
NOTICE_EVERY_S = 0.5


class MachineNotice(Protocol):
    """A place on this machine where somebody may say that the machine will be taken away. Its look
    may block."""

    @property
    def why(self) -> str: ...

    def leaves_in_s(self) -> float | None: ...


class Llumlet:
    """An instance's process. If the engine cannot start, the llumlet reports that and stays, so
    that Ray does not restart it for ever."""

    def __init__(
        self,
        member: ControllerLink,
        mailbox: Mailbox,
        build_engine: EngineFactory,
        status_interval_s: float,
        transfer: KvTransfer,
        adapter_files: AdapterFiles,
        machine_notice: MachineNotice | None = None,
    ) -> None:
        self._member = member
        self._mailbox = mailbox
        self._machine_notice = machine_notice
        self._transfer = transfer
        self._adapter_files = adapter_files
        self.serving: Serving | None = None
        """The instance that serves; None until the engine is built."""
        listener = EngineListener(
            on_loading=lambda detail: member.report("starting", detail),
            on_built=self._serve,
            on_failed=lambda error: member.report("failed", error),
            on_died=self._end,
            on_long_turn=lambda: member.say_hello(asks=True),
        )
        self._thread = EngineThread(member, build_engine, status_interval_s, listener)
        self._inbox = Inbox(
            {
                DispatchUnused: self._on_unused,
                CacheAsked: lambda _: self._thread.report_cache_anew(),
                StatusPull: lambda _: self._thread.answer_pull(),
                StatusPushSet: self._on_status_push,
                StepTimeSet: self._on_step_time,
                Welcome: self._on_welcome,
                MoveAsked: self._refuse_early_move,
                AbortRequests: _ignore,
                OutputsReceived: _ignore,
                OutputsUnread: _ignore,
                InstanceLost: _ignore,
            },
            {AddRequest: self._refuse_early},
        )
        """Messages that come before the engine is built are for an earlier incarnation. Once it is
        built, the handlers of `serving` replace these."""
        self._stopped: asyncio.Future[None]

    @property
    def num_live_reqs(self) -> int:
        return 0 if self.serving is None else self.serving.num_live_reqs

    def must_go(self, within_s: float) -> None:
        """Asks the controller to empty this instance within `within_s`, because its process will be
        ended then. If nobody ends the process, it ends by itself a little later."""
        log.warning("told to end within %.0f s: its requests are to move", within_s)
        self._member.must_go(within_s)
        ended = RuntimeError(f"it was told to end {within_s:.0f} s ago")
        asyncio.get_running_loop().call_later(within_s + END_MARGIN_S, self._end, ended)

    async def _look_for_notice(self, notice: MachineNotice) -> None:
        self._member.machine_leaves(await asyncio.to_thread(notice.leaves_in_s), notice.why)

    def _end(self, error: BaseException) -> None:
        if not self._stopped.done():
            self._stopped.set_exception(error)

    async def run(self) -> None:
        """Serves until the engine thread dies; raises the error of which it died."""
        self._stopped = asyncio.get_running_loop().create_future()
        self._mailbox.start(self._inbox.take, self._on_lost)
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        repeated = [asyncio.create_task(self._member.keep_saying_hello())]
        if self._machine_notice is not None:
            look = partial(self._look_for_notice, self._machine_notice)
            await look()  # before the first Hello, which would say that there is no notice
            repeated.append(asyncio.create_task(repeat(NOTICE_EVERY_S, "the notice", look)))
        self._thread.start()
        try:
            await self._stopped
        finally:
            for each in repeated:
                each.cancel()
            if self.serving is not None:
                self.serving.close()
            await self._transfer.close()
            await self._mailbox.close()

    def _on_unused(self, unused: DispatchUnused) -> None:
        if unused.incarnation == self._member.incarnation:
            self._thread.account(unused.dispatch_seq)

    def _on_status_push(self, told: StatusPushSet) -> None:
        self._thread.status_interval_s = told.status_interval_s
        self._thread.status_phases = told.phases

    def _on_step_time(self, told: StepTimeSet) -> None:
        self._thread.command(lambda engine: engine.limit_steps(told.limit))

    def _on_welcome(self, welcome: Welcome) -> None:
        if self._member.welcomed(welcome) and self.serving is not None:
            self.serving.fenced()
        self._thread.cleared()

    def _refuse_early(self, add: AddRequest, _payload: Sequence[memoryview]) -> None:
        why = "its instance has restarted; send it again"
        refused = RequestRefused(add.request_id, why, retryable=True, attempt=add.attempt)
        self._send(add.reply_to, refused)

    def _refuse_early_move(self, asked: MoveAsked) -> None:
        unknown = MoveAnswered(asked.query_id, MoveRefusal.UNKNOWN)
        self._send(self._member.controller_address, unknown)

    def _on_lost(self, address: str) -> None:
        if self.serving is not None:
            self.serving.address_lost(address)

    def _serve(self, engine: Engine) -> "Serving | None":
        try:
            self.serving = serving = Serving(
                self._member,
                self._mailbox,
                engine,
                self._thread,
                self._transfer,
                self._adapter_files,
            )
        except Exception as error:  # there is no socket or no memory for a buffer
            log.exception("the engine was built but cannot serve")
            self._member.report("failed", f"{type(error).__name__}: {error}")
            return None
        self._inbox.handlers |= serving.handlers
        self._inbox.with_payload |= serving.payload_handlers
        gc.freeze()  # so that no garbage collection walks the engine's objects again
        info = EngineInfo(
            engine.max_model_len, engine.num_gpu_blocks, engine.block_size, engine.supported_tasks
        )
        self._member.fingerprint = engine.moves.fingerprint
        self._member.report("active", info=info)
        return serving

    def _send(self, address: str, message: Message) -> None:
        self._mailbox.send(address, encode(message))


def _ignore(_message: Message) -> None:
    pass


# Moves repeat messages and time out by the clock; the shortest of their times is 0.2 s.
MOVES_TICK_S = 0.05


class Serving:
    """An instance whose engine serves. Starts `transfer`, but does not close it: the llumlet that
    made this object does."""

    def __init__(
        self,
        member: ControllerLink,
        mailbox: Mailbox,
        engine: Engine,
        thread: EngineThread,
        transfer: KvTransfer,
        adapter_files: AdapterFiles,
    ) -> None:
        self._member = member
        self._mailbox = mailbox
        self._engine = engine
        self._thread = thread
        self._loop = asyncio.get_running_loop()
        self._frontends: list[str] = []  # an engine's frontend_index is a position in this list
        self.requests: dict[str, LiveRequest] = {}
        self.blocks, self.fingerprint = engine.moves.blocks, engine.moves.fingerprint
        self.allow_inexact = False
        self.links = LinkChecks()
        self.transfer = transfer
        transfer.start(self.blocks, self._tell_transfer)
        # These two methods of MoveHost are methods of other objects.
        self.between_steps, self.compiling = thread.between_steps, engine.moves.compiling
        self.push_status = thread.push_status
        controller = member.controller_address
        self.instance_moves = InstanceMoves(self, engine.block_size, controller)
        self.set_rank = self.instance_moves.set_rank
        self._orders = OrderedMoves(self, self.instance_moves)
        self.chosen_moves = ChosenMoves(self, self.instance_moves)
        self.emission = Emission(
            member,
            mailbox,
            engine,
            self.requests,
            self._frontends,
            self._finished,
        )
        self.encode_output = self.emission.encode_output
        self._reentries = Reentries(self, engine.moves, thread.account)
        self.adapters = AdapterRunner(thread, adapter_files, thread.answer_pull)
        self._awaiting_adapter: dict[str, tuple[AddRequest, asyncio.Task[None]]] = {}
        """The requests that came before their adapter was loaded, by id, each with the task that
        takes it in later."""
        self.fetches = PrefixFetches(self, engine.block_size)
        self.handovers = Handovers(
            self,
            self.fetches,
            engine.prefixes,
            engine.block_size,
            lambda ended: self.send(member.controller_address, ended),
            lambda: self.instance_moves.draining,
        )
        self._has_host_cache = False
        self._ticking = asyncio.create_task(self._tick_moves())

    @property
    def num_live_reqs(self) -> int:
        return len(self.requests) + len(self._awaiting_adapter) + len(self.fetches)

    def close(self) -> None:
        self._ticking.cancel()
        self._reentries.close()
        self.adapters.close()
        for _, task in self._awaiting_adapter.values():
            task.cancel()

    @property
    def handlers(self) -> Handlers:
        return {
            AbortRequests: lambda aborted: self.abort(aborted.request_ids),
            OutputsReceived: self._on_received,
            OutputsMissing: self.emission.send_again,
            OutputsUnread: self._on_unread,
            RankSet: self._take_rank,
            InstanceLost: self._on_instance_lost,
            AdaptersSet: self.adapters.told,
            MoveAsked: self._orders.asked,
            MoveRefusalAsked: self._orders.refusals_asked,
            MoveLimitsSet: self._on_move_limits,
            ReliefOrdered: self.chosen_moves.relief_ordered,
            HeadMoveOrdered: self.chosen_moves.room_ordered,
            RoomOrdered: self.chosen_moves.room_ordered,
            DrainSet: self._on_drain,
            HandoverOrdered: self.handovers.ordered,
            PromptTaken: self.handovers.taken,
            FenceAnswered: self.instance_moves.fence_answered,
            OwnerAsked: self.instance_moves.owner_asked,
            PrefixUnwanted: lambda told: self.fetches.unwanted(told.key),
            OwnerConfirmed: self.instance_moves.owner_confirmed,
        }

    @property
    def payload_handlers(self) -> PayloadHandlers:
        return {
            AddRequest: self._take_in,
            MoveEnvelope: self.instance_moves.receive,
            PrefixAsked: self.fetches.asked,
            PrefixDigest: lambda told, _: self.fetches.digest_told(told),
            PromptOffered: self.handovers.offered,
            TransferMessage: lambda told, frames: self.transfer.told(told.sender, frames),
        }

    def _on_received(self, received: OutputsReceived) -> None:
        for request_id, next_index in received.items:
            if live := self.requests.get(request_id):
                live.received(next_index)

    def _on_instance_lost(self, lost: InstanceLost) -> None:
        self._peer_lost(lambda peer: peer.key == (lost.instance_id, lost.incarnation))

    def _on_move_limits(self, limits: MoveLimitsSet) -> None:
        self.instance_moves.max_moves = limits.max_moves
        self.transfer.max_bytes_per_s = limits.max_bytes_per_s
        self.allow_inexact = limits.allow_inexact

    def _on_drain(self, drain: DrainSet) -> None:
        self.instance_moves.draining = drain.draining
        leaves_in_s = drain.leaves_in_s
        leaves_at_s = None if leaves_in_s is None else self.now_s() + leaves_in_s
        self.instance_moves.leaves_at_s = leaves_at_s
        if not drain.draining:
            self.chosen_moves.drain_ended()
        self._thread.push_status()

    def _take_rank(self, wanted: RankSet) -> None:
        """Takes a changed rank. If the request is not here, its frontend asks the next owner."""
        live = self.requests.get(wanted.request_id)
        if live is None:
            return
        if wanted.change > live.rank_change:
            live.rank_change = wanted.change
            self.set_rank(wanted.request_id, wanted.rank)
        confirmed = RankConfirmed(
            wanted.request_id,
            live.rank_change,
            self._member.member_id,
            self._member.incarnation,
            live.hop,
            live.attempt,
        )
        self.send(live.frontend, confirmed)

    def _take_in(self, add: AddRequest, payload: Sequence[memoryview | bytes]) -> None:
        if add.incarnation != self._member.incarnation:
            self.refuse(add, "its instance has restarted; send it again", retryable=True)
            return
        live = self.requests.get(add.request_id)
        here = None if live is None else live.epoch
        if self.instance_moves.is_outdated(add.request_id, add.attempt, here):
            self._thread.account(add.dispatch_seq)
            return
        if add.attempt > 0:
            self.send(add.reply_to, ReplayTaken(add.request_id, add.attempt))
            self._reentries.take(add, payload)
            return
        if not self.adapters.is_loaded(add.adapter):
            frames = [bytes(frame) for frame in payload]
            task = self._loop.create_task(self._take_in_later(add, frames))
            self._awaiting_adapter[add.request_id] = add, task
            self._thread.account(add.dispatch_seq)  # `report` counts the request
            return
        try:
            prepared = self.prepare(payload, add.reply_to)
        except ValueError as error:
            self.refuse(add, str(error))
            self._thread.account(add.dispatch_seq)
            return
        frames = [bytes(frame) for frame in payload]
        if add.fetch is None:
            self._enter(add, prepared, frames)
            return
        self._thread.account(add.dispatch_seq)  # `report` counts the request
        enter = partial(self._enter, add, prepared, frames)
        self.fetches.begin(add, add.fetch, prepared, enter)

    def _enter(self, add: AddRequest, prepared: Any, frames: list[bytes]) -> None:
        """Hands a request to the engine."""
        self.requests[add.request_id] = LiveRequest(
            add.reply_to, add.attempt, add.hop, add.arrival_time_s, frames, rank=add.rank
        )
        self._thread.add(add, prepared, self.refuse)

    async def _take_in_later(self, add: AddRequest, frames: Sequence[bytes]) -> None:
        """Takes a request in once its adapter is loaded, or refuses it."""
        why, retryable = "", False
        try:
            await self.adapters.wait_for(add.adapter)
        except AdapterFailedError as error:
            why = f"{CANNOT_USE_ADAPTER}: {error}"
        except TimeoutError:
            why, retryable = ADAPTER_NOT_YET, True
        finally:
            self._awaiting_adapter.pop(add.request_id, None)
        if why:
            self.refuse(add, why, retryable=retryable)
        else:
            self._take_in(add, frames)

    def refuse(self, add: AddRequest, message: str, *, retryable: bool = False) -> None:
        live = self.requests.get(add.request_id)
        if live is not None and live.attempt <= add.attempt:
            del self.requests[add.request_id]
        self.send(add.reply_to, RequestRefused(add.request_id, message, retryable, add.attempt))

    def abort(self, request_ids: Sequence[str]) -> None:
        self._reentries.forget(request_ids)
        self.abort_here(request_ids)

    def abort_here(self, request_ids: Sequence[str]) -> None:
        """Aborts requests that are on this instance. A later attempt that is on its way into the
        engine goes on."""
        for request_id in request_ids:
            if (awaiting := self._awaiting_adapter.pop(request_id, None)) is not None:
                awaiting[1].cancel()
        self.fetches.left(request_ids)
        epochs = {r: live.epoch for r in request_ids if (live := self.requests.pop(r, None))}
        self._thread.command(lambda engine: engine.abort(request_ids))
        self._thread.push_status()
        for request_id in request_ids:
            self.instance_moves.client_left(request_id, epochs.get(request_id, FIRST_EPOCH))

    def _on_unread(self, unread: OutputsUnread) -> None:
        for request_id, attempt, hop in unread.items:
            self._stop_unread(request_id, Epoch(attempt, hop))

    def _stop_unread(self, request_id: str, epoch: Epoch) -> None:
        """Aborts the request, because nobody reads its tokens, unless it runs here in another epoch
        or may have moved on."""
        live = self.requests.get(request_id)
        if live is None or live.epoch != epoch or self.instance_moves.handed_on(request_id, epoch):
            return
        log.warning("request %s is read by nobody in %s: aborted", request_id, epoch)
        self.abort_here((request_id,))
        self.send(live.frontend, RequestLost(request_id, epoch.hop, epoch.attempt, owner=self.me))

    def fenced(self) -> None:
        """Drops all requests and moves of this incarnation, because another one begins."""
        log.warning("fenced: dropping %d requests", len(self.requests))
        self.chosen_moves.fenced()
        self.instance_moves.fenced()
        fetching = (add.request_id for add, _ in self.fetches.waiting())
        awaiting = (*self._awaiting_adapter, *fetching)
        self.abort((*self.requests, *awaiting, *self._reentries.machine.request_ids))

    def address_lost(self, address: str) -> None:
        """Handles the loss of a peer. If the peer was a frontend, its requests are aborted, because
        nobody reads their tokens."""
        self._peer_lost(lambda peer: peer.address == address)
        self.instance_moves.frontend_lost(address)
        self.emission.frontend_lost(address)
        orphans = [r for r, live in self.requests.items() if live.frontend == address]
        orphans += [r for r, (add, _) in self._awaiting_adapter.items() if add.reply_to == address]
        orphans += [a.request_id for a, _ in self.fetches.waiting() if a.reply_to == address]
        orphans += self._reentries.machine.of_frontend(address)
        if orphans:
            log.warning("frontend at %s is gone: aborting %d requests", address, len(orphans))
            self.abort(orphans)

    def _peer_lost(self, is_lost: Callable[[InstanceRef], bool]) -> None:
        self.chosen_moves.peer_lost(is_lost)
        self.instance_moves.peer_lost(is_lost)
        self.fetches.peer_lost(is_lost)
        self.handovers.peer_lost(is_lost)

    def _finished(self, request_id: str, live: LiveRequest) -> None:
        self.instance_moves.request_finished(request_id)
        self.handovers.finished(request_id, live.frames)

    # -- from the engine's thread --------------------------------------------------------

    def stepped(self, outputs: Sequence[StepOutputs], step_time_s: float) -> None:
        if any(each.emitted for each in outputs):
            self.chosen_moves.step_times_s.append(step_time_s)
        self.emission.emit(outputs, step_time_s)

    def rested(self) -> None:
        self.emission.tell_rest()

    def happened(self, events: Sequence[EngineEvent], num_steps: int) -> None:
        """Reports the events to the controller's log, and to the history of each request at its
        frontend."""
        cause_id = f"step-{self._member.member_id}-{self._member.incarnation}-{num_steps}"
        by_frontend: dict[str, list[LoggedEvent]] = {}
        for event in events:
            logged = self._logged(event, cause_id)
            self._member.tell(logged)
            if live := self.requests.get(event.request_id):
                by_frontend.setdefault(live.frontend, []).append(logged)
                if event.kind == "evicted":
                    live.evicted_at_s = event.time_s
                    if live.arrived_by is not None:
                        live.arrived_by = replace(live.arrived_by, waited=True)
        for frontend, its_events in by_frontend.items():
            self._mailbox.send(frontend, encode(RequestEvents(tuple(its_events))))
        for event in events:
            if event.kind == "evicted":
                self.instance_moves.request_evicted(event.request_id)

    def _logged(self, event: EngineEvent, cause_id: str) -> LoggedEvent:
        numbers, labels = {"num_tokens": event.num_tokens}, {}
        if event.kind == "admitted":
            kind, reason = EventKind.ADMITTED, "into the batch"
            numbers["num_cached_tokens"] = event.num_cached_tokens
            if event.continued:
                reason = "into the batch, its state computed again: later tokens may differ"
                labels["exact"] = "continued"
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
            labels=labels,
        )

    def report(self, status: StatusPushed) -> None:
        """Sends the status with figures that the engine does not know."""
        ttft_p99 = self.emission.ttft_p99()
        self._has_host_cache |= status.host_cache is not None  # its first report comes in any case
        whole = msgspec.structs.replace(
            status,
            snapshot=replace(
                self._with_awaiting(status.snapshot),
                draining=self.instance_moves.draining,
                queue_head=self._dated(status.snapshot.queue_head),
                failed_adapters=self.adapters.machine.failures(),
                copy_token_s=self.fetches.copy_token_s() if self._engine.prefixes else 0.0,
                load_token_s=self.fetches.load_token_s() if self._has_host_cache else 0.0,
                corrupt_links=self.links.view(self.now_s()),
            ),
            num_fetched_tokens=self.fetches.num_fetched_tokens,
            num_fetched_tokens_last_minute=self.fetches.fetched_last_minute(),
            num_loaded_tokens=self.fetches.num_loaded_tokens,
            num_loaded_tokens_last_minute=self.fetches.loaded_last_minute(),
            ttft_p99_s=ttft_p99.all_s,
            ttft_p99_by_rank_s=ttft_p99.by_kind_s,
            moves=self.instance_moves.in_flight(),
            num_moves_in=self.instance_moves.num_moves_in,
        )
        self._mailbox.send(self._member.controller_address, encode(whole), droppable=True)

    def _with_awaiting(self, snapshot: InstanceSnapshot) -> InstanceSnapshot:
        """Counts the requests that wait for their adapter or their prefix as queued. How many
        blocks those with an adapter need is not known here."""
        if not self._awaiting_adapter and not len(self.fetches):
            return snapshot
        by_rank = Counter(snapshot.num_queued_by_rank)
        by_rank.update(add.rank for add, _ in self._awaiting_adapter.values())
        demand_blocks, backlog_s = snapshot.queued_demand_blocks, snapshot.backlog_s
        for add, fetch in self.fetches.waiting():
            by_rank[add.rank] += 1
            demand_blocks += snapshot.demand_for(fetch.num_prompt_tokens)
            backlog_s += snapshot.prefill_speed.time_s(fetch.num_tokens, fetch.num_prompt_tokens)
        return replace(
            snapshot,
            num_queued=snapshot.num_queued + len(self._awaiting_adapter) + len(self.fetches),
            num_queued_by_rank=by_rank,
            queued_demand_blocks=demand_blocks,
            backlog_s=backlog_s,
        )

    def _dated(self, head: QueueHead | None) -> QueueHead | None:
        """The queue head with the time of its eviction, if it was evicted."""
        if head is None or not head.evicted or (live := self.requests.get(head.request_id)) is None:
            return head
        return replace(head, evicted_at_s=live.evicted_at_s)

    async def _tick_moves(self) -> None:
        """Ticks the moves. It sleeps while there are none, so that an idle instance uses no CPU
        time."""
        while True:
            await self.instance_moves.busy.wait()
            await asyncio.sleep(MOVES_TICK_S)
            try:
                self.instance_moves.tick()
            except Exception:  # without ticks no move would ever end
                log.exception("moves: a tick failed")

    # -- what moves need (MoveHost) ------------------------------------------------------

    @property
    def me(self) -> InstanceRef:
        return InstanceRef(self._member.member_id, self._member.incarnation, self._mailbox.address)

    def now_s(self) -> float:
        return self._loop.time()

    def send(self, address: str, message: Message, payload: Sequence[Any] = ()) -> None:
        self._mailbox.send(address, encode(message), payload)

    def tell(self, event: LoggedEvent, frontend: str) -> None:
        self._member.tell(event)
        if frontend:
            self.send(frontend, RequestEvents((event,)))

    def copy_differed(self, copied: CorruptCopy, frontend: str) -> None:
        source = copied.source.instance_id
        self.links.differed(copied.source, self.now_s())
        event = LoggedEvent(
            EventKind.COPY_CORRUPT,
            time.time(),
            copied.cause_id,
            f"{copied.what} from {source} arrived changed, and was not used",
            instance_id=self._member.member_id,
            incarnation=self._member.incarnation,
            request_id=copied.request_id,
            numbers={"num_blocks": copied.num_blocks},
            labels={"from": source, "to": self._member.member_id, "copied": copied.what},
        )
        self.tell(event, frontend)
        self.fetches.distrust(copied.source)
        self.push_status()

    def prepare(self, frames: Sequence[Any], frontend: str) -> Any:
        if frontend not in self._frontends:
            self._frontends.append(frontend)
        return self._engine.prepare(frames, self._frontends.index(frontend))

    def end(self, request_id: str, epoch: Epoch) -> None:
        live = self.requests.get(request_id)
        if live is None:
            self.instance_moves.client_left(request_id, epoch)
        elif live.attempt <= epoch.attempt:
            self.abort_here((request_id,))

    def _tell_transfer(self, peer: InstanceRef, frames: Frames) -> None:
        self.send(peer.address, TransferMessage(self.me), frames)
