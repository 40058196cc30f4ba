"""When requests arrive: independent gaps of a chosen variation, at a rate that has a shape."""

import math

import numpy as np
from numpy.typing import NDArray

from controller.sim.workload.shapes import Shape


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
