"""Pairs of a source and a destination between which nothing moved, for a while.

Freeness does not say that a request takes its headroom along, or is larger than the room of the
freest destination. So each round would choose the same pair again.
"""

from collections.abc import Iterator

from controller.core.rescheduling.config import ReschedulingConfig

FRUITLESS_S = 1.0
"""Within a second prefills end, and some dozens of blocks are freed or filled; a fruitless order
costs one look at the source's requests, and keeps its destination from others for one round."""
FRUITLESS_ROUNDS = 2
"""The least number of rounds, for long intervals: one destination after the other is tried."""


class FruitlessPairs:
    """Times are the caller's, in seconds, any origin."""

    def __init__(self) -> None:
        self._until_s: dict[tuple[str, str], float] = {}

    def note(
        self, source_id: str, destination_id: str, now_s: float, config: ReschedulingConfig
    ) -> None:
        lasts_s = max(FRUITLESS_S, FRUITLESS_ROUNDS * config.interval_s)
        self._until_s[source_id, destination_id] = now_s + lasts_s

    def forget(self) -> None:
        """Called when the configuration changed: by other rules a pair may be worth an order."""
        self._until_s.clear()

    def at(self, now_s: float) -> Iterator[tuple[str, str]]:
        """The (source id, destination id) that are left out now. Forgets the others."""
        self._until_s = {pair: s for pair, s in self._until_s.items() if s > now_s}
        return iter(self._until_s)
