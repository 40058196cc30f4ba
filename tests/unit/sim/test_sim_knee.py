"""The search for the knee, on curves whose knee is known."""

import math

import pytest

from controller.sim.rates import MAX_POINTS, TOLERANCE, knee


@pytest.mark.parametrize("begin", [2.0, 7.0, 8.0, 12.0])
def test_it_is_found_from_below_and_from_above(begin: float) -> None:
    """P99 grows by a factor of e per 0.1 requests/s and is 30 s at 8."""
    tried = []

    def p99_at(rate: float) -> float:
        tried.append(rate)
        return 30.0 * math.exp(10 * (rate - 8.0))

    found = knee(p99_at, begin)
    assert found.rate == pytest.approx(8.0, rel=1e-3)
    assert [rate for rate, _ in found.points] == sorted(tried)
    assert len(tried) < MAX_POINTS


def test_a_jump_is_found_within_the_tolerance() -> None:
    found = knee(lambda rate: 0.5 if rate < 8.0 else 500.0, 7.0, target_s=2.5)
    assert found.rate == pytest.approx(8.0, rel=2 * TOLERANCE)


def test_a_curve_without_a_knee_is_an_error() -> None:
    with pytest.raises(ValueError, match="does not cross 30 s"):
        knee(lambda _: 1.0, 7.0)
    with pytest.raises(ValueError, match="does not cross 30 s"):
        knee(lambda _: 99.0, 7.0)
    with pytest.raises(ValueError, match="positive"):
        knee(lambda rate: rate, 0.0)
