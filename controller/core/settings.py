"""What operators set of what the core decides: tables of the configuration file, as values.

Each setting stands here once, with its default, its bounds and what it means. Files, variables and
orders are read into these classes (`controller.api.settings`); `llumctl set` and the schema show
their docstrings; what decides goes by them. What is fixed in a cluster stands in a class below the
one that is set (`HoldingConfig` under `HoldingSettings`), with its measured reason, so that the
simulator can change it and compare.

A bound is an annotation. Whatever operators give is held against it; `check_bounds` does so where a
value beyond it makes no sense to a machine, whoever made it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args, get_type_hints

from annotated_types import Ge, Gt, Le

from controller.core.bounds import MAX_INSTANCES

Seconds = Annotated[float, Gt(0)]
NotNegative = Annotated[float, Ge(0)]
Count = Annotated[int, Ge(0)]
Instances = Annotated[int, Ge(1), Le(MAX_INSTANCES)]


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the configuration file. The names below are pydantic's, which reads tables: no
    unknown key, no text where a number is meant, neither NaN nor infinity."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {
        "allow_inf_nan": False,
        "extra": "forbid",
        "strict": True,
        "use_attribute_docstrings": True,
    }


# -- [scheduler] ---------------------------------------------------------------------------------

StatusPush = Literal["begin", "after-schedule", "after-update", "before-return", "all", "never"]


@dataclass(frozen=True, slots=True)
class SchedulerSettings(Table):
    """`[scheduler]`: dispatch and liveness."""

    policy: str = "llumnix+"
    """Which instance a request is dispatched to: llumnix+ holds a request that fits on none
    (`holding`); llumnix, the paper's, takes the freest at once."""
    max_held_reqs: Count = 1024
    """How many requests may wait at the controller while no instance takes requests. Beyond that
    the newest request of the lowest level is answered 429. With llumnix+ `holding.max_held_reqs`
    counts instead."""
    hold_timeout_s: Seconds = 30.0
    """Waiting requests are answered 503 when no instance took requests for this long."""
    stall_timeout_s: Seconds = 10.0
    """An instance whose engine thread showed no progress for this long gets no requests."""
    fence_after_s: NotNegative = 30.0
    """An instance whose engine thread showed no progress for this long is taken for dead: its
    requests run elsewhere, and it drops them when it comes back. 0: never."""
    slow_factor: NotNegative = 0.0
    """An instance whose steps take this many times as long as those of the others is emptied, as by
    a drain. 0: never."""
    slow_after_s: Seconds = 30.0
    """For how long an instance's steps must have been slow before it is emptied."""
    status_interval_s: Annotated[float, Ge(0.001), Le(10.0)] = 0.02
    """The least time between two statuses that one instance pushes."""
    status_push: StatusPush = "before-return"
    """At which phase of a step an instance pushes its status. never: the controller asks for it ten
    times a second."""
    grace_s: NotNegative = 30.0
    """How long live requests may take to finish when the cluster stops."""


# -- [holding] -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HoldingSettings(Table):
    """`[holding]`: what the policy llumnix+ does with requests that fit nowhere;
    docs/scheduling.md."""

    max_held_reqs: Count = 100_000
    """How many requests may wait at the controller because they fit on no instance. Beyond that the
    newest request of the lowest level is answered 429."""
    room_to_grow_tokens: Count = 320
    """How much an admission leaves free on an instance where other requests run, as those grow."""
    fair_keys: bool = True
    """Whether the API keys of one level take turns: the key that was served the fewest tokens goes
    first. Off: the order is that of the arrivals."""
    making_room: bool = True
    """Whether running requests move away so that a waiting one fits."""
    reserved_share: Annotated[float, Ge(0), Le(1)] = 0.3
    """At most this share of the instances, but at least one, is kept free for the first of the
    waiting requests."""


