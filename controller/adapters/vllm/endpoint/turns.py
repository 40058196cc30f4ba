"""Spreads callers that begin at once over several turns of the event loop."""

import asyncio
from collections import deque


class Turns:
    """In the order in which they came. Streams that run go on in between."""

    def __init__(self, per_turn: int) -> None:
        """`per_turn`: callers that may begin within one turn of the event loop."""
        self._per_turn = per_turn
        self._num_taken = 0
        """In this turn."""
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self) -> None:
        """Returns at once for the first callers in a turn of the event loop, and in a later turn
        for the others."""
        loop = asyncio.get_running_loop()
        if self._num_taken == 0:
            loop.call_soon(self._begin, loop)
        if self._num_taken < self._per_turn:
            self._num_taken += 1
            return
        turn = loop.create_future()
        self._waiting.append(turn)
        await turn

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._num_taken = 0
        while self._waiting and self._num_taken < self._per_turn:
            turn = self._waiting.popleft()
            if not turn.done():  # else its caller was cancelled
                turn.set_result(None)
                self._num_taken += 1
        if self._num_taken:
            loop.call_soon(self._begin, loop)
