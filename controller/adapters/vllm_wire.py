"""vLLM's messages between a frontend and an engine, written without vLLM: those that bring a
request and those that carry its tokens. Engines that are not vLLM speak them: the
emulated one, and attached servers.

Touch points of vLLM (tests/contract/test_emulated_wire.py): v1/engine/__init__.py
`EngineCoreRequest`, `EngineCoreOutputs`, `EngineCoreOutput`, `EngineCoreEvent`, `FinishReason`,
`EngineCoreEventType`; sampling_params.py `SamplingParams`; v1/metrics/stats.py `PrefillStats`,
`SchedulerStats`; v1/serial_utils.py: the first frame is the message, others are tensors."""

from typing import Any

import msgspec

from controller.ports.engine import Frames

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
