"""All moves of one instance, and what they contribute to the one check (`refusals.py`) that each
move passes before it begins.

Relief, room for blocked requests, drains, evacuations and moves by hand all begin by `leave`, and
moves to this instance by `arrive`; nothing else adds a move. The live instance and the instance of
the fault simulation are subclasses, so both run this check.

A move that is over is remembered for as long as anybody may still ask about it.
"""

from collections.abc import Callable, Container, Mapping
from typing import Generic, Protocol, TypeVar

from controller.core.migration.destination import DestinationMove
from controller.core.migration.ownership import FIRST_EPOCH, Epoch
from controller.core.migration.refusals import MOVABLE, MoveFacts, MoveRefusal, refusal_of
from controller.core.migration.source import IN_DOUBT, SourceMove, SourceState


class MoveAway(Protocol):
    """A move of which this instance is the source."""

    machine: SourceMove
    migration_id: str
    request_id: str

    @property
    def epoch(self) -> Epoch:
        """The epoch in which the request runs on this instance, or last ran on it."""

    def tick(self) -> None: ...


class MoveHere(Protocol):
    """A move of which this instance is the destination."""

    machine: DestinationMove
    migration_id: str
    request_id: str

    @property
    def epoch(self) -> Epoch:
        """The epoch in which the request will run here."""

    def tick(self) -> None: ...


Away = TypeVar("Away", bound=MoveAway)
Here = TypeVar("Here", bound=MoveHere)


