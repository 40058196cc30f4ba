"""Policies by name: how a simulated cluster dispatches, and whether it moves requests.

`llumnix` is the paper's, `llumnix-base` its version without priorities, `infaas++` what it compares
with: that dispatches as `llumnix-base` does and moves nothing. `llumnix+` is ours: late binding on
top of `llumnix`. `dispatch-only` is `llumnix` without
moves. The others are baselines beyond the paper; the dispatch policy of the same name says what
each does. But for `llumnix`, `llumnix+` and `dispatch-only` all treat each request as a normal one.
"""

import difflib
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from controller.core.load.snapshot import NORMAL
from controller.core.settings import AutoscaleConfig, HoldingConfig, ReschedulingConfig
from controller.sim.fleet import COLD_START_S
from controller.sim.setup import SimPolicy

VLLM_DP_STATUS_AGE_S = 0.1
"""vLLM's coordinator tells its frontends the engines' queues this often."""

_MOVE = ReschedulingConfig()
_STAY = ReschedulingConfig(enabled=False)


def _without_priorities(
    name: str,
    dispatch: str,
    rescheduling: ReschedulingConfig = _STAY,
    status_age_s: float = 0.0,
) -> SimPolicy:
    return SimPolicy(name, dispatch, rescheduling, (NORMAL,), status_age_s, by_rank=False)


_POLICIES = (
    SimPolicy("llumnix", "llumnix", _MOVE),
    SimPolicy("llumnix+", "llumnix+", _MOVE, holding=HoldingConfig()),
    _without_priorities("llumnix-base", "infaas++", _MOVE),
    SimPolicy("dispatch-only", "llumnix", _STAY),
    _without_priorities("infaas++", "infaas++"),
    _without_priorities("round-robin", "round-robin"),
    _without_priorities("vllm-dp", "vllm-dp", status_age_s=VLLM_DP_STATUS_AGE_S),
    _without_priorities("power-of-two", "power-of-two"),
    _without_priorities("least-tokens", "least-tokens"),
    _without_priorities("session-hash", "session-hash"),
    _without_priorities("prefix-aware", "prefix-aware"),
    _without_priorities("cache-aware", "cache-aware"),
)
SIM_POLICIES: Mapping[str, SimPolicy] = MappingProxyType({each.name: each for each in _POLICIES})


def with_autoscale(policy: SimPolicy, least: int, most: int) -> SimPolicy:
    """The policy on a cluster of `least` to `most` instances, with the defaults of auto-scaling."""
    config = AutoscaleConfig(min_instances=least, max_instances=most, cold_start_s=COLD_START_S)
    return replace(policy, autoscale=config)


def sim_policy(name: str) -> SimPolicy:
    """The policy of that name, with the live cluster's defaults. Raises ValueError naming the
    nearest valid one."""
    policy = SIM_POLICIES.get(name)
    if policy is not None:
        return policy
    near = difflib.get_close_matches(name, SIM_POLICIES, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ValueError(f"unknown policy {name[:40]!r}: {hint}valid are {', '.join(SIM_POLICIES)}")
