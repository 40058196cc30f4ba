"""What a prefill P99 costs in instances: the curve of figure 15 where it crosses a latency."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from llumctl.simulate.paper.compare import Cell, Row

TARGET_S = 5.0
"""The latency at which the paper compares."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Instances at that P99 by policy; None where its curve does not reach it."""

    target_s: float
    simulated: Mapping[str, float | None]
    paper: Mapping[str, float | None]


def costs(found: Sequence[Row], target_s: float = TARGET_S) -> Cost:
    """Of means over seeds. `found` are the rows of figure 15."""
    by_x: dict[float, dict[str, Row]] = {}
    for row in found:
        by_x.setdefault(row.case.x, {})[row.metric] = row
    pairs = [(each["mean_num_instances"], each["ttft_s p99"]) for each in by_x.values()]
    policies = list(dict.fromkeys(policy for row in found for policy in row.cells))

    return Cost(
        target_s,
        {policy: crossing(_curve(pairs, policy, _simulated), target_s) for policy in policies},
        {policy: crossing(_curve(pairs, policy, _paper), target_s) for policy in policies},
    )


def _curve(
    pairs: Sequence[tuple[Row, Row]], policy: str, value: Callable[[Cell], float | None]
) -> list[tuple[float, float]]:
    points = [(value(x.cells[policy]), value(y.cells[policy])) for x, y in pairs]
    return [(x, y) for x, y in points if x is not None and y is not None]


def _simulated(cell: Cell) -> float | None:
    return None if cell.mean is None else cell.mean.mean


def _paper(cell: Cell) -> float | None:
    return cell.paper


def crossing(points: Sequence[tuple[float, float]], target_s: float) -> float | None:
    """The fewest instances from which on the P99 stays at or below the target, on a curve through
    (instances, P99) on which the logarithm of P99 is straight between two points. None if the last
    point is above the target, or the first one below it already."""
    last_first = sorted(points, reverse=True)
    for (high, low_s), (low, high_s) in pairwise(last_first):
        if low_s > target_s:
            return None
        if high_s > target_s:
            share = math.log(target_s / low_s) / math.log(high_s / low_s)
            return high + share * (low - high)
    return None
