"""So that many callers who begin at once leave the event loop to others in between."""

import asyncio

PER_TURN = 16


class Turns:
    def __init__(self) -> None:
        self._num_taken = 0

    async def take(self) -> None:
        """At once for the first PER_TURN callers in one turn of the event loop, else in a later
        one."""
        while self._num_taken >= PER_TURN:
            await asyncio.sleep(0)
        if self._num_taken == 0:
            asyncio.get_running_loop().call_soon(self._begin)
        self._num_taken += 1

    def _begin(self) -> None:
        self._num_taken = 0
