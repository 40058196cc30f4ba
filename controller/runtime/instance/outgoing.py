"""A move of which this instance is the source: carries out what its machine instructs, and copies
the blocks stage by stage.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from controller.core.instance_ref import InstanceRef
from controller.core.load.snapshot import blocks_for
from controller.core.migration import source
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
from controller.core.migration.refusals import MoveRefusal, refusal_of, why
from controller.core.migration.source import SourceMove
from controller.core.record.event_log import EventKind, LoggedEvent, Number
from controller.ports.engine import Engine, Frames, PinnedBlocks, SuspendedRequest
from controller.runtime.instance.live_requests import KvDigest, LiveRequest, MoveHost
from controller.runtime.messages.codec import encode_tokens
from controller.runtime.messages.move_messages import (
    ArrivingRequest,
    CommittedRequest,
    FenceAsked,
    KeptOutput,
    MoveAnnounced,
    MoveEnvelope,
    RequestLost,
)

STATE = source.SourceState


@dataclass(frozen=True, slots=True)
class _Planned:
    """What the engine's thread found between two steps. Only the first stage has `outputs`."""

    pinned: PinnedBlocks | None
    outputs: Sequence[int]


class OutgoingMove:
    """`on_closed` gets the move's record. `decision`: the figures by which the move was chosen, for
    its event."""

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
        """Full blocks in order, from the request's first on."""
        self._num_reserved = 0
        self._copies = StageCopies(host, order, self.handle, lambda: self.machine.over)
        self._suspended: SuspendedRequest | None = None
        self._taken_out = False
        """Whether there is something to resume. Used on the engine's thread."""
        self.reserved_s: float | None = None
        """When this source heard that the destination holds blocks for the request."""
        self._num_tokens = 0
        self._encoded: dict[int, Frames] = {}

    @property
    def epoch(self) -> Epoch:
        """In which the request runs here, or ran here last."""
        return Epoch(self._attempt, self.machine.hop)

    def begin(self) -> None:
        self._carry_out(self.machine.start())

    def handle(self, event: object) -> None:
        self._carry_out(self.machine.handle(event, self._host.now_s()))

    def tick(self) -> None:
        stalled_s = self._host.transfer.stalled_s(self.order.destination)
        self._carry_out(self.machine.tick(self._host.now_s(), stalled_s))

    def receive(self, message: MoveMessage) -> None:
        """Takes a message of the destination."""
        is_first = message.stage == 0 and self._copies.num_copied == 0
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
        """The request's blocks at the last look; none while it is queued."""
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
                    self._encode_kept()  # now, while the request still decodes
                case source.CopyStage(stage=stage):
                    # Full blocks; once the request is suspended, all that hold computed tokens.
                    held = self._pinned if self._suspended is None else self._suspended.block_ids
                    num_there = self._copies.num_copied
                    self._copies.copy(stage, tuple(held[num_there : self._num_reserved]))
                case CancelCopy():
                    self._copies.cancel()
                case source.Suspend():
                    host.between_steps(self._suspend, self._on_suspended)
                case source.Resume(hop=hop):
                    self._live.hop = hop
                    host.between_steps(self._resume)
                case source.Release():
                    live = host.requests.get(order.request_id)
                    if live is self._live:  # else a later attempt came in
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
        """Runs on the engine's thread."""
        engine.moves.set_rank(self.order.request_id, rank)

    def unpin(self) -> None:
        request_id = self.order.request_id
        self._host.between_steps(lambda engine: engine.moves.unpin(request_id))

    # -- stages --------------------------------------------------------------------------

    def _plan(self, stage: int, engine: Engine) -> _Planned | MoveRefusal | str:
        """Runs on the engine's thread."""
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

    def _on_planned(self, found: "_Planned | MoveRefusal | str") -> None:
        if self.machine.over:
            return
        if isinstance(found, str):
            self.handle(source.CannotMove(str(found)))
            return
        if self.machine.stage == 0:
            self._outputs = found.outputs
        if found.pinned is None:
            self._queued = True
            self.handle(source.StagePlanned(0, last=True))
            return
        self._pinned.extend(found.pinned.block_ids)
        num_left = len(self._pinned) - self._copies.num_copied
        last = is_last(num_left, self.machine.stage, self.order.max_stages)
        self._num_tokens = found.pinned.num_tokens
        self._num_reserved = blocks_to_reserve(self._num_tokens, self._block_size, last=last)
        if last:
            num_left = self._num_blocks - self._copies.num_copied
        least_time_s = self._copies.least_time_s(num_left)
        self.handle(source.StagePlanned(self._num_reserved, last, least_time_s))

    # -- out of the batch and back -------------------------------------------------------

    def _suspend(self, engine: Engine) -> object:
        """Runs on the engine's thread. Returns an event, the suspended request, the blocks that
        outgrew the reservation, or None if the request is still leaving the batch."""
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
                self.handle(source.RequestSuspended())
            case PinnedBlocks(block_ids=block_ids):
                self._pinned.extend(block_ids)
                self.handle(source.RequestOutgrew())
            case None:
                if self.machine.state is STATE.SUSPENDING:
                    self._host.between_steps(self._suspend, self._on_suspended)
            case event:
                self.handle(event)

    def _resume(self, engine: Engine) -> None:
        """Runs on the engine's thread."""
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
        kept: list[KeptOutput] = []
        self._encode_kept()
        for each in live.kept:
            frames = self._encoded[each.first_index]
            kept.append(KeptOutput(each.first_index, each.num_tokens, len(frames)))
            payload.extend(frames)
        committed = CommittedRequest(
            live.next_index,
            len(self._suspended.state),
            tuple(kept),
            self._copies.digest,
            self._record(STATE.MIGRATED, ""),
            live.rank_change,
            live.rank,
            live.evicted_at_s,
        )
        return committed, payload

    def _encode_kept(self) -> None:
        for each in self._live.kept:
            if each.first_index not in self._encoded:
                self._encoded[each.first_index] = self._host.encode_kept(
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
        )

    def _close(self, outcome: source.SourceState, code: str) -> None:
        record = self._record(outcome, code)
        if outcome is not STATE.MIGRATED:  # else the frontend, which knows the downtime, logs it
            self._host.tell(_failed(record, self._host.me), self._live.frontend)
        # A move that is over is remembered for long, and its prompt and tokens are not.
        self._live = replace(self._live, frames=[], kept=deque())
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


