"""A limit of bytes per second: an account that one take may overdraw.

The first bytes go at once, the next when the account is balanced again. A rest saves nothing up, so
any t seconds have at most rate x t bytes and one take.
"""


class RateLimit:
    """Times only go up. The limit may differ at each call; each counts for the time before it."""

    def __init__(self) -> None:
        self._owed_bytes = 0.0
        self._at_s: float | None = None

    def wait_s(self, now_s: float, max_bytes_per_s: float | None) -> float:
        """Seconds until the next bytes may go, if the limit stays. None, or 0, is no limit."""
        at_s, self._at_s = self._at_s, now_s
        if not max_bytes_per_s:
            self._owed_bytes = 0.0
        elif at_s is not None:
            self._owed_bytes = max(0.0, self._owed_bytes - (now_s - at_s) * max_bytes_per_s)
        return self._owed_bytes / max_bytes_per_s if max_bytes_per_s else 0.0

    def take(self, num_bytes: int) -> None:
        """Must follow a `wait_s` that returned 0."""
        self._owed_bytes += num_bytes
