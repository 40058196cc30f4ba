"""So many bytes per second, and no more: an account that may be overdrawn by one take.

The first bytes go at once, the next when the account is balanced again. Nothing is saved up while
nothing goes, so after a rest there is no burst beyond one take: in any t seconds at most
rate x t bytes and one take.
"""


class RateLimit:
    """Times only go up. The limit may be another at every call; it counts for the time since the
    last one."""

    def __init__(self) -> None:
        self._owed_bytes = 0.0
        self._at_s: float | None = None

    def wait_s(self, now_s: float, max_bytes_per_s: float | None) -> float:
        """Until the next bytes may go, if the limit stays; 0: now. None, or 0, is no limit."""
        at_s, self._at_s = self._at_s, now_s
        if not max_bytes_per_s:
            self._owed_bytes = 0.0
        elif at_s is not None:
            self._owed_bytes = max(0.0, self._owed_bytes - (now_s - at_s) * max_bytes_per_s)
        return self._owed_bytes / max_bytes_per_s if max_bytes_per_s else 0.0

    def take(self, num_bytes: int) -> None:
        """Right after `wait_s` said 0."""
        self._owed_bytes += num_bytes
