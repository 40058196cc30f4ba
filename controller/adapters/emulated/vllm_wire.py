"""vLLM's request and output messages without vLLM: what an emulated engine reads and writes.

An import of vLLM costs a process 9 s and 0.8 GB; sixteen processes need more than a laptop has.
So the structs below repeat vLLM's as far as llumctl uses them: by position (most are arrays) or by
name (SamplingParams and the statistics are maps). A field that nobody reads has the type `Any`;
positions behind the last one listed are ignored.

Touch points of vLLM (tests/contract/test_emulated_wire.py): v1/engine/__init__.py
`EngineCoreRequest`, `EngineCoreOutputs`, `EngineCoreOutput`, `EngineCoreEvent`, `FinishReason`,
`EngineCoreEventType`; sampling_params.py `SamplingParams`; v1/metrics/stats.py `PrefillStats`,
`SchedulerStats`; v1/serial_utils.py: the first frame is the message, others are tensors.
"""

from typing import Any

import msgspec

from controller.ports.engine import Frames

FINISH_REASONS = ("stop", "length", "abort", "error")
"""A reason's place is its number in vLLM."""
QUEUED, SCHEDULED, PREEMPTED = 1, 2, 3
"""Kinds of `RequestEvent`."""


class SamplingParams(msgspec.Struct, frozen=True):
    """The parameters that bound an answer, or ask for more than tokens."""

    max_tokens: int | None = 16
    min_tokens: int = 0
    stop_token_ids: list[int] | None = None
    eos_token_id: int | None = msgspec.field(name="_eos_token_id", default=None)
    """None where the client wants no end (`ignore_eos`) or the model has none."""
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    prompt_logprob_token_ids: Any = None
    logprob_token_ids: list[int] | None = None
    structured_outputs: Any = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None


class Request(msgspec.Struct, array_like=True, frozen=True):
    """`EngineCoreRequest`, position by position as far as `resumable`."""

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
    """`EngineCoreEvent`: what vLLM's own metrics measure queueing with."""

    type: int
    timestamp: float
    """Monotonic clock, seconds."""


class PrefillStats(msgspec.Struct, omit_defaults=True):
    """Shown to clients as `usage.prompt_tokens_details`: what the prefix cache had of a prompt."""

    num_prompt_tokens: int = 0
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    num_local_cached_tokens: int = 0


class SchedulerStats(msgspec.Struct, omit_defaults=True):
    num_running_reqs: int = 0
    num_waiting_reqs: int = 0
    kv_cache_usage: float = 0.0


class Output(msgspec.Struct, array_like=True, omit_defaults=True):
    """`EngineCoreOutput`, position by position as far as `prefill_stats`."""

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
    """`EngineCoreOutputs`, position by position as far as `timestamp`."""

    engine_index: int = 0
    outputs: list[Output] = []
    scheduler_stats: SchedulerStats | None = None
    timestamp: float = 0.0
    """Monotonic clock, seconds."""


_decoder = msgspec.msgpack.Decoder(Request)
_encoder = msgspec.msgpack.Encoder()


def decode_request(frames: Frames) -> Request:
    """Raises ValueError for a message that is no request of this vLLM."""
    try:
        return _decoder.decode(frames[0])
    except msgspec.DecodeError as error:
        raise ValueError(f"not a request of the vLLM that llumctl was made for: {error}") from error


def encode_outputs(outputs: Outputs) -> Frames:
    return [_encoder.encode(outputs)]