class MoveTable(Generic[Away, Here]):
    """All moves of one instance. `requests`: the requests that run on this instance. `max_moves`
    counts both directions and may be set at any time; moves under way go on."""

    def __init__(self, requests: Container[str], max_moves: int) -> None:
        self._requests_here = requests
        self.max_moves = max_moves
        self.draining = False
        """While set, no request may move to this instance."""
        self.outgoing: dict[str, Away] = {}
        self.incoming: dict[str, Here] = {}
        """All moves that are remembered, from and to this instance, by migration id in the order in
        which they began."""
        self._leaving: dict[str, Away] = {}
        """The latest move of each request, by request id."""
        self._arriving: dict[str, Here] = {}
        """The moves to this instance, by migration id. Statuses are pushed often, and moves are
        remembered for long. So a move that is over leaves `_leaving` and `_arriving` at the next
        tick, although it is still remembered here."""

    @property
    def quiet(self) -> bool:
        """Whether no move is remembered any more, so that no tick is needed."""
        return not self.outgoing and not self.incoming

    @property
    def num_moves_in(self) -> int:
        return sum(not move.machine.over for move in self._arriving.values())

    @property
    def num_moves(self) -> int:
        return self.num_moves_in + sum(not move.machine.over for move in self._leaving.values())

    # -- what may begin ------------------------------------------------------------------

    def refusal(
        self, request_id: str, facts: MoveFacts | None = MOVABLE, *, waits: bool = False
    ) -> MoveRefusal | None:
        """Why no move of this request may begin on this instance now. `facts`: what the engine
        knows of the request, if it was asked. `waits`: whether the move would wait until the
        instance may begin one more."""
        return refusal_of(
            facts if request_id in self._requests_here else None,
            moving=self._is_moving(request_id),
            has_place=waits or self._has_place,
        )

    def refusals(self, facts: Mapping[str, MoveFacts | None]) -> dict[str, MoveRefusal]:
        """The refusals of those requests that could not move even if their moves waited for their
        turn."""
        here, moving = self._requests_here, self._moving_ids()
        refusals = {}
        for each, its_facts in facts.items():
            refusal = refusal_of(its_facts if each in here else None, moving=each in moving)
            if refusal is not None:
                refusals[each] = refusal
        return refusals

    def leave(self, request_id: str, make: Callable[[], Away]) -> Away | MoveRefusal:
        """Adds the move that `make` returns, unless the request may not leave now."""
        refusal = self.refusal(request_id)
        if refusal is not None:
            return refusal
        move = make()
        self.outgoing[move.migration_id] = self._leaving[request_id] = move
        return move

    def arrive(self, move: Here) -> MoveRefusal | None:
        """Adds a move to this instance. The move is remembered even if it is refused, because
        messages of it may still come."""
        refusal = None
        if move.request_id in self._requests_here or self._is_moving(move.request_id):
            refusal = MoveRefusal.MOVING
        elif self.draining:
            refusal = MoveRefusal.DRAINING
        elif not self._has_place:
            refusal = MoveRefusal.TOO_MANY_MOVES
        self.incoming[move.migration_id] = self._arriving[move.migration_id] = move
        return refusal

    def leaving_ids(self) -> set[str]:
        """The requests with a move away under way."""
        return {r for r, move in self._leaving.items() if not move.machine.over}

    def _moving_ids(self) -> set[str]:
        """All requests for which `_is_moving` is true."""
        moves = self.incoming.values()
        arriving = {move.request_id for move in moves if not move.machine.is_final}
        return self.leaving_ids() | arriving

    def _is_moving(self, request_id: str) -> bool:
        """Whether the request is leaving or arriving. After its arrival this stays true until its
        source has let go of the request. If the frontend fences this hop, the source goes on in the
        next hop, so no other move may use that next hop."""
        if self.under_way(request_id) is not None:
            return True
        for move in self.incoming.values():
            if move.request_id == request_id and not move.machine.is_final:
                return True
        return False

    @property
    def _has_place(self) -> bool:
        """Whether one more move may begin. Moves that are over may still be in the tables, and do
        not count."""
        at_most = len(self._leaving) + len(self._arriving)
        return at_most < self.max_moves or self.num_moves < self.max_moves

    # -- what is known -------------------------------------------------------------------

    def under_way(self, request_id: str) -> Away | None:
        """The move by which the request is leaving."""
        move = self._leaving.get(request_id)
        return None if move is None or move.machine.over else move

    def last_away(self, request_id: str, epoch: Epoch = FIRST_EPOCH) -> Away | None:
        """The request's latest move away that began in that epoch or in a later one."""
        gone = (
            move
            for move in self.outgoing.values()
            if move.request_id == request_id and move.epoch >= epoch
        )
        return max(gone, key=lambda move: move.epoch, default=None)

    def is_arriving(self, request_id: str) -> bool:
        """Whether a move to this instance may still hold something in the engine, even if it was
        called off."""
        moves = self.incoming.values()
        return any(move.request_id == request_id and not move.machine.over for move in moves)

    def is_outdated(self, request_id: str, attempt: int, here: Epoch | None) -> bool:
        """Whether a later attempt of the request runs on this instance, leaves it or arrives.
        `here`: the epoch in which the request runs on this instance, if it does. An order to run an
        attempt may be under way for seconds. Meanwhile the request may have been replayed on
        another instance, and may have moved from there to this one."""
        epochs = [FIRST_EPOCH if here is None else here]
        if (away := self.under_way(request_id)) is not None:
            epochs.append(away.epoch)
        for move in self._arriving.values():
            if move.request_id == request_id and not move.machine.over:
                epochs.append(move.epoch)
        return max(epochs).attempt > attempt

    def handed_on(self, request_id: str, epoch: Epoch) -> bool:
        """Whether another instance has, or may have, the request in a later hop of this attempt,
        because it moved away from here."""
        handed = (SourceState.MIGRATED, *IN_DOUBT)
        return any(
            move.request_id == request_id and move.epoch >= epoch and move.machine.state in handed
            for move in self.outgoing.values()
        )

    def fencing(self, request_id: str, fenced: Epoch) -> Away | None:
        """The move whose source waits for the frontend's answer: whether the source has the request
        back in that epoch."""
        move = self.under_way(request_id)
        if move is None or move.machine.state is not SourceState.FENCING:
            return None
        attempt, hop = move.epoch
        return move if Epoch(attempt, hop + 2) == fenced else None

    def asked_about(self, request_id: str, epoch: Epoch) -> Here | None:
        """The move that was to bring the request in that epoch; the latest one if there were
        several."""
        for move in reversed(self.incoming.values()):
            if (move.request_id, move.epoch) == (request_id, epoch):
                return move
        return None

    # -- the end -------------------------------------------------------------------------

    def forget(self, move: Away) -> None:
        """Forgets a move away at once, whatever its state."""
        self.outgoing.pop(move.migration_id, None)
        if self._leaving.get(move.request_id) is move:
            del self._leaving[move.request_id]

    def forget_arrival(self, move: Here) -> None:
        """Forgets a move to this instance at once, whatever its state."""
        self.incoming.pop(move.migration_id, None)
        self._arriving.pop(move.migration_id, None)

    def tick_moves(self, now_s: float, tick: Callable[[Away | Here], None]) -> None:
        """Ticks each move with `tick`, and forgets the moves about which nobody can ask any
        more."""
        for away in list(self.outgoing.values()):
            tick(away)
            if away.machine.forgettable(now_s):
                self.forget(away)
        for here in list(self.incoming.values()):
            tick(here)
            if here.machine.forgettable(now_s):
                del self.incoming[here.migration_id]
        self._leaving = {r: move for r, move in self._leaving.items() if not move.machine.over}
        self._arriving = {m: move for m, move in self._arriving.items() if not move.machine.over}
