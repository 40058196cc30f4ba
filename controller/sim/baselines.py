"""Rules that only comparisons need, in addition to the rules of a live cluster: dispatch policies
(plain measures of load, and the rules of other routers), which request of a source moves first, and
another pairing.

Where a pick hashes, the hash of a name decides between equal instances, which spreads like chance
and is the same in every process.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from hashlib import blake2b
from operator import attrgetter
from types import MappingProxyType

from controller.core.admission.policies import (
    POLICIES,
    History,
    PickFunction,
    Policy,
    outstanding_blocks,
    outstanding_tokens,
    pick_lowest,
)
from controller.core.emptying.relief import Candidate, ReliefRules, ReliefView
from controller.core.emptying.rounds import InstanceLoad, Pair
from controller.core.load.freeness import freeness, num_in_batch
from controller.core.load.snapshot import InstanceSnapshot, Level, Unreported
from controller.core.scheduler_events import DispatchRequested

MIN_MATCH = 0.3
"""SGLang's router: the least share of the prompt that an instance must have seen in order to be
chosen for its prefix cache."""
MAX_LOAD_GAP = 64
MAX_LOAD_RATIO = 1.5
"""SGLang's router: load alone decides if the busiest instance exceeds the idlest both by
MAX_LOAD_GAP requests and by the factor MAX_LOAD_RATIO."""


# -- measures of load: larger is busier --------------------------------------------------------


def kv_ratio(snapshot: InstanceSnapshot, unreported: Unreported) -> float:
    """Memory in use or waited for, as a share of M; above 1 when the queue does not fit."""
    return outstanding_blocks(snapshot, unreported) / max(1, snapshot.capacity_blocks)


def queue_length(snapshot: InstanceSnapshot, unreported: Unreported) -> float:
    """Requests that wait."""
    return snapshot.num_queued + unreported.num_requests


def num_requests(snapshot: InstanceSnapshot, unreported: Unreported) -> float:
    """Requests that run or wait."""
    return snapshot.num_running + snapshot.num_queued + unreported.num_requests


# -- picks ------------------------------------------------------------------------------------


def pick_lower_of_two(
    ids: Sequence[str], scores: Sequence[float], request: DispatchRequested, _history: History
) -> int:
    """Power of two choices: the hash of the request's id draws two instances."""
    if len(ids) == 1:
        return 0
    drawn = int.from_bytes(blake2b(request.request_id.encode(), digest_size=8).digest())
    first = drawn % len(ids)
    second = (first + 1 + drawn // len(ids) % (len(ids) - 1)) % len(ids)
    return min(first, second, key=lambda place: (scores[place], place))


def pick_by_session(
    ids: Sequence[str], scores: Sequence[float], request: DispatchRequested, history: History
) -> int:
    """Rendezvous hashing: when an instance is gone, only its own sessions go elsewhere. A request
    without a session goes to the lowest score."""
    if not request.session:
        return pick_lowest(ids, scores, request, history)
    session = blake2b(request.session.encode(), digest_size=8)

    def weight(place: int) -> bytes:
        both = session.copy()
        both.update(b"\0" + ids[place].encode())
        return both.digest()

    return max(range(len(ids)), key=weight)


def pick_longest_match(
    ids: Sequence[str], scores: Sequence[float], request: DispatchRequested, history: History
) -> int:
    """SGLang's router: the instance that has most of the prompt, unless the instances are out of
    balance; if no instance has enough, the one that has the fewest prefixes. Scores count requests.
    That router guesses what a cache has by the prompts that it sent; here the caches are known."""
    lowest, highest = min(scores), max(scores)
    is_unbalanced = highest - lowest > MAX_LOAD_GAP and highest > MAX_LOAD_RATIO * lowest
    if is_unbalanced or not request.prefix_hashes:
        return scores.index(lowest)
    prefixes, found = history.prefixes, history.matched(request)
    matched = [found.get(instance_id, 0) for instance_id in ids]
    longest = max(matched)
    if longest > MIN_MATCH * request.num_prompt_tokens:
        return matched.index(longest)
    return min(range(len(ids)), key=lambda place: (prefixes.num_known(ids[place]), scores[place]))


# -- policies ---------------------------------------------------------------------------------


def _by_load(
    name: str,
    load: Callable[[InstanceSnapshot, Unreported], float],
    pick: PickFunction = pick_lowest,
    *,
    by_prefix: bool = False,
) -> Policy:
    def score(
        snapshot: InstanceSnapshot, _level: Level, _levels: Sequence[Level], unreported: Unreported
    ) -> float:
        return load(snapshot, unreported)

    return Policy(name, score, pick, low_is_better=True, by_prefix=by_prefix)


_BASELINES = (
    _by_load("kv-ratio", kv_ratio),
    _by_load("queue-length", queue_length),
    _by_load("num-requests", num_requests),
    Policy("least-tokens", outstanding_tokens, pick_lowest, low_is_better=True),
    _by_load("power-of-two", num_requests, pick_lower_of_two),
    Policy("session-hash", outstanding_tokens, pick_by_session, low_is_better=True),
    _by_load("cache-aware", num_requests, pick_longest_match, by_prefix=True),
)
DISPATCH: Mapping[str, Policy] = MappingProxyType(
    {**POLICIES, **{each.name: each for each in _BASELINES}}
)
"""All policies of a simulated cluster; the policies of a live cluster come first."""


# -- which request of a source is tried first; the pairing `balanced` ------------------------------
#
#     llumnix    a live cluster's: the fewest tokens; running ones and the head of the queue
#     SR, LR     the shortest, the longest of the running ones
#     LCR        the last come of the running ones
#     FCW        the first in the queue, and no running one
#     FCWSR      the first in the queue, whatever its rank, then the shortest of the running ones
#
# All but FCWSR begin with the rank, so that a lower priority makes room for a higher one.
#
#     defrag     a live cluster's: the lowest below one threshold with the highest above another
#     balanced   no thresholds: the lowest goes with the highest if it would still be the lower of
#                the two after a request of average size has moved, otherwise the next lowest is
#                tried


@dataclass(frozen=True, slots=True)
class VictimPolicy:
    """A rule for which request of a source moves first. `turn`: a candidate's sort key. A draining
    instance does not use these rules."""

    turn: Callable[[Candidate], tuple[float, float, float, str]]
    takes_running: bool = True
    takes_head: bool = False


def _shortest(candidate: Candidate) -> tuple[float, float, float, str]:
    return (0, *candidate.victim_order)


def _longest(candidate: Candidate) -> tuple[float, float, float, str]:
    return (0, candidate.rank, -candidate.num_tokens, candidate.request_id)


def _last_come(candidate: Candidate) -> tuple[float, float, float, str]:
    return (0, candidate.rank, -candidate.arrival_time_s, candidate.request_id)


def _queue_first(candidate: Candidate) -> tuple[float, float, float, str]:
    return (0 if candidate.queued else 1, *candidate.victim_order)


LLUMNIX = "llumnix"
VICTIMS: Mapping[str, VictimPolicy] = MappingProxyType(
    {
        LLUMNIX: VictimPolicy(_shortest, takes_head=True),
        "LCR": VictimPolicy(_last_come),
        "LR": VictimPolicy(_longest),
        "SR": VictimPolicy(_shortest),
        "FCW": VictimPolicy(_queue_first, takes_running=False, takes_head=True),
        "FCWSR": VictimPolicy(_queue_first, takes_head=True),
    }
)
DEFRAG, BALANCED = "defrag", "balanced"
PAIRINGS = (DEFRAG, BALANCED)


class ComparedRelief(ReliefRules):
    """The rules with another victim policy, or with `balanced`, where requests move as long as the
    destination stays freer than the source, however free both are."""

    def __init__(self, view: ReliefView, victims: VictimPolicy, *, balanced: bool) -> None:
        super().__init__(view)
        self._victims = victims
        self._balanced = balanced

    @cached_property
    def _tried(self) -> list[Candidate]:
        head = self._source.queue_head
        head_id = head.request_id if head is not None and self._victims.takes_head else None
        return [
            c
            for c in self._staying
            if (c.request_id == head_id if c.queued else self._victims.takes_running)
        ]

    def _in_victim_order(self) -> list[Candidate]:
        return sorted(self._tried, key=self._victims.turn)

    @cached_property
    def _enough_steps(self) -> float:
        if self._balanced:
            return freeness(self._destination, self._view.levels)
        return super()._enough_steps

    def _least_steps_there(self, candidate: Candidate) -> float:
        if self._balanced:
            return self._source_after(candidate)
        return super()._least_steps_there(candidate)

    def _steps_below(self, candidate: Candidate) -> float:
        return 0.0 if self._balanced else super()._steps_below(candidate)


def relief_rules(pairing: str, victim: str) -> Callable[[ReliefView], ReliefRules]:
    """The rules for `next_move`. Raises KeyError for a victim policy that is not in `VICTIMS`."""
    if (pairing, victim) == (DEFRAG, LLUMNIX):
        return ReliefRules
    return partial(ComparedRelief, victims=VICTIMS[victim], balanced=pairing == BALANCED)


def balanced_pairs(
    loads: Sequence[tuple[InstanceLoad, InstanceSnapshot]], left_out: Container[tuple[str, str]]
) -> tuple[Pair, ...]:
    """The pairs, the lowest source first. Each load comes with its snapshot. If a destination does
    not suit a source, the next source may take it, because the requests of that source may be
    smaller."""
    snapshots = {load.instance_id: snapshot for load, snapshot in loads}
    sources = sorted(
        (load for load, _ in loads if load.may_send),
        key=attrgetter("lowest_first"),
    )
    free = sorted(
        (load for load, _ in loads if load.is_open),
        key=attrgetter("freest_first"),
    )
    pairs = list[Pair]()
    used = set[str]()
    for source in sources:
        source_id = source.instance_id
        if source_id in used:
            continue
        to = next((each for each in free if (source_id, each.instance_id) not in left_out), None)
        if to is None or not _stays_lower(
            source, snapshots[source_id], to, snapshots[to.instance_id]
        ):
            continue
        free.remove(to)
        used.add(to.instance_id)
        pairs.append(Pair(source_id, to.instance_id, source.freeness, to.freeness))
    return tuple(pairs)


def _stays_lower(
    source: InstanceLoad,
    source_snapshot: InstanceSnapshot,
    to: InstanceLoad,
    to_snapshot: InstanceSnapshot,
) -> bool:
    """Whether the source is still less free after a request of its average size has moved."""
    if source.draining:
        return True
    if source.freeness >= to.freeness:
        return False
    used_tokens = source_snapshot.block_size * source_snapshot.num_used_blocks
    moved_tokens = used_tokens / max(1, source_snapshot.num_running)
    source_after = _after(source.freeness, source_snapshot, -1, moved_tokens)
    return source_after <= _after(to.freeness, to_snapshot, 1, -moved_tokens)


def _after(steps: float, snapshot: InstanceSnapshot, num_more: int, freed_tokens: float) -> float:
    """The freeness once `num_more` requests have joined the batch and `freed_tokens` are freed."""
    num = num_in_batch(snapshot)
    return (steps * max(1, num) + freed_tokens) / max(1, num + num_more)
