"""Arrivals: their mean rate, their variation, and what is refused."""

import statistics
from itertools import islice, pairwise
from random import Random

import pytest

from controller.api.errors import UsageError
from llumctl.lab.bench_load import arrival_times_s, check_arrivals
from llumctl.lab.option_values import Arrivals

NUM = 40_000


def gaps_s(kind: Arrivals, rate: float, cv: float | None, seed: int = 7) -> list[float]:
    times_s = list(islice(arrival_times_s(kind, rate, cv, Random(seed)), NUM))
    return [later - earlier for earlier, later in pairwise([0.0, *times_s])]


@pytest.mark.parametrize(
    ("kind", "cv", "found_cv"),
    [
        (Arrivals.POISSON, None, 1.0),
        (Arrivals.GAMMA, 0.5, 0.5),
        (Arrivals.GAMMA, 4.0, 4.0),
        (Arrivals.CONSTANT, None, 0.0),
    ],
)
def test_mean_rate_and_variation(kind: Arrivals, cv: float | None, found_cv: float) -> None:
    gaps = gaps_s(kind, 7.5, cv)
    mean = statistics.fmean(gaps)
    # Four standard errors of the mean.
    assert mean == pytest.approx(1 / 7.5, rel=4 * found_cv / NUM**0.5 + 1e-9)
    assert statistics.pstdev(gaps) / mean == pytest.approx(found_cv, rel=0.08, abs=1e-6)


def test_gamma_of_variation_1_is_poisson() -> None:
    by_gamma = sorted(gaps_s(Arrivals.GAMMA, 2.0, 1.0))
    by_poisson = sorted(gaps_s(Arrivals.POISSON, 2.0, None, seed=8))
    for share in (0.1, 0.5, 0.9, 0.99):
        at = int(share * NUM)
        assert by_gamma[at] == pytest.approx(by_poisson[at], rel=0.06)


def test_times_go_up_and_are_fixed_by_the_seed() -> None:
    times_s = list(islice(arrival_times_s(Arrivals.GAMMA, 5.0, 8.0, Random(1)), 1000))
    assert times_s == sorted(times_s)
    assert times_s == list(islice(arrival_times_s(Arrivals.GAMMA, 5.0, 8.0, Random(1)), 1000))
    assert times_s != list(islice(arrival_times_s(Arrivals.GAMMA, 5.0, 8.0, Random(2)), 1000))


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_a_rate_is_positive_and_finite(rate: float) -> None:
    with pytest.raises(UsageError, match="--rate"):
        check_arrivals(Arrivals.POISSON, rate, None)


@pytest.mark.parametrize("cv", [0.0, -2.0, float("nan"), float("inf")])
def test_a_cv_is_positive_and_finite(cv: float) -> None:
    with pytest.raises(UsageError, match="--cv: must be"):
        check_arrivals(Arrivals.GAMMA, 1.0, cv)


def test_only_gamma_has_a_cv() -> None:
    with pytest.raises(UsageError, match="poisson arrivals have no") as caught:
        check_arrivals(Arrivals.POISSON, 1.0, 4.0)
    assert caught.value.hint == "llumctl bench --arrivals gamma --cv 4"
