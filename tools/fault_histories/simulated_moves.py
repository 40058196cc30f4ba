"""The two ends of a move in the simulation: carries out what their machines instruct. Work for the
engine queues up at its instance (`simulated_instance`).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from controller.core.emptying.relief import PastMoves
from controller.core.load.snapshot import InstanceRef
from controller.core.migration import destination as dst
from controller.core.migration import source as src
from controller.core.migration.destination import DestinationMove
from controller.core.migration.move_records import MoveInFlight, MoveRecord
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
from controller.core.migration.refusals import MoveRefusal
from controller.core.migration.source import SourceMove
from tools.fault_histories.simulated_engine import BLOCK_SIZE, Asked, State, Token, blocks_for
from tools.fault_histories.simulated_messages import (
    TIMING,
    Announced,
    Arriving,
    Copy,
    Expected,
    FenceAsked,
    LostThere,
    Moved,
    MoveEnvelope,
    NotMoved,
)

if TYPE_CHECKING:
    from tools.fault_histories.simulated_instance import Instance

MAX_STAGES = 4


class Violation(AssertionError):  # noqa: N818
    """Something that must never be."""


@dataclass(slots=True)
class Live:
    """A request that runs here. `tokens` are all its outputs so far that were sent; `frontend` the
    address of its own; `moves` the instances that it left, and when."""

    asked: Asked
    epoch: Epoch
    tokens: list[Token]
    frontend: str
    moves: list[tuple[str, float]] = field(default_factory=list)

    def ages(self, now_s: float) -> PastMoves:
        return tuple((instance_id, now_s - at_s) for instance_id, at_s in self.moves)


class Outgoing:
    """A move away."""

    def __init__(
        self,
        here: "Instance",
        migration_id: str,
        live: Live,
        to: InstanceRef,
        reason: str,
        on_closed: Callable[[MoveRecord], None],
    ) -> None:
        self.here, self.migration_id, self.live, self.to = here, migration_id, live, to
        self.reason, self.on_closed = reason, on_closed
        self.request_id = live.asked.request_id
        self.attempt = live.epoch.attempt
        self.machine = SourceMove(live.epoch.hop, here.now_s, TIMING)
        self.began_s = here.now_s
        self.reserved_s: float | None = None
        """When this source heard that the destination holds blocks for the request."""
        self.queued = False
        self.taken_out = False
        self.pinned: list[int] = []
        self.num_copied = 0
        self.num_reserved = 0
        self.state: State | None = None

    @property
    def epoch(self) -> Epoch:
        return Epoch(self.attempt, self.machine.hop)

    def begin(self) -> None:
        self._carry_out(self.machine.start())

    def handle(self, event: object) -> None:
        self._carry_out(self.machine.handle(event, self.here.now_s))

    def tick(self) -> None:
        stalled_s = self.here.network.stalled_s(f"{self.migration_id}/{self.machine.stage}")
        self._carry_out(self.machine.tick(self.here.now_s, stalled_s))

    def receive(self, message: MoveMessage) -> None:
        if message.verb is Verb.PRE_ALLOCATED and message.stage == 0 and not self.num_copied:
            self.reserved_s = self.here.now_s
        self.handle(message)

    def in_flight(self) -> MoveInFlight:
        return MoveInFlight(
            self.migration_id,
            self.request_id,
            self.to.instance_id,
            self.machine.state,
            self.machine.stage,
            self.num_copied,
            self.num_reserved,
            self.reason,
            self.here.now_s - self.began_s,
        )

    def _carry_out(self, instructions: src.Instructions) -> None:
        here, request_id, frontend = self.here, self.request_id, self.live.frontend
        for instruction in instructions:
            match instruction:
                case src.PlanStage(stage=stage):
                    here.between_steps(partial(self._plan, stage), self._on_found)
                case Say(message=message):
                    self._send(message)
                case src.AnnounceMove(hop=hop):
                    announced = Announced(request_id, self.to, Epoch(self.attempt, hop))
                    here.tell(frontend, announced)
                case src.CopyStage(stage=stage):
                    self._copy(stage)
                case CancelCopy():
                    here.network.cancel(here.address, f"{self.migration_id}/{self.machine.stage}")
                case src.Suspend():
                    here.between_steps(self._suspend, self._on_found)
                case src.Resume(hop=hop):
                    self.live.epoch = Epoch(self.attempt, hop)
                    here.between_steps(self._resume)
                case src.Release():
                    if here.live.get(request_id) is self.live:
                        del here.live[request_id]
                    here.between_steps(lambda: here.engine.release(request_id))
                case src.Unpin():
                    self.unpin()
                case src.AskFence(hop=hop):
                    asked = FenceAsked(request_id, here.ref, Epoch(self.attempt, hop))
                    here.tell(frontend, asked)
                case src.TellLost(hop=hop):
                    here.tell(frontend, LostThere(request_id, Epoch(self.attempt, hop)))
                case SetRank(rank=rank):
                    here.set_rank(request_id, rank)
                case src.Close(outcome=outcome, code=code):
                    here.network.note("closed", self.migration_id, str(outcome), code)
                    self.on_closed(self._record(str(outcome), code))

    def unpin(self) -> None:
        self.here.between_steps(lambda: self.here.engine.unpin(self.request_id))

    def _record(self, outcome: str, code: str) -> MoveRecord:
        return MoveRecord(
            self.migration_id,
            self.request_id,
            self.here.instance_id,
            self.to.instance_id,
            self.reason,
            outcome,
            code,
            num_tokens=0,
            num_cached_blocks=0,
            duration_s=self.here.now_s - self.began_s,
        )

    def _plan(self, stage: int) -> object:
        """On the engine's thread: an event."""
        engine = self.here.engine
        if self.request_id not in engine.requests:
            return src.CannotMove("unknown")
        if stage == 0 and engine.is_queued(self.request_id):
            self.queued = True
            return src.StagePlanned(0, last=True)
        if (pinned := engine.pin(self.request_id, len(self.pinned))) is None:
            return src.CannotMove("evicted")
        blocks, num_tokens = pinned
        self.pinned += blocks
        last = is_last(len(self.pinned) - self.num_copied, stage)
        last = last or stage >= MAX_STAGES - 1
        self.num_reserved = blocks_to_reserve(num_tokens, BLOCK_SIZE, last=last)
        return src.StagePlanned(self.num_reserved, last)

    def _suspend(self) -> object:
        engine, request_id = self.here.engine, self.request_id
        if request_id not in engine.requests:
            return src.RequestEnded("gone")
        if engine.is_queued(request_id) != self.queued:
            return src.CannotMove("admitted") if self.queued else src.RequestEvicted()
        if not self.queued:
            blocks, num_tokens = engine.pin(request_id, len(self.pinned)) or ([], 0)
            if blocks_for(num_tokens) > self.num_reserved:
                self.pinned += blocks
                return src.RequestOutgrew()
        self.taken_out = True
        self.state = engine.suspend(request_id)
        return src.RequestSuspended()

    def _on_found(self, event: object) -> None:
        self.handle(event)

    def _resume(self) -> None:
        if self.taken_out:
            self.taken_out = False
            self.here.engine.resume(self.request_id)

    def _copy(self, stage: int) -> None:
        engine = self.here.engine
        held = self.pinned
        if self.state is not None:
            request = engine.requests.get(self.request_id)
            held = [] if request is None else request.blocks
        blocks = held[self.num_copied : self.num_reserved]

        def sent(number: int | None) -> None:
            if number is None:
                self.handle(StageLost(stage, "transfer"))
            else:
                self.num_copied += number
                self.handle(StageCopied(stage))

        self.here.network.copy(
            Copy(
                f"{self.migration_id}/{stage}",
                self.here.ref,
                self.to,
                len(blocks),
                lambda: [engine.read(block) for block in blocks],
                sent,
            )
        )

    def _send(self, message: MoveMessage) -> None:
        first = message.verb is Verb.PRE_ALLOC and message.stage == 0
        live, arriving = self.live, None
        if first:
            ages = live.ages(self.here.now_s)
            arriving = Arriving(live.asked, live.epoch, live.frontend, ages)
        state = self.state if message.verb is Verb.COMMIT else None
        envelope = MoveEnvelope(
            self.migration_id, self.request_id, self.here.ref, self.to, message, arriving, state
        )
        self.here.tell(self.to.address, envelope)


