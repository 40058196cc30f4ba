"""What moves may take of a cluster; operators may change each limit while the cluster runs.

Users' defaults are those of `MigrationTable` (controller/api/settings). `max_moves` is enforced by
`InstanceMoves`, which refuses, `RelievingSource`, which begins no more, and `MovesByHand`, in which
moves by hand wait.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MoveLimits:
    max_moves: int = 4
    """Moves of one instance at a time, both directions together."""
    max_bytes_per_s: float | None = None
    """Bandwidth from one instance to another; None: no limit."""
