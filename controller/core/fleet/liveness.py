"""Which instances are alive: which of them are asked for their status, count as stalled, or are
fenced. It also finds live instances that step slowly (`Slowness`) or compute without a request
(`Busyness`).

An open port proves nothing: an instance counts as alive by the progress that it reports. The states
of an instance that serves:

    REPORTS    its last status is recent enough
    STALLED    it was silent for its stall timeout. That is put on record, and the instance is asked
               until it answers. It gets no requests, and keeps those that it has
    fenced     it was silent for longer. It is taken for dead, so that its requests run elsewhere

    REPORTS -> STALLED -> REPORTS, which is put on record too;  either -> fenced

Fencing is costly: what the instance would have answered is computed anew, and its process drops all
that it ran when it comes back. So only one instance is fenced at a time; further ones are fenced
only if the other instances have memory for their requests. Otherwise a fault that silences many
instances at once (a network, a busy machine) would crowd the few that are left until they are
silent too. The same limit holds while any other instance is away.

If all instances of a node are silent, that is one fault, and they are fenced together.

The silence of an instance counts from its last report. If this controller has no report of the
incarnation, it counts from when it began to wait for one. Only the engine's thread reports, while
the event loop of the same process says Hello all the time. So an instance that a restarted
controller adopts while its engine hangs is fenced like any other; and a fenced instance counts as
away until it reports, whatever its event loop says.
"""

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from controller.core.value import value

Key = tuple[str, int]
"""(instance id, incarnation)"""

PULL_AFTER_S = 2.5
"""An instance that was silent for this long is asked for a status before it counts as stalled. Even
an instance without work pushes a status every second."""
MAX_TURN_S = 1.0
"""The most of the others' silence that counts between two looks. If the controller looks less often
than this, it was itself asleep; without this limit, a controller that was stopped for a minute
would fence every instance."""
SETTLED_S = 5.0
"""For how long the blocks that the requests of a fenced instance need count as taken. After this
time the requests are in the statuses of other instances."""


# -- events -----------------------------------------------------------------------


@value
class Serving:
    """An incarnation that reports that it serves."""

    instance_id: str
    incarnation: int
    last_report_s: float | None
    """When it last reported; None if this controller has no report of the incarnation."""
    need_blocks: int
    """The blocks that its requests would take on other instances, by its latest status: the blocks
    that they hold, and the blocks that its queue needs. Without a report, the most that its
    requests can take."""
    stall_timeout_s: float
    node: str = ""
    """The machine on which it runs."""
    is_dead: bool = False
    """Whether the scheduler took the incarnation for dead and has not heard since that it serves.
    """
    fenced: bool = False
    """Whether the process was fenced and has not reported since. It is not fenced again, as it runs
    nothing."""

    @property
    def key(self) -> Key:
        return self.instance_id, self.incarnation

    def reports(self, now_s: float) -> bool:
        last_s = self.last_report_s
        return not self.is_dead and last_s is not None and now_s - last_s <= self.stall_timeout_s


@dataclass(frozen=True, slots=True)
class InstancesSeen:
    """All instances that serve; the event comes several times a second. `fence_after_s`: an
    instance that is silent for this long is fenced; 0: never. `pulls_all`: whether the instances do
    not push their statuses and have to be asked."""

    serving: Sequence[Serving]
    fence_after_s: float
    pulls_all: bool = False


@dataclass(frozen=True, slots=True)
class Rest:
    """The answer to `LookAtRest`: the state of the instances that report."""

    num_schedulable: int
    free_blocks: int
    """The free blocks of all these instances, less the blocks needed by requests that wait on them
    or at the controller."""
    num_away: int
    """The number of instances that were fenced and whose engines have not reported since."""


@dataclass(frozen=True, slots=True)
class InstanceGone:
    """The incarnation died or was ended, so its silence does not count any more."""

    instance_id: str
    incarnation: int


Event = InstancesSeen | Rest | InstanceGone


# -- instructions ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pull:
    """Ask the instance for its status."""

    instance_id: str


@dataclass(frozen=True, slots=True)
class TellStall:
    """Tells the journal that the instance stalls, and also the scheduler, which then sends it no
    requests. `over`: the instance does not stall any more, after a silence of `silence_s`."""

    instance_id: str
    silence_s: float
    over: bool = False


@dataclass(frozen=True, slots=True)
class LookAtRest:
    """Ask for the state of the instances that report. `Rest` is the answer."""


@dataclass(frozen=True, slots=True)
class Fence:
    instance_id: str
    why: str


Instruction = Pull | TellStall | LookAtRest | Fence


# -- the machine ---------------------------------------------------------------------------


