"""When requests come: endless gaps between them, fixed before the first is sent."""

from collections.abc import Iterator
from enum import StrEnum
from random import Random

from controller.api.errors import UsageError


class Arrivals(StrEnum):
    """Independent gaps of mean 1 / rate. `poisson`: exponential ones. `gamma`: of a coefficient
    of variation (CV) that one chooses; 1 is Poisson, above it the arrivals come in bursts.
    `constant`: all gaps the same."""

    POISSON = "poisson"
    GAMMA = "gamma"
    CONSTANT = "constant"


def times_s(kind: Arrivals, rate: float, cv: float | None, rng: Random) -> Iterator[float]:
    """Seconds from the start at which each request is due, without end; `rate` in 1/s."""
    now_s = 0.0
    for gap_s in _gaps_s(kind, rate, 1.0 if cv is None else cv, rng):
        now_s += gap_s
        yield now_s


def check(kind: Arrivals, rate: float, cv: float | None) -> None:
    """Raises UsageError. `cv` is None where nobody gave one."""
    if not 0 < rate < float("inf"):
        raise UsageError(
            f"--rate: must be a positive number of requests per second, not {rate:g}",
            "llumctl bench --rate 2",
        )
    if cv is None:
        return
    if kind is not Arrivals.GAMMA:
        raise UsageError(
            f"--cv: {kind} arrivals have no coefficient of variation to choose",
            f"llumctl bench --arrivals gamma --cv {cv:g}",
        )
    if not 0 < cv < float("inf"):
        raise UsageError(
            f"--cv: must be a positive number, not {cv:g}",
            "llumctl bench --arrivals gamma --cv 4      or      llumctl bench --arrivals constant",
        )


def _gaps_s(kind: Arrivals, rate: float, cv: float, rng: Random) -> Iterator[float]:
    if kind is Arrivals.CONSTANT:
        while True:
            yield 1.0 / rate
    if kind is Arrivals.POISSON:
        while True:
            yield rng.expovariate(rate)
    shape = 1.0 / (cv * cv)
    while True:
        yield rng.gammavariate(shape, 1.0 / (rate * shape))
