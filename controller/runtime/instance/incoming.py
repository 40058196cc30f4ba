"""A move of which this instance is the destination: carries out what its machine instructs."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from controller.core.instance_ref import InstanceRef
from controller.core.migration import destination
from controller.core.migration.destination import DestinationMove
from controller.core.migration.ownership import Epoch
from controller.core.migration.protocol import (
    CancelCopy,
    Say,
    SetRank,
    StageCopied,
    StageLost,
)
from controller.core.migration.refusals import MoveRefusal
from controller.ports.engine import Engine, ReservedBlocks
from controller.ports.kv_transfer import StageCopy
from controller.runtime.instance.live_requests import (
    Kept,
    KvDigest,
    LiveRequest,
    MoveHost,
    PastInstances,
)
from controller.runtime.messages.codec import decode_tokens
from controller.runtime.messages.move_messages import (
    ArrivingRequest,
    CommittedRequest,
    MoveEnvelope,
    RequestMoved,
    RequestNotMoved,
)

log = logging.getLogger(__name__)

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
        """In which the request will run here."""
        self._frames = [bytes(frame) for frame in payload[:-1]]
        self._outputs: Sequence[int] = decode_tokens(payload[-1])
        self._first = first
        self.migration_id, self.request_id = first.migration_id, first.request_id
        self.source: InstanceRef = first.source
        self.machine = DestinationMove(host.now_s())
        self._reserved: ReservedBlocks | None = None
        self._compiling: Future[Any] | None = None
        """The compile of the request's grammar."""
        self._holds_something = False
        """Whether the engine has a reservation of this move. Used on the engine's thread."""
        self._num_received = 0
        self._digest = KvDigest(host.blocks) if self._arriving.verify_kv else None
        self._receiving = ""
        self._committed: CommittedRequest | None = None
        self._state: list[bytes] = []
        self._kept: list[Kept] = []

    def begin(self, refusal: MoveRefusal | None) -> None:
        """`refusal`: this llumlet's own reason not to take the request."""
        start = self.machine.start(self._first.message)
        if refusal is None and self._arriving.fingerprint != self._host.fingerprint:
            refusal = MoveRefusal.FINGERPRINT
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
        """Drops the prompt and the tokens of a move that is over, as it is remembered for long."""
        if self.machine.over:
            self._frames, self._outputs, self._state, self._kept = [], (), [], []
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
        for kept in committed.kept:
            body = frames[at : at + kept.num_frames]
            self._kept.append(Kept(kept.first_index, kept.num_tokens, body, encoded=True))
            at += kept.num_frames

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
                    if live is not None and live.epoch == self._in(hop):  # else it came back later
                        del host.requests[request_id]
                        host.between_steps(lambda engine: engine.moves.drop(request_id))
                case destination.EndRequest():
                    host.end(request_id, self._in(self.machine.hop))
                case SetRank(rank=rank):
                    self._set_rank(rank)
                case Say(message=message):
                    envelope = MoveEnvelope(
                        self.migration_id, request_id, self.source, host.me, message
                    )
                    host.send(self.source.address, envelope)
                case destination.TellFrontend(moved=moved, hop=hop):
                    self._tell_frontend(moved, hop)

    # -- blocks --------------------------------------------------------------------------

    def _reserve(self, wanted: destination.Reserve) -> None:
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
        """The last stage waits for the request's grammar, unless the request has no outputs: the
        engine queues such a request until its grammar is compiled."""
        if wanted.last and self._outputs and self._compiling is not None:
            compiled = asyncio.wrap_future(self._compiling)
            compiled.add_done_callback(partial(self._on_compiled, reserve))
        else:
            self._host.between_steps(reserve, self._on_reserved)

    def _on_compiled(self, reserve: _Reserve, compiled: "asyncio.Future[Any]") -> None:
        compiles = not compiled.cancelled() and compiled.exception() is None
        if self.machine.state is not destination.DestinationState.RESERVING:
            return  # called off meanwhile
        if compiles:
            self._host.between_steps(reserve, self._on_reserved)
        else:
            self.handle(destination.NotReserved(MoveRefusal.NOT_TAKEN))

    def _reserve_first(
        self, prepared: Any, outputs: Sequence[int], num_blocks: int, engine: Engine
    ) -> ReservedBlocks | MoveRefusal:
        """Runs on the engine's thread."""
        found = engine.moves.reserve(prepared, outputs, num_blocks)
        self._holds_something = isinstance(found, ReservedBlocks)
        return found

    def _extend(self, num_blocks: int, engine: Engine) -> ReservedBlocks | MoveRefusal:
        """Runs on the engine's thread."""
        return engine.moves.extend(self.request_id, num_blocks) or MoveRefusal.NO_BLOCKS

    def _on_reserved(self, found: ReservedBlocks | MoveRefusal) -> None:
        if isinstance(found, MoveRefusal):
            self.handle(destination.NotReserved(found))
            return
        if self._reserved is None:
            self._num_received = found.num_cached
        self._reserved = found
        self.handle(destination.Reserved(found.num_cached))

    def _free(self, engine: Engine) -> None:
        """Runs on the engine's thread. Cancels only this move's reservation: another move of the
        request may have one."""
        if self._holds_something:
            self._holds_something = False
            engine.moves.cancel(self.request_id)

    def _receive(self, stage: int) -> None:
        assert self._reserved is not None
        self._receiving = f"{self.migration_id}/{stage}"
        places = self._reserved.block_ids[self._num_received :]
        copy = self._host.transfer.receive(self.source, self._receiving, places)
        copy.add_done_callback(partial(self._on_received, stage))

    def _on_received(self, stage: int, copy: "asyncio.Future[StageCopy]") -> None:
        if copy.cancelled() or (error := copy.exception()) is not None:
            log.info("stage %s did not come: %s", self._receiving, error)
            self.handle(StageLost(stage, "transfer"))
            return
        assert self._reserved is not None
        first, self._num_received = (
            self._num_received,
            self._num_received + copy.result().num_blocks,
        )
        if self._digest is not None:
            self._digest.add(self._reserved.block_ids[first : self._num_received])
        self.handle(StageCopied(stage))

    # -- COMMIT --------------------------------------------------------------------------

    def _apply(self, rank: int | None) -> None:
        if self._digest is None:
            self._commit(rank)
        else:
            self._digest.add(()).add_done_callback(partial(self._on_digested, rank))

    def _on_digested(self, rank: int | None, digest: "asyncio.Future[bytes]") -> None:
        assert self._committed is not None
        taken = not digest.cancelled() and digest.exception() is None
        if taken and digest.result() == self._committed.digest:
            self._commit(rank)
        else:
            log.error("the KV blocks of %s differ from its source's", self.request_id)
            self.handle(destination.CommitNotApplied("kv_mismatch"))

    def _commit(self, rank: int | None) -> None:
        self._host.between_steps(
            partial(self._commit_between_steps, rank), partial(self._on_committed, rank)
        )

    def _commit_between_steps(self, rank: int | None, engine: Engine) -> str | None:
        """Runs on the engine's thread. Returns why the state does not fit, or None."""
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
        live.kept.extend(self._kept)
        newer = self._host.requests.get(self.request_id)
        if newer is None or newer.epoch < live.epoch:  # else it ended this attempt
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
        moved_here = RequestMoved(
            self.request_id, hop, attempt, owner=self._host.me, began_index=began
        )
        self._host.send(self._arriving.frontend, moved_here)
