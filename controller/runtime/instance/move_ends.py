"""Both ends of a move, as an instance runs them: the source (`OutgoingMove`), which copies the
blocks stage by stage, and the destination (`IncomingMove`). Each carries out what its machine in
`core/migration` instructs.
"""

import asyncio
import hashlib
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from controller.core.load.snapshot import InstanceRef, blocks_for
from controller.core.migration import destination, source
from controller.core.migration.destination import DestinationMove
from controller.core.migration.move_records import MoveInFlight, MoveOrder, MoveRecord, StageRecord
from controller.core.migration.ownership import Epoch
from controller.core.migration.protocol import (
    CancelCopy,
    MoveMessage,
    Say,
    SetRank,
    StageCopied,
    StageLost,
    Verb,
    blocks_to_reserve,
    is_last,
)
from controller.core.migration.refusals import (
    MoveRefusal,
    differing_parts,
    refusal_between,
    refusal_of,
    why,
)
from controller.core.migration.source import SourceMove
from controller.core.record.event_log import EventKind, LoggedEvent, Number
from controller.ports.engine import (
    Engine,
    Frames,
    KvBlocks,
    PinnedBlocks,
    ReservedBlocks,
    StageCopy,
    SuspendedRequest,
)
from controller.runtime.instance.live_requests import (
    CorruptCopy,
    LiveRequest,
    MoveHost,
    PastInstances,
    UnconfirmedOutput,
)
from controller.runtime.messages.codec import decode_tokens, encode_tokens
from controller.runtime.messages.move_messages import (
    ArrivingRequest,
    CommittedRequest,
    FenceAsked,
    MoveAnnounced,
    MoveEnvelope,
    RequestLost,
    RequestMoved,
    RequestNotMoved,
    UnconfirmedFrames,
)

log = logging.getLogger(__name__)

STATE = source.SourceState


@dataclass(frozen=True, slots=True)
class _Planned:
    """What the engine's thread found out for one stage between two steps. Only the first stage has
    `outputs`."""

    pinned: PinnedBlocks | None
    outputs: Sequence[int]


