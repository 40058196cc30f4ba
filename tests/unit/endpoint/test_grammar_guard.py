"""The guard over fake grammars; real ones are in the contract tests."""

import gc
import threading
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from controller.adapters.vllm import grammar_guard
from controller.adapters.vllm.grammar_guard import GrammarGuard, WatchedGrammar


class PlayedGrammar:
    """Each call takes as long as it is told."""

    def __init__(self) -> None:
        self.now_s = self.fill_s = self.accept_s = 0.0
        self.accepts = True
        self.filled: list[int] = []

    def clock(self) -> float:
        return self.now_s

    def fill_bitmask(self, _bitmask: Any, index: int) -> None:
        self.now_s += self.fill_s
        self.filled.append(index)

    def accept_tokens(self, _request_id: str, _tokens: list[int]) -> bool:
        self.now_s += self.accept_s
        return self.accepts

    def is_terminated(self) -> bool:
        return not self.accepts


def watched(grammar: PlayedGrammar) -> WatchedGrammar:
    return WatchedGrammar(grammar, "r", grammar.clock)


def test_many_quick_steps_are_fine() -> None:
    grammar = PlayedGrammar()
    found = watched(grammar)
    grammar.fill_s = grammar.accept_s = grammar_guard.MAX_CALL_S
    for index in range(100):
        found.fill_bitmask(None, index)
        assert found.accept_tokens("r", [1])
    assert grammar.filled == list(range(100))


def test_one_slow_step_ends_it() -> None:
    for slow in ("fill_s", "accept_s"):
        grammar = PlayedGrammar()
        found = watched(grammar)
        setattr(grammar, slow, grammar_guard.MAX_CALL_S * 1.01)
        found.fill_bitmask(None, 0)
        assert not found.accept_tokens("r", [1])


def test_a_token_that_is_not_accepted_stays_so() -> None:
    grammar = PlayedGrammar()
    grammar.accepts = False
    assert not watched(grammar).accept_tokens("r", [1])
    assert watched(grammar).is_terminated(), "what is not watched is the grammar's own"


def test_a_grammar_is_free_with_its_request() -> None:
    grammar = PlayedGrammar()
    found, is_there = watched(grammar), weakref.ref(grammar)
    gc.disable()
    try:
        del grammar, found
        assert is_there() is None, "only a collection would free it"
    finally:
        gc.enable()


class Manager:
    """Like vLLM's, with one thread and grammars that are compiled when the test says so."""

    def __init__(self) -> None:
        self.executor = ThreadPoolExecutor(1)
        self.go_on = threading.Event()
        self.created: list[str] = []

    def grammar_init(self, request: Any) -> None:
        if request.structured_output_request is not None:
            future = self.executor.submit(self._create_grammar, request)
            request.structured_output_request._grammar = future

    def _create_grammar(self, request: Any) -> PlayedGrammar:
        self.created.append(request.request_id)
        assert self.go_on.wait(10)
        return PlayedGrammar()


@pytest.fixture
def manager() -> Any:
    found = Manager()
    yield found
    found.go_on.set()
    found.executor.shutdown()


def known(*requests: Any) -> dict[str, Any]:
    """The requests as the engine has them."""
    return {each.request_id: each for each in requests}


def request(request_id: str) -> Any:
    return SimpleNamespace(
        request_id=request_id, structured_output_request=SimpleNamespace(_grammar=None)
    )


def begin(manager: Manager, *request_ids: str) -> list[Any]:
    found = [request(request_id) for request_id in request_ids]
    for one in found:
        manager.grammar_init(one)
    return found


def future_of(one: Any) -> Future[Any]:
    future = one.structured_output_request._grammar
    assert isinstance(future, Future)
    return future


def test_every_grammar_of_a_manager_is_watched(manager: Manager) -> None:
    guard = GrammarGuard(manager)
    (one,) = begin(manager, "a")
    assert len(guard._compiling) == 1
    manager.go_on.set()
    assert isinstance(future_of(one).result(10), WatchedGrammar)
    manager.executor.shutdown()  # a future's callbacks may run after those who wait for it go on
    assert len(guard._compiling) == 0


