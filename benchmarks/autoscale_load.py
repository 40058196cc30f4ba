"""A load that rises and falls, with a burst, and then nothing at all: one hour of profile time."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from controller.sim.run import Load, fitting
from controller.sim.setup import ClusterSetup
from controller.sim.workload.trace import Trace

BURST = (0.60, 0.64)
"""Shares of the duration: so it begins and ends."""
NOTHING = (0.75, 0.88)
SLOW_S = 10.0


@dataclass(frozen=True, slots=True)
class Tide:
    """Rates in requests per second, times in seconds, both of the profile's time. Two waves from
    `low_rate` to `high_rate`; in the burst `burst_rate`; in the quiet part no request at all."""

    duration_s: float
    low_rate: float
    high_rate: float
    burst_rate: float

    def rate(self, at_s: float) -> float:
        share = at_s / self.duration_s
        if NOTHING[0] <= share < NOTHING[1]:
            return 0.0
        if BURST[0] <= share < BURST[1]:
            return self.burst_rate
        wave = (1 - math.cos(4 * math.pi * share)) / 2
        return self.low_rate + (self.high_rate - self.low_rate) * wave

    @property
    def mean_rate(self) -> float:
        """By 1,000 looks at it."""
        step_s = self.duration_s / 1000
        return sum(self.rate((number + 0.5) * step_s) for number in range(1000)) / 1000

    def num_slow(self, arrivals_s: Sequence[float], ttfts_s: Sequence[float]) -> tuple[int, ...]:
        """How many requests had a TTFT above `SLOW_S`, by when they came: before the burst, from
        then until no more come, and after that."""
        counts = [0, 0, 0]
        for arrival_s, ttft_s in zip(arrivals_s, ttfts_s, strict=True):
            share = arrival_s / self.duration_s
            counts[(share >= BURST[0]) + (share >= NOTHING[0])] += ttft_s > SLOW_S
        return tuple(counts)

    def trace(self, lengths: str, setup: ClusterSetup, seed: int) -> Trace:
        """Poisson arrivals at the highest rate, of which each stays by chance, as the rate is at
        its moment; requests that are too long for an instance are left out. Lengths are those of
        `lengths` as `llumctl simulate` draws them."""
        most = max(self.high_rate, self.burst_rate, self.low_rate)
        number = math.ceil(1.2 * most * self.duration_s) + 100
        load = Load(lengths, most, number, drop_too_long=True)
        drawn = fitting(load.trace(seed), setup, load)[0]
        rng = Random(f"{seed}/tide")
        kept = [
            each
            for each in drawn.requests
            if rng.random() * most < self.rate(each.arrival_s) and each.arrival_s < self.duration_s
        ]
        return Trace(f"{lengths}-tide", kept, drawn.prefix_hash_tokens)


def mean_over_time(times_s: Sequence[float], numbers: Sequence[int], until_s: float) -> float:
    """Of a number that is `numbers[k]` from `times_s[k]` on, from the first time until `until_s`.
    Raises ValueError without a time, or where the end is not after the first."""
    if not times_s or until_s <= times_s[0]:
        raise ValueError("there is nothing to take the mean of")
    ends_s = [*times_s[1:], until_s]
    total = sum(
        number * max(0.0, min(end_s, until_s) - begin_s)
        for begin_s, end_s, number in zip(times_s, ends_s, numbers, strict=True)
    )
    return total / (until_s - times_s[0])
