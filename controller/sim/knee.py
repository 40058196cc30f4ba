"""The knee: the highest rate that a cluster serves with a given P99 TTFT.

Below it P99 TTFT is the prefill of a long prompt, above it the queues grow, and within a few
percent of the rate it goes from the one to the other. Loads are compared at matched distance from
it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

TARGET_S = 30.0
"""P99 TTFT of INFaaS++ at its knee."""
TOLERANCE = 0.005
"""Of the rate: the search ends at brackets so narrow."""
STEP = 1.1
MAX_POINTS = 24


@dataclass(frozen=True, slots=True)
class Knee:
    """`points` are all rates that were tried, ascending, with the P99 TTFT at each in seconds."""

    rate: float
    points: tuple[tuple[float, float], ...]


def knee(p99_at: Callable[[float], float], begin_rate: float, target_s: float = TARGET_S) -> Knee:
    """Bisects the rate, in the logarithm, for the last one at which `p99_at` is at most `target_s`,
    beginning around `begin_rate`, with steps of a tenth until the target is between two of them.

    The rate found is interpolated between the last two, as the logarithm of P99 grows between them.

    Raises:
        ValueError: `begin_rate` or the target is not positive, or no bracket is found.
    """
    if not 0 < begin_rate < math.inf or not 0 < target_s < math.inf:
        raise ValueError("the knee is sought from a positive rate, for a positive target")
    tried: dict[float, float] = {}

    def meets(rate: float) -> bool:
        tried[rate] = p99_at(rate)
        return tried[rate] <= target_s

    below = above = begin_rate
    if meets(begin_rate):
        while meets(above := above * STEP):
            below = above
            _check(tried, target_s)
    else:
        while not meets(below := below / STEP):
            above = below
            _check(tried, target_s)
    while above / below - 1 > TOLERANCE:
        middle = math.sqrt(below * above)
        if meets(middle):
            below = middle
        else:
            above = middle
    points = tuple(sorted(tried.items()))
    return Knee(_between(below, above, tried, target_s), points)


def _check(tried: dict[float, float], target_s: float) -> None:
    if len(tried) >= MAX_POINTS:
        low, high = min(tried), max(tried)
        raise ValueError(
            f"P99 TTFT does not cross {target_s:g} s from {low:.3g} to {high:.3g} requests/s"
        )


def _between(below: float, above: float, tried: dict[float, float], target_s: float) -> float:
    low_s, high_s = tried[below], tried[above]
    if not 0 < low_s < high_s:
        return below
    share = math.log(target_s / low_s) / math.log(high_s / low_s)
    return below * math.pow(above / below, share)
