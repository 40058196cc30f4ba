"""An instance of the simulation: an engine, and a shell that does what its machines ask for.

Engine work queues up and is done between two steps; what comes of it is heard of later, in
order, and messages may come in between.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from controller.core.instance_ref import InstanceRef
from controller.core.migration import destination as dst
from controller.core.migration import source as src
from controller.core.migration.destination import DestinationMove, DestinationState
from controller.core.migration.move_table import MoveTable
from controller.core.migration.protocol import (
    FROM_SOURCE,
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
from controller.core.migration.source import SourceMove, SourceState
from controller.core.token_order import FIRST_EPOCH, Epoch
from tests.unit.migration.simulated_engine import BLOCK_SIZE, Asked, SimulatedEngine, State, Token
from tests.unit.migration.simulated_messages import (
    FRONTEND,
    TIMING,
    Abort,
    Add,
    Announced,
    Copy,
    Emitted,
    Expected,
    FenceAnswered,
    FenceAsked,
    LostThere,
    Missing,
    Moved,
    MoveEnvelope,
    Network,
    NotMoved,
    OwnerAsked,
    OwnerConfirmed,
    Unread,
)

MAX_STAGES = 4


class Violation(AssertionError):  # noqa: N818
    """Something that must never be."""


@dataclass(slots=True)
class Live:
    """A request that runs here. `tokens` are all its outputs so far that were sent."""

    asked: Asked
    epoch: Epoch
    tokens: list[Token]


class Outgoing:
    """A move away."""

    def __init__(self, here: "Instance", migration_id: str, live: Live, to: InstanceRef) -> None:
        self.here, self.migration_id, self.live, self.to = here, migration_id, live, to
        self.request_id = live.asked.request_id
        self.attempt = live.epoch.attempt
        self.machine = SourceMove(live.epoch.hop, here.now_s, TIMING)
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

    def _carry_out(self, instructions: src.Instructions) -> None:
        here, request_id = self.here, self.request_id
        for instruction in instructions:
            match instruction:
                case src.PlanStage(stage=stage):
                    here.between_steps(partial(self._plan, stage), self._on_found)
                case Say(message=message):
                    self._send(message)
                case src.AnnounceMove(hop=hop):
                    here.tell_frontend(Announced(request_id, self.to, Epoch(self.attempt, hop)))
                case src.CopyStage(stage=stage):
                    self._copy(stage)
                case CancelCopy():
                    here.network.cancel(here.ref, f"{self.migration_id}/{self.machine.stage}")
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
                    here.between_steps(lambda: here.engine.unpin(request_id))
                case src.AskFence(hop=hop):
                    here.tell_frontend(FenceAsked(request_id, here.ref, Epoch(self.attempt, hop)))
                case src.TellLost(hop=hop):
                    here.tell_frontend(LostThere(request_id, Epoch(self.attempt, hop)))
                case SetRank(rank=rank):
                    here.set_rank(request_id, rank)
                case src.Close(outcome=outcome):
                    here.network.note("closed", self.migration_id, str(outcome))

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
            if -(-num_tokens // BLOCK_SIZE) > self.num_reserved:
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
        arriving = (self.live.asked, self.live.epoch) if first else None
        state = self.state if message.verb is Verb.COMMIT else None
        envelope = MoveEnvelope(
            self.migration_id, self.request_id, self.here.ref, self.to, message, arriving, state
        )
        self.here.network.send(self.here.ref, self.to, envelope)


class Incoming:
    """A move to here."""

    def __init__(self, here: "Instance", first: MoveEnvelope) -> None:
        assert first.arriving is not None
        self.here, self.migration_id = here, first.migration_id
        self.request_id, self.source = first.request_id, first.source
        self.asked, (self.attempt, from_hop) = first.arriving
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
        here, request_id = self.here, self.request_id
        for instruction in instructions:
            match instruction:
                case dst.Reserve(stage=stage, num_blocks=number):
                    here.between_steps(partial(self._reserve, stage, number), self.handle)
                case dst.Receive(stage=stage):
                    self._receive(stage)
                case CancelCopy():
                    here.network.cancel(here.ref, self.receiving)
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
                    here.tell_frontend(Moved(request_id, here.ref, Epoch(self.attempt, hop), began))
                case dst.TellFrontend(moved=False):
                    here.tell_frontend(NotMoved(request_id, self.epoch))

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

        self.here.network.expect(self.here.ref, Expected(self.receiving, write, received))

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
            self.here.live[self.request_id] = Live(self.asked, epoch, list(self.state.outputs))
        self.handle(dst.CommitApplied())

    def _answer(self, message: MoveMessage) -> None:
        envelope = MoveEnvelope(
            self.migration_id, self.request_id, self.source, self.here.ref, message
        )
        self.here.network.send(self.here.ref, self.source, envelope)


class Instance(MoveTable[Outgoing, Incoming]):
    """What may begin or arrive, and who is asked about what, the real table of moves decides."""

    def __init__(
        self, ref: InstanceRef, engine: SimulatedEngine, network: Network, max_moves: int
    ) -> None:
        self.live: dict[str, Live] = {}
        super().__init__(self.live, max_moves)
        self.ref, self.engine, self.network = ref, engine, network
        self.finished: dict[str, Live] = {}
        self.entering: dict[str, Add] = {}
        """Replays, until nothing of an earlier attempt is left here."""
        self.entered: dict[str, Add] = {}
        """Replays that the engine takes between two steps."""
        self._work: deque[tuple[Callable[[], Any], Callable[[Any], None] | None]] = deque()
        self._done: deque[Callable[[], None]] = deque()

    @property
    def now_s(self) -> float:
        return self.network.now_s

    @property
    def is_empty(self) -> bool:
        """Nothing is here, and nothing is remembered."""
        engine = self.engine
        held = (
            engine.requests
            or engine.pins
            or engine.reserved
            or self.live
            or self.entering
            or self.entered
        )
        return self.quiet and not (held or self._work or self._done)

    @property
    def has_work(self) -> bool:
        return bool(self._work or self._done or self.engine.requests)

    # -- the engine's thread -------------------------------------------------------------

    def between_steps(
        self, work: Callable[[], Any], then: Callable[[Any], None] | None = None
    ) -> None:
        self._work.append((work, then))

    def engine_turn(self) -> None:
        """All that was asked for, and a step; nobody hears of it yet."""
        while self._work:
            work, then = self._work.popleft()
            result = work()
            if then is not None:
                self._done.append(partial(then, result))
        outputs, evicted = self.engine.step()
        for output in outputs:
            self._done.append(partial(self._on_output, output))
        for request_id in evicted:
            self._done.append(partial(self._on_evicted, request_id))

    def evict_one(self) -> None:
        if (request_id := self.engine.evict_one()) is not None:
            self.network.note("evicted", request_id, self.ref.key)
            self._done.append(lambda: self._on_evicted(request_id))

    # -- the loop ------------------------------------------------------------------------

    def loop_turn(self) -> None:
        while self._done:
            self._done.popleft()()
        for request_id, add in list(self.entering.items()):
            if not self.is_arriving(request_id):
                self._enter(add)
        self.tick_moves(self.now_s, lambda move: move.tick())

    def _enter(self, add: Add) -> None:
        del self.entering[add.request_id]
        self.end(add.request_id, Epoch(add.epoch.attempt - 1))
        self.entered[add.request_id] = add
        self.between_steps(
            lambda: self.engine.reenter(add.asked, add.outputs), lambda _: self._on_entered(add)
        )

    def _on_entered(self, add: Add) -> None:
        if self.entered.get(add.request_id) is not add:
            return
        del self.entered[add.request_id]
        self.live[add.request_id] = Live(add.asked, add.epoch, list(add.outputs))

    def _on_output(self, output: Any) -> None:
        live = self.live.get(output.request_id)
        if live is None:  # dropped or given away in the meantime
            return
        if output.first_index != len(live.tokens):
            raise Violation(f"{output.request_id} skips or repeats a token at {self.ref.key}")
        live.tokens.append(output.token)
        self.tell_frontend(
            Emitted(
                output.request_id, live.epoch, output.first_index, (output.token,), output.finished
            )
        )
        if output.finished:
            self.finished[output.request_id] = self.live.pop(output.request_id)
            if move := self.under_way(output.request_id):
                move.handle(src.RequestEnded("finished"))

    def _on_evicted(self, request_id: str) -> None:
        if move := self.under_way(request_id):
            move.handle(src.RequestEvicted())

    def tell_frontend(self, body: Any) -> None:
        self.network.send(self.ref, FRONTEND, body)

    def set_rank(self, request_id: str, rank: int) -> None:
        self.between_steps(lambda: self.engine.set_rank(request_id, rank))

    # -- moves ---------------------------------------------------------------------------

    def begin_move(
        self, migration_id: str, request_id: str, to: InstanceRef
    ) -> Outgoing | MoveRefusal:
        move = self.leave(
            request_id, lambda: Outgoing(self, migration_id, self.live[request_id], to)
        )
        if isinstance(move, Outgoing):
            move.begin()
        return move

    def cancel_moves(self, migration_ids: Sequence[str]) -> None:
        for migration_id in migration_ids:
            self.outgoing[migration_id].handle(src.MoveCancelled("cancelled"))

    def change_rank(self, request_id: str, rank: int) -> None:
        """Said to whoever the request's frontend takes for its owner."""
        if request_id not in self.live:
            return
        if move := self.under_way(request_id):
            move.handle(src.PriorityChanged(rank))
        else:
            self.set_rank(request_id, rank)

    def peer_died(self, key: tuple[str, int]) -> None:
        for move in list(self.outgoing.values()):
            if move.to.key == key:
                move.handle(src.DestinationDied())
        for arriving in list(self.incoming.values()):
            if arriving.source.key == key:
                arriving.handle(dst.SourceDied())

    def drop(self, request_id: str, epoch: Epoch) -> None:
        live = self.live.get(request_id)
        if live is not None and live.epoch == epoch:
            del self.live[request_id]
            self.between_steps(lambda: self.engine.drop(request_id))

    def end(self, request_id: str, epoch: Epoch | None = None) -> None:
        """Its client left. One that is not here any more is followed to where it went last, if
        it went in that hop or later: else it would be followed in a circle."""
        live, entered = self.live.get(request_id), None
        if epoch is None:
            self.entering.pop(request_id, None)
            entered = self.entered.pop(request_id, None)
        elif live is not None and live.epoch.attempt > epoch.attempt:
            return
        epoch = epoch or FIRST_EPOCH
        if live is not None:
            epoch = live.epoch
            del self.live[request_id]
        if live is not None or entered is not None:
            self.between_steps(lambda: self.engine.abort(request_id))
        if move := self.under_way(request_id) or self.last_away(request_id, epoch):
            move.handle(src.RequestEnded("client_left"))
        for arriving in list(self.incoming.values()):
            if arriving.request_id == request_id:
                arriving.handle(dst.ClientLeft())

    # -- messages ------------------------------------------------------------------------

    def receive(self, body: Any) -> None:
        match body:
            case Add(asked=asked, epoch=epoch) as add if epoch.attempt:
                self.end(asked.request_id)
                self.entering[asked.request_id] = add
            case Add(asked=asked):
                self.live[asked.request_id] = Live(asked, FIRST_EPOCH, [])
                self.between_steps(lambda: self.engine.add(asked))
            case Abort(request_id=request_id):
                self.end(request_id)
            case Unread(request_id=request_id, epoch=epoch):
                self._unread(request_id, epoch)
            case Missing() as missing:
                self._send_again(missing)
            case MoveEnvelope() as envelope if envelope.message.verb in FROM_SOURCE:
                self._source_said(envelope)
            case MoveEnvelope() as envelope:
                self._destination_said(envelope)
            case FenceAnswered(request_id=request_id, epoch=epoch, fenced=fenced):
                if move := self.fencing(request_id, epoch):
                    move.handle(src.EpochFenced() if fenced else src.AlreadyMoved())
            case OwnerConfirmed(request_id=request_id, epoch=epoch):
                arriving = self.asked_about(request_id, epoch)
                if arriving is not None and arriving.machine.over:
                    arriving.handle(dst.OwnerConfirmed())
            case OwnerAsked() as asked_for:
                self._owner_asked(asked_for)

    def _unread(self, request_id: str, epoch: Epoch) -> None:
        """What another may have by now, or has, is left alone."""
        live = self.live.get(request_id)
        if live is None or live.epoch != epoch or self.handed_on(request_id, epoch):
            return
        self.end(request_id)
        self.tell_frontend(LostThere(request_id, epoch))

    def _send_again(self, missing: Missing) -> None:
        live = self.live.get(missing.request_id) or self.finished.get(missing.request_id)
        if live is not None:
            first = missing.first_index
            tokens = tuple(live.tokens[first : missing.end_index])
            if tokens:
                self.tell_frontend(Emitted(missing.request_id, live.epoch, first, tokens, False))

    def _source_said(self, envelope: MoveEnvelope) -> None:
        known = self.incoming.get(envelope.migration_id)
        verb = envelope.message.verb
        if known is not None:
            known.receive(envelope)
        elif verb is Verb.PRE_ALLOC and envelope.arriving is not None:
            move = Incoming(self, envelope)
            move.begin(envelope.message, self.arrive(move))
        elif verb is not Verb.ACKNOWLEDGED:
            answers = {
                Verb.ABORT: Verb.ABORTED,
                Verb.END: Verb.ENDED,
                Verb.PRIORITY: Verb.PRIORITY_SET,
            }
            answer = MoveMessage(answers.get(verb, Verb.REFUSED), change=envelope.message.change)
            self._reply(envelope, envelope.source, answer)

    def _destination_said(self, envelope: MoveEnvelope) -> None:
        if move := self.outgoing.get(envelope.migration_id):
            move.handle(envelope.message)
        elif envelope.message.verb is Verb.COMMITTED:
            self._reply(
                envelope,
                envelope.destination,
                MoveMessage(Verb.ACKNOWLEDGED, envelope.message.stage),
            )

    def _reply(self, envelope: MoveEnvelope, to: InstanceRef, message: MoveMessage) -> None:
        reply = MoveEnvelope(
            envelope.migration_id,
            envelope.request_id,
            envelope.source,
            envelope.destination,
            message,
        )
        self.network.send(self.ref, to, reply)

    def _owner_asked(self, asked: OwnerAsked) -> None:
        if arriving := self.asked_about(asked.request_id, asked.epoch):
            arriving.handle(dst.OwnerAsked())
            return
        live = self.live.get(asked.request_id)
        same = live is not None and live.epoch.attempt == asked.epoch.attempt
        if live is not None and same and live.epoch >= asked.epoch:
            moved = Moved(asked.request_id, self.ref, live.epoch, len(live.tokens))
            self.tell_frontend(moved)
        else:
            self.tell_frontend(NotMoved(asked.request_id, asked.epoch))

    # -- what must hold at any time --------------------------------------------------------

    def check(self) -> None:
        self.engine.check()
        for move in self.outgoing.values():
            move.machine.check()
        for arriving in self.incoming.values():
            arriving.machine.check()
        if self._work or self._done:
            return  # what the machines asked for is not done yet
        self._check_reservations()
        self._check_source()

    def _check_reservations(self) -> None:
        holding = {m.request_id for m in self.incoming.values() if m.holds_something}
        if holding != set(self.engine.reserved):
            raise Violation("blocks are reserved for no move that is known")
        for move in self.incoming.values():
            state = move.machine.state
            if move.machine.over and move.holds_something:
                raise Violation(f"a move that is {state} holds reserved blocks")
            holds = move.holds_something or state is DestinationState.RESERVING
            if not move.machine.over and not holds:
                raise Violation(f"a move that is {state} holds nothing, but takes a slot")

    def _check_source(self) -> None:
        stopped = (SourceState.SUSPENDED, *src.IN_DOUBT)
        moving = {m.request_id: m for m in self.outgoing.values() if not m.machine.over}
        if not set(self.engine.pins) <= set(moving):
            raise Violation("blocks are pinned for no move under way")
        for request_id, request in self.engine.requests.items():
            if request.place == "suspended":
                move = moving.get(request_id)
                if move is None or move.machine.state not in stopped:
                    raise Violation(f"{request_id} is suspended, and nobody will resume it")
