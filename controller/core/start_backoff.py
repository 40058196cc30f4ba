"""How soon a process that died at its start is started again, and when it is given up: what the
Ray adapter goes by, and what `up` tells of a start that failed."""

MAX_FAILED_STARTS = 4
"""Failed starts in a row. A process that dies of its input or of its machine dies again; the
further starts are for what passes, such as memory that another process held."""
FIRST_DELAY_S = 0.5
FACTOR = 3.0
MAX_DELAY_S = 30.0


def delay_s(num_failed: int) -> float:
    """Seconds before the next start, after `num_failed` failed ones in a row."""
    if num_failed == 0:
        return 0.0
    exponent = min(num_failed - 1, MAX_FAILED_STARTS)  # a larger one may overflow
    return min(MAX_DELAY_S, FIRST_DELAY_S * FACTOR**exponent)


def is_given_up(num_failed: int, *, has_served: bool) -> bool:
    """A process that has served before is tried for ever: what keeps it from starting now, a full
    machine for example, may pass."""
    return num_failed >= MAX_FAILED_STARTS and not has_served
