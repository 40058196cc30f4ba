"""Which instance gets a new request: filter, score, pick.

A policy is a score of one instance and a way to pick among the scores. Neither has side effects;
what they need to know of earlier choices (`History`) is an argument. Paper section 4.4: `llumnix`
takes the instance with the highest dispatch freeness, which depends on the priority of the new
request. `llumnix+` takes the freest of the instances on which the request fits and has its first
token soon, and lets it wait while there is none (`placement` chooses for it). The other policies
are for comparison: the paper's INFaaS++, vLLM's own balancer, Dynamo's router, and taking turns.
Every score treats a request that was dispatched, but is in no status yet, as if it were queued on
its instance. Otherwise all requests of a burst between two statuses would go to the same instance.
The simulator compares more policies (`sim.baselines`).
"""

import difflib
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from controller.core.load.cached_prefixes import CachedPrefixes
from controller.core.load.freeness import dispatch_freeness
from controller.core.load.snapshot import (
    DEFAULT_LEVELS,
    NORMAL,
    InstanceSnapshot,
    Level,
    Unreported,
)
from controller.core.scheduler_events import DispatchRequested
from controller.core.settings import HoldingConfig, KeyLimits, SchedulerSettings


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as a decision sees it. `num_cached`: by instance, how many of its tokens need not be
    computed there; instances that have none are left out. `num_in_host`: likewise, how many of them
    its host cache has. `source`: from where other instances can fetch its beginning."""

    num_tokens: int
    num_cached: Mapping[str, int]
    num_in_host: Mapping[str, int] = field(default_factory=dict)
    source: "FetchSource | None" = None


@dataclass(frozen=True, slots=True)
class FetchSource:
    """An instance that has `num_tokens` tokens of a prompt. `free_s`: when it will have sent what
    it sends now, by the clock of the decisions."""

    instance_id: str
    num_tokens: int
    free_s: float


class History:
    """What the dispatcher remembers. `last`: the instance that was chosen last; None before the
    first choice. `prefixes`: what the instances have in their prefix caches. `in_host`: what they
    have in their host caches."""

    def __init__(self) -> None:
        self.last: str | None = None
        self.prefixes = CachedPrefixes()
        self.in_host = CachedPrefixes()

    def matched(self, request: DispatchRequested) -> dict[str, int]:
        """How many tokens of the prompt, from its beginning, each instance has cached or will have.
        Instances that have none of it are left out."""
        return _num_tokens(self.prefixes, request)

    def matched_in_host(self, request: DispatchRequested) -> dict[str, int]:
        """Like `matched`, for the host caches."""
        return _num_tokens(self.in_host, request)

    def forget(self, instance_id: str) -> None:
        """Forgets what an instance had cached that is gone."""
        self.prefixes.forget(instance_id)
        self.in_host.forget(instance_id)


def _num_tokens(known: CachedPrefixes, request: DispatchRequested) -> dict[str, int]:
    size, most = request.prefix_hash_tokens, request.num_prompt_tokens
    matched = known.matched(request.prefix_hashes)
    return {each: min(number * size, most) for each, number in matched.items()}


# -- ways to pick one of the instances that may take a new request, by their scores -------
#
# Each function takes the instances' ids (at least one, ascending), their scores, the request and
# what the dispatcher remembers. It returns an index into the ids and changes nothing. `best_place`
# breaks ties.

PickFunction = Callable[[Sequence[str], Sequence[float], DispatchRequested, History], int]


def best_place(scores: Sequence[float], *, low: bool = False) -> int:
    """The index of the best score. Of equal scores it is the first one: it belongs to the lowest
    id, as all lists of instances are in ascending order of ids (i-10 comes before i-2). Late
    binding breaks ties by what is cached first (`placement`)."""
    return scores.index(min(scores) if low else max(scores))


def pick_highest(
    _ids: Sequence[str], scores: Sequence[float], _request: DispatchRequested, _history: History
) -> int:
    return best_place(scores)


def pick_lowest(
    _ids: Sequence[str], scores: Sequence[float], _request: DispatchRequested, _history: History
) -> int:
    return best_place(scores, low=True)


def pick_next(
    ids: Sequence[str], _scores: Sequence[float], _request: DispatchRequested, history: History
) -> int:
    """The id that follows the last choice, which may be gone by now. The first id follows the
    highest one."""
    place = 0 if history.last is None else bisect_right(ids, history.last)
    return place if place < len(ids) else 0


def pick_least_work(
    ids: Sequence[str], scores: Sequence[float], request: DispatchRequested, history: History
) -> int:
    """The cost of Dynamo's router: the tokens that the instance has, and the tokens of the prompt
    that it would have to compute. The prompt's length is the same everywhere and is left out."""
    matched = history.matched(request)
    costs = [
        score - matched.get(instance_id, 0) for instance_id, score in zip(ids, scores, strict=True)
    ]
    return best_place(costs, low=True)