class OutgoingMove:
    """A move from this instance. `on_closed` gets the move's record. `decision`: the figures by
    which the move was chosen, for the event of the move."""

    def __init__(
        self,
        host: MoveHost,
        order: MoveOrder,
        block_size: int,
        on_closed: Callable[[MoveRecord], None],
        decision: Mapping[str, Number],
    ) -> None:
        self.order = order
        self.migration_id, self.request_id = order.migration_id, order.request_id
        self._on_closed = on_closed
        self._decision = decision
        self._host = host
        self._block_size = block_size
        self._live: LiveRequest = host.requests[order.request_id]
        self._attempt = self._live.attempt
        self.machine = SourceMove(self._live.hop, host.now_s())
        self._began_s = host.now_s()
        self._queued = False
        self._outputs: Sequence[int] = ()
        self._pinned: list[int] = []
        """The full blocks that are pinned, in order, from the request's first block on."""
        self._num_reserved = 0
        self._tail_ids: tuple[int, ...] = ()
        """The tail that the next copy sends."""
        self._copies = StageCopies(host, order, self.handle, lambda: self.machine.over)
        self._suspended: SuspendedRequest | None = None
        self._taken_out = False
        """Whether the request is out of the batch and may have to be resumed. Used on the engine's
        thread."""
        self.reserved_s: float | None = None
        """When this source heard that the destination has reserved blocks for the request."""
        self._num_tokens = 0
        self._differing: tuple[str, ...] = ()
        """What `MoveRecord.differing` says."""
        self._encoded: dict[int, Frames] = {}

    @property
    def epoch(self) -> Epoch:
        """The epoch in which the request runs on this instance, or last ran on it."""
        return Epoch(self._attempt, self.machine.hop)

    def begin(self) -> None:
        self._carry_out(self.machine.start())

    def handle(self, event: object) -> None:
        self._carry_out(self.machine.handle(event, self._host.now_s()))

    def tick(self) -> None:
        stalled_s = self._host.transfer.stalled_s(self.order.destination)
        self._carry_out(self.machine.tick(self._host.now_s(), stalled_s))

    def receive(self, envelope: MoveEnvelope) -> None:
        """Takes a message of the destination."""
        message = envelope.message
        is_first = message.stage == 0 and self._copies.num_copied == 0
        if message.verb is Verb.PRE_ALLOCATED:  # and not if the move is refused
            self._differing = envelope.differing
        if is_first and message.verb is Verb.PRE_ALLOCATED:
            self._copies.cached(message.num_blocks)
            self.reserved_s = self._host.now_s()
        self.handle(message)

    def in_flight(self) -> MoveInFlight:
        return MoveInFlight(
            self.order.migration_id,
            self.order.request_id,
            self.order.destination.instance_id,
            self.machine.state,
            self.machine.stage,
            self._copies.num_copied,
            max(self._copies.num_copied, self._num_blocks),
            self.order.reason,
            self._host.now_s() - self._began_s,
        )

    @property
    def _num_blocks(self) -> int:
        """The number of the request's blocks at the latest look; 0 while it is queued."""
        return 0 if self._queued else blocks_for(self._num_tokens, self._block_size)

    def _carry_out(self, instructions: Sequence[source.Instruction]) -> None:
        host, order = self._host, self.order
        for instruction in instructions:
            match instruction:
                case source.PlanStage(stage=stage):
                    host.between_steps(partial(self._plan, stage), self._on_planned)
                case Say(message=message):
                    self._send(message)
                case source.AnnounceMove(hop=hop):
                    announced = MoveAnnounced(
                        order.request_id, hop, self._attempt, destination=order.destination
                    )
                    host.send(self._live.frontend, announced)
                    self._encode_unconfirmed()  # now, while the request still decodes
                case source.CopyStage(stage=stage):
                    # Full blocks; once the request is suspended, its tail and all blocks that hold
                    # computed tokens.
                    out, num_there = self._suspended, self._copies.num_copied
                    held = tuple(self._pinned) if out is None else out.block_ids
                    self._copies.copy(stage, held[num_there : self._num_reserved], self._tail_ids)
                    self._tail_ids = ()
                case CancelCopy():
                    self._copies.cancel()
                case source.Suspend():
                    host.between_steps(self._suspend, self._on_suspended)
                case source.Resume(hop=hop):
                    self._live.hop = hop
                    host.between_steps(self._resume)
                case source.Release():
                    live = host.requests.get(order.request_id)
                    if live is self._live:  # otherwise a later attempt came in
                        del host.requests[order.request_id]
                    host.between_steps(lambda engine: engine.moves.release(order.request_id))
                    host.push_status()
                case source.Unpin():
                    self.unpin()
                case source.AskFence(hop=hop):
                    asked = FenceAsked(order.request_id, hop, self._attempt, owner=host.me)
                    host.send(self._live.frontend, asked)
                case source.TellLost(hop=hop):
                    lost = RequestLost(
                        order.request_id, hop, self._attempt, owner=order.destination
                    )
                    host.send(self._live.frontend, lost)
                case SetRank(rank=rank):
                    host.between_steps(partial(self._set_rank, rank))
                case source.Close(outcome=outcome, code=code):
                    self._close(outcome, code)

    def _set_rank(self, rank: int, engine: Engine) -> None:
        """Changes the request's rank in the engine. Runs on the engine's thread."""
        engine.moves.set_rank(self.order.request_id, rank)

    def unpin(self) -> None:
        request_id = self.order.request_id
        self._host.between_steps(lambda engine: engine.moves.unpin(request_id))

    # -- stages --------------------------------------------------------------------------

    def _plan(self, stage: int, engine: Engine) -> _Planned | MoveRefusal | str:
        """Pins the blocks of the next stage. Returns what the stage has to copy or, if the request
        cannot move, the reason. Runs on the engine's thread."""
        moves, request_id = engine.moves, self.order.request_id
        outputs: Sequence[int] = ()
        if stage == 0:
            if (refusal := refusal_of(moves.facts(request_id))) is not None:
                return refusal
            outputs = tuple(moves.outputs(request_id))
            if moves.is_queued(request_id):
                return _Planned(None, outputs)
        pinned = moves.pin(request_id, len(self._pinned))
        return "evicted" if pinned is None else _Planned(pinned, outputs)

    def _on_planned(self, planned: "_Planned | MoveRefusal | str") -> None:
        if self.machine.over:
            return
        if isinstance(planned, str):
            self.handle(source.CannotMove(str(planned)))
            return
        if self.machine.stage == 0:
            self._outputs = planned.outputs
        if planned.pinned is None:
            self._queued = True
            self.handle(source.StagePlanned(0, last=True))
            return
        self._pinned.extend(planned.pinned.block_ids)
        num_left = len(self._pinned) - self._copies.num_copied
        last = is_last(num_left, self.machine.stage, self.order.max_stages)
        self._num_tokens = planned.pinned.num_tokens
        self._num_reserved = blocks_to_reserve(self._num_tokens, self._block_size, last=last)
        if last:
            num_left = self._num_blocks - self._copies.num_copied + planned.pinned.num_tail
        least_time_s = self._copies.least_time_s(num_left)
        self.handle(source.StagePlanned(self._num_reserved, last, least_time_s))

    # -- out of the batch and back -------------------------------------------------------

    def _suspend(self, engine: Engine) -> object:
        """Takes the request out of the batch. Returns the suspended request, an event, or the
        blocks that outgrew the reservation; None if the request is still leaving the batch. Runs on
        the engine's thread."""
        moves, request_id = engine.moves, self.order.request_id
        try:
            if moves.is_queued(request_id) != self._queued:
                return source.CannotMove("admitted") if self._queued else source.RequestEvicted()
            if not self._queued and not self._taken_out:
                pinned = moves.pin(request_id, len(self._pinned))
                if pinned is None:
                    return source.RequestEvicted()
                if blocks_for(pinned.num_tokens, self._block_size) > self._num_reserved:
                    return pinned
            self._taken_out = True
            return moves.suspend(request_id)
        except KeyError:
            self._taken_out = False
            return source.RequestEnded("finished")

    def _on_suspended(self, found: object) -> None:
        if self.machine.over:
            return
        match found:
            case SuspendedRequest():
                self._suspended = found
                self._num_tokens = found.num_tokens
                self._tail_ids = found.tail_ids
                self.handle(source.RequestSuspended())
            case PinnedBlocks():
                self._pinned.extend(found.block_ids)
                # The destination expects a tail, because this stage was to be the last one. Any
                # block that does not change will do.
                self._tail_ids = tuple(self._pinned[-1:]) * found.num_tail
                self.handle(source.RequestOutgrew())
            case None:
                if self.machine.state is STATE.SUSPENDING:
                    self._host.between_steps(self._suspend, self._on_suspended)
            case event:
                self.handle(event)

    def _resume(self, engine: Engine) -> None:
        """Puts the request back if it was taken out. Runs on the engine's thread."""
        if self._taken_out:
            self._taken_out = False
            engine.moves.resume(self.order.request_id)

    # -- words ---------------------------------------------------------------------------

    def _send(self, message: MoveMessage) -> None:
        arriving = committed = None
        payload: list[bytes | memoryview] = []
        if message.verb is Verb.PRE_ALLOC and message.stage == 0:
            live = self._live
            arriving = ArrivingRequest(
                live.frontend,
                live.attempt,
                live.hop,
                live.arrival_time_s,
                self._host.fingerprint,
                self.order.verify_kv,
                live.past_instances.ages(self._host.now_s()),
            )
            payload = [*live.frames, encode_tokens(self._outputs)]
        if message.verb is Verb.COMMIT:
            committed, payload = self._committed()
        order = self.order
        envelope = MoveEnvelope(
            order.migration_id,
            order.request_id,
            self._host.me,
            order.destination,
            message,
            arriving,
            committed,
        )
        self._host.send(order.destination.address, envelope, payload)

    def _committed(self) -> tuple[CommittedRequest, list[bytes | memoryview]]:
        assert self._suspended is not None
        live, payload = self._live, list(self._suspended.state)
        unconfirmed: list[UnconfirmedFrames] = []
        self._encode_unconfirmed()
        for each in live.unconfirmed:
            frames = self._encoded[each.first_index]
            unconfirmed.append(UnconfirmedFrames(each.first_index, each.num_tokens, len(frames)))
            payload.extend(frames)
        committed = CommittedRequest(
            live.next_index,
            len(self._suspended.state),
            tuple(unconfirmed),
            self._copies.digest,
            self._record(STATE.MIGRATED, ""),
            live.rank_change,
            live.rank,
            live.evicted_at_s,
        )
        return committed, payload

    def _encode_unconfirmed(self) -> None:
        for each in self._live.unconfirmed:
            if each.first_index not in self._encoded:
                self._encoded[each.first_index] = self._host.encode_output(
                    each, self.order.request_id
                )

    # -- the end -------------------------------------------------------------------------

    def _record(self, outcome: source.SourceState, code: str) -> MoveRecord:
        order = self.order
        return MoveRecord(
            order.migration_id,
            order.request_id,
            self._host.me.instance_id,
            order.destination.instance_id,
            order.reason,
            outcome,
            code,
            self._num_tokens,
            self._copies.num_cached,
            self._host.now_s() - self._began_s,
            tuple(self._copies.records),
            self._decision,
            waited=self._queued,
            differing=self._differing,
        )

    def _close(self, outcome: source.SourceState, code: str) -> None:
        record = self._record(outcome, code)
        # otherwise the frontend, which knows the downtime, logs it
        if outcome is not STATE.MIGRATED:
            self._host.tell(_failed(record, self._host.me), self._live.frontend)
        # A move that is over is remembered for long, but its prompt and its tokens are not kept.
        self._live = replace(self._live, frames=[], unconfirmed=deque())
        self._outputs, self._suspended, self._encoded = (), None, {}
        self._on_closed(record)


