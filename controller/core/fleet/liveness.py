"""Which instances live: who is asked for its status, who counts as stalled, who is fenced.

An open port proves nothing: an instance lives by the progress that it reports. Of one that serves:

    REPORTS    its status is young enough
    STALLED    it was silent for its stall timeout: that is put on record, and it is asked until it
               answers. It gets no requests; those that it has are kept
    fenced     it was silent for longer: it is taken for dead, so that its requests run elsewhere

    REPORTS -> STALLED -> REPORTS, which is put on record too;  either -> fenced

Fencing is the costlier step. What the instance would have answered is computed anew, and its
process drops all that it ran when it comes back. So it is done for one instance at a time, and for
more only as far as the rest has memory for their requests: a fault that silences many at once (a
network, a busy machine) would else crowd the few that are left, until they are silent too. This
brake holds while another one is away, too.

A node all of whose instances are silent is one fault, and goes as one.

An instance is silent since its last report, or, if this controller has none of the incarnation,
since it began to wait for one. Only the engine's thread reports; the event loop of the same process
says Hello all the while. So an instance that a restarted controller adopts while its engine hangs
is fenced like any other, and a fenced one counts as away until it reports, whatever its loop says.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from controller.core.value import value

Key = tuple[str, int]
"""(instance id, incarnation)"""

PULL_AFTER_S = 2.5
"""Even an instance without work pushes a status each second. One that was silent for longer is
asked before it counts as stalled."""
MAX_TURN_S = 1.0
"""A listener that looks less often than this was itself asleep: no silence of others counts beyond
it. A controller that was stopped for a minute would else fence every instance."""
SETTLED_S = 5.0
"""The requests of a fenced instance are in the statuses of others so long afterwards. Until then
what they need counts as taken."""


# -- what it is told -----------------------------------------------------------------------


@value
class Serving:
    """An incarnation that says that it serves."""

    instance_id: str
    incarnation: int
    last_report_s: float | None
    """None: this controller has no report of the incarnation."""
    need_blocks: int
    """What its requests take elsewhere, by its last status: what they hold, and what those in its
    queue want; without a report all that they can."""
    stall_timeout_s: float
    node: str = ""
    """The machine that it is on."""
    is_dead: bool = False
    """The scheduler took it for dead, and has not heard since that it began to serve."""
    fenced: bool = False
    """The process was fenced, and has not reported since. It runs nothing that could be fenced once
    more."""

    @property
    def key(self) -> Key:
        return self.instance_id, self.incarnation

    def reports(self, now_s: float) -> bool:
        last_s = self.last_report_s
        return not self.is_dead and last_s is not None and now_s - last_s <= self.stall_timeout_s


@dataclass(frozen=True, slots=True)
class InstancesSeen:
    """All that serve. Several times a second. `fence_after_s`: one that is silent for so long is
    fenced; 0: never. `pulls_all`: none pushes its status."""

    serving: Sequence[Serving]
    fence_after_s: float
    pulls_all: bool = False


@dataclass(frozen=True, slots=True)
class Rest:
    """The answer to `LookAtRest`: the instances that report."""

    num_schedulable: int
    free_blocks: int
    """Of all of them, less what waits there and at the controller."""
    num_away: int
    """Instances that were fenced, and whose engines have not reported since."""


@dataclass(frozen=True, slots=True)
class InstanceGone:
    """The incarnation died, or was ended: its silence is no news any more."""

    instance_id: str
    incarnation: int


Event = InstancesSeen | Rest | InstanceGone


# -- what it asks for ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pull:
    """Ask the instance for its status."""

    instance_id: str


@dataclass(frozen=True, slots=True)
class TellStall:
    """For the journal. `over`: it reports again, after `silence_s`."""

    instance_id: str
    silence_s: float
    over: bool = False


@dataclass(frozen=True, slots=True)
class LookAtRest:
    """`Rest` is the answer."""


@dataclass(frozen=True, slots=True)
class Fence:
    instance_id: str
    why: str


Instruction = Pull | TellStall | LookAtRest | Fence


# -- the machine ---------------------------------------------------------------------------


class Liveness:
    """Times are seconds of any one monotonic clock."""

    def __init__(self) -> None:
        self._silences = Silences()
        self._stalled: dict[Key, float] = {}
        """The stalled incarnations, and when each reported last or, if it never did, when it began
        to be waited for. At most one of an instance."""
        self._silent: list[Silent] = []
        """While `Rest` is awaited: all that could be fenced. Some are silent for long enough."""
        self._fence_after_s = 0.0
        self._fenced: list[tuple[float, int]] = []
        """When, and how many blocks the requests need, of those fenced lately; in order of time."""

    def handle(self, event: Event, now_s: float) -> list[Instruction]:
        match event:
            case InstancesSeen():
                return self._look(event, now_s)
            case Rest():
                return self._fence(event, now_s)
            case InstanceGone(instance_id, incarnation):
                self._stalled.pop((instance_id, incarnation), None)
        return []

    def is_stalled(self, instance_id: str, incarnation: int) -> bool:
        """Whether it was silent for too long at the last look."""
        return (instance_id, incarnation) in self._stalled

    def check(self, now_s: float) -> None:
        """Raises AssertionError if an invariant is broken."""
        ids = [instance_id for instance_id, _ in self._stalled]
        assert len(set(ids)) == len(ids), "two incarnations of one instance stall"
        assert all(since_s <= now_s for since_s in self._stalled.values())
        times_s = [fenced_s for fenced_s, _ in self._fenced]
        assert times_s == sorted(times_s), "fenced out of order"
        assert all(need_blocks >= 0 for _, need_blocks in self._fenced)
        if self._silent:
            assert self._fence_after_s > 0, "none is ever fenced, and somebody is to be"
            longest_s = max(each.silent_s for each in self._silent)
            assert longest_s >= self._fence_after_s, "the rest is looked at in vain"

    # -- inside --------------------------------------------------------------------------

    def _look(self, seen: InstancesSeen, now_s: float) -> list[Instruction]:
        began_s = float("-inf")
        silent_s = self._silences.turn(
            now_s,
            (
                (each.key, began_s if each.last_report_s is None else each.last_report_s)
                for each in seen.serving
            ),
        )
        instructions: list[Instruction] = []
        for each in seen.serving:
            reports, last_s = each.reports(now_s), each.last_report_s
            if seen.pulls_all or not reports or last_s is None or now_s - last_s > PULL_AFTER_S:
                instructions.append(Pull(each.instance_id))
            if last_s is None:
                last_s = now_s - silent_s[each.key]
            is_silent = not each.is_dead and now_s - last_s > each.stall_timeout_s
            if is_silent and not each.fenced and each.key not in self._stalled:
                self._stalled[each.key] = last_s
                instructions.append(TellStall(each.instance_id, now_s - last_s))
            elif reports and each.key in self._stalled:
                silence_s = last_s - self._stalled.pop(each.key)
                instructions.append(TellStall(each.instance_id, silence_s, over=True))
        self._silent, self._fence_after_s = [], seen.fence_after_s
        if seen.fence_after_s:
            silent = [
                Silent(*each.key, silent_s[each.key], each.need_blocks, each.node)
                for each in seen.serving
                if not each.fenced
            ]
            if any(each.silent_s >= seen.fence_after_s for each in silent):
                self._silent = silent
                instructions.append(LookAtRest())
        return instructions

    def _fence(self, rest: Rest, now_s: float) -> list[Instruction]:
        self._fenced = [each for each in self._fenced if now_s - each[0] < SETTLED_S]
        under_way = sum(need_blocks for _, need_blocks in self._fenced)
        left = replace(rest, free_blocks=rest.free_blocks - under_way)
        faults = to_fence(self._silent, left, self._fence_after_s)
        self._silent = []
        fenced = [each for fault in faults for each in fault]
        self._fenced += [(now_s, each.need_blocks) for each in fenced]
        return [
            Fence(each.instance_id, f"fenced: no progress reported for {each.silent_s:.0f} s")
            for each in fenced
        ]


# -- how long each is silent, and which ones go --------------------------------------------


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


@value
class Silent:
    """An incarnation that serves, and for how long it has reported nothing."""

    instance_id: str
    incarnation: int
    silent_s: float
    need_blocks: int
    node: str = ""


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
