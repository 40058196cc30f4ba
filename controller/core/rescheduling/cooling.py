"""Destinations that failed lately: for a while the scheduler chooses no moves to them.

The failure may be the source's: a broken link fails with every destination. So a destination cools
for the source that failed with it, and for all once a second source did, or when it died.
"""

from collections.abc import Iterator

COOLING_S = 30.0
"""The same however often it failed: destinations are few, and a try costs its source one stage."""


class Cooling:
    """Times are the caller's, in seconds, of any origin."""

    def __init__(self, cooling_s: float = COOLING_S) -> None:
        self._cooling_s = cooling_s
        self._pair_failed_s: dict[tuple[str, str], float] = {}
        """When a pair failed last, by source and destination."""
        self._failed_s: dict[str, float] = {}
        """Since when a destination cools for all sources, by its id."""

    def failed(self, source_id: str, destination_id: str, now_s: float) -> None:
        self._forget(now_s)
        others = (source for source, to in self._pair_failed_s if to == destination_id)
        if any(source != source_id for source in others):
            self._failed_s[destination_id] = now_s
        self._pair_failed_s[source_id, destination_id] = now_s

    def died(self, destination_id: str, now_s: float) -> None:
        self._failed_s[destination_id] = now_s

    def remaining_s(self, destination_id: str, now_s: float, source_id: str | None = None) -> float:
        """Seconds until the destination may be chosen for that source (None: for any)."""
        times_s = [self._failed_s.get(destination_id)]
        if source_id is not None:
            times_s.append(self._pair_failed_s.get((source_id, destination_id)))
        failed_s = max((time_s for time_s in times_s if time_s is not None), default=None)
        return 0.0 if failed_s is None else max(0.0, failed_s + self._cooling_s - now_s)

    def destinations(self, now_s: float) -> Iterator[str]:
        """Those that cool for all sources."""
        self._forget(now_s)
        return iter(self._failed_s)

    def pairs(self, now_s: float) -> Iterator[tuple[str, str]]:
        """The (source id, destination id) that failed together and still cool."""
        self._forget(now_s)
        return iter(self._pair_failed_s)

    def _forget(self, now_s: float) -> None:
        oldest_s = now_s - self._cooling_s
        self._pair_failed_s = {p: s for p, s in self._pair_failed_s.items() if s > oldest_s}
        self._failed_s = {i: s for i, s in self._failed_s.items() if s > oldest_s}
