"""Guided decoding of a request that arrives with outputs: its grammar takes them in again.

The grammar compiles in vLLM's own threads from `Engine.prepare` on, and the request stops at its
source not before that is done: the engine's thread waits for no compile. What is known of the
outputs is fed before the cut, so that at COMMIT a few tokens are left (a compiled grammar takes 3
to 9 us for each of the embedded model's). Token by token, as after a step: where reasoning ends is
then found where the source found it.

Touch points of vLLM: v1/structured_output/__init__.py `accept_tokens`, which reads of a
request what _Decoded has; v1/structured_output/request.py `grammar`, `_grammar`,
`is_grammar_ready`.
"""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any


def compiling(request: Any) -> Future[Any] | None:
    structured = request.structured_output_request
    grammar = None if structured is None else structured._grammar
    return grammar if isinstance(grammar, Future) else None


@dataclass(slots=True)
class _Decoded:
    """A request as it was after so many tokens."""

    request_id: str
    structured_output_request: Any
    prompt_token_ids: list[int]
    all_token_ids: list[int]
    use_structured_output: bool = True


class GrammarReplay:
    def __init__(self, manager: Any, request: Any) -> None:
        self._manager = manager
        self._decoded = _Decoded(
            request.request_id,
            request.structured_output_request,
            request.prompt_token_ids,
            list(request.prompt_token_ids),
        )
        self._num_fed = 0

    def feed(self, output_token_ids: Sequence[int]) -> None:
        """All outputs so far; those that are new to the grammar go in if it is compiled.

        Raises ValueError if it does not compile or does not accept them.
        """
        structured = self._decoded.structured_output_request
        grammar = structured.grammar
        if grammar is None:
            return
        if isinstance(grammar, Exception):
            # Not the text of the error, which may quote the grammar: this goes to a log.
            raise ValueError(f"its grammar does not compile here: {type(grammar).__name__}")
        for token in output_token_ids[self._num_fed :]:
            self._decoded.all_token_ids.append(token)
            if not self._manager.accept_tokens(self._decoded, [token]):
                raise ValueError("its grammar does not accept its outputs")
            self._num_fed += 1

    def finish(self, output_token_ids: Sequence[int]) -> None:
        """As `feed`, but raises ValueError for a grammar that is not compiled yet, too."""
        if not self._decoded.structured_output_request.is_grammar_ready:
            raise ValueError("its grammar is not compiled here yet")
        self.feed(output_token_ids)
