"""All moves of one instance: how they begin on the controller's orders, and what happens to them.

`InstanceMoves` begins and receives moves, and passes on events. `OrderedMoves` begins moves that
the controller names; `ChosenMoves` begins moves that this instance chooses, as its machine
(`core/emptying/relieving.py`) instructs.
"""

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

from controller.core.emptying.relief import Candidate, PastMoves
from controller.core.emptying.relieving import (
    BeginMove,
    CancelMove,
    DrainEnded,
    Event,
    Fenced,
    Instruction,
    Look,
    Looked,
    MoveBegan,
    MoveEnded,
    MoveRefused,
    PeerLost,
    ReliefGiven,
    ReliefWithdrawn,
    RelievingSource,
    RoomGiven,
    TellFruitless,
    TellNotMoved,
    TellRoomNotMade,
    considered,
    known,
)
from controller.core.load.freeness import finite
from controller.core.load.snapshot import InstanceRef, InstanceSnapshot, blocks_for
from controller.core.migration import destination, source
from controller.core.migration.copy_checks import MoveSample
from controller.core.migration.move_records import (
    CopyRates,
    MoveInFlight,
    MoveOrder,
    MovePlan,
    MoveRecord,
)
from controller.core.migration.move_table import MoveTable
from controller.core.migration.ownership import FIRST_EPOCH, Epoch
from controller.core.migration.protocol import FROM_SOURCE, IllegalMoveError, MoveMessage, Verb
from controller.core.migration.refusals import MoveFacts, MoveRefusal, refusal_of, why
from controller.core.migration.source import MoveCancelled, SourceState
from controller.core.record.event_log import EventKind, LoggedEvent, Number
from controller.core.settings import MigrationSettings
from controller.ports.engine import Engine
from controller.runtime.instance.live_requests import MoveHost
from controller.runtime.instance.move_ends import IncomingMove, OutgoingMove
from controller.runtime.messages.move_messages import (
    FenceAnswered,
    HeadMoveOrdered,
    MoveAnswered,
    MoveAsked,
    MoveEnvelope,
    MoveRefusalAsked,
    MoveRefusalsAnswered,
    OwnerAsked,
    OwnerConfirmed,
    ReliefFruitless,
    ReliefOrdered,
    RequestMoved,
    RequestNotMoved,
    RoomOrdered,
)

log = logging.getLogger(__name__)

DEFAULT_MAX_MOVES = MigrationSettings().max_moves
NO_NUMBERS: Mapping[str, Number] = {}


