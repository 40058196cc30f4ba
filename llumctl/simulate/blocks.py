"""Charts of block characters, for terminals."""

from collections.abc import Sequence
from itertools import pairwise

LEVELS = "▁▂▃▄▅▆▇█"
EIGHTHS = " ▏▎▍▌▋▊▉█"


def sparkline(values: Sequence[float], width: int, highest: float) -> str:
    """The values over time in `width` columns: of each column the largest value in it. Empty
    without values."""
    if not values or highest <= 0:
        return LEVELS[0] * min(width, len(values))
    num = min(width, len(values))
    edges = [len(values) * place // num for place in range(num + 1)]
    columns = (max(values[begin:end]) for begin, end in pairwise(edges))
    top = len(LEVELS) - 1
    return "".join(LEVELS[min(top, round(top * value / highest))] for value in columns)


def bar(share: float, width: int) -> str:
    """A bar of `share` (0 to 1) of `width` columns, to the eighth of a column."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    whole, rest = divmod(eighths, 8)
    return "█" * whole + (EIGHTHS[rest] if rest else "")
