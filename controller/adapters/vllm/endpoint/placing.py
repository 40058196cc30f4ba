"""Whether the engine requests of one HTTP request have an instance yet, or one was refused.

The head of a streamed answer waits for that (exchange.py): a request may be held for minutes and
refused then, and its status has to say so.
"""

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from http import HTTPStatus

from controller.adapters.vllm.checks.headers import RefusedError


class Placing:
    """Of an HTTP request, which has one engine request for each of its prompts; the choices of
    `n` > 1 count as one. `on_placed` is called each time that all which began are placed."""

    def __init__(self, on_placed: Callable[[], Awaitable[None]]) -> None:
        self._on_placed: Callable[[], Awaitable[None]] | None = on_placed
        self._error: Exception | None = None
        self._num_waiting = 0
        self.any_placed = False
        self.refusal: RefusedError | None = None
        """Why the first that was refused was."""
        self._grammars_s, self._num_grammars = 0.0, 0

    def began(self) -> None:
        self._num_waiting += 1

    async def placed(self) -> None:
        self.any_placed = True
        self._num_waiting -= 1
        if self._num_waiting == 0 and self._on_placed is not None:
            await self._on_placed()

    def follows_grammar(self, step_s: float, most_s: float) -> None:
        """One more of its answers follows a grammar, which takes so much CPU time for a token.
        Raises RefusedError."""
        self._grammars_s += step_s
        self._num_grammars += 1
        if self._num_grammars > 1 and self._grammars_s > most_s:
            raise RefusedError(
                HTTPStatus.BAD_REQUEST,
                f"the answers to this request would take their grammar more than {most_s:g} s "
                f"a token, {step_s * 1000:.0f} ms each; ask for fewer at a time",
            )

    def refused(self, refusal: RefusedError, error: Exception | None = None) -> None:
        """`error`: by which vLLM hears of it."""
        self.refusal, self._error = self.refusal or refusal, self._error or error

    def close(self) -> None:
        """The answer is over. Drops what refers back to it, as the garbage collector may come after
        ten thousands of requests: the callback, and the error's traceback, a frame of which has the
        error. Of each refused request some 90 objects stayed until then."""
        self._on_placed = None
        if self._error is not None:
            self._error.__traceback__ = None


PLACING: ContextVar[Placing | None] = ContextVar("placing", default=None)
"""Of the HTTP request that this task, or the task that started it, answers."""
