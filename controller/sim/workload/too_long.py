"""Requests that no instance could run to their end."""

from dataclasses import dataclass

from controller.model.profile import ModelConfig
from controller.sim.workload.request import Trace, TraceRequest


@dataclass(frozen=True, slots=True)
class TooLong:
    """`index` is the request's place in its trace; `why` says what it would need."""

    index: int
    request: TraceRequest
    why: str

    def __str__(self) -> str:
        return f"request {self.index} (at {self.request.arrival_s:.3f} s) {self.why}"


def too_long(trace: Trace, config: ModelConfig) -> list[TooLong]:
    """Those that an engine of this configuration refuses, or ends before their last output token,
    in order of arrival."""
    return [
        TooLong(index, request, why)
        for index, request in enumerate(trace.requests)
        if (why := _why(request, config))
    ]


def _why(request: TraceRequest, config: ModelConfig) -> str:
    num_prompt_tokens, num_output_tokens = request.num_prompt_tokens, request.num_output_tokens
    refusal = config.refusal(num_prompt_tokens, num_output_tokens)
    wanted = num_prompt_tokens + num_output_tokens
    if not refusal and config.end_tokens(num_prompt_tokens, num_output_tokens) < wanted:
        return f"wants {wanted} tokens, but max_model_len is {config.max_model_len}"
    return refusal
