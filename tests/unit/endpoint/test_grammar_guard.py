"""The guard over fake grammars; real ones are in the contract tests."""

import gc
import threading
import weakref
from collections.abc import Iterator
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

    def fill_bitmask(self, _bitmask: Any, index: int) -> None:
        self.now_s += self.fill_s
        self.filled.append(index)

    def accept_tokens(self, _request_id: str, _tokens: list[int]) -> bool:
        self.now_s += self.accept_s
        return self.accepts

    def is_terminated(self) -> bool:
        return not self.accepts

    def watched(self) -> WatchedGrammar:
        return WatchedGrammar(self, "r", lambda: self.now_s)


@pytest.mark.parametrize("slow", ["fill_s", "accept_s"])
def test_one_slow_step_ends_it_and_many_quick_ones_are_fine(slow: str) -> None:
    grammar = PlayedGrammar()
    found = grammar.watched()
    grammar.fill_s = grammar.accept_s = grammar_guard.MAX_CALL_S
    for index in range(100):
        found.fill_bitmask(None, index)
        assert found.accept_tokens("r", [1])
    assert grammar.filled == list(range(100))
    setattr(grammar, slow, grammar_guard.MAX_CALL_S * 1.01)
    found.fill_bitmask(None, 0)
    assert not found.accept_tokens("r", [1])
    refusing = PlayedGrammar()
    refusing.accepts = False
    assert not refusing.watched().accept_tokens("r", [1])
    assert refusing.watched().is_terminated(), "what is not watched is the grammar's own"


def test_a_grammar_is_free_with_its_request() -> None:
    grammar = PlayedGrammar()
    found, is_there = WatchedGrammar(grammar, "r"), weakref.ref(grammar)
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

    def begin(self, *request_ids: str) -> list[Any]:
        found = [
            SimpleNamespace(
                request_id=request_id, structured_output_request=SimpleNamespace(_grammar=None)
            )
            for request_id in request_ids
        ]
        for one in found:
            self.grammar_init(one)
        return found


class Engine:
    """A guard with a clock. A busy engine checks once a second."""

    def __init__(self, manager: Manager) -> None:
        self.now_s = 0.0
        self.guard = GrammarGuard(manager, lambda: self.now_s)

    def waits(self, seconds: float, *requests: Any) -> None:
        for _ in range(round(seconds)):
            self.now_s += 1.0
            self.guard.give_up_overdue({each.request_id: each for each in requests})


@pytest.fixture
def manager() -> Iterator[Manager]:
    found = Manager()
    yield found
    found.go_on.set()
    found.executor.shutdown()


@pytest.fixture
def engine(manager: Manager) -> Engine:
    return Engine(manager)


def future_of(one: Any) -> Future[Any]:
    future = one.structured_output_request._grammar
    assert isinstance(future, Future)
    return future


def test_every_grammar_of_a_manager_is_watched_and_in_time_is_in_time(
    manager: Manager, engine: Engine
) -> None:
    (one,) = manager.begin("a")
    plain = SimpleNamespace(request_id="b", structured_output_request=None)
    manager.grammar_init(plain)
    manager.go_on.set()
    assert isinstance(future_of(one).result(10), WatchedGrammar)
    manager.executor.shutdown()  # a future's callbacks may run after those who wait for it go on
    engine.waits(grammar_guard.MAX_COMPILE_S + 1, one, plain)
    future_of(one)


def test_what_no_client_waits_for_does_not_begin(manager: Manager, engine: Engine) -> None:
    """A move that is tried again comes with the same id, and so does a replay, while the request's
    earlier attempt is about to be aborted."""
    plain = SimpleNamespace(request_id="d", structured_output_request=None)
    first, second, third, same = manager.begin("a", "b", "c", "b")
    engine.guard.forget([first, second, plain])
    called_off = [future_of(each).cancelled() for each in (first, second, third, same)]
    assert called_off == [False, True, False, False]
    manager.go_on.set()
    future_of(same).result(10)
    assert manager.created == ["a", "c", "b"]


def test_what_takes_too_long_is_given_up_and_told_to_come_again(
    manager: Manager, engine: Engine
) -> None:
    late, left = manager.begin("a", "b")
    engine.waits(grammar_guard.MAX_COMPILE_S, late, left)
    (later,) = manager.begin("d")
    future_of(late)
    engine.waits(2.0, late, left, later)
    assert isinstance(late.structured_output_request._grammar, TimeoutError)
    future_of(later)
    engine.guard.forget([left])
    ends = [("a", None), ("a", "error"), ("b", "error"), ("c", "error"), ("a", "error")]
    outputs = [
        SimpleNamespace(request_id=request_id, finish_reason=reason, stop_reason=None)
        for request_id, reason in ends
    ]
    engine.guard.mark(outputs)
    marks = [each.stop_reason for each in outputs]
    assert marks == [None, grammar_guard.NOT_COMPILED, None, None, None]


def test_what_the_engine_does_not_have_yet_is_not_given_up(
    manager: Manager, engine: Engine
) -> None:
    """A replay or a move is about to arrive, possibly while an earlier attempt of the request is
    still here. The time in which the process was stopped does not count either."""
    comes, earlier = manager.begin("a", "a")
    engine.waits(grammar_guard.MAX_COMPILE_S + 1)
    engine.waits(1.0, earlier)
    future_of(comes)
    (late,) = manager.begin("b")
    engine.now_s += 10 * grammar_guard.MAX_COMPILE_S
    engine.waits(1.0, late)
    future_of(late)
