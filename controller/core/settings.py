"""The settings by which the core decides: the tables of the configuration file, as values.

Each setting stands here once, with its default, its bounds and what it means. Files, variables and
orders are read into these classes (`controller.api.settings`); `llumctl set` and the schema show
their docstrings. Values that are fixed in a cluster stand in a subclass of the settings
(`HoldingConfig` of `HoldingSettings`), with the measured reason for each, so that the simulator can
change and compare them.

A bound is an annotation. Every value that operators give is checked against its bounds. If a
machine cannot work with a value beyond its bounds, the machine checks the value again with
`check_bounds`, wherever the value comes from.
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

BACKGROUND_LEVEL = "background"
"""The name of the level of requests that nobody waits for."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the configuration file. The options below are for pydantic, which reads tables: it
    refuses unknown keys, text where a number is meant, NaN and infinity."""

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
    """Which instance a request is dispatched to. With llumnix+, a request that fits on no instance
    waits (`holding`). With llumnix, the paper's policy, it goes to the freest instance at once."""
    max_held_reqs: Count = 1024
    """How many requests may wait at the controller while no instance takes requests. Beyond that
    the newest request of the lowest level is answered 429. With llumnix+ the limit is
    `holding.max_held_reqs` instead."""
    hold_timeout_s: Seconds = 30.0
    """Waiting requests are answered 503 when no instance has taken requests for this long."""
    stall_timeout_s: Seconds = 10.0
    """An instance whose engine thread showed no progress for this long gets no requests."""
    fence_after_s: NotNegative = 30.0
    """An instance whose engine thread showed no progress for this long is taken for dead: its
    requests run elsewhere, and it drops them when it comes back. 0: never."""
    slow_factor: NotNegative = 0.0
    """An instance whose steps take this many times as long as the other instances' steps is
    emptied, as by a drain. 0: never."""
    slow_after_s: Seconds = 30.0
    """For how long an instance's steps must have been slow before it is emptied."""
    step_time_s: NotNegative = 0.0
    """How long a step of an instance may take while requests decode. A step computes only as much
    of the waiting prompts as fits into this time, so that the requests get their next tokens. 0:
    seven times as long as a step that decodes one request, or four times as long as one that
    decodes what runs now, with the policy llumnix+; with others, any time."""
    status_interval_s: Annotated[float, Ge(0.001), Le(10.0)] = 0.02
    """The least time between two statuses that one instance pushes."""
    status_push: StatusPush = "before-return"
    """At which phase of a step an instance pushes its status. never: the controller asks for it ten
    times a second."""
    grace_s: NotNegative = 30.0
    """How long live requests may take to finish when the cluster stops."""


# -- [[priority]] --------------------------------------------------------------------------------

WhenLate = Literal["serve", "last", "refuse"]
"""What becomes of a request that has waited for the target of its level. serve: it keeps its place.
last: it goes behind the others of its level that are not late, which may still keep their target.
refuse: it is answered with an error."""


# -- [holding] -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HoldingSettings(Table):
    """`[holding]`: what the policy llumnix+ does with requests that fit nowhere;
    docs/scheduling.md."""

    max_held_reqs: Count = 100_000
    """How many requests may wait at the controller because they fit on no instance. Beyond that the
    newest request of the lowest level is answered 429."""
    room_to_grow_tokens: Count = 320
    """How much memory, in tokens, stays free when a request is admitted to an instance where other
    requests run. The running requests need it as they grow."""
    fair_keys: bool = True
    """Whether the API keys of one level take turns: the key that was served the fewest tokens goes
    first. Off: requests go in the order of their arrivals."""
    making_room: bool = True
    """Whether running requests move away so that a waiting request fits."""
    reserved_share: Annotated[float, Ge(0), Le(1)] = 0.3
    """At most this share of the instances, but at least one, is kept free for the first of the
    waiting requests."""