@dataclass(frozen=True, slots=True)
class HoldingConfig(HoldingSettings):
    """The rules of late binding. Figures without another source are ratios to runs with all parts,
    on 16 A10 near the knee (docs/paper.md)."""

    evict_margin_steps: NotNegative = 12.0
    """If an instance's batch can only run so many more steps, requests are moved away before it
    must evict one. With 0 none are, and preemptions cost 1.07 (S-L) to 1.41 times as much
    (BurstGPT)."""
    by_prefill: bool = True
    """Whether a request that fits on several instances goes to one with little prefill ahead. On
    the Mooncake trace the mean TTFT is 1.12 s with it and 1.46 without (decision 0032)."""
    by_prefix: bool = True
    """Whether it also counts which of these instances has the prompt's beginning in its prefix
    cache: then the mean TTFT is 0.59 s."""
    prefill_slack_tokens: Count = 2048
    """Instances whose tokens to compute before the request's first one differ by at most so many
    count as equal, and freeness decides between them. A step of vLLM takes 2,048 to 8,192
    tokens."""
    overtaking: bool = True
    """Whether a request that fits goes ahead of earlier ones that do not. In strict order the mean
    TTFT is 1.01 (S-L), 1.45 (M-M) and 1.98 times as long (BurstGPT)."""
    reserve_after_s: NotNegative = 3.0
    """The first blocked request has an instance reserved at once, others after this wait; and the
    first one gets one more each time that it has waited so long. On S-L the longest waits were 33
    and 192 s with 1.5 s instead of 21 and 108; 6 s changed little (decision 0031)."""
    share_doubles_s: Seconds = 60.0
    """In overload `reserved_share` doubles each time the first request has waited so long; when all
    instances are reserved, the order is strict. On Azure's trace at twice its rate the maximum TTFT
    is 788 s with a fixed share, and 234 s with this (decision 0029)."""

    def __post_init__(self) -> None:
        check_bounds(self)


