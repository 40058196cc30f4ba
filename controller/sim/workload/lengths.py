"""How long prompts and outputs are, in tokens: the distributions of Llumnix (OSDI '24), table 1.

Table 1 gives mean, P50, P80, P95 and P99 of each. `Quantiles` is a monotone curve through the four
quantiles: a power below P50, whose exponent makes the mean come out, and an exponential on each
stretch above. The paper does not say how long the longest requests are; `longest` is our own
figure. `ZipfLengths` is what the authors drew from instead: ranks of a Zipf law, scaled to the
mean. Its P99 differs from table 1 by up to 15 %, but the paper's figure 11 was made with it.

A distribution says which length a share of all requests does not exceed; a uniform random share
gives a random length.
"""

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

MAX_TABLE_TOKENS = 6144
"""The paper's "6k"."""

Shares = NDArray[np.float64]
Tokens = NDArray[np.int64]


class Lengths(Protocol):
    def at(self, shares: Shares) -> Tokens:
        """For each share (from 0 to below 1), the length that this share of the requests does not
        exceed; at least 1."""


@dataclass(frozen=True)
class Fixed:
    tokens: int

    def at(self, shares: Shares) -> Tokens:
        return np.full(len(shares), self.tokens, np.int64)


@dataclass(frozen=True)
class Quantiles:
    """A row of table 1, in tokens."""

    mean: float
    p50: int
    p80: int
    p95: int
    p99: int
    longest: int

    def at(self, shares: Shares) -> Tokens:
        knots, lengths = zip(*self._knots, strict=True)
        lower = 1 + (self.p50 - 1) * np.power(2 * shares, self.exponent)
        upper = np.exp(np.interp(shares, knots, np.log(lengths)))
        tokens: Tokens = np.rint(np.where(shares < 0.5, lower, upper)).astype(np.int64)
        return tokens

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

    def at(self, shares: Shares) -> Tokens:
        weights = self._cumulated
        places = np.searchsorted(weights, shares * weights[-1], side="right")
        ranks = np.minimum(places, len(weights) - 1) + 1
        tokens = np.minimum(np.ceil(ranks * self._tokens_per_rank), MAX_TABLE_TOKENS)
        whole: Tokens = tokens.astype(np.int64)
        return whole

    @property
    def _ranks(self) -> NDArray[Any]:
        return np.arange(1.0, 2 * self.mean)

    @cached_property
    def _cumulated(self) -> NDArray[np.float64]:
        weights: NDArray[np.float64] = np.cumsum(self._ranks**-self.alpha)
        return weights

    @cached_property
    def _tokens_per_rank(self) -> float:
        mean_rank = np.sum(self._ranks ** (1 - self.alpha)) / self._cumulated[-1]
        return float(self.mean / mean_rank)


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

Form = Literal["zipf", "table1"]

_FORMS: Mapping[str, Mapping[str, Lengths]] = {"zipf": ZIPF, "table1": TABLE_1}

NAMED = ("S-S", "M-M", "L-L", "S-L", "L-S", "sharegpt", "burstgpt")
"""The names that the paper uses; the other pairs of S, M and L are understood too."""


class UnknownLengthsError(ValueError):
    """`nearest` is the valid name that looks most like what was given."""

    def __init__(self, message: str, nearest: str) -> None:
        super().__init__(message)
        self.nearest = nearest


def lengths_named(text: str, form: Form) -> tuple[Lengths, Lengths]:
    """The distributions of this name: lengths of prompts and of outputs. Upper and lower case make
    no difference.

    Raises:
        UnknownLengthsError: no distribution has this name.
    """
    name = text.strip().lower()
    if name in ("sharegpt", "burstgpt"):
        return TABLE_1[f"{name}-in"], TABLE_1[f"{name}-out"]
    prefix, _, pair = name.rpartition(":")
    known = _FORMS.get(prefix if ":" in name else form)
    sides = pair.upper().split("-")
    if known is not None and len(sides) == 2 and all(side in ZIPF for side in sides):
        return known[sides[0]], known[sides[1]]
    counts = name.split(",")
    if len(counts) == 2 and all(count.strip().isdecimal() for count in counts):
        prompt, outputs = (int(count) for count in counts)
        if prompt < 1 or outputs < 1:
            raise UnknownLengthsError(f"{text!r}: both must be at least 1 token", "128,64")
        return Fixed(prompt), Fixed(outputs)
    raise UnknownLengthsError(
        f"{text[:40]!r} is neither IN,OUT in tokens nor one of {', '.join(NAMED)}"
        " (or a pair of S, M and L with zipf: or table1: before it)",
        _nearest(name),
    )


def are_fixed(text: str) -> bool:
    """Whether the name stands for requests that are all equally long."""
    try:
        lengths = lengths_named(text, "zipf")
    except UnknownLengthsError:
        return False
    return all(isinstance(each, Fixed) for each in lengths)


def _nearest(name: str) -> str:
    pairs = [f"{one}-{other}" for one in ZIPF for other in ZIPF]
    names = [*NAMED, *(f"{form}:{pair}" for form in _FORMS for pair in pairs)]
    by_lower = {known.lower(): known for known in names}
    near = difflib.get_close_matches(name, by_lower, 1, cutoff=0.5)
    return by_lower[near[0]] if near else "M-M"
