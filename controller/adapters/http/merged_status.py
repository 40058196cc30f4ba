"""The status of a cluster of several models, made of the statuses of its models.

Each model of the wire that is merged has a `Merge`, which names a rule for each of its fields. A
field without a rule fails at the import, so that a new field cannot be forgotten: it would show the
value of the first model as if it were that of all."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Generic, TypeVar

from controller.api.figures import takes_requests
from controller.api.wire import WireModel
from controller.api.wire.status import (
    AlarmStatus,
    AutoscaleStatus,
    ClusterState,
    ClusterStatus,
    FrontendStatus,
    HeldStatus,
    InstanceState,
    KeyStatus,
    LevelStatus,
    ModelStatus,
    NoticeStatus,
    RefusedStatus,
    ReplaysStatus,
    RollingReport,
    SavedStatus,
    VerdictStatus,
)

SEVERITIES = ("quiet", "warn", "bad")
SERVING_STATES = (InstanceState.ACTIVE, InstanceState.DRAINING)
STATES = (
    ClusterState.READY,
    ClusterState.DEGRADED,
    ClusterState.STARTING,
    ClusterState.STOPPING,
    ClusterState.FAILED,
)
"""The states of models, the best first: a cluster is in the worst of them."""

# -- the rules -----------------------------------------------------------------------------

Rule = Callable[[Sequence[Any]], Any]
"""Makes one value of the values of several models, in the order of the models."""
Merged = TypeVar("Merged", bound=WireModel)


class Merge(Generic[Merged]):
    """Makes one of several models of the wire. `rules`: for each field its rule, or None if the
    caller gives the value. Raises TypeError unless each field has a rule."""

    def __init__(self, kind: type[Merged], **rules: Rule | None) -> None:
        if wrong := sorted(kind.model_fields.keys() ^ rules.keys()):
            raise TypeError(f"{kind.__name__}: each field needs a rule: {', '.join(wrong)}")
        self._rules = {name: rule for name, rule in rules.items() if rule is not None}
        self._given = rules.keys() - self._rules.keys()

    def __call__(self, found: Sequence[Merged], **given: Any) -> Merged:
        if given.keys() != self._given:
            raise TypeError(f"given are {sorted(given)}, and wanted are {sorted(self._given)}")
        values = {
            name: rule([getattr(each, name) for each in found])
            for name, rule in self._rules.items()
        }
        return found[0].model_copy(update=values | given)


def first(values: Sequence[Any]) -> Any:
    """For what is the same for all, or what is said of the first one only."""
    return values[0]


def left_out(_: Sequence[Any]) -> None:
    """For what is in the statuses of the models alone."""


def none_of(_: Sequence[Any]) -> tuple[Any, ...]:
    """For lists that are in `models` alone."""
    return ()


def total(values: Iterable[Any]) -> Any:
    """The sum of the known values; None if none is known."""
    known = [each for each in values if each is not None]
    return sum(known) if known else None


def most(values: Iterable[Any]) -> Any:
    return max((each for each in values if each is not None), default=None)


def least(values: Iterable[Any]) -> Any:
    return min((each for each in values if each is not None), default=None)


def any_of(values: Iterable[Any]) -> Any:
    return next((each for each in values if each is not None), None)


def joined(lists: Iterable[Sequence[Any]]) -> tuple[Any, ...]:
    return tuple(chain(*lists))


def newest_first(lists: Iterable[Sequence[Any]]) -> tuple[Any, ...]:
    return tuple(sorted(chain(*lists), key=lambda each: -each.ended_s))


def counted(numbers: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The sum for each key."""
    sums = Counter[str]()
    for each in numbers:
        sums.update(each)
    return dict(sums)


