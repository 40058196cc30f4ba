"""Which instance gets a new request: filter, score, pick.

A policy is a score of one instance and a way to pick among the scores, both without side
effects. Round-robin is no exception: its only state, the last choice, is an argument.
Paper section 4.4: `llumnix` takes the freest instance, as the newcomer's priority sees it.
"""

import difflib
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from controller.core.load.freeness import dispatch_freeness
from controller.core.load.loads import LOADS, LoadFunction
from controller.core.load.snapshot import InstanceSnapshot, Level, Unreported

ScoreFunction = Callable[[InstanceSnapshot, Level, Sequence[Level], Unreported], float]
PickFunction = Callable[[Sequence[str], Sequence[float], str | None], int]


@dataclass(frozen=True, slots=True)
class Policy:
    """`pick` takes ids (at least one, ascending), their scores and the instance chosen last; it
    returns an index into them, of equal scores the first."""

    name: str
    score: ScoreFunction
    pick: PickFunction
    low_is_better: bool = False


def pick_highest(_ids: Sequence[str], scores: Sequence[float], _last: str | None) -> int:
    return scores.index(max(scores))


def pick_lowest(_ids: Sequence[str], scores: Sequence[float], _last: str | None) -> int:
    return scores.index(min(scores))


def pick_next(ids: Sequence[str], _scores: Sequence[float], last: str | None) -> int:
    """The id that follows `last`, which may be gone by now; after the highest id the first."""
    place = 0 if last is None else bisect_right(ids, last)
    return place if place < len(ids) else 0


def _vllm_dp(
    snapshot: InstanceSnapshot, _level: Level, _levels: Sequence[Level], unreported: Unreported
) -> float:
    """vLLM's data-parallel balancer: a waiting request weighs as much as four running ones."""
    return 4 * (snapshot.num_queued + unreported.num_requests) + snapshot.num_running


def _by_load(name: str, load: LoadFunction) -> Policy:
    def score(
        snapshot: InstanceSnapshot, _level: Level, _levels: Sequence[Level], unreported: Unreported
    ) -> float:
        return load(snapshot, unreported)

    return Policy(name, score, pick_lowest, low_is_better=True)


POLICIES: Mapping[str, Policy] = MappingProxyType(
    {
        "llumnix": Policy("llumnix", dispatch_freeness, pick_highest),
        **{name: _by_load(name, load) for name, load in LOADS.items()},
        "vllm-dp": Policy("vllm-dp", _vllm_dp, pick_lowest, low_is_better=True),
        "round-robin": Policy("round-robin", lambda *_: 0.0, pick_next),
    }
)


def find_policy(name: str) -> Policy:
    """The policy of that name. Raises ValueError naming the nearest valid one."""
    policy = POLICIES.get(name)
    if policy is not None:
        return policy
    near = difflib.get_close_matches(name, POLICIES, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ValueError(f"unknown dispatch policy {name!r}: {hint}valid are {', '.join(POLICIES)}")