log = logging.getLogger(__name__)


class StageCopies:
    """The stages of a move, each copied to the destination and, if asked, digested.

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
        """The number of blocks at the destination, cached or copied, from the first on."""
        self.records: list[StageRecord] = []
        self.digest: bytes | None = None
        """The digest of all blocks copied so far."""
        self._kv_digest = KvDigest(host.blocks) if order.verify_kv else None
        self._stage_id = ""

    def cached(self, num_blocks: int) -> None:
        """The destination has so many of the first blocks in its prefix cache."""
        self.num_cached = self.num_copied = num_blocks

    def least_time_s(self, num_blocks: int) -> float:
        """The time that the blocks' copy takes by the bandwidth limit."""
        limit = self._host.transfer.max_bytes_per_s
        return num_blocks * self._host.blocks.block_bytes / limit if limit else 0.0

    def copy(self, stage: int, block_ids: Sequence[int]) -> None:
        self._stage_id = f"{self._order.migration_id}/{stage}"
        sending = self._host.transfer.send(self._order.destination, self._stage_id, block_ids)
        sending.add_done_callback(partial(self._on_copied, stage, block_ids))

    def cancel(self) -> None:
        self._host.transfer.cancel(self._stage_id)

    def _on_copied(
        self, stage: int, block_ids: Sequence[int], sending: "asyncio.Future[StageRecord]"
    ) -> None:
        if sending.cancelled() or (error := sending.exception()) is not None:
            log.info("stage %s was not sent: %s", self._stage_id, error)
            self._on_end(StageLost(stage, "transfer"))
            return
        done = sending.result()
        self.num_copied += done.num_blocks
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
