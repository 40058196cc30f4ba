"""From figures of several seeds to means with 95 % intervals, ratios, and means of ratios.

Seeds are independent, so Student's t says how far their mean may be off. The seeds of two policies
are paired: both ran the same requests. So the interval of a ratio comes from leaving out one seed
at a time in both (the jackknife), on the logarithm, so that it cannot reach below zero.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_T = (
    *(12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281),
    *(2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860),
)
"""97.5 % quantiles of Student's t for 1 to 20 degrees of freedom."""
_Z = 1.959964
"""The same of the normal distribution."""

Pair = tuple[Sequence[float], Sequence[float]]


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and where the true one is with 95 % confidence; `low` and `high` are None where there
    is only one value."""

    mean: float
    low: float | None
    high: float | None
    num_values: int


def t_quantile(num_degrees: int) -> float:
    """97.5 % of Student's t distribution lies below it.

    Raises:
        ValueError: there is no degree of freedom.
    """
    if num_degrees < 1:
        raise ValueError(f"a t distribution has at least 1 degree of freedom, not {num_degrees}")
    if num_degrees <= len(_T):
        return _T[num_degrees - 1]
    # The expansion of Cornish and Fisher; from 21 degrees on it is right to four places.
    v, z = float(num_degrees), _Z
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / v + second / v**2 + third / v**3


def mean_of(values: Sequence[float]) -> Interval:
    """The mean over seeds. Raises ValueError if there are no values."""
    if not values:
        raise ValueError("there is no mean of no values")
    return _interval(np.array(values, float), float(np.mean(values)))


def ratio_of_means(above: Sequence[float], below: Sequence[float]) -> Interval | None:
    """How many times as large the mean of `above` is as that of `below`; both by seed, in the same
    order. None if one of the means is not positive, also without one of the seeds."""
    return geometric_mean_ratio([(above, below)])


def geometric_mean_ratio(pairs: Sequence[Pair]) -> Interval | None:
    """The geometric mean of the ratios of means, as of several workloads; all by the same seeds.
    None if one of the means is not positive, also without one of the seeds.

    Raises:
        ValueError: no pair, or they are not all of the same number of seeds.
    """
    num_seeds = {len(values) for pair in pairs for values in pair}
    if len(num_seeds) != 1 or 0 in num_seeds:
        raise ValueError("ratios need figures of the same seeds, and at least one")
    tables = [(np.array(above, float), np.array(below, float)) for above, below in pairs]

    def logarithm(kept: NDArray[np.bool_]) -> float:
        means = [(float(above[kept].mean()), float(below[kept].mean())) for above, below in tables]
        if any(mean <= 0 for pair in means for mean in pair):
            return math.nan
        return float(np.mean([math.log(above / below) for above, below in means]))

    found = _jackknife(num_seeds.pop(), logarithm)
    if math.isnan(found.mean):
        return None
    low, high = (None if end is None else math.exp(end) for end in (found.low, found.high))
    return Interval(math.exp(found.mean), low, high, found.num_values)


def _jackknife(num: int, figure: Callable[[Any], float]) -> Interval:
    """`figure` of the seeds that a mask keeps; its mean is nan if any of the figures is."""
    whole = figure(np.ones(num, bool))
    if num == 1:
        return Interval(whole, None, None, 1)
    without = np.array([figure(np.arange(num) != left_out) for left_out in range(num)])
    pseudo = num * whole - (num - 1) * without
    return _interval(pseudo, whole if np.isfinite(pseudo).all() else math.nan)


def _interval(values: NDArray[np.float64], middle: float) -> Interval:
    num = len(values)
    if num < 2:
        return Interval(middle, None, None, num)
    half = t_quantile(num - 1) * float(values.std(ddof=1)) / math.sqrt(num)
    return Interval(middle, middle - half, middle + half, num)
