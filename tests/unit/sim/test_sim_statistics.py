"""Means with intervals, ratios and their means, against figures computed by hand."""

import math

import numpy as np
import pytest

from controller.sim import outcome


@pytest.mark.parametrize("num_degrees", [1, 2, 20, 21, 500])
def test_quantiles_are_those_of_the_t_distribution(num_degrees: int) -> None:
    """The density integrated up to the quantile must give 0.475 from 0 on."""
    v, quantile = num_degrees, outcome.t_quantile(num_degrees)
    at = np.linspace(0, quantile, 200_001)
    norm = math.exp(math.lgamma((v + 1) / 2) - math.lgamma(v / 2)) / math.sqrt(v * math.pi)
    area = np.trapezoid(norm * (1 + at**2 / v) ** (-(v + 1) / 2), at)
    assert area == pytest.approx(0.475, abs=2e-6)


def test_an_interval_of_three_seeds() -> None:
    found = outcome.mean_of([1.0, 2.0, 6.0])
    half = 4.3027 * math.sqrt(7.0) / math.sqrt(3)
    assert found.mean == pytest.approx(3.0)
    assert found.low == pytest.approx(3.0 - half)
    assert found.high == pytest.approx(3.0 + half)
    assert found.num_values == 3


def test_what_has_no_interval_and_what_has_no_ratio() -> None:
    assert outcome.mean_of([2.5]) == outcome.Interval(2.5, None, None, 1)
    assert outcome.mean_of([2.5, 3.5]).low is not None
    assert outcome.ratio_of_means([3.0], [2.0]) == outcome.Interval(1.5, None, None, 1)
    assert outcome.ratio_of_means([1.0, 2.0], [0.0, 0.0]) is None
    assert outcome.ratio_of_means([0.0, 5.0], [1.0, 1.0]) is None  # without the second seed 0
    with pytest.raises(ValueError, match="the same seeds"):
        outcome.ratio_of_means([1.0, 2.0], [1.0])


def test_a_ratio_is_that_of_the_means_and_pairs_count() -> None:
    """Seeds that are hard for both policies widen the interval of each mean, not of the ratio."""
    below = [1.0, 10.0, 100.0, 3.0]
    found = outcome.ratio_of_means([2 * value for value in below], below)
    assert found is not None
    assert (found.mean, found.low, found.high) == (pytest.approx(2.0),) * 3
    loose = outcome.ratio_of_means([100.0, 3.0, 1.0, 10.0], below)
    assert loose is not None
    assert loose.mean == pytest.approx(1.0)
    assert loose.low is not None
    assert loose.low < 0.5
