"""All moves of one instance: it begins and receives them, passes on what happens, and limits their
number."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from controller.core.instance_ref import InstanceRef
from controller.core.migration import destination_terms as destination
from controller.core.migration import source_terms as source
from controller.core.migration.limits import MoveLimits
from controller.core.migration.order import MoveOrder
from controller.core.migration.protocol import FROM_SOURCE, IllegalMoveError, MoveMessage, Verb
from controller.core.migration.record import MoveInFlight, MoveRecord
from controller.core.migration.refusals import MoveRefusal
from controller.core.record.event_log import Number
from controller.core.token_order import FIRST_EPOCH, Epoch
from controller.runtime.instance.moves.host import MoveHost
from controller.runtime.instance.moves.incoming import IncomingMove
from controller.runtime.instance.moves.outgoing import OutgoingMove
from controller.runtime.messages.moves import (
    FenceAnswered,
    MoveEnvelope,
    OwnerAsked,
    RequestMoved,
    RequestNotMoved,
)

log = logging.getLogger(__name__)

DEFAULT_MAX_MOVES = MoveLimits().max_moves
NO_NUMBERS: Mapping[str, Number] = {}


class InstanceMoves:
    """`max_moves` counts both directions and may be set at any time; moves under way go on.
    `draining`: no request may move in."""

    def __init__(self, host: MoveHost, block_size: int, max_moves: int = DEFAULT_MAX_MOVES) -> None:
        self._host = host
        self._block_size = block_size
        self.max_moves = max_moves
        self.draining = False
        self.leaves_at_s: float | None = None
        """When this instance will be ended, by the host's clock; None: not known to be."""
        self._outgoing: dict[str, OutgoingMove] = {}
        self._incoming: dict[str, IncomingMove] = {}
        """By migration id, moves that are over too, as long as anybody may still ask about them."""
        self._leaving: dict[str, OutgoingMove] = {}
        """The last move of each request, by request id."""
        self._arriving: dict[str, IncomingMove] = {}
        """Statuses are pushed often and moves remembered for long, so a move that is over leaves
        `_leaving` and `_arriving` at the next tick."""
        self._peers: set[InstanceRef] = set()
        """Instances to which the transfer may have links."""
        self._dead: set[InstanceRef] = set()
        """Dead instances that the transfer has not been told to forget yet."""
        self.busy = asyncio.Event()
        """Set while anything is remembered, and so ticks are needed."""

    @property
    def quiet(self) -> bool:
        """No move is remembered any more, so no tick is needed."""
        return not self._outgoing and not self._incoming

    @property
    def num_moves_in(self) -> int:
        return sum(not move.machine.over for move in self._arriving.values())

    @property
    def num_moves(self) -> int:
        return self.num_moves_in + sum(not move.machine.over for move in self._leaving.values())

    def in_flight(self) -> tuple[MoveInFlight, ...]:
        moves = self._leaving.values()
        return tuple(move.in_flight() for move in moves if not move.machine.over)

    # -- orders --------------------------------------------------------------------------

    def refusal(self, request_id: str) -> MoveRefusal | None:
        """This llumlet's own reasons not to begin a move; the engine may have others."""
        if request_id not in self._host.requests:
            return MoveRefusal.UNKNOWN
        if self._moving(request_id):
            return MoveRefusal.MOVING
        if self.num_moves >= self.max_moves:
            return MoveRefusal.TOO_MANY_MOVES
        return None

    def begin(
        self,
        order: MoveOrder,
        on_closed: Callable[[MoveRecord], None],
        decision: Mapping[str, Number] = NO_NUMBERS,
    ) -> OutgoingMove:
        """Raises KeyError if the request is not here; ask `refusal` first."""
        move = OutgoingMove(self._host, order, self._block_size, on_closed, decision)
        self._peers.add(order.destination)
        self._host.transfer.warm_up(order.destination)
        self._outgoing[order.migration_id] = self._leaving[order.request_id] = move
        self.busy.set()
        move.begin()
        return move

    # -- what happens --------------------------------------------------------------------

    def request_finished(self, request_id: str) -> None:
        if move := self._live_of(request_id):
            move.handle(source.RequestEnded("finished"))

    def client_left(self, request_id: str, epoch: Epoch = FIRST_EPOCH) -> None:
        """The request's frontend says that its client left, or is gone itself; the engine has been
        told. A request that is not here any more is followed to where it went last. `epoch`: in
        which it was here; earlier moves do not count, as it has come back since."""
        if move := self._live_of(request_id) or self._last_of(request_id, epoch):
            move.handle(source.RequestEnded("client_left"))
        for arriving in list(self._incoming.values()):
            if arriving.request_id == request_id:
                arriving.handle(destination.ClientLeft())

    def is_arriving(self, request_id: str) -> bool:
        """Whether a move to here may still hold something in the engine, though called off."""
        moves = self._incoming.values()
        return any(move.request_id == request_id and not move.machine.over for move in moves)

    def handed_on(self, request_id: str, epoch: Epoch) -> bool:
        """Whether another instance has the request in a later hop of this attempt, or may have
        it."""
        handed = (source.SourceState.MIGRATED, *source.IN_DOUBT)
        moves = self._outgoing.values()
        return any(
            move.order.request_id == request_id
            and move.epoch >= epoch
            and move.machine.state in handed
            for move in moves
        )

    def request_evicted(self, request_id: str) -> None:
        if move := self._live_of(request_id):
            move.handle(source.RequestEvicted())

    def set_rank(self, request_id: str, rank: int) -> None:
        """Sets the rank of a request that is here; a request that is leaving takes it along."""
        if live := self._host.requests.get(request_id):
            live.rank = rank
        if move := self._live_of(request_id):
            move.handle(source.PriorityChanged(rank))
        else:
            self._host.between_steps(lambda engine: engine.moves.set_rank(request_id, rank))

    def peer_lost(self, is_lost: Callable[[InstanceRef], bool]) -> None:
        lost = {peer for peer in self._peers if is_lost(peer)}
        self._peers -= lost
        self._dead |= lost
        for move in list(self._outgoing.values()):
            if is_lost(move.order.destination):
                with _logged(move.order.migration_id):
                    move.handle(source.DestinationDied())
        for arriving in list(self._incoming.values()):
            if is_lost(arriving.source):
                with _logged(arriving.migration_id):
                    arriving.handle(destination.SourceDied())
        self._forget_dead()

    def _forget_dead(self) -> None:
        """Lets the transfer forget dead peers, but not one whose last stage is still coming in: its
        bytes may have been sent before it died."""
        for peer in list(self._dead):
            if not any(
                arriving.source == peer and arriving.machine.receiving
                for arriving in self._incoming.values()
            ):
                self._dead.remove(peer)
                self._host.transfer.forget(peer)

    def frontend_lost(self, address: str) -> None:
        """Ends the moves that bring requests of this frontend, as nobody would read their
        tokens."""
        for arriving in list(self._incoming.values()):
            if arriving.frontend == address:
                with _logged(arriving.migration_id):
                    arriving.handle(destination.ClientLeft())

    def fenced(self) -> None:
        """The cluster counts this incarnation as dead: arriving requests are refused, and those
        that are being applied are given back. Moves away that are in doubt are forgotten, or their
        end would end the request at the destination; the destination and the frontend decide
        them."""
        for migration_id, move in list(self._outgoing.items()):
            if move.machine.state in source.IN_DOUBT:
                del self._outgoing[migration_id]
                self._leaving.pop(move.order.request_id, None)
                move.unpin()
        given_back = MoveMessage(Verb.ABORT, code="fenced")
        for arriving in list(self._incoming.values()):
            applying = arriving.machine.state is destination.DestinationState.APPLYING
            with _logged(arriving.migration_id):
                arriving.handle(given_back if applying else destination.ClientLeft())

    def fence_answered(self, answer: FenceAnswered) -> None:
        move = self._live_of(answer.request_id)
        if move is not None and (move.epoch.attempt, move.epoch.hop + 2) == answer.epoch:
            fenced = source.EpochFenced() if answer.fenced else source.AlreadyMoved()
            if move.machine.state is source.SourceState.FENCING:
                move.handle(fenced)

    def owner_asked(self, asked: OwnerAsked) -> None:
        for arriving in reversed(self._incoming.values()):  # the last move of that hop counts
            if (arriving.request_id, arriving.epoch) == (asked.request_id, asked.epoch):
                arriving.handle(destination.OwnerAsked())
                return
        live = self._host.requests.get(asked.request_id)
        if live is not None and live.attempt == asked.attempt and live.hop >= asked.hop:
            moved = RequestMoved(
                asked.request_id, self._host.me, live.hop, live.next_index, live.attempt
            )
            self._host.send(asked.frontend, moved)
        else:
            not_moved = RequestNotMoved(asked.request_id, asked.hop, asked.attempt)
            self._host.send(asked.frontend, not_moved)

    def receive(self, envelope: MoveEnvelope, payload: Sequence[Any]) -> None:
        """Takes a message of the other side of a move, which may be forgotten here. A new request
        for an earlier incarnation is ignored; messages about moves of that incarnation count, as
        they are still remembered here."""
        if envelope.arriving is not None and envelope.destination.key != self._host.me.key:
            return
        try:
            if envelope.message.verb in FROM_SOURCE:
                self._source_said(envelope, payload)
            else:
                self._destination_said(envelope)
        except IllegalMoveError as error:
            migration_id = envelope.migration_id
            log.error("move %s: %s", migration_id, error)

    def tick(self) -> None:
        now_s = self._host.now_s()
        for migration_id, move in list(self._outgoing.items()):
            with _logged(migration_id):
                move.tick()
            if move.machine.forgettable(now_s):
                del self._outgoing[migration_id]
        for migration_id, arriving in list(self._incoming.items()):
            with _logged(migration_id):
                arriving.tick()
            if arriving.machine.forgettable(now_s):
                del self._incoming[migration_id]
        self._leaving = {r: move for r, move in self._leaving.items() if not move.machine.over}
        self._arriving = {m: move for m, move in self._arriving.items() if not move.machine.over}
        self._forget_dead()
        if self.quiet:
            self.busy.clear()

    def _source_said(self, envelope: MoveEnvelope, payload: Sequence[Any]) -> None:
        known = self._incoming.get(envelope.migration_id)
        if known is not None:
            known.receive(envelope, payload)
        elif envelope.message.verb is Verb.PRE_ALLOC and envelope.arriving is not None:
            self._arrive(envelope, payload)
        else:
            self._answer_for_forgotten(envelope)

    def _arrive(self, envelope: MoveEnvelope, payload: Sequence[Any]) -> None:
        refusal = None
        if envelope.request_id in self._host.requests or self._moving(envelope.request_id):
            refusal = MoveRefusal.MOVING
        elif self.draining:
            refusal = MoveRefusal.DRAINING
        elif self.num_moves >= self.max_moves:
            refusal = MoveRefusal.TOO_MANY_MOVES
        self._peers.add(envelope.source)
        move = IncomingMove(self._host, envelope, payload)
        self._incoming[envelope.migration_id] = self._arriving[envelope.migration_id] = move
        self.busy.set()
        move.begin(refusal)

    def _answer_for_forgotten(self, envelope: MoveEnvelope) -> None:
        """Answers as a move would that brought nothing here; the source knows of others."""
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

    def _destination_said(self, envelope: MoveEnvelope) -> None:
        if move := self._outgoing.get(envelope.migration_id):
            move.receive(envelope.message)
        elif envelope.message.verb is Verb.COMMITTED:
            self._reply(envelope, MoveMessage(Verb.ACKNOWLEDGED, envelope.message.stage))

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

    def _moving(self, request_id: str) -> bool:
        arriving = any(
            move.request_id == request_id and not move.machine.is_final
            for move in self._incoming.values()
        )
        return arriving or self._live_of(request_id) is not None

    def _live_of(self, request_id: str) -> OutgoingMove | None:
        move = self._leaving.get(request_id)
        return None if move is None or move.machine.over else move

    def _last_of(self, request_id: str, epoch: Epoch) -> OutgoingMove | None:
        """The last move away that began in that epoch or later."""
        gone = (
            move
            for move in self._outgoing.values()
            if move.order.request_id == request_id and move.epoch >= epoch
        )
        return max(gone, key=lambda move: move.epoch, default=None)


@contextmanager
def _logged(migration_id: str) -> Iterator[None]:
    """A defect in one move must not leave the others without an end."""
    try:
        yield
    except Exception:
        log.exception("move %s cannot go on", migration_id)
