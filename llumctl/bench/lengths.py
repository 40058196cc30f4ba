"""Lengths by name, as the simulator knows them, and endless draws of them."""

from collections.abc import Iterator
from random import Random

import numpy as np

from controller.api.errors import UsageError
from controller.sim.workload.lengths import Lengths, UnknownLengthsError, lengths_named

DRAWN_AT_ONCE = 1024


def parse(text: str) -> tuple[Lengths, Lengths]:
    """Lengths of prompts and outputs from `M-M`, which means table 1 here, `zipf:M-M`, `sharegpt`,
    or `IN,OUT` in tokens.

    Raises:
        UsageError: it is none of these.
    """
    try:
        return lengths_named(text, "table1")
    except UnknownLengthsError as error:
        raise UsageError(
            f"--lengths: {error}", f"llumctl bench --lengths {error.nearest}"
        ) from error


def draws(prompts: Lengths, outputs: Lengths, rng: Random) -> Iterator[tuple[int, int]]:
    """Lengths of a prompt and of its outputs, in tokens, without end."""
    while True:
        shares = np.array([rng.random() for _ in range(2 * DRAWN_AT_ONCE)])
        yield from zip(
            prompts.at(shares[::2]).tolist(), outputs.at(shares[1::2]).tolist(), strict=True
        )
