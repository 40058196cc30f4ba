"""Parts of a whole as cells of a line."""

from collections.abc import Sequence


def shares(sizes: Sequence[float], width: int) -> list[int]:
    """How many of `width` cells each part gets: in proportion, at least one for each part that is
    not nothing (as long as there are so many), all cells together."""
    total = sum(sizes)
    if total <= 0 or width <= 0:
        return [0] * len(sizes)
    ideal = [size * width / total for size in sizes]
    least = 1 if sum(size > 0 for size in sizes) <= width else 0
    cells = [max(int(wanted), least * (wanted > 0)) for wanted in ideal]
    places = range(len(sizes))
    while sum(cells) > width:
        most = max((p for p in places if cells[p] > least), key=lambda p: cells[p] - ideal[p])
        cells[most] -= 1
    while sum(cells) < width:
        cells[max(places, key=lambda p: ideal[p] - cells[p])] += 1
    return cells
