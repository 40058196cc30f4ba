"""Moves that operators asked for and that wait until both their instances may begin another one.

First come, first served at each instance: while a move waits, none that came later may begin at
either of its instances, so that moves between two busy instances get their turn too.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from controller.core.migration.refusals import MoveRefusal
from controller.core.migration.stages import MAX_STAGES

MAX_WAITING = 64
"""Moves that may wait in the whole cluster; more are refused at once."""

# Why a move did not get its turn.
NO_TURN, QUEUE_FULL, NO_MOVES = "no_turn", "queue_full", "no_moves"
BY_MAX_MOVES = frozenset({NO_TURN, QUEUE_FULL, NO_MOVES, str(MoveRefusal.TOO_MANY_MOVES)})
"""Codes for which `migration.max_moves` stands in the way."""


@dataclass(frozen=True, slots=True)
class MoveByHand:
    """What an operator asked for. `num_blocks`: the request's then, 0 if it was queued."""

    request_id: str
    source_id: str
    num_blocks: int
    reason: str
    verify_kv: bool = False
    max_stages: int = MAX_STAGES


@dataclass(frozen=True, slots=True)
class QueuedMove:
    """One try of a move by hand, which waits for its turn `since_s`."""

    migration_id: str
    wanted: MoveByHand
    destination_id: str
    since_s: float

    @property
    def instance_ids(self) -> tuple[str, str]:
        return self.wanted.source_id, self.destination_id


class MoveQueue:
    def __init__(self) -> None:
        self._waiting: dict[str, QueuedMove] = {}
        self._begun: dict[str, QueuedMove] = {}

    @property
    def waiting(self) -> tuple[QueuedMove, ...]:
        """In their order."""
        return tuple(self._waiting.values())

    def join(self, move: QueuedMove) -> bool:
        """False if too many wait already."""
        if len(self._waiting) >= MAX_WAITING:
            return False
        self._waiting[move.migration_id] = move
        return True

    def leave(self, migration_id: str) -> None:
        """The move is over, or nobody waits for it any more."""
        self._waiting.pop(migration_id, None)
        self._begun.pop(migration_id, None)

    def begin(self, num_reported: Callable[[str], int], max_moves: int) -> list[QueuedMove]:
        """The moves that may begin now, in their order; from now on they count. `num_reported`:
        moves under way at an instance by its last status, which may not know the latest."""
        own = Counter(end for move in self._begun.values() for end in move.instance_ids)
        taken: set[str] = set()
        found = []
        for move in self.waiting:
            ends = move.instance_ids
            if taken.isdisjoint(ends) and all(
                max(own[end], num_reported(end)) < max_moves for end in ends
            ):
                found.append(move)
                own.update(ends)
                self._begun[move.migration_id] = self._waiting.pop(move.migration_id)
            else:
                taken.update(ends)
        return found
