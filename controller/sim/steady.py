"""Whether a run reached a steady state: did its queues and its memory stop filling?

Above saturation queues grow in proportion to the time since the load began. So within the second
half of the arrivals they grow by two thirds of their mean there; below saturation they come and go.
The same holds for the memory in use while a cluster still fills, as it does for minutes where
outputs are long. Half of those two thirds counts as growing.
"""

import numpy as np
from numpy.typing import NDArray

from controller.sim.outcome import Sampled

Values = NDArray[np.float64]

MAX_GROWTH = 1 / 3
"""Of the mean."""
FEW_WAITING = 1.0
"""Growth of so many waiting requests per instance is none."""
FILLS = 0.02
"""Growth of the memory in use by less than this share of all blocks is none."""
MIN_SAMPLES = 16


def is_steady(sampled: Sampled, first_s: float, last_s: float) -> bool | None:
    """`first_s` and `last_s`: when the first and the last request arrived. None: the second half of
    the arrivals has too few samples to tell.

    Growth is that of a straight line through the samples of the second half, by least squares.
    """
    times_s = np.array(sampled.times_s)
    middle_s = (first_s + last_s) / 2
    seen = (times_s >= middle_s) & (times_s <= last_s)
    if np.count_nonzero(seen) < MIN_SAMPLES:
        return None
    num_instances = float(np.array(sampled.num_instances)[seen].mean())
    return not (
        _grows(
            times_s[seen], np.array(sampled.num_waiting, float)[seen], FEW_WAITING * num_instances
        )
        or _grows(times_s[seen], np.array(sampled.used_share)[seen], FILLS)
    )


def _grows(times_s: Values, values: Values, least: float) -> bool:
    per_s = float(np.polyfit(times_s - times_s[0], values, 1)[0])
    growth = per_s * float(times_s[-1] - times_s[0])
    return growth > max(MAX_GROWTH * float(values.mean()), least)