def _failed(record: MoveRecord, me: InstanceRef) -> LoggedEvent:
    return LoggedEvent(
        EventKind.MIGRATION_FAILED,
        time.time(),
        record.migration_id,
        f"{why(record.code) or record.outcome}; {record.reason}",
        instance_id=me.instance_id,
        incarnation=me.incarnation,
        request_id=record.request_id,
        numbers=record.numbers(),
        labels=record.labels(),
    )


class StageCopies:
    """The stages of a move. Each is copied to the destination and, if asked for, digested.

    `on_end` gets the end of each stage. `is_over` says whether the move is over: a copy that ends
    later is not digested.
    """

    def __init__(
        self,
        host: MoveHost,
        order: MoveOrder,
        on_end: Callable[[StageCopied | StageLost], None],
        is_over: Callable[[], bool],
    ) -> None:
        self._host = host
        self._order = order
        self._on_end = on_end
        self._is_over = is_over
        self.num_cached = 0
        self.num_copied = 0
        """How many of the request's first blocks the destination has, cached or copied."""
        self.records: list[StageRecord] = []
        self.digest: bytes | None = None
        """The digest of all blocks copied so far."""
        self._kv_digest = KvDigest(host.blocks) if order.verify_kv else None
        self._stage_id = ""

    def cached(self, num_blocks: int) -> None:
        """Notes that the destination has the first `num_blocks` blocks in its prefix cache."""
        self.num_cached = self.num_copied = num_blocks

    def least_time_s(self, num_blocks: int) -> float:
        """The least time that the copy of `num_blocks` takes under the bandwidth limit."""
        limit = self._host.transfer.max_bytes_per_s
        return num_blocks * self._host.blocks.block_bytes / limit if limit else 0.0

    def copy(self, stage: int, block_ids: tuple[int, ...], tail_ids: tuple[int, ...] = ()) -> None:
        """Copies the tail, if there is one, before the request's next blocks: of these the
        destination may have reserved more than there are."""
        self._stage_id = f"{self._order.migration_id}/{stage}"
        ids = tail_ids + block_ids
        sending = self._host.transfer.send(self._order.destination, self._stage_id, ids)
        sending.add_done_callback(partial(self._on_copied, stage, ids, len(tail_ids)))

    def cancel(self) -> None:
        self._host.transfer.cancel(self._stage_id)

    def _on_copied(
        self,
        stage: int,
        block_ids: Sequence[int],
        num_tail: int,
        sending: "asyncio.Future[StageRecord]",
    ) -> None:
        if sending.cancelled() or (error := sending.exception()) is not None:
            log.info("stage %s was not sent: %s", self._stage_id, error)
            self._on_end(StageLost(stage, "transfer"))
            return
        done = sending.result()
        self.num_copied += done.num_blocks - num_tail
        if done.num_blocks:
            self.records.append(done)
        if self._kv_digest is None or self._is_over():
            self._on_end(StageCopied(stage))
        else:
            self._kv_digest.add(block_ids).add_done_callback(partial(self._on_digested, stage))

    def _on_digested(self, stage: int, digest: "asyncio.Future[bytes]") -> None:
        if digest.cancelled() or (error := digest.exception()) is not None:
            log.error("no digest of stage %s: %s", self._stage_id, error)
            self._on_end(StageLost(stage, "transfer"))
            return
        self.digest = digest.result()
        self._on_end(StageCopied(stage))


