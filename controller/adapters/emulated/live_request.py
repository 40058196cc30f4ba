"""A request of an emulated engine, from `prepare` to its last token."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from controller.adapters.emulated import vllm_wire as wire
from controller.adapters.emulated.answer import Answer


@dataclass(slots=True)
class LiveRequest:
    """`news` and `prefill_stats` go out with the next token.

    From position `wrong_from` on the answer has the tokens of another prompt: a move brought the
    request here with wrong KV blocks, and a real engine would go wrong too.
    """

    request: wire.Request
    prompt: Sequence[int]
    answer: Answer
    frontend_index: int
    num_emitted: int = 0
    admitted_before: bool = False
    news: list[wire.RequestEvent] = field(default_factory=list)
    prefill_stats: wire.PrefillStats | None = None
    wrong_from: int | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.prompt) + self.num_emitted

    def output(self, position: int) -> int:
        """The answer's token at `position`, even if it is not emitted yet."""
        answer = self.answer
        if self.wrong_from is not None and position >= self.wrong_from:
            answer = replace(answer, start=answer.start + 1)
        return answer.token(position)

    def token_at(self, index: int) -> int:
        """The token at `index` of the prompt and the answer behind it."""
        num_prompt_tokens = len(self.prompt)
        if index < num_prompt_tokens:
            return self.prompt[index]
        return self.output(index - num_prompt_tokens)
