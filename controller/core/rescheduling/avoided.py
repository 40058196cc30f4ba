"""Who is avoided for a while: the one list of it, and what of moves is on such a list.

    pair cools     (source, destination) that failed together
    all cool       a destination that died, or failed with a second source
    fruitless      (source, destination) between which no request could go
    failed lately  a request whose move failed (`core.emptying.relieving`)

A failure may be the source's: a broken link fails with every destination. So a destination cools
for the source that failed with it, and for all once a second source did. Fruitless are pairs as
freeness does not say that a request takes its headroom along, or is larger than the room of the
freest destination; each round would choose the same pair again.
"""

from collections.abc import Collection, Hashable
from typing import Generic, TypeVar

COOLING_S = 30.0
"""The same however often it failed: destinations are few, and a try costs its source one stage."""
FRUITLESS_S = 1.0
"""Within a second prefills end, and some dozens of blocks are freed or filled; a fruitless order
costs one look at the source's requests, and keeps its destination from others for one round."""
FRUITLESS_ROUNDS = 2
"""The least number of rounds, for long intervals: one destination after the other is tried."""

Key = TypeVar("Key", bound=Hashable)


class Avoided(Generic[Key]):
    """Times are the caller's, in seconds, of any origin."""

    def __init__(self) -> None:
        self._until_s: dict[Key, tuple[float, str]] = {}
        """With why. Some may be over; `at` forgets those."""

    def avoid(self, key: Key, until_s: float, why: str = "") -> None:
        """From now on, instead of until what was said before."""
        self._until_s[key] = until_s, why

    def remaining_s(self, key: Key, now_s: float) -> float:
        """0: it is not avoided."""
        known = self._until_s.get(key)
        return 0.0 if known is None else max(0.0, known[0] - now_s)

    def why(self, key: Key, now_s: float) -> str:
        """Empty if it is not avoided."""
        known = self._until_s.get(key)
        return "" if known is None or known[0] <= now_s else known[1]

    def at(self, now_s: float) -> Collection[Key]:
        """Those that are avoided now. Forgets the others."""
        if self._until_s:
            self._until_s = {key: each for key, each in self._until_s.items() if each[0] > now_s}
        return self._until_s.keys()

    def clear(self) -> None:
        self._until_s.clear()


class Cooling:
    """Destinations that failed lately: for a while nobody chooses them for moves."""

    def __init__(self, cooling_s: float = COOLING_S) -> None:
        self._cooling_s = cooling_s
        self._pairs: Avoided[tuple[str, str]] = Avoided()
        """By source and destination."""
        self._for_all: Avoided[str] = Avoided()
        """By destination."""

    def failed(self, source_id: str, destination_id: str, now_s: float) -> None:
        others = (source for source, to in self._pairs.at(now_s) if to == destination_id)
        if any(source != source_id for source in others):
            self._for_all.avoid(destination_id, now_s + self._cooling_s)
        self._pairs.avoid((source_id, destination_id), now_s + self._cooling_s)

    def died(self, destination_id: str, now_s: float) -> None:
        self._for_all.avoid(destination_id, now_s + self._cooling_s)

    def remaining_s(self, destination_id: str, now_s: float, source_id: str | None = None) -> float:
        """Seconds until the destination may be chosen for that source (None: for any)."""
        for_all_s = self._for_all.remaining_s(destination_id, now_s)
        if source_id is None:
            return for_all_s
        return max(for_all_s, self._pairs.remaining_s((source_id, destination_id), now_s))

    def destinations(self, now_s: float) -> Collection[str]:
        """Those that cool for all sources."""
        return self._for_all.at(now_s)

    def pairs(self, now_s: float) -> Collection[tuple[str, str]]:
        """The (source id, destination id) that failed together and still cool."""
        return self._pairs.at(now_s)


def fruitless_until_s(now_s: float, interval_s: float) -> float:
    """When a pair that is fruitless now may be ordered again, with rounds each `interval_s`."""
    return now_s + max(FRUITLESS_S, FRUITLESS_ROUNDS * interval_s)
