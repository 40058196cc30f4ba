"""Which silent instances are fenced: taken for dead, so that their requests run elsewhere.

An instance that reports no progress gets no requests long before; this is the later, costlier step.
What it would have answered is computed anew, and its process drops all that it ran when it comes
back. So it is done for one instance at a time, and for more only as far as the rest has memory for
their requests: a fault that silences many at once (a network, a busy machine) would else crowd the
few that are left, until they are silent too.

A node all of whose instances are silent is one fault, and goes as one.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Silent:
    """An incarnation that serves, and for how long it has reported nothing."""

    instance_id: str
    incarnation: int
    silent_s: float
    need_blocks: int
    """What its requests take elsewhere, by its last status: what they hold, and what those in its
    queue want."""
    node: str = ""
    """The machine that it is on."""


@dataclass(frozen=True, slots=True)
class Rest:
    """The instances that report."""

    num_schedulable: int
    free_blocks: int
    """Of all of them, less what waits there and at the controller."""
    num_away: int
    """Incarnations that were fenced, and whose processes are not back."""


def to_fence(silent: Sequence[Silent], rest: Rest, after_s: float) -> list[list[Silent]]:
    """The incarnations to fence now, of those silent for `after_s` or more, by fault: one each, or
    all of a node. 0: none ever.

    The longest silent go first. One fault is dealt with even if its requests have to wait for
    memory, unless another incarnation is still away; others are while what they need is free. None
    is while no instance could take the requests.
    """
    if not after_s or not rest.num_schedulable:
        return []
    chosen: list[list[Silent]] = []
    free_blocks = rest.free_blocks
    for fault in sorted(_faults(silent, after_s), key=_longest_first):
        need_blocks = sum(each.need_blocks for each in fault)
        if need_blocks <= free_blocks or not (chosen or rest.num_away):
            chosen.append(fault)
            free_blocks -= need_blocks
    return chosen


def _faults(silent: Sequence[Silent], after_s: float) -> Iterator[list[Silent]]:
    by_node: dict[str, list[Silent]] = defaultdict(list)
    for each in silent:
        by_node[each.node].append(each)
    for there in by_node.values():
        overdue = [each for each in there if each.silent_s >= after_s]
        if len(overdue) == len(there) and len(by_node) > 1:
            yield overdue
        else:
            yield from ([each] for each in overdue)


def _longest_first(fault: Sequence[Silent]) -> tuple[float, str]:
    return -max(each.silent_s for each in fault), fault[0].instance_id
