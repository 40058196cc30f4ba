"""How many frontends a cluster has when nobody says: two, where they do not crowd the rest."""

import os

FRONTEND_BYTES = 1_100_000_000
"""0.7 GB when it has started, 1.2 GB were seen after overload."""
DEFAULT_FRONTENDS = 2
TWO_FROM_CORES = 4
"""Each start takes 9 s of a core, and under load a frontend keeps one busy; an engine another."""


def default_frontends(num_cores: int, spare_bytes: int) -> int:
    """One that dies takes 10 s to be there again: the second one serves meanwhile. `spare_bytes`:
    of memory beside the instances."""
    room = num_cores >= TWO_FROM_CORES and spare_bytes >= DEFAULT_FRONTENDS * FRONTEND_BYTES
    return DEFAULT_FRONTENDS if room else 1


def num_cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0))
