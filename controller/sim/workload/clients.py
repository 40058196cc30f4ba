"""Of which rank requests are, and which client sends each."""

import numpy as np
from numpy.typing import NDArray

HIGH_RANK = 1


def ranks(num_requests: int, high_fraction: float, rng: np.random.Generator) -> list[int]:
    """Rank 1 for a random `high_fraction` of the requests, 0 for the others. A larger fraction of
    the same generator keeps those of a smaller one.

    Raises:
        ValueError: the fraction is not from 0 to 1.
    """
    if not 0 <= high_fraction <= 1:
        raise ValueError(f"high_fraction must be a number from 0 to 1, not {high_fraction:g}")
    is_high: NDArray[np.bool_] = rng.random(num_requests) < high_fraction
    return [HIGH_RANK if high else 0 for high in is_high.tolist()]


def sessions(num_requests: int, num_clients: int, rng: np.random.Generator) -> list[str]:
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
