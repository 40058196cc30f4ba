"""Settings of the rescheduling of running requests; all may change while the cluster runs."""

from dataclasses import dataclass

DEFAULT_STEPS = 48.0
"""Threshold in decode steps: 3 free blocks of 16 tokens per request in the authors' experiments."""


@dataclass(frozen=True, slots=True)
class ReschedulingConfig:
    """`source_below_steps` must not exceed `destination_above_steps`."""

    enabled: bool = True
    interval_s: float = 0.1
    source_below_steps: float = DEFAULT_STEPS
    destination_above_steps: float = DEFAULT_STEPS
    guard: bool = True
    """Whether a move must be worth its cost, and must not bring a request back soon."""
    not_back_s: float = 10.0
    """How long a request is not moved back to an instance that it left."""
    max_moves_per_minute: int = 6
    """Moves of one request."""
