"""Guided decoding of a request that arrives with outputs: its grammar accepts them again.

The grammar compiles in vLLM's own threads from `Engine.prepare` on, and the source does not suspend
the request before that is done, so the engine's thread never waits for a compile. Known outputs are
fed before the request is suspended, so that at COMMIT a few tokens are left (a compiled grammar
takes 3 to 9 us for each of the embedded model's). They are fed one by one, as after a step, so that
the end of reasoning is found where the source found it.

Touch points of vLLM: v1/structured_output/__init__.py `accept_tokens`, which reads of a
request what _Decoded has; v1/structured_output/request.py `grammar`, `_grammar`,
`is_grammar_ready`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class _Decoded:
    """The request as it was after the tokens that the grammar has accepted."""

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
        """Takes all outputs so far, and feeds those that are new to a grammar that is compiled.

        Raises ValueError if the grammar does not compile or does not accept them.
        """
        structured = self._decoded.structured_output_request
        grammar = structured.grammar
        if grammar is None:
            return
        if isinstance(grammar, Exception):
            # The error's text may quote the grammar, and this goes to a log.
            raise ValueError(f"its grammar does not compile here: {type(grammar).__name__}")
        for token in output_token_ids[self._num_fed :]:
            self._decoded.all_token_ids.append(token)
            if not self._manager.accept_tokens(self._decoded, [token]):
                raise ValueError("its grammar does not accept its outputs")
            self._num_fed += 1

    def finish(self, output_token_ids: Sequence[int]) -> None:
        """Feeds all outputs, and raises ValueError also for a grammar that is not compiled yet."""
        if not self._decoded.structured_output_request.is_grammar_ready:
            raise ValueError("its grammar is not compiled here yet")
        self.feed(output_token_ids)
