"""Which instance gets a new request: filter, score, pick.

A policy is a score of one instance and a way to pick among the scores (`picks`), both without side
effects: what they go by of earlier choices is an argument.
Paper section 4.4: `llumnix` takes the freest instance, as the newcomer's priority sees it.
`llumnix+` takes the freest of those on which the request fits, and holds it while there is none:
see `admission.placement`, which chooses for it. The others are what it replaces: the paper's
INFaaS++, vLLM's own balancer, Dynamo's router, and taking turns. Every score counts requests that
were dispatched and not reported yet as queued; without them a burst between two statuses would land
on one instance. The simulator compares more of them (`sim.dispatch_baselines`).
"""

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from controller.core.dispatch.picks import (
    PickFunction,
    pick_highest,
    pick_least_work,
    pick_lowest,
    pick_next,
)
from controller.core.load.freeness import dispatch_freeness
from controller.core.load.snapshot import NORMAL, InstanceSnapshot, Level, Unreported

ScoreFunction = Callable[[InstanceSnapshot, Level, Sequence[Level], Unreported], float]


@dataclass(frozen=True, slots=True)
class Policy:
    """`by_prefix`: the pick wants to know which prompts went where. `late_binding`: requests wait
    at the controller, not on instances (`admission.placement`)."""

    name: str
    score: ScoreFunction
    pick: PickFunction
    low_is_better: bool = False
    by_prefix: bool = False
    late_binding: bool = False


def _blind_freeness(
    snapshot: InstanceSnapshot, _level: Level, _levels: Sequence[Level], unreported: Unreported
) -> float:
    """Decode steps left to all requests there, blind to priorities: the paper's INFaaS++ and
    Llumnix-base (section 6.1). The memory of queued requests counts, no headroom does."""
    return dispatch_freeness(snapshot, NORMAL, (), unreported)


def _vllm_dp(
    snapshot: InstanceSnapshot, _level: Level, _levels: Sequence[Level], unreported: Unreported
) -> float:
    """vLLM's data-parallel balancer: a waiting request weighs as much as four running ones."""
    return 4 * (snapshot.num_queued + unreported.num_requests) + snapshot.num_running


def outstanding_blocks(snapshot: InstanceSnapshot, unreported: Unreported) -> int:
    """What all that runs or waits holds, and still takes for its tokens so far."""
    return (
        snapshot.num_used_blocks
        + snapshot.fill_blocks
        + snapshot.queued_demand_blocks
        + unreported.demand_blocks
    )


def outstanding_tokens(
    snapshot: InstanceSnapshot, _level: Level, _levels: Sequence[Level], unreported: Unreported
) -> float:
    """Prompts and outputs so far of all that runs or waits, in whole blocks."""
    return snapshot.block_size * outstanding_blocks(snapshot, unreported)


_POLICIES = (
    Policy("llumnix", dispatch_freeness, pick_highest),
    Policy("llumnix+", dispatch_freeness, pick_highest, late_binding=True),
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
