"""Turns of moves by hand: a move waits in the queue and wakes up when its turn has come."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from controller.core.migration.queue import NO_MOVES, NO_TURN, QUEUE_FULL, MoveQueue, QueuedMove


class NoTurnError(Exception):
    """`code`: why the move got no turn."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class MoveTurns:
    """`max_moves` may be set at any time; with 0 no move gets a turn. `num_reported(instance_id)`:
    moves under way there by its last status. Moves that wait are lost with this process, like the
    calls that asked for them."""

    def __init__(self, num_reported: Callable[[str], int], max_moves: int) -> None:
        self.max_moves = max_moves
        self._num_reported = num_reported
        self.queue = MoveQueue()
        self._turns: dict[str, asyncio.Future[None]] = {}

    def is_full(self, instance_id: str) -> bool:
        return self._num_reported(instance_id) >= self.max_moves

    @asynccontextmanager
    async def turn(self, move: QueuedMove, patience_s: float) -> AsyncIterator[None]:
        """Waits for the move's turn; in the `with` block it counts at both its instances. Raises
        NoTurnError."""
        if not self.max_moves:
            raise NoTurnError(NO_MOVES)
        if not self.queue.join(move):
            raise NoTurnError(QUEUE_FULL)
        turn = self._turns[move.migration_id] = asyncio.get_running_loop().create_future()
        try:
            self.look()
            try:
                await asyncio.wait_for(turn, patience_s)
            except TimeoutError:
                raise NoTurnError(NO_TURN) from None
            yield
        finally:
            self.queue.leave(move.migration_id)
            del self._turns[move.migration_id]
            self.look()

    def look(self) -> None:
        """Begins the moves that may begin by now. Called after each change, and now and then."""
        for move in self.queue.begin(self._num_reported, self.max_moves):
            turn = self._turns[move.migration_id]
            if not turn.done():
                turn.set_result(None)
