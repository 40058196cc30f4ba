"""When requests arrive, and who sends them: independent gaps of a chosen variation, at a rate that
has a shape over time (steps that repeat, 1 in the mean); of which rank each is, and of which
client."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

DIURNAL_STEPS = 96


@dataclass(frozen=True, slots=True)
class Shape:
    """Steps of (duration in s, rate as a multiple of the mean rate), one after the other for ever.

    Raises:
        ValueError: a step is not positive, or the mean of the multiples is not 1.
    """

    steps: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        if not all(0 < value < math.inf for step in self.steps for value in step):
            raise ValueError("the steps of a shape must have positive durations and rates")
        if not self.steps or not math.isclose(self._work_s, self.period_s, rel_tol=1e-9):
            raise ValueError("the rates of a shape must be 1 in the mean")

    @property
    def period_s(self) -> float:
        return math.fsum(duration_s for duration_s, _ in self.steps)

    @property
    def _work_s(self) -> float:
        return math.fsum(duration_s * rate for duration_s, rate in self.steps)

    def times_s(self, even_times_s: NDArray[np.float64]) -> NDArray[np.float64]:
        """Times at an even rate, turned into those at which this shape has let as much arrive.

        They ascend as before, and after each whole period they agree.
        """
        durations_s, rates = (np.array(column) for column in zip(*self.steps, strict=True))
        until_s = np.concatenate(([0.0], np.cumsum(durations_s)))
        work_s = np.concatenate(([0.0], np.cumsum(durations_s * rates)))
        work_s *= until_s[-1] / work_s[-1]
        periods = np.floor(even_times_s / until_s[-1])
        within_s = even_times_s - periods * until_s[-1]
        times_s: NDArray[np.float64] = periods * until_s[-1] + np.interp(within_s, work_s, until_s)
        return times_s


def constant() -> Shape:
    return Shape(((1.0, 1.0),))


def diurnal(period_s: float = 600.0, low: float = 0.25) -> Shape:
    """A sine from `low` times the mean rate up to 2 - `low` times and back, in 96 steps."""
    if not 0 < low <= 1:
        raise ValueError(f"the low of a diurnal shape must be above 0 and at most 1, not {low:g}")
    width_s = period_s / DIURNAL_STEPS
    middles = ((i + 0.5) / DIURNAL_STEPS for i in range(DIURNAL_STEPS))
    return Shape(
        tuple((width_s, 1 - (1 - low) * math.cos(2 * math.pi * middle)) for middle in middles)
    )


def burst(every_s: float = 300.0, length_s: float = 30.0, factor: float = 4.0) -> Shape:
    """Each `every_s` seconds end with `length_s` at `factor` times the mean rate; what is left of
    the arrivals spreads evenly over the rest."""
    if not 0 < length_s < every_s or not 0 < factor * length_s < every_s:
        raise ValueError(
            f"bursts of {length_s:g} s at {factor:g} times the rate leave nothing of {every_s:g} s:"
            " length times factor must be less than the time from burst to burst"
        )
    quiet_s = every_s - length_s
    return Shape(((quiet_s, (every_s - factor * length_s) / quiet_s), (length_s, factor)))


SHAPES: Mapping[str, Shape] = MappingProxyType(
    {"constant": constant(), "diurnal": diurnal(), "burst": burst()}
)


def arrivals_s(
    num_requests: int, rate: float, cv: float, shape: Shape, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Ascending times, with `rate` requests per second in the mean.

    `cv` is the coefficient of variation of the gaps: 1 for Poisson arrivals, above it they come in
    bursts (Gamma gaps), 0 for equal gaps. Of the same generator, another rate stretches the same
    arrivals, and more requests begin with the same ones.

    Raises:
        ValueError: the rate is not positive, or the variation negative.
    """
    if not 0 < rate < math.inf:
        raise ValueError(f"the rate must be a positive number of requests per second, not {rate:g}")
    if not 0 <= cv < math.inf:
        raise ValueError(f"the coefficient of variation must be 0 or a positive number, not {cv:g}")
    return shape.times_s(np.cumsum(_gaps(num_requests, cv, rng)) / rate)


def _gaps(num_requests: int, cv: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Gaps of mean 1."""
    if cv == 0:
        return np.ones(num_requests)
    if cv == 1:
        return rng.standard_exponential(num_requests)
    inverse_shape = cv * cv
    return rng.standard_gamma(1 / inverse_shape, num_requests) * inverse_shape


HIGH_RANK = 1


def drawn_ranks(num_requests: int, high_fraction: float, rng: np.random.Generator) -> list[int]:
    """Rank 1 for a random `high_fraction` of the requests, 0 for the others. A larger fraction of
    the same generator keeps those of a smaller one.

    Raises:
        ValueError: the fraction is not from 0 to 1.
    """
    if not 0 <= high_fraction <= 1:
        raise ValueError(f"high_fraction must be a number from 0 to 1, not {high_fraction:g}")
    is_high: NDArray[np.bool_] = rng.random(num_requests) < high_fraction
    return [HIGH_RANK if high else 0 for high in is_high.tolist()]


def drawn_sessions(num_requests: int, num_clients: int, rng: np.random.Generator) -> list[str]:
    """A name per request out of a fixed number of clients: the n-th client sends in proportion to
    1 / n.

    Raises:
        ValueError: there is no client.
    """
    if num_clients < 1:
        raise ValueError(f"num_clients must be positive, not {num_clients}")
    names = [f"client-{i}" for i in range(num_clients)]
    weights = np.cumsum(1 / np.arange(1.0, num_clients + 1))
    places = np.searchsorted(weights, rng.random(num_requests) * weights[-1], side="right")
    return [names[place] for place in np.minimum(places, num_clients - 1).tolist()]
