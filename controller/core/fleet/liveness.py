"""Which silent instances are fenced: taken for dead, so that their requests run elsewhere.

An instance that reports no progress gets no requests long before; this is the later, costlier step.
What it would have answered is computed anew, and its process drops all that it ran when it comes
back. So it is done for one instance at a time, and for more only as far as the rest has memory for
their requests: a fault that silences many at once (a network, a busy machine) would else crowd the
few that are left, until they are silent too.

A node all of whose instances are silent is one fault, and goes as one.

An instance is silent since its last report, or, if this controller has none of the incarnation,
since it began to wait for one. Only the engine's thread reports; the event loop of the same process
says Hello all the while. So an instance that a restarted controller adopts while its engine hangs
is fenced like any other, and a fenced one counts as away until it reports, whatever its loop says.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

Key = tuple[str, int]
"""(instance id, incarnation)"""

MAX_TURN_S = 1.0
"""A listener that looks less often than this was itself asleep: no silence of others counts beyond
it. A controller that was stopped for a minute would else fence every instance."""


class Silences:
    """Times are seconds of any one monotonic clock."""

    def __init__(self) -> None:
        self._silent_s: dict[Key, float] = {}
        self._last_turn_s: float | None = None

    def turn(self, now_s: float, last_report_s: Iterable[tuple[Key, float]]) -> dict[Key, float]:
        """How long each incarnation has been silent by now, of those given with the time of their
        last report; others are forgotten. One that never reported (-inf) is silent since it was
        given first. Mutates. Call it several times a second."""
        before_s = now_s if self._last_turn_s is None else self._last_turn_s
        self._last_turn_s = now_s
        heard_s = min(now_s - before_s, MAX_TURN_S)
        self._silent_s = {
            key: 0.0 if last_s >= before_s else self._silent_s.get(key, 0.0) + heard_s
            for key, last_s in last_report_s
        }
        return self._silent_s


SETTLED_S = 5.0
"""The requests of a fenced instance are in the statuses of others so long afterwards. Until then
what they need counts as taken."""


@dataclass(frozen=True, slots=True)
class Serving:
    """An incarnation that says that it serves."""

    instance_id: str
    incarnation: int
    last_report_s: float | None
    """None: this controller has no report of the incarnation."""
    need_blocks: int
    """What its requests take elsewhere, as `Silent` has it; without a report all that they can."""
    node: str = ""
    fenced: bool = False
    """The process was fenced, and has not reported since. It runs nothing that could be fenced once
    more."""

    @property
    def key(self) -> Key:
        return self.instance_id, self.incarnation


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
    """Instances that were fenced, and whose engines have not reported since."""


class Fencing:
    """Times are seconds of any one monotonic clock."""

    def __init__(self) -> None:
        self._silences = Silences()
        self._fenced: list[tuple[float, int]] = []
        """When, and how many blocks the requests need, of those fenced lately."""

    def silent_s(self, now_s: float, serving: Sequence[Serving]) -> Mapping[Key, float]:
        """How long each incarnation has reported nothing by now. Call it several times a second,
        before `turn`. Mutates."""
        began_s = float("-inf")
        return self._silences.turn(
            now_s,
            (
                (each.key, began_s if each.last_report_s is None else each.last_report_s)
                for each in serving
            ),
        )

    def turn(
        self,
        now_s: float,
        serving: Sequence[Serving],
        silent_s: Mapping[Key, float],
        rest: Callable[[], Rest],
        after_s: float,
    ) -> list[list[Silent]]:
        """What to fence now, as `to_fence`. `rest` is asked only if somebody is silent for as long.
        Mutates."""
        silent = [
            Silent(*each.key, silent_s[each.key], each.need_blocks, each.node)
            for each in serving
            if not each.fenced
        ]
        if not after_s or all(each.silent_s < after_s for each in silent):
            return []
        found = rest()
        self._fenced = [each for each in self._fenced if now_s - each[0] < SETTLED_S]
        under_way = sum(need_blocks for _, need_blocks in self._fenced)
        left = replace(found, free_blocks=found.free_blocks - under_way)
        faults = to_fence(silent, left, after_s)
        self._fenced += [(now_s, each.need_blocks) for fault in faults for each in fault]
        return faults


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