# -- [limits] ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KeyLimits(Table):
    """`[limits]`: what each API key may use of the whole cluster; docs/endpoint.md. A key may have
    others in its line of the key file."""

    live_requests: Count = 0
    """How many live requests one key may have, where each choice of `n` counts; further ones are
    answered 429. 0: any number."""
    tokens_per_minute: Count = 0
    """How many tokens of prompts and outputs one key may use in a minute before it gets 429. 0: any
    number."""

    def of(self, key: str, own: Mapping[str, Mapping[str, int]]) -> "KeyLimits":
        """The limits of this key. `own`: by key, the limits for which it has its own values."""
        return replace(self, **own[key]) if key in own else self

    def shared_by(self, number: int) -> "KeyLimits":
        """The share of the limits that each of so many frontends may use alone."""
        return KeyLimits(
            max(1, self.live_requests // number) if self.live_requests else 0,
            max(1, self.tokens_per_minute // number) if self.tokens_per_minute else 0,
        )


# -- [migration] ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MigrationSettings(Table):
    """`[migration]`: when requests are moved, and what that may take; docs/scheduling.md."""

    enabled: bool = True
    """Whether the cluster moves requests by itself. Operators and drains move them in any case."""
    source_below_steps: float = 48.0
    """Requests are moved away from instances whose freeness is lower."""
    destination_above_steps: float = 48.0
    """Requests are moved to instances whose freeness is higher. Not lower than
    `source_below_steps`."""
    max_moves_per_minute: Annotated[int, Ge(0), Le(32)] = 6
    """How often one request may move in a minute. 0: requests move only by hand and out of
    drains."""
    max_moves: Annotated[int, Ge(0), Le(1024)] = 4
    """How many moves to and from one instance may be under way at a time. 0: none."""
    max_bytes_per_s: NotNegative = 0.0
    """How many bytes per second are copied from one instance to another. 0: no limit."""

    def __post_init__(self) -> None:
        _check_order(self, "source_below_steps", "destination_above_steps")


@dataclass(frozen=True, slots=True)
class ReschedulingConfig(MigrationSettings):
    """What the rescheduling of running requests goes by. Both thresholds are 3 free blocks of 16
    tokens per request in the authors' experiments, and all bounds are for operators alone."""

    interval_s: float = 0.1
    """From one round to the next: one or two steps of a 7B model, in each of which freeness falls
    by one."""
    guard: bool = True
    """Whether a move must be worth its cost, and must not bring a request back soon. Off is the
    paper's rule: on four A10 near full load, 90 s of three seeds, it makes 720 moves, 533 of
    them back within 10 s, and 37 evictions; with the guard there are 129, 0 and 34."""
    not_back_s: float = 10.0
    """How long a request is not moved back to an instance that it left: near full load what was a
    destination is a source 50 steps later."""


# -- [autoscale] ---------------------------------------------------------------------------------

AutoscaleMode = Literal["off", "dry-run", "on"]
RELEASE = "llumctl scale auto on"
"""The command after which an operator's own scale no longer wins over auto-scaling."""


@dataclass(frozen=True, slots=True)
class AutoscaleSettings(Table):
    """`[autoscale]`: how many instances there are to be for the load; docs/scheduling.md."""

    mode: AutoscaleMode = "off"
    """Whether instances come and go with the load. dry-run decides as on does, and only says so."""
    min_instances: Instances = 1
    """How many instances stay even without any request."""
    max_instances: Instances = 16
    """How many instances there are at most. While there are more, one goes at a time."""
    up_below_steps: float = 160.0
    """Instances are added while the freeness of the whole cluster is lower."""
    down_above_steps: float = 960.0
    """One instance goes if the freeness of the cluster would be higher without it. Not lower than
    `up_below_steps`."""
    target_ttft_s: Seconds | None = None
    """Instances are also added while the P99 time to first token that is estimated for the next
    minute is longer. None: no target."""
    target_tpot_s: Seconds | None = None
    """The same as `target_ttft_s` for the mean time per output token of a request."""
    check_interval_s: Annotated[float, Ge(0.1), Le(3600)] = 10.0
    """The time from one check of the load to the next, and before the first one. Two checks in a
    row must find the same before instances are added or removed."""

    def __post_init__(self) -> None:
        _check_order(self, "up_below_steps", "down_above_steps")
        _check_order(self, "min_instances", "max_instances")


@dataclass(frozen=True, slots=True)
class AutoscaleConfig(AutoscaleSettings):
    """What auto-scaling goes by. Range, interval and first check are those of the Llumnix authors'
    experiments, in blocks of 16 tokens per request there. The cluster would grow and shrink in turn
    under a load that does not change if the range were upside down."""

    max_added: Annotated[int, Ge(1)] = 4
    """How many instances one decision may add because of the load. The authors' code adds several,
    too, and removes one."""
    first_check_after_s: NotNegative = 100.0
    up_persistence_s: NotNegative = 10.0
    """For how long each check must have found F_scale below `up_below_steps`; a cluster has its
    interval for it, so that two checks in a row must. A load between two checks is not seen; with 0
    one check is enough."""
    down_persistence_s: NotNegative = 10.0
    """For how long each check must have found room for one instance less; as `up_persistence_s`."""
    retry_failed_start_s: NotNegative = 300.0
    """For how long none is started after an instance could not start: what keeps one from starting
    keeps the next one too."""
    cold_start_s: NotNegative | None = None
    """How long an instance takes from its launch until it serves, where that is known, for events
    and simulations. No decision goes by it: instances that start count as empty all that time."""

    def __post_init__(self) -> None:
        AutoscaleSettings.__post_init__(self)  # a class with slots has no plain super()
        check_bounds(self)


# -- [replay] ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReplayConfig(Table):
    """`[replay]`: what becomes of requests whose instance dies; docs/reliability.md."""

    max_replays: Annotated[int, Ge(0), Le(100)] = 3
    """How often one request may go on elsewhere after its instance died. 0: the request ends in an
    error. Instances that die before they have taken the request do not count."""
    max_tokens_kept: Count = 16_000_000
    """How many tokens of prompts and outputs one frontend keeps for replays, about 5 bytes each. A
    request that does not fit cannot be replayed."""
    patience_s: NotNegative = 30.0
    """How long a request whose instance died may wait for another one before it ends in an error. A
    cluster of one instance needs longer than Ray takes to start it again."""


# -- what is fixed, and bounds -------------------------------------------------------------------

T = TypeVar("T", bound=Table)
Limit = Ge | Gt | Le


def with_fixed(config: type[T], settings: Table, **fixed: Any) -> T:
    """What operators set, in the class below that of `settings`: what is fixed has its defaults
    there, but for `fixed`."""
    return config(**{each.name: getattr(settings, each.name) for each in fields(settings)}, **fixed)


def check_bounds(table: Table) -> None:
    """Raises ValueError, which names the field."""
    kind: Any = type(table)  # mypy: a `type[...]` would not be hashable
    for name, limits in _limits(kind).items():
        value = getattr(table, name)
        if value is not None and not all(_is_within(value, each) for each in limits):
            raise ValueError(f"{name} must {_words(*limits)}")


@cache
def _limits(table: type[Any]) -> dict[str, list[Limit]]:
    """Lowest and highest of each field that has any."""
    hints = get_type_hints(table, include_extras=True)
    return {each.name: list(_limits_in(hints[each.name])) for each in fields(table)}


def _limits_in(kind: Any) -> Iterator[Limit]:
    """Those of the type, and of the types that it may be."""
    if isinstance(kind, Limit):
        yield kind
    for each in get_args(kind):
        yield from _limits_in(each)


def _is_within(value: Any, limit: Limit) -> bool:
    """NaN is within none."""
    match limit:
        case Ge(least):
            return bool(value >= least)
        case Gt(least):
            return bool(value > least)
        case Le(most):
            return bool(value <= most)


def _words(low: Limit, high: Limit | None = None) -> str:
    match low, high:
        case Ge(least), Le(most):
            return f"be from {least} to {most}"
        case Ge(0), None:
            return "not be negative"
        case Ge(least), None:
            return f"be at least {least}"
        case Gt(least), None:
            return f"be more than {least}"
    raise AssertionError(f"no words for {low} and {high}")


def _check_order(table: Table, low: str, high: str) -> None:
    if not getattr(table, low) <= getattr(table, high):
        raise ValueError(
            f"{low} ({getattr(table, low):g}) must not exceed {high} ({getattr(table, high):g})"
        )
