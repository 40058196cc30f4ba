"""What moves may take of a cluster; all of it may be changed while it runs."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MoveLimits:
    max_moves: int = 4
    """Of one instance at a time, in both directions."""
    max_bytes_per_s: float | None = None
    """From one instance to another; None: no limit."""
    cooling_s: float = 30.0
    """How long a destination that failed is not chosen."""