class Liveness:
    """The machine of liveness. Times are seconds of any one monotonic clock."""

    def __init__(self) -> None:
        self._silences = Silences()
        self._stalled: dict[Key, float] = {}
        """For each stalled incarnation, when it last reported or, if it never reported, when the
        waiting for a report began. At most one incarnation of each instance is in it."""
        self._silent: list[Silent] = []
        """While `Rest` is awaited: all incarnations that could be fenced. At least one of them has
        been silent for long enough."""
        self._fence_after_s = 0.0
        self._fenced: list[tuple[float, int]] = []
        """The incarnations that were fenced lately, in order of time: when, and how many blocks
        their requests need."""

    def handle(self, event: Event, now_s: float) -> list[Instruction]:
        match event:
            case InstancesSeen():
                return self._look(event, now_s)
            case Rest():
                return self._fence(event, now_s)
            case InstanceGone(instance_id, incarnation):
                self._stalled.pop((instance_id, incarnation), None)
        return []

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
            since_s = self._stalled.get(each.key)
            reported = each.last_report_s is not None and not each.is_dead
            if since_s is not None and (reports or (reported and last_s > since_s)):
                # If the instance has ever reported, the scheduler knows that without being told.
                del self._stalled[each.key]
                instructions.append(TellStall(each.instance_id, last_s - since_s, over=True))
            is_silent = not each.is_dead and now_s - last_s > each.stall_timeout_s
            if is_silent and not each.fenced and each.key not in self._stalled:
                self._stalled[each.key] = last_s
                instructions.append(TellStall(each.instance_id, now_s - last_s))
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


# -- how long each instance is silent, and which ones are fenced ----------------------------------


class Silences:
    """How long each incarnation has been silent. Times are in seconds, by one monotonic clock."""

    def __init__(self) -> None:
        self._silent_s: dict[Key, float] = {}
        self._last_turn_s: float | None = None

    def turn(self, now_s: float, last_report_s: Iterable[tuple[Key, float]]) -> dict[Key, float]:
        """How long each of the given incarnations has been silent by now; all other incarnations
        are forgotten. Each is given with the time of its latest report. The silence of an
        incarnation that never reported (-inf) counts from the call in which it was first given.
        Mutates. To be called several times a second."""
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
    """An incarnation that serves, and for how long it has not reported."""

    instance_id: str
    incarnation: int
    silent_s: float
    need_blocks: int
    node: str = ""


def to_fence(silent: Sequence[Silent], rest: Rest, after_s: float) -> list[list[Silent]]:
    """The incarnations to fence now: all that have been silent for `after_s` or more (0: never
    any), grouped by fault. A fault is one incarnation, or all of a node.

    The faults that have been silent for longest come first. The first fault is fenced even if its
    requests have to wait for memory, unless another incarnation is still away. Every further fault
    is fenced only if the memory that its requests need is free. While no instance could take the
    requests, nothing is fenced.
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


# -- which one steps slowly ------------------------------------------------------------------------
#
# An instance whose steps take far longer than the others' for a while is emptied.
#
# The length of a step depends on what runs in it, and after rescheduling the load of instances
# differs by less than two times. A GPU that throttles, or another process that takes the cores,
# makes a larger difference. A step with a long prompt is slow by nature, so medians are compared.
#
# An instance is watched while it has work and nobody empties it; after a pause without work the
# watch begins anew. Only one instance is emptied at a time, because the others have to take its
# requests. An operator decides whether it serves again, as an empty instance takes no steps that
# could show it.

SLOW_WATCH = "slow-watch"
"""The actor that the log names for drains of slow instances."""
MIN_SAMPLES = 20
MIN_OTHERS = 2
"""How many other instances are needed. If there are fewer, it is not known which instance is the
exception."""


@dataclass(frozen=True, slots=True)
class StepsSeen:
    """The length of the last step, in seconds, of each incarnation that has work. The event comes
    at even intervals. `drained`: the instances that somebody empties. An instance is slow if its
    steps take `factor` times as long as the others' for `window_s`; with factor 0 no instance
    counts as slow."""

    step_times_s: Mapping[Key, float]
    drained: Collection[str]
    factor: float
    window_s: float


@dataclass(frozen=True, slots=True)
class Empty:
    """Drain the instance, as an operator would, if at least one other instance serves."""

    instance_id: str
    incarnation: int
    step_time_s: float
    """The median length of the instance's steps."""
    others_s: float
    """The median of the other instances' medians."""

    @property
    def factor(self) -> float:
        return self.step_time_s / self.others_s

    @property
    def why(self) -> str:
        return (
            f"its steps take {1000 * self.step_time_s:.0f} ms, {self.factor:.1f} times as long as"
            " the others'"
        )