class InstanceMoves(MoveTable[OutgoingMove, IncomingMove]):
    def __init__(
        self,
        host: MoveHost,
        block_size: int,
        controller_address: str,
        max_moves: int = DEFAULT_MAX_MOVES,
    ) -> None:
        super().__init__(host.requests, max_moves)
        self._host = host
        self.block_size = block_size
        self.controller_address = controller_address
        self.rates = CopyRates()
        """How fast blocks were copied from this instance lately, by destination."""
        self.leaves_at_s: float | None = None
        """When this instance will be ended, by the host's clock; None: no end is planned."""
        self._peers: set[InstanceRef] = set()
        """The instances to which the transfer may have links."""
        self._dead: set[InstanceRef] = set()
        """The dead instances that the transfer still has to forget."""
        self.busy = asyncio.Event()
        """Set while any move is remembered, so that ticks are needed."""

    def in_flight(self) -> tuple[MoveInFlight, ...]:
        moves = self._leaving.values()
        return tuple(move.in_flight() for move in moves if not move.machine.over)

    def begin(
        self,
        order: MoveOrder,
        on_closed: Callable[[MoveRecord], None],
        decision: Mapping[str, Number] = NO_NUMBERS,
    ) -> OutgoingMove | MoveRefusal:
        """Begins a move, or returns why it may not begin now."""
        move = self.leave(
            order.request_id,
            lambda: OutgoingMove(self._host, order, self.block_size, on_closed, decision),
        )
        if isinstance(move, MoveRefusal):
            return move
        self._peers.add(order.destination)
        self._host.transfer.warm_up(order.destination)
        self.busy.set()
        move.begin()
        return move

    def answer(self, answered: MoveAnswered) -> None:
        self._host.send(self.controller_address, answered)

    def tell_closed(self, record: MoveRecord, query_id: str = "") -> None:
        """Tells the controller that a move from here is over. `query_id`: the id of the order, if
        the controller named the move."""
        self.rates.measured(record)
        self.answer(MoveAnswered(query_id, record.code, record=record))

    # -- what happens --------------------------------------------------------------------

    def request_finished(self, request_id: str) -> None:
        if move := self.under_way(request_id):
            move.handle(source.RequestEnded("finished"))

    def client_left(self, request_id: str, epoch: Epoch = FIRST_EPOCH) -> None:
        """Called when the request's client left, or its frontend is gone; the engine has been told.
        A request that is not on this instance any more is ended at the instance to which it moved
        most recently. `epoch`: the epoch in which the request was on this instance. Moves before
        that epoch do not count, because the request has come back since."""
        if move := self.under_way(request_id) or self.last_away(request_id, epoch):
            move.handle(source.RequestEnded("client_left"))
        for arriving in list(self.incoming.values()):
            if arriving.request_id == request_id:
                arriving.handle(destination.ClientLeft())

    def request_evicted(self, request_id: str) -> None:
        if move := self.under_way(request_id):
            move.handle(source.RequestEvicted())

    def set_rank(self, request_id: str, rank: int) -> None:
        """Sets the rank of a request that is here. A request that is leaving takes its rank
        along."""
        if live := self._host.requests.get(request_id):
            live.rank = rank
        if move := self.under_way(request_id):
            move.handle(source.PriorityChanged(rank))
        else:
            self._host.between_steps(lambda engine: engine.moves.set_rank(request_id, rank))

    def peer_lost(self, is_lost: Callable[[InstanceRef], bool]) -> None:
        lost = {peer for peer in self._peers if is_lost(peer)}
        self._peers -= lost
        self._dead |= lost
        for move in list(self.outgoing.values()):
            if is_lost(move.order.destination):
                with _logged(move.migration_id):
                    move.handle(source.DestinationDied())
        for arriving in list(self.incoming.values()):
            if is_lost(arriving.source):
                with _logged(arriving.migration_id):
                    arriving.handle(destination.SourceDied())
        self._forget_dead()

    def _forget_dead(self) -> None:
        """Lets the transfer forget dead peers, except for a peer whose last stage is still coming
        in: its bytes may have been sent before it died."""
        for peer in list(self._dead):
            if not any(
                arriving.source == peer and arriving.machine.receiving
                for arriving in self.incoming.values()
            ):
                self._dead.remove(peer)
                self._host.transfer.forget(peer)

    def frontend_lost(self, address: str) -> None:
        """Ends the moves that bring requests of this frontend, as nobody would read their
        tokens."""
        for arriving in list(self.incoming.values()):
            if arriving.frontend == address:
                with _logged(arriving.migration_id):
                    arriving.handle(destination.ClientLeft())

    def fenced(self) -> None:
        """Called when the cluster counts this incarnation as dead. Arriving requests are refused,
        and requests whose COMMIT is being applied are given back. Moves away whose outcome is in
        doubt are forgotten, because their end would also end the request at the destination; the
        destination and the frontend decide them."""
        for move in list(self.outgoing.values()):
            if move.machine.state in source.IN_DOUBT:
                self.forget(move)
                move.unpin()
        given_back = MoveMessage(Verb.ABORT, code="fenced")
        for arriving in list(self.incoming.values()):
            applying = arriving.machine.state is destination.DestinationState.APPLYING
            with _logged(arriving.migration_id):
                arriving.handle(given_back if applying else destination.ClientLeft())

    def fence_answered(self, answer: FenceAnswered) -> None:
        if move := self.fencing(answer.request_id, answer.epoch):
            move.handle(source.EpochFenced() if answer.fenced else source.AlreadyMoved())

    def owner_asked(self, asked: OwnerAsked) -> None:
        if arriving := self.asked_about(asked.request_id, asked.epoch):
            arriving.handle(destination.OwnerAsked())
            return
        live = self._host.requests.get(asked.request_id)
        if live is not None and live.attempt == asked.attempt and live.hop >= asked.hop:
            moved = RequestMoved(
                asked.request_id,
                live.hop,
                live.attempt,
                owner=self._host.me,
                began_index=live.next_index,
            )
            self._host.send(asked.frontend, moved)
        else:
            not_moved = RequestNotMoved(asked.request_id, asked.hop, asked.attempt)
            self._host.send(asked.frontend, not_moved)

    def owner_confirmed(self, confirmed: OwnerConfirmed) -> None:
        arriving = self.asked_about(confirmed.request_id, confirmed.epoch)
        if arriving is not None and arriving.machine.over:
            arriving.handle(destination.OwnerConfirmed())

    def receive(self, envelope: MoveEnvelope, payload: Sequence[Any]) -> None:
        """Takes a message of the other side of a move, even if the move is forgotten here. A new
        request for an earlier incarnation is ignored. Messages about moves of that incarnation
        count, because this instance still remembers those moves."""
        if envelope.arriving is not None and envelope.destination.key != self._host.me.key:
            return
        try:
            if envelope.message.verb in FROM_SOURCE:
                self._source_said(envelope, payload)
            elif move := self.outgoing.get(envelope.migration_id):
                move.receive(envelope)
            elif envelope.message.verb is Verb.COMMITTED:
                self._reply(envelope, MoveMessage(Verb.ACKNOWLEDGED, envelope.message.stage))
        except IllegalMoveError as error:
            log.error("move %s: %s", envelope.migration_id, error)

    def tick(self) -> None:
        self.tick_moves(self._host.now_s(), _tick)
        self._forget_dead()
        if self.quiet:
            self.busy.clear()

    def _source_said(self, envelope: MoveEnvelope, payload: Sequence[Any]) -> None:
        known = self.incoming.get(envelope.migration_id)
        if known is not None:
            known.receive(envelope, payload)
        elif envelope.message.verb is Verb.PRE_ALLOC and envelope.arriving is not None:
            self._peers.add(envelope.source)
            move = IncomingMove(self._host, envelope, payload)
            refusal = self.arrive(move)
            self.busy.set()
            move.begin(refusal)
        else:
            self._answer_for_forgotten(envelope)

    def _answer_for_forgotten(self, envelope: MoveEnvelope) -> None:
        """Answers a message for a move that is forgotten here, as if that move had not brought its
        request here. If another move brought the request here, the source knows that."""
        answers = {
            Verb.PRE_ALLOC: MoveMessage(Verb.REFUSED, envelope.message.stage, code="forgotten"),
            Verb.COMMIT: MoveMessage(Verb.REFUSED, envelope.message.stage, code="forgotten"),
            Verb.ABORT: MoveMessage(Verb.ABORTED, envelope.message.stage),
            Verb.END: MoveMessage(Verb.ENDED, envelope.message.stage),
            Verb.PRIORITY: MoveMessage(
                Verb.PRIORITY_SET, envelope.message.stage, change=envelope.message.change
            ),
        }
        if answer := answers.get(envelope.message.verb):
            self._reply(envelope, answer)

    def _reply(self, envelope: MoveEnvelope, message: MoveMessage) -> None:
        reply = MoveEnvelope(
            envelope.migration_id,
            envelope.request_id,
            envelope.source,
            envelope.destination,
            message,
        )
        to = envelope.source if envelope.message.verb in FROM_SOURCE else envelope.destination
        self._host.send(to.address, reply)