# -- the destination -------------------------------------------------------------------------------


_Reserve = Callable[[Engine], ReservedBlocks | MoveRefusal]


class IncomingMove:
    def __init__(self, host: MoveHost, first: MoveEnvelope, payload: Sequence[Any]) -> None:
        """Raises ValueError for a first message without its request."""
        if first.arriving is None or len(payload) < 2:
            raise ValueError("a move began without its request")
        self._host = host
        self._arriving: ArrivingRequest = first.arriving
        self.frontend = first.arriving.frontend
        self.epoch = self._in(first.arriving.hop + 1)
        """The epoch in which the request will run here."""
        self._frames = [bytes(frame) for frame in payload[:-1]]
        self._outputs: Sequence[int] = decode_tokens(payload[-1])
        self._first = first
        self.migration_id, self.request_id = first.migration_id, first.request_id
        self.source: InstanceRef = first.source
        self.machine = DestinationMove(host.now_s())
        self._reserved: ReservedBlocks | None = None
        self._is_last = False
        """Whether the present stage is the last one."""
        self._compiling: Future[Any] | None = None
        """The compilation of the request's grammar."""
        self._holds_something = False
        """Whether the engine has a reservation of this move. Used on the engine's thread."""
        self._num_received = 0
        """How many of the request's first blocks are here, cached or copied."""
        self._num_cached = 0
        self._digest = KvDigest(host.blocks) if self._arriving.verify_kv else None
        self._receiving = ""
        self._differing: tuple[str, ...] = ()
        self._committed: CommittedRequest | None = None
        self._state: list[bytes] = []
        self._unconfirmed: list[UnconfirmedOutput] = []

    def begin(self, refusal: MoveRefusal | None) -> None:
        """Begins with the first message. `refusal`: why this llumlet itself refuses the request, if
        it does."""
        start = self.machine.start(self._first.message)
        if refusal is None:
            fingerprints = self._arriving.fingerprint, self._host.fingerprint
            refusal = refusal_between(*fingerprints, allow_inexact=self._host.allow_inexact)
            # Several ranks store the same weights in another way.
            self._differing = tuple(sorted(differing_parts(*fingerprints) - {"weights"}))
        if refusal is not None:
            self.handle(destination.NotReserved(refusal))
        else:
            self._carry_out(start)

    def handle(self, event: object) -> None:
        self._carry_out(self.machine.handle(event, self._host.now_s()))
        self._let_go()

    def tick(self) -> None:
        self._carry_out(self.machine.tick(self._host.now_s()))
        self._let_go()

    def _let_go(self) -> None:
        """Drops the prompt and the tokens of a move that is over, because the move itself is
        remembered for long."""
        if self.machine.over:
            self._frames, self._outputs, self._state, self._unconfirmed = [], (), [], []
            self._compiling = None

    def receive(self, envelope: MoveEnvelope, payload: Sequence[Any]) -> None:
        """Takes a message of the source."""
        is_news = self._committed is None and not self.machine.over
        if envelope.committed is not None and is_news:
            self._take_committed(envelope.committed, payload)
        self.handle(envelope.message)

    def _take_committed(self, committed: CommittedRequest, payload: Sequence[Any]) -> None:
        self._committed = committed
        frames = [bytes(frame) for frame in payload]
        self._state = frames[: committed.num_state_frames]
        at = committed.num_state_frames
        for each in committed.unconfirmed:
            body = frames[at : at + each.num_frames]
            output = UnconfirmedOutput(each.first_index, each.num_tokens, body, encoded=True)
            self._unconfirmed.append(output)
            at += each.num_frames

    def _carry_out(self, instructions: Sequence[destination.Instruction]) -> None:
        host, request_id = self._host, self.request_id
        for instruction in instructions:
            match instruction:
                case destination.Reserve() as wanted:
                    self._reserve(wanted)
                case destination.Receive(stage=stage):
                    self._receive(stage)
                case CancelCopy():
                    host.transfer.cancel(self._receiving)
                case destination.Free():
                    if self._compiling is not None:
                        self._compiling.cancel()
                    host.between_steps(self._free)
                case destination.Apply(rank=rank):
                    self._apply(rank)
                case destination.Drop(hop=hop):
                    live = host.requests.get(request_id)
                    # otherwise the request came back later
                    if live is not None and live.epoch == self._in(hop):
                        del host.requests[request_id]
                        host.between_steps(lambda engine: engine.moves.drop(request_id))
                case destination.EndRequest():
                    host.end(request_id, self._in(self.machine.hop))
                case SetRank(rank=rank):
                    self._set_rank(rank)
                case Say(message=message):
                    envelope = MoveEnvelope(
                        self.migration_id,
                        request_id,
                        self.source,
                        host.me,
                        message,
                        differing=self._differing,
                    )
                    host.send(self.source.address, envelope)
                case destination.TellFrontend(moved=moved, hop=hop):
                    self._tell_frontend(moved, hop)

    # -- blocks --------------------------------------------------------------------------

    def _reserve(self, wanted: destination.Reserve) -> None:
        self._is_last = wanted.last
        if wanted.stage > 0:
            self._reserve_when_ready(wanted, partial(self._extend, wanted.num_blocks))
            return
        try:
            prepared = self._host.prepare(self._frames, self._arriving.frontend)
        except ValueError as error:
            # The error's text, which may quote the request, is not logged.
            log.warning("request %s cannot run here: %s", self.request_id, type(error).__name__)
            self.handle(destination.NotReserved(MoveRefusal.NOT_TAKEN))
            return
        self._compiling = self._host.compiling(prepared)
        first = partial(self._reserve_first, prepared, self._outputs, wanted.num_blocks)
        self._reserve_when_ready(wanted, first)

    def _reserve_when_ready(self, wanted: destination.Reserve, reserve: _Reserve) -> None:
        """Reserves blocks as soon as that makes sense. The final stage waits for the request's
        grammar, unless the request has no outputs: the engine queues such a request until its
        grammar is compiled."""
        if wanted.last and self._outputs and self._compiling is not None:
            compiled = asyncio.wrap_future(self._compiling)
            compiled.add_done_callback(partial(self._on_compiled, reserve))
        else:
            self._host.between_steps(reserve, self._on_reserved)

    def _on_compiled(self, reserve: _Reserve, compiled: "asyncio.Future[Any]") -> None:
        compiles = not compiled.cancelled() and compiled.exception() is None
        if self.machine.state is not destination.DestinationState.RESERVING:
            return  # the move was called off meanwhile
        if compiles:
            self._host.between_steps(reserve, self._on_reserved)
        else:
            self.handle(destination.NotReserved(MoveRefusal.NOT_TAKEN))

    def _reserve_first(
        self, prepared: Any, outputs: Sequence[int], num_blocks: int, engine: Engine
    ) -> ReservedBlocks | MoveRefusal:
        """Reserves a place and the first blocks in the engine. Runs on the engine's thread."""
        reserved = engine.moves.reserve(prepared, outputs, num_blocks)
        self._holds_something = isinstance(reserved, ReservedBlocks)
        return reserved

    def _extend(self, num_blocks: int, engine: Engine) -> ReservedBlocks | MoveRefusal:
        """Reserves more blocks in the engine. Runs on the engine's thread."""
        return engine.moves.extend(self.request_id, num_blocks) or MoveRefusal.NO_BLOCKS

    def _on_reserved(self, reserved: ReservedBlocks | MoveRefusal) -> None:
        if isinstance(reserved, MoveRefusal):
            self.handle(destination.NotReserved(reserved))
            return
        if self._reserved is None:
            self._num_received = self._num_cached = reserved.num_cached
        self._reserved = reserved
        self.handle(destination.Reserved(reserved.num_cached))

    def _free(self, engine: Engine) -> None:
        """Cancels the reservation of this move, and of no other: another move of the request may
        have one too. Runs on the engine's thread."""
        if self._holds_something:
            self._holds_something = False
            engine.moves.cancel(self.request_id)

    def _receive(self, stage: int) -> None:
        assert self._reserved is not None
        self._receiving = f"{self.migration_id}/{stage}"
        tail = self._reserved.tail_ids if self._is_last else ()
        places = tail + self._reserved.block_ids[self._num_received :]
        copy = self._host.transfer.receive(self.source, self._receiving, places)
        copy.add_done_callback(partial(self._on_received, stage, places, len(tail)))

    def _on_received(
        self, stage: int, places: Sequence[int], num_tail: int, copy: "asyncio.Future[StageCopy]"
    ) -> None:
        if copy.cancelled() or (error := copy.exception()) is not None:
            log.info("stage %s did not come: %s", self._receiving, error)
            self.handle(StageLost(stage, "transfer"))
            return
        num_blocks = copy.result().num_blocks
        self._num_received += max(0, num_blocks - num_tail)
        if self._digest is None:
            self.handle(StageCopied(stage))
            return
        digest = self._digest.add(places[:num_blocks])
        if num_tail:  # if this was not the last stage after all, the next one fills them again
            digest.add_done_callback(lambda _: self.handle(StageCopied(stage)))
        else:
            self.handle(StageCopied(stage))

    # -- COMMIT --------------------------------------------------------------------------

    def _apply(self, rank: int | None) -> None:
        if self._digest is None:
            self._commit(rank)
        else:
            self._digest.add(()).add_done_callback(partial(self._on_digested, rank))

    def _on_digested(self, rank: int | None, digest: "asyncio.Future[bytes]") -> None:
        assert self._committed is not None
        told = self._committed.digest
        taken = not digest.cancelled() and digest.exception() is None
        if taken and digest.result() == told:
            self._commit(rank)
            return
        log.error("the KV blocks of %s differ from its source's", self.request_id)
        if taken and told:
            num_copied = self._num_received - self._num_cached
            copied = CorruptCopy(
                self.source, self.migration_id, self.request_id, "its blocks", num_copied
            )
            self._host.copy_differed(copied, self.frontend)
        self.handle(destination.CommitNotApplied("kv_mismatch"))

    def _commit(self, rank: int | None) -> None:
        self._host.between_steps(
            partial(self._commit_between_steps, rank), partial(self._on_committed, rank)
        )

    def _commit_between_steps(self, rank: int | None, engine: Engine) -> str | None:
        """Takes the request into the engine. Returns why its state does not fit, or None. Runs on
        the engine's thread."""
        try:
            engine.moves.commit(self.request_id, self._state)
        except ValueError as error:
            return str(error)
        self._holds_something = False
        if rank is not None:
            engine.moves.set_rank(self.request_id, rank)
        return None

    def _on_committed(self, rank: int | None, why_not: str | None) -> None:
        if why_not is not None:
            log.error("request %s did not fit in: %s", self.request_id, why_not)
            self.handle(destination.CommitNotApplied("not_applied"))
            return
        committed, arriving = self._committed, self._arriving
        assert committed is not None
        live = LiveRequest(
            arriving.frontend,
            arriving.attempt,
            self.machine.hop,
            arriving.arrival_time_s,
            self._frames,
            committed.num_output_tokens,
            rank=committed.rank if rank is None else rank,
            evicted_at_s=committed.evicted_at_s,
            rank_change=committed.rank_change,
            arrived_by=committed.record,
            past_instances=PastInstances.after(
                arriving.past_instances, self.source.instance_id, self._host.now_s()
            ),
        )
        live.unconfirmed.extend(self._unconfirmed)
        newer = self._host.requests.get(self.request_id)
        if newer is None or newer.epoch < live.epoch:  # otherwise the engine has ended this attempt
            self._host.requests[self.request_id] = live
        self.handle(destination.CommitApplied())

    def _set_rank(self, rank: int) -> None:
        """Takes a rank that the source learnt after COMMIT, unless the frontend has told this
        instance a newer one."""
        assert self._committed is not None
        live = self._host.requests.get(self.request_id)
        if live is None or live.epoch != self._in(self.machine.hop):
            return
        if live.rank_change == self._committed.rank_change:
            self._host.set_rank(self.request_id, rank)

    # -- words ---------------------------------------------------------------------------

    def _in(self, hop: int) -> Epoch:
        return Epoch(self._arriving.attempt, hop)

    def _tell_frontend(self, moved: bool, hop: int) -> None:
        attempt = self._arriving.attempt
        if not moved:
            not_moved = RequestNotMoved(self.request_id, hop or self.epoch.hop, attempt)
            self._host.send(self._arriving.frontend, not_moved)
            return
        assert self._committed is not None
        began = self._committed.num_output_tokens
        # This instance may have been fenced since. Its next incarnation does not have the request.
        owner = self._first.destination
        moved_here = RequestMoved(self.request_id, hop, attempt, owner=owner, began_index=began)
        self._host.send(self._arriving.frontend, moved_here)