@dataclass(frozen=True, slots=True)
class HoldingConfig(HoldingSettings):
    """The rules of late binding. Unless another source is given, figures compare a run without the
    rule to a run with all rules, on 16 A10 near the knee (docs/paper.md)."""

    evict_margin_steps: NotNegative = 12.0
    """Requests are moved away when an instance's batch has memory for fewer steps than this, before
    the instance must evict a request. With 0 no request is moved for that reason, and preemptions
    cost more: 1.07 times as much on S-L, and 1.41 times as much on BurstGPT."""
    by_time: bool = True
    """Whether a request that fits on several instances goes to one where its first token comes
    soon."""
    slack_tokens: Count = 512
    """Instances where the first token comes this much later than where it comes soonest count as
    equally good: as long as it takes to compute so many tokens. Of them the freest one is taken."""
    max_backlog_s: NotNegative = 0.3
    """While every instance has prompts to compute for longer than this, requests wait at the
    controller. Later it may be known better where their first tokens come soonest."""
    short_first: NotNegative = 2.0
    """A waiting request goes as if it had come so many seconds later for each second that its
    prompt takes to compute: shorter prompts go first, and a long one does not wait for ever. On
    Mooncake's synthetic trace at 12/s (simulated, three seeds) the mean TTFT is 3.9 s in the order
    of arrivals, and 2.7 s with this rule; the P99 is the same."""
    fetches: bool = True
    """Whether an instance copies what another one has cached of a prompt, where that is sooner than
    computing it."""
    overtaking: bool = True
    """Whether a request that fits goes ahead of earlier ones that do not. In strict order the mean
    TTFT is 1.01 times as long on S-L, 1.45 times on M-M and 1.98 times on BurstGPT."""
    reserve_after_s: NotNegative = 3.0
    """For the first blocked request an instance is reserved at once, and one more instance each
    time that the request has waited this long. For any other blocked request an instance is
    reserved once it has waited this long. On S-L the longest waits with two seeds were 21 and 108 s
    with this value at 3 s, and 33 and 192 s at 1.5 s. With 6 s they changed little (decision 0031).
    """
    share_doubles_s: Seconds = 60.0
    """In overload `reserved_share` doubles each time the first request has waited this long. When
    all instances are reserved, the order is strict. On Azure's trace at twice its rate the maximum
    TTFT is 788 s with a fixed share, and 234 s with this rule (decision 0029)."""

    def __post_init__(self) -> None:
        check_bounds(self)


