"""A request of an emulated engine: vLLM's messages, which bring the request and carry its tokens,
written without vLLM; and the answer. All tokens of the answer are known before the first step; only
their times are not.

Touch points of vLLM (tests/contract/test_emulated_wire.py): v1/engine/__init__.py
`EngineCoreRequest`, `EngineCoreOutputs`, `EngineCoreOutput`, `EngineCoreEvent`, `FinishReason`,
`EngineCoreEventType`; sampling_params.py `SamplingParams`; v1/metrics/stats.py `PrefillStats`,
`SchedulerStats`; v1/serial_utils.py: the first frame is the message, others are tensors."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from controller.api import token_sequence
from controller.ports.engine import Frames

# -- vLLM's messages -------------------------------------------------------------------------------
# Importing vLLM costs a process 9 s and 0.8 GB; a laptop does not have enough of either for sixteen
# processes. So the structs below repeat vLLM's structs as far as llumctl uses them. Most are
# arrays, whose fields are found by their position; SamplingParams and the statistics are maps,
# whose fields are found by name. A field that is never read has the type `Any`. Positions after the
# last field here are ignored.

FINISH_REASONS = ("stop", "length", "abort", "error")
"""Why an answer ended. In vLLM's messages a reason is its index in this tuple."""
QUEUED, SCHEDULED, PREEMPTED = 1, 2, 3
"""The kinds of `RequestEvent`."""


class SamplingParams(msgspec.Struct, frozen=True):
    """The parameters that limit an answer, or that ask for more than tokens."""

    max_tokens: int | None = 16
    min_tokens: int = 0
    stop_token_ids: list[int] | None = None
    eos_token_id: int | None = msgspec.field(name="_eos_token_id", default=None)
    """None if the client ignores the end (`ignore_eos`) or the model has no end token."""
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    prompt_logprob_token_ids: Any = None
    logprob_token_ids: list[int] | None = None
    structured_outputs: Any = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None


class Request(msgspec.Struct, array_like=True, frozen=True):
    """vLLM's `EngineCoreRequest`, with the same positions up to `resumable`."""

    request_id: str
    prompt_token_ids: list[int] | None
    mm_features: list[Any] | None
    sampling_params: SamplingParams | None
    pooling_params: Any
    arrival_time: float
    lora_request: Any
    cache_salt: str | None
    data_parallel_rank: int | None
    prompt_embeds: Any = None
    prompt_is_token_ids: list[bool] | None = None
    client_index: int = 0
    current_wave: int = 0
    priority: int = 0
    trace_headers: dict[str, str] | None = None
    resumable: bool = False


class RequestEvent(msgspec.Struct):
    """vLLM's `EngineCoreEvent`, from which vLLM's own metrics measure how long requests wait."""

    type: int
    timestamp: float
    """By the monotonic clock, in seconds."""


class PrefillStats(msgspec.Struct, omit_defaults=True):
    """How many tokens of a prompt came from the prefix cache; clients see it as
    `usage.prompt_tokens_details`."""

    num_prompt_tokens: int = 0
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    num_local_cached_tokens: int = 0


class SchedulerStats(msgspec.Struct, omit_defaults=True):
    num_running_reqs: int = 0
    num_waiting_reqs: int = 0
    kv_cache_usage: float = 0.0


class Output(msgspec.Struct, array_like=True, omit_defaults=True):
    """vLLM's `EngineCoreOutput`, with the same positions up to `prefill_stats`."""

    request_id: str
    new_token_ids: list[int]
    new_logprobs: None = None
    new_prompt_logprobs_tensors: None = None
    pooling_output: None = None
    finish_reason: int | None = None
    stop_reason: int | str | None = None
    events: list[RequestEvent] | None = None
    kv_transfer_params: None = None
    ec_transfer_params: None = None
    trace_headers: None = None
    prefill_stats: PrefillStats | None = None


class Outputs(msgspec.Struct, array_like=True, omit_defaults=True):
    """vLLM's `EngineCoreOutputs`, with the same positions up to `timestamp`."""

    engine_index: int = 0
    outputs: list[Output] = []
    scheduler_stats: SchedulerStats | None = None
    timestamp: float = 0.0
    """By the monotonic clock, in seconds."""


_decoder = msgspec.msgpack.Decoder(Request)
_encoder = msgspec.msgpack.Encoder()


def decode_request(frames: Frames) -> Request:
    """Decodes a request. Raises ValueError if the message is not a request of this version of
    vLLM."""
    try:
        return _decoder.decode(frames[0])
    except msgspec.DecodeError as error:
        raise ValueError(f"not a request of the vLLM that llumctl was made for: {error}") from error


def encode_outputs(outputs: Outputs) -> Frames:
    return [_encoder.encode(outputs)]


# -- the request and its answer --------------------------------------------------------------------


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
