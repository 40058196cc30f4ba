"""What the figures of the Llumnix paper show, as numbers.

`points.csv` was read off the vector graphics of Sun et al., "Llumnix: Dynamic Scheduling for Large
Language Model Serving" (OSDI '24). `x` is the rate in requests per second, in figure 13 and with
the Gamma arrivals of figure 14 the coefficient of variation of the gaps, in figure 15 the threshold
of scaling in blocks per request. Figure 12 is there as the two shares that the text gives. The
names of policies and metrics are ours.
"""

import csv
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_name("points.csv")


class FigureName(StrEnum):
    FIGURE11 = "figure11"
    FIGURE12 = "figure12"
    FIGURE13 = "figure13"
    FIGURE14 = "figure14"
    FIGURE15 = "figure15"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a point stands in a figure. `workload`: the trace, or of figures 14 and 15 how it
    arrives. `rank`: of these requests only."""

    workload: str
    x: float
    rank: int | None
    policy: str
    metric: str


@cache
def points(figure: FigureName) -> dict[Place, float]:
    """All points of a figure, in the order of the file; times in seconds."""
    with FILE.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["figure"] == figure]
    return {
        Place(
            row["workload"],
            float(row["x"]),
            int(row["rank"]) if row["rank"] else None,
            row["policy"],
            row["metric"],
        ): float(row["value"])
        for row in rows
    }
