"""Ways to pick one of the instances that may take a new request, by their scores.

Each takes the instances' ids (at least one, ascending), their scores, what is known of the request
and what the dispatcher remembers. Each returns an index into the ids and changes nothing. Of equal
instances the first is taken, but for the picks that hash: there the hash of a name decides, which
spreads like chance and is the same in every process.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from hashlib import blake2b

from controller.core.dispatch.history import History
from controller.core.dispatch.newcomer import Newcomer

PickFunction = Callable[[Sequence[str], Sequence[float], Newcomer, History], int]

MIN_MATCH = 0.3
"""SGLang's router: a smaller share of the prompt is not worth going where it was seen."""
MAX_LOAD_GAP = 64
MAX_LOAD_RATIO = 1.5
"""SGLang's router: with more requests between the busiest and the idlest instance, and the busiest
this many times as busy, load alone decides."""


def pick_highest(
    _ids: Sequence[str], scores: Sequence[float], _newcomer: Newcomer, _history: History
) -> int:
    return scores.index(max(scores))


def pick_lowest(
    _ids: Sequence[str], scores: Sequence[float], _newcomer: Newcomer, _history: History
) -> int:
    return scores.index(min(scores))


def pick_next(
    ids: Sequence[str], _scores: Sequence[float], _newcomer: Newcomer, history: History
) -> int:
    """The id that follows the last choice, which may be gone by now; after the highest id the
    first."""
    place = 0 if history.last is None else bisect_right(ids, history.last)
    return place if place < len(ids) else 0


def pick_lower_of_two(
    ids: Sequence[str], scores: Sequence[float], newcomer: Newcomer, _history: History
) -> int:
    """Power of two choices: the hash of the request's id draws two instances."""
    if len(ids) == 1:
        return 0
    drawn = _hash(newcomer.request_id)
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


def pick_least_work(
    ids: Sequence[str], scores: Sequence[float], newcomer: Newcomer, history: History
) -> int:
    """The cost of Dynamo's router: what the instance has, in tokens, and what it would have to
    compute of the prompt. The prompt's length is the same everywhere and so is left out."""
    matched = history.prefixes.num_matched_tokens
    costs = [
        score - matched(instance_id, newcomer)
        for instance_id, score in zip(ids, scores, strict=True)
    ]
    return costs.index(min(costs))


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


def _hash(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest())
