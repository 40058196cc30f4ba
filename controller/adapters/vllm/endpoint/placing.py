"""Whether the engine requests of one HTTP request have an instance yet, or one was refused.

The head of a streamed answer waits for that (exchange.py): a request may be held for minutes and
refused then, and its status has to say so.
"""

from collections.abc import Awaitable, Callable
from contextvars import ContextVar

from controller.adapters.vllm.checks.fault import RefusedError


class Placing:
    """Of an HTTP request, which has one engine request for each of its prompts; the choices of
    `n` > 1 count as one. `on_placed` is called each time that all which began are placed."""

    def __init__(self, on_placed: Callable[[], Awaitable[None]]) -> None:
        self._on_placed = on_placed
        self._num_waiting = 0
        self.any_placed = False
        self.refusal: RefusedError | None = None
        """Why the first that was refused was."""

    def began(self) -> None:
        self._num_waiting += 1

    async def placed(self) -> None:
        self.any_placed = True
        self._num_waiting -= 1
        if self._num_waiting == 0:
            await self._on_placed()

    def refused(self, refusal: RefusedError) -> None:
        self.refusal = self.refusal or refusal


PLACING: ContextVar[Placing | None] = ContextVar("placing", default=None)
"""Of the HTTP request that this task, or the task that started it, answers."""