class Slowness:
    """The machine that finds slow instances. Times are in seconds, by one monotonic clock."""

    def __init__(self) -> None:
        self._samples: dict[Key, deque[tuple[float, float]]] = {}
        """For each incarnation that was busy at the latest look, its samples (time, length of the
        step) in order of time. No sample is older than the window."""

    def handle(self, seen: StepsSeen, now_s: float) -> list[Empty]:
        if not seen.factor:
            self._samples = {}
            return []
        self._add(seen, now_s)
        if seen.drained:
            return []
        slowest = self._slowest(seen, now_s)
        return [] if slowest is None else [slowest]

    def check(self) -> None:
        """Raises AssertionError if an invariant is broken."""
        for (instance_id, _), samples in self._samples.items():
            assert samples, f"{instance_id} is watched without a sample"
            times_s = [time_s for time_s, _ in samples]
            assert times_s == sorted(times_s), f"the samples of {instance_id} are out of order"

    def _add(self, seen: StepsSeen, now_s: float) -> None:
        busy = {
            key: step_s for key, step_s in seen.step_times_s.items() if key[0] not in seen.drained
        }
        self._samples = {key: self._samples.get(key, deque()) for key in busy}
        for key, step_time_s in busy.items():
            samples = self._samples[key]
            samples.append((now_s, step_time_s))
            while samples[0][0] < now_s - seen.window_s:
                samples.popleft()

    def _slowest(self, seen: StepsSeen, now_s: float) -> Empty | None:
        medians = {
            key: median(step_s for _, step_s in samples)
            for key, samples in self._samples.items()
            if len(samples) >= MIN_SAMPLES and samples[0][0] <= now_s - 0.9 * seen.window_s
        }
        if len(medians) <= MIN_OTHERS:
            return None
        key = min(medians, key=lambda each: (-medians[each], each))
        slowest_s = medians.pop(key)
        others_s = median(medians.values())
        if others_s <= 0 or slowest_s < seen.factor * others_s:
            return None
        return Empty(*key, slowest_s, others_s)


# -- which ones compute although they have no request ----------------------------------------------
#
# This is put on record once it has lasted for a while.
#
#     QUIET    the instance has work, or computes little
#     BUSY     the instance computes without work; on record once that has lasted
#
#     QUIET -> BUSY -> QUIET; the return to QUIET is put on record too if BUSY was

BUSY_CORES = 0.5
"""An instance computes if it uses more CPU cores than this. A compiler that cannot be ended
(grammar_guard.py), or a thread that spins, uses more than that; an idle instance uses 0.02."""
LASTS_S = 5.0
"""How long this must last. It is longer than one second because the CPU time of a request that has
just ended still counts for a second."""


@dataclass(frozen=True, slots=True)
class IdleSeen:
    """For each incarnation that serves and has no work, the CPU cores that it uses."""

    cores: Mapping[Key, float]


@dataclass(frozen=True, slots=True)
class TellBusy:
    """Tells the journal that the instance computes without a request. `over`: the instance does not
    do so any more, after `lasted_s`."""

    instance_id: str
    incarnation: int
    lasted_s: float
    cpu_cores: float = 0.0
    over: bool = False


class Busyness:
    """The machine that finds instances that compute without a request. Times are in seconds, by one
    monotonic clock."""

    def __init__(self) -> None:
        self._since_s: dict[Key, float] = {}
        """For each incarnation that computes without a request, since when."""
        self._on_record: set[Key] = set()
        """The incarnations of `_since_s` that have computed for long enough to be on record."""

    def handle(self, event: IdleSeen | InstanceGone, now_s: float) -> list[TellBusy]:
        if isinstance(event, InstanceGone):
            key = (event.instance_id, event.incarnation)
            self._since_s.pop(key, None)
            self._on_record.discard(key)
            return []
        busy = {key: cores for key, cores in event.cores.items() if cores >= BUSY_CORES}
        told: list[TellBusy] = []
        for key in [key for key in self._since_s if key not in busy]:
            since_s = self._since_s.pop(key)
            if key in self._on_record:
                self._on_record.remove(key)
                told.append(TellBusy(*key, now_s - since_s, over=True))
        for key, cores in busy.items():
            since_s = self._since_s.setdefault(key, now_s)
            if now_s - since_s >= LASTS_S and key not in self._on_record:
                self._on_record.add(key)
                told.append(TellBusy(*key, now_s - since_s, cores))
        return told

    def is_on_record(self, instance_id: str, incarnation: int) -> bool:
        return (instance_id, incarnation) in self._on_record

    def check(self, now_s: float) -> None:
        """Raises AssertionError if an invariant is broken."""
        assert self._on_record <= set(self._since_s), "on record, and not busy"
        assert all(since_s <= now_s for since_s in self._since_s.values())
        assert all(now_s - self._since_s[key] >= LASTS_S for key in self._on_record)
