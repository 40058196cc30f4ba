"""Ways to pick one of the instances that may take a new request, by their scores.

Each takes the instances' ids (at least one, ascending), their scores, what is known of the request
and what the dispatcher remembers. Each returns an index into the ids and changes nothing. Of equal
instances the first is taken.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence

from controller.core.dispatch.history import History
from controller.core.dispatch.newcomer import Newcomer

PickFunction = Callable[[Sequence[str], Sequence[float], Newcomer, History], int]


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