def most_of_each(numbers: Iterable[Mapping[str, float]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, number in chain(*(each.items() for each in numbers)):
        found[name] = max(number, found.get(name, number))
    return found


def grouped(merge: Callable[[Sequence[Any]], Any], *key: str) -> Rule:
    """For lists: the items that agree in the fields of `key` become one, where the first of them
    was."""

    def rule(lists: Iterable[Sequence[Any]]) -> tuple[Any, ...]:
        groups: dict[tuple[object, ...], list[Any]] = {}
        for each in chain(*lists):
            groups.setdefault(tuple(getattr(each, name) for name in key), []).append(each)
        return tuple(map(merge, groups.values()))

    return rule


def of_known(merge: Callable[[Sequence[Any]], Any]) -> Rule:
    """None if no value is known."""

    def rule(values: Iterable[Any]) -> Any:
        known = [each for each in values if each is not None]
        return merge(known) if known else None

    return rule


# -- the parts of a status -----------------------------------------------------------------

_HELD = Merge(
    HeldStatus,
    num_by_level=counted,
    demand_blocks=total,
    oldest_wait_s=most,
    head=first,
    oldest=first,
)


def _held(found: Sequence[HeldStatus]) -> HeldStatus:
    """The head is that of the model with the longest wait."""
    return _HELD(sorted(found, key=lambda each: -each.oldest_wait_s))


def _mode(modes: Sequence[str]) -> str:
    return next(mode for mode in ("on", "dry-run", "off") if mode in modes)


_AUTOSCALE = Merge(
    AutoscaleStatus,
    mode=_mode,
    held=any_of,
    min_instances=total,
    max_instances=total,
    target_ttft_s=left_out,
    target_tpot_s=left_out,
    num_instances=total,
    num_wanted=total,
    cold_start_s=most,
    next_check_in_s=left_out,
    last=left_out,
    last_change=left_out,
    num_checks_by_reason=counted,
)
_REFUSED = Merge(
    RefusedStatus, reason=first, level=first, num_refused=total, num_refused_last_minute=total
)
_KEY = Merge(
    KeyStatus, key=first, num_live_reqs=total, num_tokens_last_minute=total, num_refused=total
)
_LEVEL = Merge(
    LevelStatus,
    name=first,
    rank=first,
    target_load_tokens=first,
    num_running_reqs=total,
    num_waiting_reqs=total,
    headroom_blocks=total,
    ttft_p99_s=most,
    target_ttft_s=first,
    target_tpot_s=first,
    when_late=first,
    goodput=least,
)
_SAVED = Merge(SavedStatus, way=first, reason=first, num_saved=total)
_REPLAYS = Merge(
    ReplaysStatus,
    under_way=joined,
    ended=newest_first,
    num_replaying=total,
    num_replayed_last_minute=total,
    num_not_replayed_last_minute=total,
    saved=grouped(_SAVED, "way", "reason"),
)
_NOTICE = Merge(
    NoticeStatus, node=first, why=first, leaves_at_s=first, instance_ids=joined, takes_endpoint=any
)
_FRONTEND = Merge(
    FrontendStatus,
    id=first,
    state=first,
    detail=first,
    incarnation=first,
    num_restarts=first,
    node=first,
    pid=first,
    up_s=first,
    num_live_reqs=total,
    ttft_p99_s=most,
    ttft_p99_by_level_s=most_of_each,
    tpot_p99_s=most,
    age_s=first,
)


def _frontend(found: Sequence[FrontendStatus]) -> FrontendStatus:
    """A frontend's process serves all models, and each of its parts says what it knows. The first
    part that does not serve says how the frontend is."""
    return _FRONTEND(sorted(found, key=lambda each: each.state in SERVING_STATES))


def _notices(lists: Iterable[Sequence[NoticeStatus]]) -> tuple[NoticeStatus, ...]:
    """One for each machine, the earliest first."""
    found = grouped(_NOTICE, "node", "why", "leaves_at_s")(list(lists))
    return tuple(sorted(found, key=lambda each: each.leaves_at_s))


def _rolling(found: Iterable[RollingReport | None]) -> RollingReport | None:
    """The rolling restart that goes on, or else the one that began last."""
    known = [each for each in found if each is not None]
    return max(known, key=lambda each: (each.state == "going", each.began_s or 0.0), default=None)


# -- the whole -----------------------------------------------------------------------------

_CLUSTER = Merge(
    ClusterStatus,
    schema_version=first,
    cluster=first,
    state=None,
    detail=None,
    verdict=None,
    alarms=None,
    revision=first,
    model=None,
    models=None,
    policy=lambda found: ", ".join(dict.fromkeys(found)),
    engine=first,
    endpoint_url=first,
    time_s=first,
    uptime_s=first,
    cluster_uptime_s=first,
    num_held_reqs=total,
    held=of_known(_held),
    autoscale=_AUTOSCALE,
    refused=grouped(_REFUSED, "reason", "level"),
    keys=grouped(_KEY, "key"),
    levels=grouped(_LEVEL, "name"),
    last_event=first,
    moves=joined,
    queued_moves=joined,
    ended_moves=newest_first,
    replays=_REPLAYS,
    engine_changes=joined,
    rolling=_rolling,
    adapters=joined,
    num_migrated_last_minute=total,
    num_failed_moves_last_minute=total,
    tokens_per_s=total,
    tokens_per_instance_hour=left_out,  # `Observer.with_output` says it of all models
    split=none_of,
    mirrors=none_of,
    notices=_notices,
    instances=joined,
    frontends=grouped(_frontend, "id"),
)


def together(of_each: Mapping[str, ClusterStatus]) -> ClusterStatus:
    """The status of a cluster, from the statuses of its models by name."""
    found = list(of_each.values())
    stopping = [each for each in found if each.state is ClusterState.STOPPING]
    worst = stopping[0] if stopping else max(found, key=lambda each: STATES.index(each.state))
    details = (f"{name}: {each.detail}" for name, each in of_each.items() if each.detail)
    return _CLUSTER(
        found,
        state=worst.state,
        detail="; ".join(details),
        verdict=_verdict(of_each),
        alarms=_alarms(of_each),
        model=", ".join(of_each),
        models=tuple(model_status(name, each) for name, each in of_each.items()),
    )


def model_status(name: str, status: ClusterStatus) -> ModelStatus:
    instances = status.instances
    return ModelStatus(
        name=name,
        num_serving=sum(takes_requests(each) for each in instances),
        num_running_reqs=sum(each.num_running_reqs or 0 for each in instances),
        num_waiting_reqs=sum(each.num_waiting_reqs or 0 for each in instances),
        num_held_reqs=status.num_held_reqs,
        tokens_per_s=status.tokens_per_s,
        ttft_p99_s=most(each.ttft_p99_s for each in status.frontends),
        autoscale=status.autoscale,
        rolling=status.rolling,
        split=status.split,
        mirrors=status.mirrors,
        verdict=status.verdict,
    )


def _verdict(of_each: Mapping[str, ClusterStatus]) -> VerdictStatus | None:
    """The worst verdict, with the name of its model and with what makes others the same."""
    found = [
        verdict_of(name, each.verdict) for name, each in of_each.items() if each.verdict is not None
    ]
    if not found:
        return None
    worst = max(found, key=lambda each: SEVERITIES.index(each.severity))
    others = (each for each in found if each.word == worst.word and each is not worst)
    whys = filter(None, (each.why for each in (worst, *others)))
    return worst.model_copy(update={"why": "; ".join(whys)})


def verdict_of(name: str, verdict: VerdictStatus) -> VerdictStatus:
    """The verdict on a model, which names it."""
    order = verdict.order and verdict.order.model_copy(update={"model": name})
    why = f"{name}: {verdict.why}" if verdict.why else ""
    return verdict.model_copy(update={"why": why, "order": order})


def _alarms(of_each: Mapping[str, ClusterStatus]) -> tuple[AlarmStatus, ...]:
    """Those that are raised, the oldest first, and then those that ended, the newest first. An
    alarm about a frontend, which each model has, is one alarm. One that is not about a member names
    its model."""
    found: dict[tuple[str, str, bool], AlarmStatus] = {}
    for name, status in of_each.items():
        ids = {each.id for each in (*status.instances, *status.frontends)}
        for each in status.alarms:
            text = each.text if each.subject in ids else f"{name}: {each.text}"
            key = each.subject, text, each.ended_s is None
            found.setdefault(key, each.model_copy(update={"text": text}))
    raised = (each for each in found.values() if each.ended_s is None)
    ended = (each for each in found.values() if each.ended_s is not None)
    return (
        *sorted(raised, key=lambda each: each.since_s),
        *sorted(ended, key=lambda each: -(each.ended_s or 0.0)),
    )
