"""A request of an emulated engine, and the answer. All tokens of the answer are known before the
first step; only their times are not."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from controller.adapters.vllm_wire import PrefillStats, Request, RequestEvent, SamplingParams
from controller.api import token_sequence


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request. `start`: where `token_sequence` starts. `finish_reason`: vLLM's
    word. `stop_reason`: the stop token that ended the answer, if the client named that token.
    `has_end`: whether the last token is END."""

    start: int
    num_tokens: int
    finish_reason: str
    stop_reason: int | None = None
    has_end: bool = False

    def token(self, position: int) -> int:
        if self.has_end and position == self.num_tokens - 1:
            return token_sequence.END
        return token_sequence.token(self.start, position)


@dataclass(slots=True)
class EmulatedRequest:
    """A request on an emulated engine. `news` and `prefill_stats` are sent with its next token.

    From position `wrong_from` on, the answer has the tokens of another prompt. This happens when a
    move brought the request here with wrong KV blocks; a real engine would give wrong tokens
    too."""

    request: Request
    prompt: Sequence[int]
    answer: Answer
    frontend_index: int
    num_emitted: int = 0
    admitted_before: bool = False
    news: list[RequestEvent] = field(default_factory=list)
    prefill_stats: PrefillStats | None = None
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

    def tokens(self, first: int, end: int) -> Sequence[int]:
        """The tokens of the prompt followed by the answer, from index `first` up to, but not
        including, `end`."""
        num_prompt_tokens = len(self.prompt)
        positions = range(max(first, num_prompt_tokens), end)
        outputs = [self.output(index - num_prompt_tokens) for index in positions]
        return [*self.prompt[first:end], *outputs]


def answer_to(request: Request, max_model_len: int) -> Answer:
    """The answer that the engine will give. Raises ValueError if a parameter needs an answer that a
    model computes, or if the prompt leaves no room for an answer."""
    prompt, params = request.prompt_token_ids, request.sampling_params
    if params is None:
        raise ValueError("the emulated engine computes no embeddings or scores")
    if request.mm_features or request.prompt_embeds is not None or not prompt:
        raise ValueError("the emulated engine takes prompts of tokens only")
    if request.lora_request is not None:
        raise ValueError("the emulated engine has no LoRA adapters")
    if request.resumable:
        raise ValueError("the emulated engine takes no streamed prompts")
    _refuse_what_needs_logits(params)
    return _bounded(prompt, params, max_model_len)


def _refuse_what_needs_logits(params: SamplingParams) -> None:
    asked = {
        "logprobs": params.logprobs,
        "prompt_logprobs": params.prompt_logprobs,
        "prompt_logprob_token_ids": params.prompt_logprob_token_ids,
        "logprob_token_ids": params.logprob_token_ids,
        "structured outputs": params.structured_outputs,
        "logit_bias": params.logit_bias,
        "allowed_token_ids": params.allowed_token_ids,
        "bad_words": params.bad_words or None,
    }
    for name, value in asked.items():
        if value is not None:
            raise ValueError(f"the emulated engine computes no logits, so it has no {name}")


def _bounded(prompt: Sequence[int], params: SamplingParams, max_model_len: int) -> Answer:
    """The answer up to whichever comes first: a stop token, its natural length, `max_tokens`, or
    the end of the context."""
    room = max_model_len - len(prompt)
    if room < 1:
        raise ValueError(
            f"a prompt of {len(prompt)} tokens leaves no room in a context of {max_model_len}"
        )
    start = token_sequence.start(prompt)
    answer = Answer(
        start, room if params.max_tokens is None else min(params.max_tokens, room), "length"
    )
    if params.eos_token_id is not None:
        natural = max(token_sequence.natural_length(prompt), params.min_tokens + 1)
        if natural <= answer.num_tokens:
            answer = Answer(start, natural, "stop", has_end=True)
    for stop in params.stop_token_ids or ():
        position = token_sequence.first_position(start, stop, params.min_tokens)
        if position is not None and position < answer.num_tokens - answer.has_end:
            answer = Answer(start, position + 1, "stop", stop_reason=stop)
    return answer
