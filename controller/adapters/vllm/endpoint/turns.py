"""Spreads callers that begin at once over several turns of the event loop."""

import asyncio

PER_TURN = 16


class Turns:
    def __init__(self) -> None:
        self._num_taken = 0

    async def take(self) -> None:
        """Returns at once for the first PER_TURN callers in a turn of the event loop, and in a
        later turn for the others."""
        while self._num_taken >= PER_TURN:
            await asyncio.sleep(0)
        if self._num_taken == 0:
            asyncio.get_running_loop().call_soon(self._begin)
        self._num_taken += 1

    def _begin(self) -> None:
        self._num_taken = 0
