"""Which silent instances are fenced: taken for dead, so that their requests run elsewhere.

An instance that reports no progress gets no requests long before; this is the later, costlier step.
What it would have answered is computed anew, and its process drops all that it ran when it comes
back. So it is done for one instance at a time, and for more only as far as the rest has memory for
their requests: a fault that silences many at once (a network, a busy machine) would else crowd the
few that are left, until they are silent too.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Silent:
    """An incarnation that serves and reports nothing."""

    instance_id: str
    incarnation: int
    silent_s: float
    need_blocks: int
    """What its requests take elsewhere, by its last status: what they hold, and what those in its
    queue want."""


@dataclass(frozen=True, slots=True)
class Rest:
    """The instances that report."""

    num_schedulable: int
    free_blocks: int
    """Of all of them, less what waits there and at the controller."""
    num_away: int
    """Incarnations that were fenced, and whose processes are not back."""


def to_fence(silent: Sequence[Silent], rest: Rest, after_s: float) -> list[Silent]:
    """The incarnations to fence now, of those silent for `after_s` or more; 0: none ever.

    The longest silent goes first. One goes even if its requests have to wait for memory, unless
    another one is still away; others go while what they need is free. None goes while no instance
    could take the requests.
    """
    if not after_s or not rest.num_schedulable:
        return []
    overdue = [each for each in silent if each.silent_s >= after_s]
    overdue.sort(key=lambda each: (-each.silent_s, each.instance_id))
    chosen: list[Silent] = []
    free_blocks = rest.free_blocks
    for each in overdue:
        if each.need_blocks <= free_blocks or not (chosen or rest.num_away):
            chosen.append(each)
            free_blocks -= each.need_blocks
    return chosen