class Incoming:
    """A move to here."""

    def __init__(self, here: "Instance", first: MoveEnvelope) -> None:
        assert first.arriving is not None
        self.here, self.migration_id = here, first.migration_id
        self.request_id, self.source, self.ref = first.request_id, first.source, first.destination
        self.arriving, self.asked = first.arriving, first.arriving.asked
        self.attempt, from_hop = first.arriving.epoch
        self.epoch = Epoch(self.attempt, from_hop + 1)
        self.machine = DestinationMove(here.now_s, TIMING)
        self.holds_something = False
        self.num_received = 0
        self.receiving = ""
        self.state: State | None = None

    def begin(self, message: MoveMessage, refusal: MoveRefusal | None) -> None:
        instructions = self.machine.start(message)
        if refusal is not None:
            self.handle(dst.NotReserved(refusal))
        else:
            self._carry_out(instructions)

    def handle(self, event: object) -> None:
        self._carry_out(self.machine.handle(event, self.here.now_s))

    def tick(self) -> None:
        self._carry_out(self.machine.tick(self.here.now_s))

    def receive(self, envelope: MoveEnvelope) -> None:
        self.state = self.state or envelope.state
        self.handle(envelope.message)

    def _carry_out(self, instructions: dst.Instructions) -> None:
        here, request_id, frontend = self.here, self.request_id, self.arriving.frontend
        for instruction in instructions:
            match instruction:
                case dst.Reserve(stage=stage, num_blocks=number):
                    here.between_steps(partial(self._reserve, stage, number), self.handle)
                case dst.Receive(stage=stage):
                    self._receive(stage)
                case CancelCopy():
                    here.network.cancel(here.address, self.receiving)
                case dst.Free():
                    here.between_steps(self._free)
                case dst.Apply(rank=rank):
                    here.between_steps(partial(self._commit, rank), self._on_committed)
                case dst.Drop(hop=hop):
                    here.drop(request_id, Epoch(self.attempt, hop))
                case dst.EndRequest():
                    here.end(request_id, Epoch(self.attempt, self.machine.hop))
                case SetRank(rank=rank):
                    here.set_rank(request_id, rank)
                case Say(message=message):
                    self._answer(message)
                case dst.TellFrontend(moved=True, hop=hop):
                    began = len(self.state.outputs) if self.state else 0
                    moved = Moved(request_id, self.ref, Epoch(self.attempt, hop), began)
                    here.tell(frontend, moved)
                case dst.TellFrontend(moved=False):
                    here.tell(frontend, NotMoved(request_id, self.epoch))

    def _reserve(self, stage: int, num_blocks: int) -> object:
        engine = self.here.engine
        if stage == 0:
            self.holds_something = engine.reserve(self.request_id, num_blocks)
            return dst.Reserved() if self.holds_something else dst.NotReserved("no_blocks")
        if engine.extend(self.request_id, num_blocks):
            return dst.Reserved()
        return dst.NotReserved("no_blocks")

    def _free(self) -> None:
        if self.holds_something:
            self.holds_something = False
            self.here.engine.cancel(self.request_id)

    def _receive(self, stage: int) -> None:
        engine = self.here.engine
        self.receiving = f"{self.migration_id}/{stage}"
        places = engine.reserved[self.request_id][self.num_received :]

        def write(contents: list[Any]) -> None:
            if engine.reserved.get(self.request_id, [])[self.num_received :] != places:
                raise Violation("bytes are written where nothing is reserved for them")
            for place, message in zip(places, contents, strict=False):
                engine.write(place, message)

        def received(number: int | None) -> None:
            if number is None:
                self.handle(StageLost(stage, "transfer"))
            else:
                self.num_received += number
                self.handle(StageCopied(stage))

        self.here.network.expect(self.here.address, Expected(self.receiving, write, received))

    def _commit(self, rank: int | None) -> None:
        assert self.state is not None
        self.here.engine.commit(self.asked, self.state)
        self.holds_something = False
        if rank is not None:
            self.here.engine.set_rank(self.request_id, rank)

    def _on_committed(self, _none: object) -> None:
        assert self.state is not None
        epoch = Epoch(self.attempt, self.machine.hop)
        newer = self.here.live.get(self.request_id)
        if newer is None or newer.epoch < epoch:
            now_s = self.here.now_s
            moves = [(each, now_s - ago_s) for each, ago_s in self.arriving.past_moves]
            moves.append((self.source.instance_id, now_s))
            self.here.live[self.request_id] = Live(
                self.asked, epoch, list(self.state.outputs), self.arriving.frontend, moves
            )
        self.handle(dst.CommitApplied())

    def _answer(self, message: MoveMessage) -> None:
        envelope = MoveEnvelope(
            self.migration_id, self.request_id, self.source, self.here.ref, message
        )
        self.here.tell(self.source.address, envelope)
