"""Words that options of `llumctl bench` and `llumctl simulate` take.

The parser of the command line needs them before it knows which command is meant, so they stand
apart: the other modules import numpy, httpx or matplotlib, which would slow down every command.
"""

from enum import StrEnum


class Arrivals(StrEnum):
    """Independent gaps of mean 1 / rate. `poisson`: exponential ones. `gamma`: of a coefficient
    of variation (CV) that one chooses; 1 is Poisson, above it the arrivals come in bursts.
    `constant`: all gaps the same."""

    POISSON = "poisson"
    GAMMA = "gamma"
    CONSTANT = "constant"


class Verify(StrEnum):
    """`tokens`: each id is what an emulated engine must answer. `counts`: as many ids came as were
    asked for, and as the server says. `usage`: the server says as many as were asked for; ids are
    not asked for. `auto`: tokens where the cluster's engine is emulated, else counts."""

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
