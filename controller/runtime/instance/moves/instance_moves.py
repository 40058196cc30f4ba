"""All moves of one instance: it begins and receives them, and passes on what happens."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from controller.core.instance_ref import InstanceRef
from controller.core.migration import destination, source
from controller.core.migration.move_records import MoveInFlight, MoveOrder, MoveRecord
from controller.core.migration.move_table import MoveTable
from controller.core.migration.ownership import FIRST_EPOCH, Epoch
from controller.core.migration.protocol import FROM_SOURCE, IllegalMoveError, MoveMessage, Verb
from controller.core.migration.refusals import MoveRefusal
from controller.core.record.event_log import Number
from controller.core.settings import MigrationSettings
from controller.runtime.instance.moves.host import MoveHost
from controller.runtime.instance.moves.incoming import IncomingMove
from controller.runtime.instance.moves.outgoing import OutgoingMove
from controller.runtime.messages.move_messages import (
    FenceAnswered,
    MoveEnvelope,
    OwnerAsked,
    OwnerConfirmed,
    RequestMoved,
    RequestNotMoved,
)

log = logging.getLogger(__name__)

DEFAULT_MAX_MOVES = MigrationSettings().max_moves
NO_NUMBERS: Mapping[str, Number] = {}


class InstanceMoves(MoveTable[OutgoingMove, IncomingMove]):
    def __init__(self, host: MoveHost, block_size: int, max_moves: int = DEFAULT_MAX_MOVES) -> None:
        super().__init__(host.requests, max_moves)
        self._host = host
        self._block_size = block_size
        self.leaves_at_s: float | None = None
        """When this instance will be ended, by the host's clock; None: not known to be."""
        self._peers: set[InstanceRef] = set()
        """Instances to which the transfer may have links."""
        self._dead: set[InstanceRef] = set()
        """Dead instances that the transfer has not been told to forget yet."""
        self.busy = asyncio.Event()
        """Set while anything is remembered, and so ticks are needed."""

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
            lambda: OutgoingMove(self._host, order, self._block_size, on_closed, decision),
        )
        if isinstance(move, MoveRefusal):
            return move
        self._peers.add(order.destination)
        self._host.transfer.warm_up(order.destination)
        self.busy.set()
        move.begin()
        return move

    # -- what happens --------------------------------------------------------------------

    def request_finished(self, request_id: str) -> None:
        if move := self.under_way(request_id):
            move.handle(source.RequestEnded("finished"))

    def client_left(self, request_id: str, epoch: Epoch = FIRST_EPOCH) -> None:
        """The request's frontend says that its client left, or is gone itself; the engine has been
        told. A request that is not here any more is followed to where it went last. `epoch`: in
        which it was here; earlier moves do not count, as it has come back since."""
        if move := self.under_way(request_id) or self.last_away(request_id, epoch):
            move.handle(source.RequestEnded("client_left"))
        for arriving in list(self.incoming.values()):
            if arriving.request_id == request_id:
                arriving.handle(destination.ClientLeft())

    def request_evicted(self, request_id: str) -> None:
        if move := self.under_way(request_id):
            move.handle(source.RequestEvicted())

    def set_rank(self, request_id: str, rank: int) -> None:
        """Sets the rank of a request that is here; a request that is leaving takes it along."""
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
        """Lets the transfer forget dead peers, but not one whose last stage is still coming in: its
        bytes may have been sent before it died."""
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
        """The cluster counts this incarnation as dead: arriving requests are refused, and those
        that are being applied are given back. Moves away that are in doubt are forgotten, or their
        end would end the request at the destination; the destination and the frontend decide
        them."""
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
        self.tick_moves(self._host.now_s(), _tick)
        self._forget_dead()
        if self.quiet:
            self.busy.clear()

    def _source_said(self, envelope: MoveEnvelope, payload: Sequence[Any]) -> None:
        known = self.incoming.get(envelope.migration_id)
        if known is not None:
            known.receive(envelope, payload)
        elif envelope.message.verb is Verb.PRE_ALLOC and envelope.arriving is not None:
            self._arrive(envelope, payload)
        else:
            self._answer_for_forgotten(envelope)

    def _arrive(self, envelope: MoveEnvelope, payload: Sequence[Any]) -> None:
        self._peers.add(envelope.source)
        move = IncomingMove(self._host, envelope, payload)
        refusal = self.arrive(move)
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
        if move := self.outgoing.get(envelope.migration_id):
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


def _tick(move: OutgoingMove | IncomingMove) -> None:
    with _logged(move.migration_id):
        move.tick()


@contextmanager
def _logged(migration_id: str) -> Iterator[None]:
    """A defect in one move must not leave the others without an end."""
    try:
        yield
    except Exception:
        log.exception("move %s cannot go on", migration_id)
