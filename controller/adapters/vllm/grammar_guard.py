"""Ends requests whose grammar takes the engine too long: while it compiles, or at a step.

**Steps.** A grammar's cost grows with the text, so a first slow step comes before a hopeless
one. The thread's own CPU time decides, so that a busy machine ends no request. This guard cannot
end a call that never returns: the frontend refuses regular expressions and schemas that could
cause one (checks/constraints.py), and follows every grammar for some tokens
(grammars/trial_program.py).

**Compiling.** A frontend has compiled the grammar within bounds before (grammars/trials.py). The
engine compiles it once more, as a compiled grammar is slower to read than to compile (6.5 s
instead of 0.15 s for 50 tool schemas, 72 MB), and nobody can end vLLM's compiler threads. So a
grammar whose client has left is not compiled if that has not begun, and its result is dropped if it
has. A grammar was admitted by its trial, so a compile that does not end says something of this
instance and nothing of the request: that is given up, to be sent again.

Touch points of vLLM: v1/structured_output/__init__.py `grammar_init`, `_create_grammar`;
v1/structured_output/request.py `_grammar`; v1/structured_output/backend_types.py
`StructuredOutputGrammar`; v1/engine/__init__.py `EngineCoreOutput` with `stop_reason`, which vLLM
leaves empty after an error. A grammar that accepts no token ends its request with
FinishReason.ERROR, and so does one that is an exception (v1/core/sched/scheduler.py).
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple

MAX_CALL_S = 0.25
# Longer than a trial's 40 s.
MAX_COMPILE_S = 60.0
# Time in which the whole process stood still says nothing of the compiler: no more than this counts
# from one look to the next.
MAX_LOOK_S = 1.0
NOT_COMPILED = "grammar_not_compiled"
"""The stop reason of a request that was given up, and may be sent again."""

log = logging.getLogger(__name__)


class _Compiling(NamedTuple):
    request_id: str
    structured: Any
    """vLLM's StructuredOutputRequest."""
    since_s: float


class GrammarGuard:
    """Watches every grammar that a StructuredOutputManager makes from now on."""

    def __init__(self, manager: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._looked_s = clock()
        self._passed_s = 0.0
        self._compiling: dict[Future[Any], _Compiling] = {}
        self._given_up: set[str] = set()
        """Requests, until their outputs are marked."""
        self._create, self._init = manager._create_grammar, manager.grammar_init
        manager._create_grammar = self._create_watched
        manager.grammar_init = self._begin

    def forget(self, requests: Iterable[Any]) -> None:
        """These requests of the engine, no others of the same ids, are aborted: compiling that has
        not begun does not begin. A later attempt of a request may be compiling already."""
        for request in requests:
            self._given_up.discard(request.request_id)
            future = getattr(request.structured_output_request, "_grammar", None)
            if isinstance(future, Future):
                future.cancel()

    def give_up_overdue(self, requests: Mapping[str, Any]) -> None:
        """Called between two steps, with the engine's requests. The compiler's thread goes on, but
        its request ends."""
        if not self._compiling:
            return
        now_s = self._now_s()
        for future, (request_id, structured, since_s) in list(self._compiling.items()):
            request = requests.get(request_id)
            if request is None or request.structured_output_request is not structured:
                continue  # on its way into the engine: whoever brings it waits only so long
            if now_s - since_s > MAX_COMPILE_S and structured._grammar is future:
                log.warning("%s: its grammar does not compile in %g s", request_id, MAX_COMPILE_S)
                future.cancel()
                structured._grammar = TimeoutError("it took too long to compile")
                self._given_up.add(request_id)

    def mark(self, outputs: Iterable[Any]) -> None:
        """Says in the last outputs of requests that were given up that they were."""
        if not self._given_up:
            return
        for output in outputs:
            if output.finish_reason is not None and output.request_id in self._given_up:
                self._given_up.remove(output.request_id)
                output.stop_reason = NOT_COMPILED

    def _now_s(self) -> float:
        """The time that has passed, less that in which nobody looked."""
        now_s = self._clock()
        self._passed_s += min(now_s - self._looked_s, MAX_LOOK_S)
        self._looked_s = now_s
        return self._passed_s

    def _create_watched(self, request: Any) -> Any:
        return WatchedGrammar(self._create(request), request.request_id)

    def _begin(self, request: Any) -> None:
        self._init(request)
        structured = request.structured_output_request
        future = getattr(structured, "_grammar", None)
        if isinstance(future, Future):
            self._compiling[future] = _Compiling(request.request_id, structured, self._passed_s)
            future.add_done_callback(lambda _: self._compiling.pop(future, None))


class WatchedGrammar:
    """A StructuredOutputGrammar; after a call of more than MAX_CALL_S it accepts nothing more.

    The grammar must not refer back to it: Python's collector does not count the compiler's
    memory, and would free such a cycle too late.
    """

    def __init__(
        self, grammar: Any, request_id: str, clock: Callable[[], float] = time.thread_time
    ) -> None:
        self._grammar = grammar
        self._request_id = request_id
        self._clock = clock
        self._longest_s = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grammar, name)

    def fill_bitmask(self, bitmask: Any, index: int) -> None:
        self._time(self._grammar.fill_bitmask, bitmask, index)

    def accept_tokens(self, owner: str, tokens: list[int]) -> bool:
        accepted = self._time(self._grammar.accept_tokens, owner, tokens)
        if self._longest_s > MAX_CALL_S:
            log.warning(
                "%s: a step of its grammar took %.1f s; ended", self._request_id, self._longest_s
            )
            return False
        return bool(accepted)

    def _time(self, call: Callable[..., Any], *args: Any) -> Any:
        started_s = self._clock()
        result = call(*args)
        self._longest_s = max(self._longest_s, self._clock() - started_s)
        return result
