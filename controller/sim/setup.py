"""What is simulated: the cluster with its faults, its policy by name, and the settings of a live
cluster that the policy takes.

`llumnix` is the paper's policy, and `llumnix-base` is its version without priorities. `infaas++` is
the policy with which the paper compares: it dispatches as `llumnix-base` does and moves nothing.
`llumnix+` is ours: late binding on top of `llumnix`. `dispatch-only` is `llumnix` without moves.
The others are baselines beyond the paper; the dispatch policy of the same name says what each does.
All policies but `llumnix`, `llumnix+` and `dispatch-only` treat each request as a normal one.
"""

import difflib
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import reduce
from types import MappingProxyType
from typing import Any, TypeVar, get_args

from controller.core.admission.policies import find_policy
from controller.core.load.snapshot import DEFAULT_LEVELS, NORMAL, Level
from controller.core.settings import AutoscaleConfig, HoldingConfig, ReschedulingConfig, WhenLate
from controller.model.profile import LatencyProfile, Mode
from controller.sim.baselines import DEFRAG, DISPATCH, LLUMNIX, PAIRINGS, VICTIMS
from controller.sim.fleet import COLD_START_S


@dataclass(frozen=True, slots=True)
class SimPolicy:
    """A policy of a simulated cluster. `dispatch`: a name in `baselines.DISPATCH`. `status_age_s`:
    how old the statuses may be by which dispatch decides. `by_rank`: whether requests have their
    ranks; otherwise all have rank 0. `step_time_s`: how long a step may take while requests decode,
    as in a live cluster. `holding`: late binding. `autoscale`: the number of instances
    follows the load. `pairing` and `victim`: names in `baselines`."""

    name: str
    dispatch: str
    rescheduling: ReschedulingConfig
    levels: tuple[Level, ...] = DEFAULT_LEVELS
    status_age_s: float = 0.0
    by_rank: bool = True
    step_time_s: float = 0.0
    holding: HoldingConfig | None = None
    autoscale: AutoscaleConfig | None = None
    pairing: str = DEFRAG
    victim: str = LLUMNIX


