"""Dispatch policies that only comparisons need, beside those of a live cluster
(`core.dispatch.policies`): plain measures of load, and the rules of other routers.

Where a pick hashes, the hash of a name decides between equal instances, which spreads like chance
and is the same in every process.
"""

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from types import MappingProxyType

from controller.core.dispatch.history import History
from controller.core.dispatch.newcomer import Newcomer
from controller.core.dispatch.picks import PickFunction, pick_lowest
from controller.core.dispatch.policies import (
    POLICIES,
    Policy,
    outstanding_blocks,
    outstanding_tokens,
)
from controller.core.load.snapshot import InstanceSnapshot, Level, Unreported

MIN_MATCH = 0.3
"""SGLang's router: a smaller share of the prompt is not worth going where it was seen."""
MAX_LOAD_GAP = 64
MAX_LOAD_RATIO = 1.5
"""SGLang's router: with more requests between the busiest and the idlest instance, and the busiest
this many times as busy, load alone decides."""


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
    ids: Sequence[str], scores: Sequence[float], newcomer: Newcomer, _history: History
) -> int:
    """Power of two choices: the hash of the request's id draws two instances."""
    if len(ids) == 1:
        return 0
    drawn = int.from_bytes(blake2b(newcomer.request_id.encode(), digest_size=8).digest())
    first = drawn % len(ids)
    second = (first + 1 + drawn // len(ids) % (len(ids) - 1)) % len(ids)
    return min(first, second, key=lambda place: (scores[place], place))


def pick_by_session(
    ids: Sequence[str], scores: Sequence[float], newcomer: Newcomer, history: History
) -> int:
    """Rendezvous hashing: when an instance goes, only its own sessions go elsewhere. Without a
    session the lowest score."""
    if not newcomer.session:
        return pick_lowest(ids, scores, newcomer, history)
    session = blake2b(newcomer.session.encode(), digest_size=8)

    def weight(place: int) -> bytes:
        both = session.copy()
        both.update(b"\0" + ids[place].encode())
        return both.digest()

    return max(range(len(ids)), key=weight)


def pick_longest_match(
    ids: Sequence[str], scores: Sequence[float], newcomer: Newcomer, history: History
) -> int:
    """SGLang's router: where most of the prompt was seen, unless the instances are out of balance;
    if too little was seen anywhere, where least is remembered. Scores count requests."""
    lowest, highest = min(scores), max(scores)
    is_unbalanced = highest - lowest > MAX_LOAD_GAP and highest > MAX_LOAD_RATIO * lowest
    if is_unbalanced or not newcomer.prefix_hashes:
        return scores.index(lowest)
    prefixes = history.prefixes
    matched = [prefixes.num_matched_tokens(instance_id, newcomer) for instance_id in ids]
    longest = max(matched)
    if longest > MIN_MATCH * newcomer.num_prompt_tokens:
        return matched.index(longest)
    return min(range(len(ids)), key=lambda place: (prefixes.num_seen(ids[place]), scores[place]))


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
"""All that a simulated cluster may dispatch by; those of a live one first."""