def _tick(move: OutgoingMove | IncomingMove) -> None:
    with _logged(move.migration_id):
        move.tick()


@contextmanager
def _logged(migration_id: str) -> Iterator[None]:
    """A context in which the failure of one move is logged, so that the other moves still come to
    an end."""
    try:
        yield
    except Exception:
        log.exception("move %s cannot go on", migration_id)


class OrderedMoves:
    """Answers the controller as a source: moves a request, plans a move, and says which requests
    cannot move."""

    def __init__(self, host: MoveHost, instance_moves: InstanceMoves) -> None:
        self._host = host
        self._moves = instance_moves

    def asked(self, asked: MoveAsked) -> None:
        order = asked.order
        if not asked.dry_run:
            on_closed = partial(self._moves.tell_closed, query_id=asked.query_id)
            begun = self._moves.begin(order, on_closed)
            if isinstance(begun, MoveRefusal):
                self._moves.answer(MoveAnswered(asked.query_id, begun))
            return
        self._host.between_steps(
            partial(self._plan, order.request_id), partial(self._on_planned, asked)
        )

    def refusals_asked(self, asked: MoveRefusalAsked) -> None:
        def facts(engine: Engine) -> dict[str, MoveFacts | None]:
            return {id_: engine.moves.facts(id_) for id_ in asked.request_ids}

        def answer(facts_of: dict[str, MoveFacts | None]) -> None:
            refusals = tuple(self._moves.refusals(facts_of).items())
            answered = MoveRefusalsAnswered(asked.query_id, refusals)
            self._host.send(self._moves.controller_address, answered)

        self._host.between_steps(facts, answer)

    def _plan(self, request_id: str, engine: Engine) -> tuple[MoveFacts | None, int, int]:
        """Returns the request's facts, and how many tokens and blocks a move would copy. Both
        numbers are 0 for a request that is queued or cannot move. Runs on the engine's thread."""
        moves = engine.moves
        facts = moves.facts(request_id)
        if refusal_of(facts) is not None or moves.is_queued(request_id):
            return facts, 0, 0
        pinned = moves.pin(request_id, 0)
        moves.unpin(request_id)
        if pinned is None:
            return None, 0, 0
        num_full = blocks_for(pinned.num_tokens, engine.block_size)
        return facts, pinned.num_tokens, num_full + pinned.num_tail

    def _on_planned(self, asked: MoveAsked, planned: tuple[MoveFacts | None, int, int]) -> None:
        facts, num_tokens, num_blocks = planned
        # A move by hand would wait until the instance may begin one more.
        refusal = self._moves.refusal(asked.order.request_id, facts, waits=True)
        if refusal is not None:
            self._moves.answer(MoveAnswered(asked.query_id, refusal))
            return
        num_bytes = num_blocks * self._host.blocks.block_bytes
        bytes_per_s = self._moves.rates.bytes_per_s(asked.order.destination.instance_id)
        copy_time_s = num_bytes / bytes_per_s if bytes_per_s else None
        plan = MovePlan(num_tokens, num_blocks, num_bytes, copy_time_s)
        self._moves.answer(MoveAnswered(asked.query_id, "", plan))


