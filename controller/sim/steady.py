"""Whether a run reached a steady state: did its queues and its memory stop filling?

Above saturation queues grow in proportion to the time since the load began. So within the second
half of the arrivals they grow by two thirds of their mean there; below saturation they come and go.
The same holds for the memory in use while a cluster still fills, as it does for minutes where
outputs are long. Half of those two thirds counts as growing.

A long queue is none of a steady state either, whether it grows or not, if a request in it waits for
a good part of the run: it stands there because of what came before, and the run ends before another
one would have formed.
"""

from collections.abc import Sequence

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
MAX_STANDING = 0.1
"""Of the requests that arrive in the second half: so many may wait in the mean, that is, a request
may wait a tenth of that time."""
MIN_SAMPLES = 16


def is_steady(sampled: Sampled, arrivals_s: Sequence[float]) -> bool | None:
    """`arrivals_s`: when the requests arrived, ascending. None: the second half of the arrivals
    has too few samples to tell.

    Growth is that of a straight line through the samples of the second half, by least squares.
    """
    times_s = np.array(sampled.times_s)
    middle_s = (arrivals_s[0] + arrivals_s[-1]) / 2
    seen = (times_s >= middle_s) & (times_s <= arrivals_s[-1])
    if not seen.any():
        return None
    waiting = np.array(sampled.num_waiting, float)[seen]
    few = FEW_WAITING * float(np.array(sampled.num_instances)[seen].mean())
    num_arrivals = int((np.array(arrivals_s) >= middle_s).sum())
    if waiting.mean() > max(MAX_STANDING * num_arrivals, few):
        return False
    if np.count_nonzero(seen) < MIN_SAMPLES:
        return None
    return not (
        _grows(times_s[seen], waiting, few)
        or _grows(times_s[seen], np.array(sampled.used_share)[seen], FILLS)
    )


def _grows(times_s: Values, values: Values, least: float) -> bool:
    per_s = float(np.polyfit(times_s - times_s[0], values, 1)[0])
    growth = per_s * float(times_s[-1] - times_s[0])
    return growth > max(MAX_GROWTH * float(values.mean()), least)
