"""Destinations that failed lately: they get no moves of the scheduler's choice for a while."""


class Cooling:
    """Fixed, not growing: a destination is one of a few, and a try costs its source one stage.

    Times are the caller's, in seconds, any origin."""

    def __init__(self, cooling_s: float) -> None:
        self.cooling_s = cooling_s
        """May be changed at any time; counts for those that cool already, too."""
        self._failed_s: dict[str, float] = {}

    def failed(self, instance_id: str, now_s: float) -> None:
        self._failed_s[instance_id] = now_s

    def remaining_s(self, instance_id: str, now_s: float) -> float:
        """0 for one that may be chosen."""
        failed_s = self._failed_s.get(instance_id)
        if failed_s is None:
            return 0.0
        remaining_s = failed_s + self.cooling_s - now_s
        if remaining_s <= 0:
            del self._failed_s[instance_id]
            return 0.0
        return remaining_s
