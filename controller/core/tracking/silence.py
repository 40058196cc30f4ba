"""How long each incarnation has reported nothing, as far as its listener was awake to hear it."""

from collections.abc import Iterable

Key = tuple[str, int]
"""(instance id, incarnation)"""

MAX_TURN_S = 1.0
"""A listener that looks less often than this was itself asleep: no silence of others counts beyond
it. A controller that was stopped for a minute would else fence every instance."""


class Silences:
    """Times are seconds of any one monotonic clock."""

    def __init__(self) -> None:
        self._silent_s: dict[Key, float] = {}
        self._last_turn_s: float | None = None

    def turn(self, now_s: float, last_report_s: Iterable[tuple[Key, float]]) -> dict[Key, float]:
        """How long each incarnation has been silent by now, of those given with the time of their
        last report; others are forgotten. One that never reported (-inf) is silent since it was
        given first. Mutates. Call it several times a second."""
        before_s = now_s if self._last_turn_s is None else self._last_turn_s
        self._last_turn_s = now_s
        heard_s = min(now_s - before_s, MAX_TURN_S)
        self._silent_s = {
            key: 0.0 if last_s >= before_s else self._silent_s.get(key, 0.0) + heard_s
            for key, last_s in last_report_s
        }
        return self._silent_s
