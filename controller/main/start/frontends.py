"""The default number of frontends: two, if the machine has room for them, else one."""

import os

FRONTEND_BYTES = 1_100_000_000
"""A frontend has 0.7 GB when it has started; 1.2 GB were seen after overload."""
DEFAULT_FRONTENDS = 2
TWO_FROM_CORES = 4
"""A frontend's start takes 9 s of a core. Under load it keeps a core busy, as an engine does."""


def default_frontends(num_cores: int, spare_bytes: int) -> int:
    """A frontend that dies serves again after 10 s; a second one serves meanwhile. `spare_bytes`:
    memory that the instances leave."""
    room = num_cores >= TWO_FROM_CORES and spare_bytes >= DEFAULT_FRONTENDS * FRONTEND_BYTES
    return DEFAULT_FRONTENDS if room else 1


def num_cores() -> int:
    return len(os.sched_getaffinity(0))
