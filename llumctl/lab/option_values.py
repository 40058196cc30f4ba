"""Words that are values of options of `llumctl bench` and `llumctl simulate`.

The parser of the command line needs them for every command. They have a module of their own because
the other modules here import numpy or httpx, which would slow down every command.
"""

from enum import StrEnum


class Arrivals(StrEnum):
    """Distributions of the gaps between requests, which are independent and have the mean 1 / rate.
    `poisson`: exponential gaps. `gamma`: gaps with a given coefficient of variation (CV); 1 is
    Poisson, and above 1 requests come in bursts. `constant`: equal gaps."""

    POISSON = "poisson"
    GAMMA = "gamma"
    CONSTANT = "constant"


class Verify(StrEnum):
    """How answers are verified. `tokens`: each token id must be the one that an emulated engine
    answers. `counts`: the number of ids must be the one that was asked for and that the server
    reports. `usage`: only the number that the server reports is checked, and no ids are requested.
    `auto`: tokens if the cluster's engines are emulated, else counts."""

    AUTO = "auto"
    TOKENS = "tokens"
    COUNTS = "counts"
    USAGE = "usage"


class FigureName(StrEnum):
    FIGURE11 = "figure11"
    FIGURE12 = "figure12"
    FIGURE13 = "figure13"
    FIGURE14 = "figure14"
    FIGURE15 = "figure15"
