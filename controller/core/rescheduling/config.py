"""What the rescheduling of running requests goes by; all may change while the cluster runs.

Operators set whether requests move, the two thresholds, and how often one request may. The rest is
fixed in a cluster, and is here so that the simulator can compare.
"""

from dataclasses import dataclass

DEFAULT_STEPS = 48.0
"""Threshold in decode steps: 3 free blocks of 16 tokens per request in the authors' experiments."""


@dataclass(frozen=True, slots=True)
class ReschedulingConfig:
    """`source_below_steps` must not exceed `destination_above_steps`."""

    enabled: bool = True
    interval_s: float = 0.1
    """From one round to the next: one or two steps of a 7B model, in each of which freeness falls
    by one."""
    source_below_steps: float = DEFAULT_STEPS
    destination_above_steps: float = DEFAULT_STEPS
    guard: bool = True
    """Whether a move must be worth its cost, and must not bring a request back soon. Off is the
    paper's rule: on four A10 near full load, 90 s of three seeds, it makes 720 moves, 533 of
    them back within 10 s, and 37 evictions; with the guard there are 129, 0 and 34."""
    not_back_s: float = 10.0
    """How long a request is not moved back to an instance that it left: near full load what was a
    destination is a source 50 steps later."""
    max_moves_per_minute: int = 6
    """Moves of one request."""
