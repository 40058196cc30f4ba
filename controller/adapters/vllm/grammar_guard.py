"""Ends requests whose grammar takes the engine too long, either while it compiles or at a step.

**Steps.** The cost of a grammar grows with the text, so a grammar has a first slow step before its
steps become hopelessly slow. The guard measures the thread's own CPU time, so that a busy machine
ends no request. It cannot end a call that never returns. Therefore the frontend refuses regular
expressions and schemas that could cause such a call (checks/constraints.py), and follows every
grammar for some tokens (grammars/trial_program.py).

**Compiling.** A frontend has already compiled the grammar, within limits (grammars/trials.py). The
engine compiles it once more, because reading a compiled grammar takes longer than compiling (6.5 s
instead of 0.15 s for 50 tool schemas, 72 MB). vLLM's compiler threads cannot be ended. So if the
client has left, compiling does not begin, and if it has begun its result is dropped. A trial has
admitted the grammar, so if it does not finish compiling, the cause is this instance and not the
request: the request is given up, to be sent again.

Touch points of vLLM: v1/structured_output/__init__.py `grammar_init`, `_create_grammar`;
v1/structured_output/request.py `_grammar`; v1/structured_output/backend_types.py
`StructuredOutputGrammar`; v1/engine/__init__.py `EngineCoreOutput` with `stop_reason`, which vLLM
leaves empty after an error. A grammar that accepts no token ends its request with
FinishReason.ERROR, and so does a grammar that is an exception (v1/core/sched/scheduler.py)."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple

MAX_CALL_S = 0.25
# This is longer than a trial may take, which is 40 s.
MAX_COMPILE_S = 60.0
# At most this much time is counted from one check to the next. If more time has passed, the whole
# process stood still, and that says nothing about the compiler.
MAX_LOOK_S = 1.0
NOT_COMPILED = "grammar_not_compiled"
"""The stop reason of a request that was given up and may be sent again."""

log = logging.getLogger(__name__)


class _Compiling(NamedTuple):
    request_id: str
    structured: Any
    """vLLM's StructuredOutputRequest."""
    since_s: float


class GrammarGuard:
    """Watches all grammars that a StructuredOutputManager makes after this object was made."""

    def __init__(self, manager: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._looked_s = clock()
        self._passed_s = 0.0
        self._compiling: dict[Future[Any], _Compiling] = {}
        self._given_up: set[str] = set()
        """Requests that were given up and whose outputs are not marked yet."""
        self._create, self._init = manager._create_grammar, manager.grammar_init
        manager._create_grammar = self._create_watched
        manager.grammar_init = self._begin

    def forget(self, requests: Iterable[Any]) -> None:
        """Forgets aborted requests: if their grammars are not being compiled yet, they never will
        be. The guard gets the requests themselves and no ids, because a later attempt of a request,
        under the same id, may be compiling already."""
        for request in requests:
            self._given_up.discard(request.request_id)
            future = getattr(request.structured_output_request, "_grammar", None)
            if isinstance(future, Future):
                future.cancel()

    def give_up_overdue(self, requests: Mapping[str, Any]) -> None:
        """Gives up requests whose grammar compiles for too long. Called between two steps, with the
        engine's requests. The compiler's thread continues, but its request ends."""
        if not self._compiling:
            return
        now_s = self._now_s()
        for future, (request_id, structured, since_s) in list(self._compiling.items()):
            request = requests.get(request_id)
            if request is None or request.structured_output_request is not structured:
                continue  # not in the engine yet; the move or replay has a time limit
            if now_s - since_s > MAX_COMPILE_S and structured._grammar is future:
                log.warning(
                    "%s: given up, as its grammar did not compile in %g s",
                    request_id,
                    MAX_COMPILE_S,
                )
                future.cancel()
                structured._grammar = TimeoutError("it took too long to compile")
                self._given_up.add(request_id)

    def mark(self, outputs: Iterable[Any]) -> None:
        """Marks the last output of each request that was given up."""
        if not self._given_up:
            return
        for output in outputs:
            if output.finish_reason is not None and output.request_id in self._given_up:
                self._given_up.remove(output.request_id)
                output.stop_reason = NOT_COMPILED

    def _now_s(self) -> float:
        """The time that has passed; if more time than MAX_LOOK_S has passed since the last check,
        only MAX_LOOK_S counts."""
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
    """A StructuredOutputGrammar that accepts nothing more after a call has taken more than
    MAX_CALL_S.

    The wrapped grammar must not refer back to this object: Python's collector does not count the
    compiler's memory, and would free such a cycle too late."""

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
                "%s: ended, as a step of its grammar took %.1f s", self._request_id, self._longest_s
            )
            return False
        return bool(accepted)

    def _time(self, call: Callable[..., Any], *args: Any) -> Any:
        started_s = self._clock()
        result = call(*args)
        self._longest_s = max(self._longest_s, self._clock() - started_s)
        return result
