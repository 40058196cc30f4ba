"""How long prompts and outputs are, in tokens: the distributions of Llumnix (OSDI '24), table 1.

Table 1 gives mean, P50, P80, P95 and P99 of each. `Quantiles` is a monotone curve through the
four quantiles: a power below P50, whose exponent makes the mean come out, and an exponential on
each stretch above. The paper does not say how long the longest are; `longest` is ours.
`ZipfLengths` is what the authors drew from instead: ranks of a Zipf law, scaled to the mean. Its
P99 is off table 1 by up to 15 %, but figure 11 was made with it.
"""

import difflib
import math
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from random import Random
from typing import Protocol

from controller.api.errors import UsageError

MAX_TABLE_TOKENS = 6144
"""The paper's "6k"."""


class Lengths(Protocol):
    def draw(self, rng: Random) -> int:
        """A number of tokens, at least 1."""


@dataclass(frozen=True)
class Fixed:
    tokens: int

    def draw(self, rng: Random) -> int:  # noqa: ARG002
        return self.tokens


@dataclass(frozen=True)
class Quantiles:
    """A row of table 1, in tokens."""

    mean: float
    p50: int
    p80: int
    p95: int
    p99: int
    longest: int

    def draw(self, rng: Random) -> int:
        return self.at(rng.random())

    def at(self, share: float) -> int:
        """The length that `share` (0 to 1) of all requests do not exceed."""
        if share < 0.5:
            return round(1 + (self.p50 - 1) * math.pow(2 * share, self.exponent))
        for (low, shortest), (high, longest) in pairwise(self._knots):
            if share <= high:
                part = (share - low) / (high - low)
                return round(shortest * math.pow(longest / shortest, part))
        return self.longest

    @cached_property
    def exponent(self) -> float:
        """The lower half has the mean 1 + (P50 - 1) / (exponent + 1)."""
        upper = sum(
            (high - low) * (longest - shortest) / math.log(longest / shortest)
            for (low, shortest), (high, longest) in pairwise(self._knots)
        )
        return (self.p50 - 1) / ((self.mean - upper) / 0.5 - 1) - 1

    @property
    def _knots(self) -> tuple[tuple[float, int], ...]:
        shares, lengths = (0.5, 0.8, 0.95, 0.99, 1.0), (self.p50, self.p80, self.p95, self.p99)
        return tuple(zip(shares, (*lengths, self.longest), strict=True))


@dataclass(frozen=True)
class ZipfLengths:
    """Ranks 1 to 2 mean - 1 with probability rank^-alpha, scaled to the mean and rounded up."""

    mean: int
    alpha: float

    def draw(self, rng: Random) -> int:
        (rank,) = rng.choices(self._ranks, cum_weights=self._cumulated)
        return min(MAX_TABLE_TOKENS, math.ceil(rank * self._tokens_per_rank))

    @property
    def _ranks(self) -> range:
        return range(1, 2 * self.mean)

    @cached_property
    def _cumulated(self) -> list[float]:
        return list(accumulate(math.pow(rank, -self.alpha) for rank in self._ranks))

    @cached_property
    def _tokens_per_rank(self) -> float:
        mean_rank = (
            sum(math.pow(rank, 1 - self.alpha) for rank in self._ranks) / self._cumulated[-1]
        )
        return self.mean / mean_rank


TABLE_1 = {
    "S": Quantiles(128, 38, 113, 413, 1464, longest=5400),
    "M": Quantiles(256, 32, 173, 1288, 4208, longest=4800),
    "L": Quantiles(512, 55, 582, 3113, 5166, longest=5300),
    "sharegpt-in": Quantiles(306, 74, 348, 1484, 3388, longest=3800),
    "sharegpt-out": Quantiles(500, 487, 781, 988, 1234, longest=1500),
    "burstgpt-in": Quantiles(830, 582, 1427, 2345, 3549, longest=4400),
    "burstgpt-out": Quantiles(271, 243, 434, 669, 964, longest=1250),
}
ZIPF = {"S": ZipfLengths(128, 2.0), "M": ZipfLengths(256, 1.5), "L": ZipfLengths(512, 1.15)}

NAMED = ("S-S", "M-M", "L-L", "S-L", "L-S", "sharegpt", "burstgpt")
ZIPF_PREFIX = "zipf:"


def parse(text: str) -> tuple[Lengths, Lengths]:
    """Lengths of prompts and outputs from `M-M`, `zipf:M-M`, `sharegpt`, or `IN,OUT` in tokens.

    Raises:
        UsageError: it is none of these.
    """
    name = text.strip()
    if name.lower() in ("sharegpt", "burstgpt"):
        return TABLE_1[f"{name.lower()}-in"], TABLE_1[f"{name.lower()}-out"]
    is_zipf = name.lower().startswith(ZIPF_PREFIX)
    known = ZIPF if is_zipf else TABLE_1
    sides = (name[len(ZIPF_PREFIX) :] if is_zipf else name).upper().split("-")
    if len(sides) == 2 and all(side in known for side in sides):
        return known[sides[0]], known[sides[1]]
    counts = name.split(",")
    if len(counts) == 2 and all(count.strip().isdecimal() for count in counts):
        prompt, outputs = (int(count) for count in counts)
        if prompt >= 1 and outputs >= 1:
            return Fixed(prompt), Fixed(outputs)
        raise UsageError(f"--lengths: {text!r}: both must be at least 1 token")
    raise _unknown(text)


def _unknown(text: str) -> UsageError:
    names = [*NAMED, *(f"{ZIPF_PREFIX}{name}" for name in NAMED if "gpt" not in name)]
    by_lower = {name.lower(): name for name in names}
    near = difflib.get_close_matches(text.lower(), by_lower, 1, cutoff=0.5)
    guess = by_lower[near[0]] if near else "M-M"
    message = f"--lengths: {text[:40]!r} is neither IN,OUT in tokens nor one of {', '.join(NAMED)}"
    return UsageError(
        f"{message} (or one with {ZIPF_PREFIX} before it)", f"llumctl bench --lengths {guess}"
    )