@dataclass(frozen=True, slots=True)
class ClusterSetup:
    """The simulated cluster. `num_instances`: with auto-scaling, the number at the beginning."""

    profile: LatencyProfile
    policy: SimPolicy
    num_instances: int = 16
    mode: Mode = "chunked"
    prefix_caching: bool = False
    host_cache_bytes: int = 0
    """The size of each instance's host cache, with prefix caching."""
    message_s: float = 0.001
    """How long a message between two instances takes."""
    sample_s: float = 1.0
    """The time between two samples for the averages over time."""
    limit_factor: float | None = 2.0
    """A client's limit of outputs, as a multiple of the number of outputs that it gets in the end;
    None: no limit."""
    faults: tuple["Fault", ...] = field(default=())

    @property
    def max_instances(self) -> int:
        autoscale = self.policy.autoscale
        return self.num_instances if autoscale is None else autoscale.max_instances


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault in the course of a run. `kind`: kill (the instance dies with its requests), drain,
    slow-steps, or slow-links. Slow steps and links take `factor` times as long. A fault on an
    instance that does not exist does nothing."""

    time_s: float
    kind: str
    instance_id: str
    factor: float = 1.0


# -- policies by name ------------------------------------------------------------------------------

VLLM_DP_STATUS_AGE_S = 0.1
"""How often vLLM's coordinator tells its frontends the lengths of the engines' queues."""

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


# -- settings --------------------------------------------------------------------------------------
#
# Settings have the names that they have in a live cluster. Comparisons also need some that a live
# cluster does not have. A value is of its setting's type, or is text as on a command line.

Value = bool | int | float | str | None
T = TypeVar("T", ReschedulingConfig, AutoscaleConfig)

_RESCHEDULING = {
    f"migration.{field.name}": field.name
    for field in fields(ReschedulingConfig)
    if field.name not in ("max_bytes_per_s", "allow_inexact")
}
"""A simulated link is as fast as the profile says, and simulated engines are all alike."""
_HOLDING = {f"holding.{field.name}": field.name for field in fields(HoldingConfig)}
_AUTOSCALE = {
    f"autoscale.{field.name}": field.name
    for field in fields(AutoscaleConfig)
    if field.name not in ("mode", "min_instances", "max_instances", "retry_failed_start_s")
    and not field.name.startswith("target_")
}
"""The settings of auto-scaling, by key, without those that are not simulated: the number of
instances is not a setting of a policy, a simulated start never fails, and there are no targets."""
_NAMES: Mapping[str, Collection[str]] = {
    "migration.pairing": PAIRINGS,
    "migration.victim": VICTIMS,
}
LEVEL_FIELDS = ("target_load_tokens", "target_ttft_s", "target_tpot_s", "when_late")
_LEAST: Mapping[str, float] = {
    "migration.interval_s": 0.01,
    "migration.source_below_steps": -math.inf,
    "migration.destination_above_steps": -math.inf,
    "autoscale.up_below_steps": -math.inf,
    "autoscale.down_above_steps": -math.inf,
}
"""The least value of each of these settings. Other settings must not be negative."""
_SWITCH = {"true": True, "on": True, "false": False, "off": False}


def with_settings(policy: SimPolicy, settings: Mapping[str, Value]) -> SimPolicy:
    """The policy with these settings changed. Settings that may be changed: the settings of
    `migration` that decide, `scheduler.policy`, `scheduler.status_interval_s`,
    `scheduler.step_time_s` and the targets of `priority.LEVEL`; for a policy with late binding, the
    settings of `holding`; for a policy with auto-scaling, the settings of `autoscale`.

    Raises:
        ValueError: an unknown setting (the message has the nearest one), or a value that the
        setting cannot have.
    """
    changed = reduce(lambda so_far, each: _with(so_far, *each), settings.items(), policy)
    rescheduling = _changed(changed.rescheduling, _RESCHEDULING, settings)
    autoscale = changed.autoscale and _changed(changed.autoscale, _AUTOSCALE, settings)
    return replace(changed, rescheduling=rescheduling, autoscale=autoscale)


def setting_names(policy: SimPolicy) -> list[str]:
    return [
        *_RESCHEDULING,
        *_NAMES,
        "scheduler.policy",
        "scheduler.status_interval_s",
        "scheduler.step_time_s",
        *(_HOLDING if policy.holding is not None else ()),
        *(_AUTOSCALE if policy.autoscale is not None else ()),
        *(f"priority.{level.name}.{name}" for level in policy.levels for name in LEVEL_FIELDS),
    ]


def _with(policy: SimPolicy, key: str, value: Value) -> SimPolicy:
    if key not in setting_names(policy):
        near = difflib.get_close_matches(key, setting_names(policy), n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ValueError(
            f"{policy.name} has no setting {key[:60]!r}: {hint}"
            f"there are {', '.join(setting_names(policy))}"
        )
    if key in _NAMES:
        if value not in _NAMES[key]:
            names = ", ".join(_NAMES[key])
            raise ValueError(f"{key} must be one of {names}, not {value!r}")
        return replace(policy, **{key.removeprefix("migration."): value})  # type: ignore[arg-type]
    if key in _RESCHEDULING or key in _AUTOSCALE:
        # set together with the rest of its table: one of them alone may turn a range upside down
        return policy
    if (name := _HOLDING.get(key)) and policy.holding is not None:
        changed: dict[str, Any] = {name: _like(getattr(policy.holding, name), key, value)}
        return replace(policy, holding=replace(policy.holding, **changed))
    if key == "scheduler.policy":
        dispatch = find_policy(str(value), DISPATCH)
        holding = (policy.holding or HoldingConfig()) if dispatch.late_binding else None
        return replace(policy, dispatch=dispatch.name, holding=holding)
    if key == "scheduler.status_interval_s":
        return replace(policy, status_age_s=_number(key, value))
    if key == "scheduler.step_time_s":
        return replace(policy, step_time_s=_number(key, value))
    _, level_name, field_name = key.split(".")
    found: Value = None
    if field_name == "when_late":
        if value not in get_args(WhenLate):
            raise ValueError(f"{key} must be one of {', '.join(get_args(WhenLate))}, not {value!r}")
        found = value
    elif value is not None and value != "none":
        found = _whole(key, value) if field_name == "target_load_tokens" else _number(key, value)
    levels = tuple(
        replace(level, **{field_name: found}) if level.name == level_name else level  # type: ignore[arg-type]
        for level in policy.levels
    )
    return replace(policy, levels=levels)


def _changed(config: T, names: Mapping[str, str], settings: Mapping[str, Value]) -> T:
    """The configuration with these settings changed. `names`: by key, the name of the table's
    field."""
    found: dict[str, Any] = {
        names[key]: _like(getattr(config, names[key]), key, value)
        for key, value in settings.items()
        if key in names
    }
    try:
        return replace(config, **found)
    except ValueError as error:
        table, _, _ = next(iter(names)).partition(".")
        raise ValueError(f"{table}: {error}") from error


def _like(present: Value, key: str, value: Value) -> Value:
    """The given value as a value of the same type as the present value."""
    if isinstance(present, bool):
        return _switch(key, value)
    if isinstance(present, int):
        return _whole(key, value)
    return _number(key, value)


def _switch(key: str, value: Value) -> bool:
    found = _SWITCH.get(value.lower()) if isinstance(value, str) else value
    if not isinstance(found, bool):
        raise ValueError(f"{key} must be true or false, not {value!r}")
    return found


def _whole(key: str, value: Value) -> int:
    found = _number(key, value)
    if not found.is_integer():
        raise ValueError(f"{key} must be a whole number, not {value!r}")
    return int(found)


def _number(key: str, value: Value) -> float:
    try:
        if value is None or isinstance(value, bool):
            raise ValueError
        found = float(value)
    except ValueError:
        raise ValueError(f"{key} must be a number, not {value!r}") from None
    least = _LEAST.get(key, 0.0)
    if not math.isfinite(found) or found < least:
        bound = f" of at least {least:g}" if math.isfinite(least) else ""
        raise ValueError(f"{key} must be a number{bound}, not {value!r}")
    return found
