"""Arrivals: gaps of the rate and variation that were asked for, and shapes that keep the mean."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.sim.workload.named import (
    Shape,
    arrivals_s,
    burst,
    constant,
    diurnal,
    drawn_ranks,
    drawn_sessions,
)

NUM = 50_000


def rng(seed: int = 1) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed))


@pytest.mark.parametrize("cv", [0.0, 0.5, 1.0, 4.0])
def test_gaps_have_the_rate_and_the_variation(cv: float) -> None:
    gaps = np.diff(arrivals_s(NUM, 8.0, cv, constant(), rng()), prepend=0.0)
    assert gaps.min() >= 0
    assert gaps.mean() == pytest.approx(1 / 8, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05, abs=1e-6)


@pytest.mark.parametrize(
    ("draw", "why"),
    [
        (lambda: arrivals_s(1, float("nan"), 1.0, constant(), rng()), "rate must be a positive"),
        (lambda: arrivals_s(1, 1.0, -1.0, constant(), rng()), "variation must be 0 or a positive"),
        (lambda: burst(10.0, 5.0, 2.0), "leave nothing of 10 s"),
        (lambda: Shape(()), "of a shape must"),
        (lambda: Shape(((1.0, 0.0), (1.0, 2.0))), "of a shape must"),
        (lambda: drawn_ranks(1, 1.5, rng()), "high_fraction must be a number from 0 to 1"),
        (lambda: drawn_sessions(1, 0, rng()), "num_clients must be positive"),
    ],
)
def test_what_cannot_be_drawn(draw: Callable[[], object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        draw()


def test_shapes_by_hand() -> None:
    """3 s at half the rate, then 1 s at two and a half times it: 1.5 s of work, then 2.5 s. In a
    burst, of 10 s each at rate 1, 2 s take 8, so that 8 s are left with 2."""
    shape = Shape(((3.0, 0.5), (1.0, 2.5)))
    even_s = np.array([0.0, 0.75, 1.5, 2.75, 4.0, 4.75, 8.0])
    assert shape.times_s(even_s).tolist() == pytest.approx([0.0, 1.5, 3.0, 3.5, 4.0, 5.5, 8.0])
    assert burst(10.0, 2.0, 4.0) == Shape(((8.0, 0.25), (2.0, 4.0)))
    waves = diurnal(96.0, 0.2)
    rates = [rate for _, rate in waves.steps]
    assert waves.period_s == pytest.approx(96.0)
    assert (min(rates), max(rates)) == pytest.approx((0.2, 1.8), abs=0.001)
    assert rates == pytest.approx(rates[::-1])


@given(
    st.lists(st.tuples(st.floats(0.1, 100.0), st.floats(0.1, 10.0)), min_size=1, max_size=8),
    st.lists(st.floats(0.0, 1000.0), min_size=1, max_size=20),
)
def test_shapes_keep_order_and_the_mean(
    steps: list[tuple[float, float]], even_s: list[float]
) -> None:
    mean = sum(width * rate for width, rate in steps) / sum(width for width, _ in steps)
    shape = Shape(tuple((width, rate / mean) for width, rate in steps))
    times_s = shape.times_s(np.sort(even_s))
    assert (np.diff(times_s) >= -1e-9).all()
    periods = np.arange(5) * shape.period_s
    assert shape.times_s(periods).tolist() == pytest.approx(periods.tolist(), rel=1e-6, abs=1e-6)