# -- policies, and their scores -----------------------------------------------------------

ScoreFunction = Callable[[InstanceSnapshot, Level, Sequence[Level], Unreported], float]


@dataclass(frozen=True, slots=True)
class Policy:
    """A dispatch policy. `by_prefix`: the pick needs to know which prompts begin alike.
    `late_binding`: requests wait at the controller and not on instances (`admission.placement`)."""

    name: str
    score: ScoreFunction
    pick: PickFunction
    low_is_better: bool = False
    by_prefix: bool = False
    late_binding: bool = False


def _blind_freeness(
    snapshot: InstanceSnapshot, _level: Level, _levels: Sequence[Level], unreported: Unreported
) -> float:
    """Decode steps left to all requests on the instance, blind to priorities: the paper's INFaaS++
    and Llumnix-base (section 6.1). The memory of queued requests counts; headrooms do not."""
    return dispatch_freeness(snapshot, NORMAL, (), unreported)


def _vllm_dp(
    snapshot: InstanceSnapshot, _level: Level, _levels: Sequence[Level], unreported: Unreported
) -> float:
    """vLLM's data-parallel balancer: a waiting request weighs as much as four running ones."""
    return 4 * (snapshot.num_queued + unreported.num_requests) + snapshot.num_running


def outstanding_blocks(snapshot: InstanceSnapshot, unreported: Unreported) -> int:
    """The blocks that all running and waiting requests hold, plus the blocks that they still need
    for the tokens that they have so far."""
    return (
        snapshot.num_used_blocks
        + snapshot.fill_blocks
        + snapshot.queued_demand_blocks
        + unreported.demand_blocks
    )


def outstanding_tokens(
    snapshot: InstanceSnapshot, _level: Level, _levels: Sequence[Level], unreported: Unreported
) -> float:
    """The tokens that all running and waiting requests have so far, in whole blocks."""
    return snapshot.block_size * outstanding_blocks(snapshot, unreported)


_POLICIES = (
    Policy("llumnix", dispatch_freeness, pick_highest),
    Policy("llumnix+", dispatch_freeness, pick_highest, by_prefix=True, late_binding=True),
    Policy("infaas++", _blind_freeness, pick_highest),
    Policy("vllm-dp", _vllm_dp, pick_lowest, low_is_better=True),
    Policy("round-robin", lambda *_: 0.0, pick_next),
    Policy("prefix-aware", outstanding_tokens, pick_least_work, low_is_better=True, by_prefix=True),
)
POLICIES: Mapping[str, Policy] = MappingProxyType({each.name: each for each in _POLICIES})


def find_policy(name: str, policies: Mapping[str, Policy] = POLICIES) -> Policy:
    """The policy of that name. Raises ValueError naming the nearest valid one."""
    policy = policies.get(name)
    if policy is not None:
        return policy
    near = difflib.get_close_matches(name, policies, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ValueError(
        f"unknown dispatch policy {name[:40]!r}: {hint}valid are {', '.join(policies)}"
    )


# -- the scheduler's settings --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SchedulerConfig(SchedulerSettings):
    policy: str = "llumnix"
    """The default is a policy without late binding, as there is no `holding`."""
    levels: tuple[Level, ...] = DEFAULT_LEVELS
    holding: HoldingConfig | None = None
    """Late binding: requests that fit nowhere wait too, at most `holding.max_held_reqs` of them.
    They wait without a timeout while any instance is schedulable. Set if and only if `policy` has
    late binding."""
    key_limits: KeyLimits = field(default_factory=KeyLimits)
    names_candidates: bool = True
    """Whether a decision names the best instances and their scores. A simulation records no
    decisions, and the names take half of the time of a decision."""
