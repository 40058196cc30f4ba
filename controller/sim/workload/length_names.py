"""Names of lengths: `M-M`, `zipf:M-M`, `table1:M-M`, `sharegpt`, `burstgpt`, `128,64`.

S, M and L exist in two forms (`lengths`), which the prefixes `zipf:` and `table1:` tell apart. A
name without a prefix means the form that the caller takes by default.
"""

import difflib
from collections.abc import Mapping
from typing import Literal

from controller.sim.workload.lengths import TABLE_1, ZIPF, Fixed, Lengths

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
    """Lengths of prompts and of outputs. Upper and lower case are the same.

    Raises:
        UnknownLengthsError: there are none of this name.
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