def test_requests_without_a_grammar(manager: Manager) -> None:
    guard = GrammarGuard(manager)
    manager.grammar_init(SimpleNamespace(request_id="a", structured_output_request=None))
    assert len(guard._compiling) == 0


def test_what_no_client_waits_for_does_not_begin(manager: Manager) -> None:
    guard = GrammarGuard(manager)
    plain = SimpleNamespace(request_id="d", structured_output_request=None)
    first, second, third = begin(manager, "a", "b", "c")
    guard.forget([first, second, plain])
    called_off = [future_of(each).cancelled() for each in (first, second, third)]
    assert called_off == [False, True, False]
    assert len(guard._compiling) == 2, "the first runs on, and is counted until it has ended"
    manager.go_on.set()
    future_of(third).result(10)
    assert manager.created == ["a", "c"]
    manager.executor.shutdown()
    assert len(guard._compiling) == 0


def test_two_of_one_name_are_told_apart(manager: Manager) -> None:
    """A move that is tried again comes with the same id, and so does a replay, while the request's
    earlier attempt is about to be aborted."""
    guard = GrammarGuard(manager)
    _, earlier, later = begin(manager, "a", "b", "b")
    guard.forget([earlier])
    assert (future_of(earlier).cancelled(), future_of(later).cancelled()) == (True, False)
    assert len(guard._compiling) == 2


def wait(guard: GrammarGuard, clock: list[float], seconds: float, *requests: Any) -> None:
    """A busy engine checks once a second."""
    for _ in range(round(seconds)):
        clock[0] += 1.0
        guard.give_up_overdue(known(*requests))


def test_what_takes_too_long_is_given_up(manager: Manager) -> None:
    now_s = [0.0]
    guard = GrammarGuard(manager, lambda: now_s[0])
    late, later = begin(manager, "a")[0], request("b")
    wait(guard, now_s, grammar_guard.MAX_COMPILE_S, late)
    manager.grammar_init(later)
    assert isinstance(late.structured_output_request._grammar, Future)
    wait(guard, now_s, 1.0, late, later)
    assert isinstance(late.structured_output_request._grammar, TimeoutError)
    assert isinstance(later.structured_output_request._grammar, Future)
    wait(guard, now_s, 1.0, late, later)
    assert len(guard._compiling) == 2, "nobody can end the thread"


def output(request_id: str, finish_reason: str | None = "error") -> Any:
    return SimpleNamespace(request_id=request_id, finish_reason=finish_reason, stop_reason=None)


def test_who_was_given_up_is_told_to_come_again(manager: Manager) -> None:
    now_s = [0.0]
    guard = GrammarGuard(manager, lambda: now_s[0])
    late, left = begin(manager, "a", "b")
    wait(guard, now_s, grammar_guard.MAX_COMPILE_S + 1, late, left)
    guard.forget([left])
    outputs = [output("a", None), output("a"), output("b"), output("c"), output("a")]
    guard.mark(outputs)
    marks = [each.stop_reason for each in outputs]
    assert marks == [None, grammar_guard.NOT_COMPILED, None, None, None]


def test_the_time_in_which_the_process_was_stopped_does_not_count(manager: Manager) -> None:
    now_s = [0.0]
    guard = GrammarGuard(manager, lambda: now_s[0])
    (one,) = begin(manager, "a")
    now_s[0] += 10 * grammar_guard.MAX_COMPILE_S
    wait(guard, now_s, 1.0, one)
    future_of(one)


def test_what_the_engine_does_not_have_yet_is_not_given_up(manager: Manager) -> None:
    """A replay or a move is about to arrive, possibly while an earlier attempt of the request is
    still here."""
    now_s = [0.0]
    guard = GrammarGuard(manager, lambda: now_s[0])
    comes, earlier = begin(manager, "a", "a")
    wait(guard, now_s, grammar_guard.MAX_COMPILE_S + 1)
    wait(guard, now_s, 1.0, earlier)
    future_of(comes)