# A destination takes its snapshot this long before the controller notes that it arrived: the
# message crosses the network once, and waits for both event loops. Without this allowance, the
# snapshot would seem to count requests that were only just sent to the destination.
STATUS_LAG_S = 0.02
NUM_STEPS_MEASURED = 15


class ChosenMoves:
    """Moves that an instance begins by its own choice, on the controller's orders: carries out what
    the machine that chooses instructs. Used on the event loop's thread."""

    def __init__(self, host: MoveHost, instance_moves: InstanceMoves) -> None:
        self._host = host
        self._moves = instance_moves
        self.step_times_s: deque[float] = deque(maxlen=NUM_STEPS_MEASURED)
        here = _Here(host, instance_moves, self.step_times_s)
        self.machine = RelievingSource(here, secrets.token_hex(3))
        self._sample = MoveSample()

    # -- what happens --------------------------------------------------------------------

    def relief_ordered(self, ordered: ReliefOrdered) -> None:
        order = ordered.relief
        if order is None:
            self._handle(ReliefWithdrawn())
            return
        taken_s = self._host.now_s() - order.snapshot_age_s - STATUS_LAG_S
        self._handle(ReliefGiven(ordered.round_id, order, taken_s))

    def room_ordered(self, ordered: HeadMoveOrdered | RoomOrdered) -> None:
        self._handle(RoomGiven(ordered.order))

    def peer_lost(self, is_lost: Callable[[InstanceRef], bool]) -> None:
        self._handle(PeerLost(is_lost))

    def drain_ended(self) -> None:
        self._handle(DrainEnded())

    def fenced(self) -> None:
        self._handle(Fenced())

    def _on_closed(self, record: MoveRecord) -> None:
        self._moves.tell_closed(record)
        moved = record.outcome == SourceState.MIGRATED
        self._handle(MoveEnded(record.migration_id, moved, record.code))

    # -- what is to be done --------------------------------------------------------------

    def _handle(self, event: Event) -> None:
        """Hands an event to the machine and carries out its instructions. An instruction to begin a
        move comes last, and its answer is the next event. This is a loop because a drain may begin
        hundreds of moves in one look."""
        following: Event | None = event
        while following is not None:
            instructions = self.machine.handle(following, self._host.now_s())
            following = None
            for instruction in instructions:
                if isinstance(instruction, BeginMove):
                    following = self._begin(instruction)
                else:
                    self._carry_out(instruction)

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case Look():
                self._host.between_steps(self._look, self._looked)
            case CancelMove(migration_id=migration_id, code=code):
                if (move := self._moves.outgoing.get(migration_id)) is not None:
                    move.handle(MoveCancelled(code))
            case TellFruitless(round_id=round_id, destination=to):
                me = self._host.me
                pair = me.instance_id, me.incarnation, to.instance_id, to.incarnation
                fruitless = ReliefFruitless(round_id, *pair)
                self._host.send(self._moves.controller_address, fruitless)
            case TellNotMoved():
                if (live := self._host.requests.get(instruction.refused.request_id)) is not None:
                    self._host.tell(_not_moved(instruction, self._host.me), live.frontend)
            case TellRoomNotMade(order=order):
                live = self._host.requests.get(order.request_id)
                if frontend := order.frontend or (live.frontend if live is not None else ""):
                    self._host.tell(_room_not_made(instruction, self._host.me), frontend)

    def _look(self, engine: Engine) -> tuple[InstanceSnapshot, Sequence[Candidate]]:
        """Returns the engine's snapshot and its requests. Runs on the engine's thread."""
        me = self._host.me
        return engine.snapshot(me.instance_id, me.incarnation), engine.moves.candidates()

    def _looked(self, look: tuple[InstanceSnapshot, Sequence[Candidate]]) -> None:
        snapshot, candidates = look
        snapshot = replace(snapshot, draining=self._moves.draining)
        self._handle(Looked(snapshot, known(candidates, self._moves, self._past_moves)))

    def _past_moves(self, request_id: str) -> PastMoves:
        return self._host.requests[request_id].past_instances.ages(self._host.now_s())

    def _begin(self, begin: BeginMove) -> MoveBegan | MoveRefused:
        candidate = begin.candidate
        num_bytes = candidate.num_blocks * self._host.blocks.block_bytes
        hurried = self._moves.leaves_at_s is not None
        order = MoveOrder(
            begin.migration_id,
            candidate.request_id,
            begin.destination,
            begin.reason,
            verify_kv=self._sample.begins(num_bytes, hurried=hurried),
        )
        move = self._moves.begin(order, self._on_closed, begin.figures)
        if isinstance(move, MoveRefusal):
            return MoveRefused(begin.migration_id, move)
        return MoveBegan(begin.migration_id)


