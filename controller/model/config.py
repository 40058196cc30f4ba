"""Sizes and rules of a modelled engine."""

from dataclasses import dataclass
from typing import Literal, Self

from controller.core.load.snapshot import blocks_for
from controller.model.profile import LatencyProfile

Mode = Literal["chunked", "prefill-first"]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes and rules of one engine; the names are vLLM's.

    `num_total_blocks` leaves out the null block. `long_prefill_token_threshold` caps a chunk
    while more than one request is there; 0 for no cap.

    Raises:
        ValueError: a size is not positive, or a step is too small for its decodes.
    """

    block_size: int
    num_total_blocks: int
    watermark_blocks: int
    max_num_running: int
    max_num_batched_tokens: int
    max_model_len: int
    prefix_caching: bool
    mode: Mode
    long_prefill_token_threshold: int = 0

    def __post_init__(self) -> None:
        for name in (
            "block_size",
            "num_total_blocks",
            "max_num_running",
            "max_num_batched_tokens",
            "max_model_len",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be positive, not {getattr(self, name)}")
        if not 0 <= self.watermark_blocks < self.num_total_blocks:
            raise ValueError("watermark_blocks must be below num_total_blocks and not negative")
        if self.long_prefill_token_threshold < 0:
            raise ValueError("long_prefill_token_threshold must not be negative")
        if self.mode not in ("chunked", "prefill-first"):
            raise ValueError(f"mode must be chunked or prefill-first, not {self.mode!r}")
        if self.max_num_batched_tokens < self.max_num_running:
            raise ValueError("max_num_batched_tokens must not be below max_num_running")

    def end_tokens(self, num_prompt_tokens: int, max_output_tokens: int) -> int:
        """With how many tokens such a request ends."""
        return min(num_prompt_tokens + max_output_tokens, self.max_model_len)

    def refusal(self, num_prompt_tokens: int, max_output_tokens: int) -> str:
        """Why such a request could never run here; empty if it could."""
        if num_prompt_tokens < 1 or max_output_tokens < 1:
            return "has no prompt or wants no output"
        if num_prompt_tokens >= self.max_model_len:
            return (
                f"has {num_prompt_tokens} prompt tokens, but max_model_len is"
                f" {self.max_model_len} with the outputs"
            )
        end_tokens = self.end_tokens(num_prompt_tokens, max_output_tokens)
        # The last token is never computed, so it needs no slot.
        if blocks_for(end_tokens - 1, self.block_size) > self.num_total_blocks:
            return (
                f"grows to {end_tokens} tokens, but the KV cache holds"
                f" {self.num_total_blocks * self.block_size}"
            )
        return ""

    @classmethod
    def of(
        cls, profile: LatencyProfile, *, mode: Mode = "chunked", prefix_caching: bool = True
    ) -> Self:
        """The engine that `profile` describes, its watermark rounded as vLLM rounds it."""
        return cls(
            block_size=profile.block_size,
            num_total_blocks=profile.num_total_blocks,
            watermark_blocks=int(profile.watermark_ratio * (profile.num_total_blocks + 1)),
            max_num_running=profile.max_num_running,
            max_num_batched_tokens=profile.max_num_batched_tokens,
            max_model_len=profile.max_model_len,
            prefix_caching=prefix_caching,
            mode=mode,
        )