# -- a digest of the copied blocks -----------------------------------------------------------------

SLICE_BYTES = 4 << 20
"""How many bytes are read at a time for a digest."""


class KvDigest:
    """A digest of the copied blocks of one move or fetch, to compare both sides with. Used from the
    event loop's thread; another thread reads the blocks in slices, about 1 s per GiB.

    Full blocks do not change any more, so each stage's blocks of a move are read after their copy,
    while the request decodes on. Only the blocks of the last stage, one or two, are read while the
    request is suspended.
    """

    def __init__(self, blocks: KvBlocks) -> None:
        self._blocks = blocks
        self._digest = hashlib.blake2b(digest_size=32)
        self._last: asyncio.Task[bytes] | None = None

    def add(self, block_ids: Sequence[int]) -> "asyncio.Future[bytes]":
        """Adds blocks, which must not change until the future is done; its result is 32 bytes over
        all blocks so far, in order. If blocks cannot be read, this future and all later ones
        fail."""
        taking = self._take(self._last, tuple(block_ids))
        self._last = asyncio.get_running_loop().create_task(taking)
        self._last.add_done_callback(_heeded)
        return self._last

    async def _take(self, before: "asyncio.Task[bytes] | None", block_ids: Sequence[int]) -> bytes:
        if before is not None:
            await before
        return await asyncio.get_running_loop().run_in_executor(None, self._read, block_ids)

    def _read(self, block_ids: Sequence[int]) -> bytes:
        num_per_slice = max(1, SLICE_BYTES // self._blocks.block_bytes)
        buffer = self._blocks.buffer(num_per_slice)
        for first in range(0, len(block_ids), num_per_slice):
            there = block_ids[first : first + num_per_slice]
            self._digest.update(self._blocks.gather(there, buffer))
        return self._digest.digest()


def _heeded(taking: "asyncio.Task[bytes]") -> None:
    """Marks a failure as seen: the next `add` fails too, or the move is over."""
    if not taking.cancelled():
        taking.exception()
