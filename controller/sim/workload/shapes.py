"""How the rate of arrivals changes over time: in steps that repeat, 1 in the mean."""

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