class _Here:
    """This instance as its machine sees it: a `SourceView`."""

    def __init__(
        self,
        host: MoveHost,
        moves: InstanceMoves,
        step_times_s: Collection[float],
    ) -> None:
        self._host = host
        self._moves = moves
        self._step_times_s = step_times_s
        self.block_size = moves.block_size
        self.bytes_per_s = moves.rates.bytes_per_s

    @property
    def instance_id(self) -> str:
        return self._host.me.instance_id

    @property
    def block_bytes(self) -> int:
        return self._host.blocks.block_bytes

    @property
    def max_moves(self) -> int:
        return self._moves.max_moves

    @property
    def num_moves(self) -> int:
        return self._moves.num_moves

    @property
    def leaves_at_s(self) -> float | None:
        return self._moves.leaves_at_s

    @property
    def max_bytes_per_s(self) -> float | None:
        return self._host.transfer.max_bytes_per_s

    @property
    def step_time_s(self) -> float | None:
        return median(self._step_times_s) if self._step_times_s else None

    def leaving_for(self) -> Collection[str]:
        return {move.destination_id for move in self._moves.in_flight()}

    def reserved_s(self, migration_id: str) -> float | None:
        move = self._moves.outgoing.get(migration_id)
        return None if move is None else move.reserved_s


# -- words -------------------------------------------------------------------------------


def _not_moved(told: TellNotMoved, me: InstanceRef) -> LoggedEvent:
    refused, order, to = told.refused, told.order, told.order.destination.instance_id
    sentence = why(refused.code)
    return LoggedEvent(
        EventKind.NOT_MOVED,
        time.time(),
        told.round_id,
        f"to {to}: {sentence} ({refused.code})",
        instance_id=me.instance_id,
        incarnation=me.incarnation,
        request_id=refused.request_id,
        numbers={
            "source_freeness_steps": finite(order.source_freeness),
            "destination_freeness_steps": order.destination_freeness,
            **refused.numbers,
            **considered(order),
        },
        labels={"from": me.instance_id, "to": to, "code": refused.code, "why": sentence},
    )


def _room_not_made(told: TellRoomNotMade, me: InstanceRef) -> LoggedEvent:
    order, sentence = told.order, why(told.code)
    failed = ""
    if told.num_moves:
        failed = f"of {told.num_moves} moves one to {told.destination_id} failed: "
    return LoggedEvent(
        EventKind.ROOM_NOT_MADE,
        time.time(),
        order.round_id,
        f"on {me.instance_id}: {failed}{sentence} ({told.code})",
        instance_id=me.instance_id,
        incarnation=me.incarnation,
        request_id=order.request_id,
        numbers={
            "lacking_blocks": order.lacking_blocks,
            "num_movable": told.num_movable,
            "spare_blocks_elsewhere": sum(each.spare_blocks for each in order.openings),
        },
        labels={"code": told.code, "why": sentence},
    )
