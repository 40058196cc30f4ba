"""The guard over grammars that are played; a real one is in the contract tests."""

from types import SimpleNamespace
from typing import Any

from controller.adapters.vllm import grammar_guard


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


def watched() -> PlayedGrammar:
    grammar = PlayedGrammar()
    assert grammar_guard.watch(grammar, "r", grammar.clock) is grammar
    return grammar


def test_many_quick_steps_are_fine() -> None:
    grammar = watched()
    grammar.fill_s = grammar.accept_s = grammar_guard.MAX_CALL_S
    for index in range(100):
        grammar.fill_bitmask(None, index)
        assert grammar.accept_tokens("r", [1])
    assert grammar.filled == list(range(100))


def test_one_slow_step_ends_it() -> None:
    for slow in ("fill_s", "accept_s"):
        grammar = watched()
        setattr(grammar, slow, grammar_guard.MAX_CALL_S * 1.01)
        grammar.fill_bitmask(None, 0)
        assert not grammar.accept_tokens("r", [1])


def test_a_token_that_is_not_accepted_stays_so() -> None:
    grammar = watched()
    grammar.accepts = False
    assert not grammar.accept_tokens("r", [1])


def test_every_grammar_of_a_manager_is_watched() -> None:
    made: list[PlayedGrammar] = []

    def create(_request: Any) -> PlayedGrammar:
        made.append(PlayedGrammar())
        return made[-1]

    manager = SimpleNamespace(_create_grammar=create)
    grammar_guard.install(manager)
    grammar = manager._create_grammar(SimpleNamespace(request_id="r"))
    assert grammar is made[0]
    assert grammar.accept_tokens.__name__ == "watched_accept"
