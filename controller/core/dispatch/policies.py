"""Which instance gets a new request: filter, score, pick.

A policy is a score of one instance and a way to pick among the scores (`picks`), both without side
effects: what they go by of earlier choices is an argument.
Paper section 4.4: `llumnix` takes the freest instance, as the newcomer's priority sees it.
`llumnix+` takes the freest of those on which the request fits, and holds it while there is none:
see `core.holding`, which chooses for it.
"""

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from controller.core.dispatch.picks import (
    PickFunction,
    pick_by_session,
    pick_highest,
    pick_least_work,
    pick_longest_match,
    pick_lower_of_two,
    pick_lowest,
    pick_next,
)
from controller.core.load.freeness import dispatch_freeness
from controller.core.load.loads import LOADS, LoadFunction, num_requests, outstanding_tokens
from controller.core.load.snapshot import InstanceSnapshot, Level, Unreported

ScoreFunction = Callable[[InstanceSnapshot, Level, Sequence[Level], Unreported], float]


@dataclass(frozen=True, slots=True)
class Policy:
    """`by_prefix`: the pick wants to know which prompts went where. `late_binding`: requests wait
    at the controller, not on instances (`core.holding`)."""

    name: str
    score: ScoreFunction
    pick: PickFunction
    low_is_better: bool = False
    by_prefix: bool = False
    late_binding: bool = False


def _vllm_dp(
    snapshot: InstanceSnapshot, _level: Level, _levels: Sequence[Level], unreported: Unreported
) -> float:
    """vLLM's data-parallel balancer: a waiting request weighs as much as four running ones."""
    return 4 * (snapshot.num_queued + unreported.num_requests) + snapshot.num_running


def _by_load(
    name: str, load: LoadFunction, pick: PickFunction = pick_lowest, *, by_prefix: bool = False
) -> Policy:
    def score(
        snapshot: InstanceSnapshot, _level: Level, _levels: Sequence[Level], unreported: Unreported
    ) -> float:
        return load(snapshot, unreported)

    return Policy(name, score, pick, low_is_better=True, by_prefix=by_prefix)


_POLICIES = (
    Policy("llumnix", dispatch_freeness, pick_highest),
    Policy("llumnix+", dispatch_freeness, pick_highest, late_binding=True),
    *(_by_load(name, load) for name, load in LOADS.items()),
    Policy("vllm-dp", _vllm_dp, pick_lowest, low_is_better=True),
    Policy("round-robin", lambda *_: 0.0, pick_next),
    _by_load("power-of-two", num_requests, pick_lower_of_two),
    _by_load("session-hash", outstanding_tokens, pick_by_session),
    _by_load("prefix-aware", outstanding_tokens, pick_least_work, by_prefix=True),
    _by_load("cache-aware", num_requests, pick_longest_match, by_prefix=True),
)
POLICIES: Mapping[str, Policy] = MappingProxyType({each.name: each for each in _POLICIES})


def find_policy(name: str) -> Policy:
    """The policy of that name. Raises ValueError naming the nearest valid one."""
    policy = POLICIES.get(name)
    if policy is not None:
        return policy
    near = difflib.get_close_matches(name, POLICIES, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ValueError(f"unknown dispatch policy {name!r}: {hint}valid are {', '.join(POLICIES)}")