# -- [limits] ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KeyLimits(Table):
    """`[limits]`: what each API key may use of the whole cluster; docs/endpoint.md. The key file
    can give a key limits of its own."""

    live_requests: Count = 0
    """How many live requests one key may have; each choice of `n` counts as one. Further requests
    are answered 429. 0: any number."""
    tokens_per_minute: Count = 0
    """How many tokens of prompts and outputs one key may use in a minute before it gets 429. 0: any
    number."""

    def of(self, key: str, own: Mapping[str, Mapping[str, int]]) -> "KeyLimits":
        """The limits of this key. `own`: for each key that has limits of its own, their values."""
        return replace(self, **own[key]) if key in own else self

    def shared_by(self, number: int) -> "KeyLimits":
        """The share of the limits that each of `number` frontends may use by itself."""
        return KeyLimits(
            max(1, self.live_requests // number) if self.live_requests else 0,
            max(1, self.tokens_per_minute // number) if self.tokens_per_minute else 0,
        )


# -- [traffic] -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TrafficSettings(Table):
    """`[traffic]` of one of several models: what other models do for its requests;
    docs/several-models.md."""

    split: str | None = None
    """Which models answer the requests that name this model, by weight, as in `large=90, next=10`;
    requests of one session go to the same model. None: it answers them all."""
    mirror: str | None = None
    """Which models get copies of the requests that this model serves, each of how many in a
    hundred, as in `next=5`. Nobody gets the answers to copies; they are compared in length and
    time. Copies have the level of batches. None: no model."""


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
    """How many bytes per second may be copied from one instance to another. 0: no limit."""
    allow_inexact: bool = False
    """Whether requests may move between engines that differ in their parallel size or their version
    of vLLM. The tokens after such a move may differ, by rounding, from those without the move."""

    def __post_init__(self) -> None:
        _check_order(self, "source_below_steps", "destination_above_steps")


@dataclass(frozen=True, slots=True)
class ReschedulingConfig(MigrationSettings):
    """All settings of rescheduling, including those that are fixed. In the authors' experiments
    both thresholds are 3 free blocks of 16 tokens per request. The bounds apply only to values that
    operators set."""

    interval_s: float = 0.1
    """The time from one round to the next. It is one or two steps of a 7B model; in each step
    freeness falls by one."""
    guard: bool = True
    """Whether a move must be worth its cost, and must not bring a request back soon. False is the
    paper's rule. On four A10 near full load (90 s, three seeds) that rule makes 720 moves, of which
    533 go back within 10 s, and there are 37 evictions. With the guard there are 129 moves, none of
    which goes back so soon, and 34 evictions."""
    not_back_s: float = 10.0
    """For how long a request is not moved back to an instance that it left. Near full load a
    destination becomes a source 50 steps later."""
    gain_ahead_s: NotNegative = 2.0
    """Over how much time to come it is predicted where tokens come sooner. 0: no request moves for
    that reason. On Mooncake's synthetic trace at 8/s (simulated, one seed) the mean latency is
    2.76, 2.78 and 3.00 s with 1, 2 and 4 s, and 1,248, 905 and 484 requests move."""


# -- [autoscale] ---------------------------------------------------------------------------------

AutoscaleMode = Literal["off", "dry-run", "on"]
RELEASE = "llumctl scale auto on"
"""The command that ends the precedence of an operator's own scale over auto-scaling."""


@dataclass(frozen=True, slots=True)
class AutoscaleSettings(Table):
    """`[autoscale]`: how the number of instances follows the load; docs/scheduling.md."""

    mode: AutoscaleMode = "off"
    """Whether instances come and go with the load. dry-run decides as on does, but only reports its
    decisions."""
    min_instances: Instances = 1
    """How many instances there are at least, even without any request."""
    max_instances: Instances = 16
    """How many instances there are at most. While there are more, they are removed one at a
    time."""
    up_below_steps: float = 160.0
    """Instances are added while the freeness of the whole cluster is lower than this."""
    down_above_steps: float = 960.0
    """One instance is removed if the freeness of the cluster would be higher than this without it.
    Not lower than `up_below_steps`."""
    up_above_backlog_s: NotNegative = 1.0
    """Instances are also added while each instance would need longer than this, on average, to
    compute the prompts that have come by now. One instance is removed only if the others would need
    at most half of this. 0: the time for prompts does not count."""
    target_ttft_s: Seconds | None = None
    """Instances are also added while the P99 time to first token, as estimated for the next minute,
    is longer than this. None: no target."""
    target_tpot_s: Seconds | None = None
    """Instances are also added while the P99 of the mean time per output token of a request, as
    estimated for the next minute, is longer than this. None: no target."""
    check_interval_s: Annotated[float, Ge(0.1), Le(3600)] = 10.0
    """The time from one check of the load to the next, and before the first one. Two checks in a
    row must find the same before instances are added or removed."""

    def __post_init__(self) -> None:
        _check_order(self, "up_below_steps", "down_above_steps")
        _check_order(self, "min_instances", "max_instances")


@dataclass(frozen=True, slots=True)
class AutoscaleConfig(AutoscaleSettings):
    """All settings of auto-scaling, including those that are fixed. The range, the interval and the
    first check come from the Llumnix authors' experiments, which state the range in blocks of 16
    tokens per request. If the range were upside down, the cluster would grow and shrink again and
    again under a constant load."""

    max_added: Annotated[int, Ge(1)] = 4
    """The most instances that one decision may add because of the load. A decision removes at most
    one. The code of the paper's authors does the same: it adds several at a time and removes one at
    a time."""
    first_check_after_s: NotNegative = 100.0
    up_persistence_s: NotNegative = 10.0
    """Instances are added once each check has found F_scale below `up_below_steps` for this long. A
    live cluster uses `check_interval_s` here, so that two checks in a row must find it. The load
    between two checks is not seen. With a value of 0, one check is enough."""
    down_persistence_s: NotNegative = 10.0
    """An instance is removed once each check for this long has found that one instance less would
    be enough. Otherwise this is like `up_persistence_s`."""
    retry_failed_start_s: NotNegative = 300.0
    """For how long no instance is started after an instance could not start, because the next one
    would probably fail for the same reason."""
    cold_start_s: NotNegative | None = None
    """How long an instance takes from its launch until it serves, where that is known. Only events
    and simulations use it. Decisions do not: an instance that starts counts as empty all that
    time."""

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
    request for which there is no room left cannot be replayed."""
    patience_s: NotNegative = 30.0
    """How long a request whose instance died may wait for another instance before it ends in an
    error. In a cluster of one instance, set it longer than Ray takes to start the instance
    again."""


# -- what is fixed, and bounds -------------------------------------------------------------------

T = TypeVar("T", bound=Table)
Limit = Ge | Gt | Le


def with_fixed(config: type[T], settings: Table, **fixed: Any) -> T:
    """Returns a `config` (a subclass of the class of `settings`) with these settings. Values that
    operators do not set are taken from `fixed`; those that are not in `fixed` are the defaults."""
    return config(**{each.name: getattr(settings, each.name) for each in fields(settings)}, **fixed)


def check_bounds(table: Table) -> None:
    """Raises ValueError if a field is out of its bounds; the message names the field."""
    kind: Any = type(table)  # mypy: a `type[...]` would not be hashable
    for name, limits in _limits(kind).items():
        value = getattr(table, name)
        if value is not None and not all(_is_within(value, each) for each in limits):
            raise ValueError(f"{name} must {_words(*limits)}")


@cache
def _limits(table: type[Any]) -> dict[str, list[Limit]]:
    """The bounds of each field, by the field's name; empty for a field without bounds."""
    hints = get_type_hints(table, include_extras=True)
    return {each.name: list(_limits_in(hints[each.name])) for each in fields(table)}


def _limits_in(kind: Any) -> Iterator[Limit]:
    """The bounds in the annotation of a type, or of one of the types in a union."""
    if isinstance(kind, Limit):
        yield kind
    for each in get_args(kind):
        yield from _limits_in(each)


def _is_within(value: Any, limit: Limit) -> bool:
    """Whether the value keeps within the limit; NaN never does."""
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
