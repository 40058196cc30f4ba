"""The controller's `/metrics`: the wire status in Prometheus's text format, with the names and
units of docs/metrics.md, section Prometheus.

A field that is null has no sample, and nothing is infinite: a draining instance's freeness as -Inf
would spoil every sum and mean over instances. Every label that is known has a sample from the start
on, and what waits has 0 where nothing does: a rate needs the 0 before the first event, and a series
with gaps cannot be averaged. Labels have few values (ids, states, levels, kinds of events):
sentences and request ids stay out.

A figure of a member is a line of the tables below; each figure of the cluster stands in the
function of its subject.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple, get_args

from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from controller.api.text.hints import own_version
from controller.api.wire.status import (
    AutoscaleMode,
    ClusterState,
    ClusterStatus,
    FrontendStatus,
    InstanceState,
    InstanceStatus,
    ReplaysStatus,
)
from controller.core.fleet.autoscaler import ScaleReason
from controller.core.fleet.cluster_spec import LEAVES_BY_MOVES, MOVE_REASONS, ExitReason
from controller.core.migration.move_records import DOWNTIME_BOUNDS_S, MoveLog
from controller.core.record.event_log import EventKind
from controller.core.replay.replay_log import LOST_WAYS, Way
from controller.core.scheduler_events import RejectCode

HELD = "held"
"""The state of auto-scaling that is on, or in a dry run, while an operator's own scale wins."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Family = GaugeMetricFamily | CounterMetricFamily
Members = Sequence[InstanceStatus] | Sequence[FrontendStatus]


class Figure(NamedTuple):
    name: str
    """The metric's name, without `llumctl_instance_` or `llumctl_frontend_`, and `_total`."""
    field: str
    """A field of InstanceStatus or FrontendStatus."""
    help: str


_MEMBER_GAUGES = (
    Figure("ttft_p99_seconds", "ttft_p99_s", "p99 of the time to first token, last minute"),
    Figure("age_seconds", "age_s", "Since it was last heard of"),
    Figure("uptime_seconds", "up_s", "Since its process began"),
)
_MEMBER_COUNTERS = (
    Figure("restarts", "num_restarts", "Processes after the first that this controller saw"),
)

INSTANCE_GAUGES = (
    Figure("freeness_steps", "freeness_steps", "Decode steps until memory is full"),
    Figure("virtual_usage_blocks", "virtual_usage_blocks", "KV blocks used or spoken for"),
    Figure("headroom_blocks", "headroom_blocks", "KV blocks kept free beside higher levels"),
    Figure("block_size_tokens", "block_size", "Tokens that a KV block holds"),
    Figure("total_blocks", "num_total_blocks", "KV blocks in all"),
    Figure("free_blocks", "num_free_blocks", "KV blocks that no request holds"),
    Figure("watermark_blocks", "watermark_blocks", "KV blocks kept back from new requests"),
    Figure("kv_cache_usage_ratio", "kv_cache_usage", "Share of the KV blocks in use"),
    Figure("max_running_requests", "max_running_reqs", "Places in the engine's batch"),
    Figure("running_requests", "num_running_reqs", "Requests in the engine's batch"),
    Figure("waiting_requests", "num_waiting_reqs", "Requests in the engine's queue"),
    Figure("unreported_requests", "num_unreported_reqs", "Dispatched, but in no status yet"),
    Figure("migrations_in_requests", "num_moves_in", "Requests that are being moved to it"),
    Figure("migrations_out_requests", "num_moves_out", "Requests that are being moved from it"),
    Figure("replays_in_requests", "num_replays_in", "Lost with others, and to go on there"),
    Figure("replays_out_requests", "num_replays_out", "Lost with it, without a token since"),
    Figure("step_seconds", "step_time_s", "Duration of the last engine step"),
    Figure("cpu_cores", "cpu_cores", "Cores that its process kept busy over the last second"),
    *_MEMBER_GAUGES,
)
INSTANCE_LEVEL_GAUGES = (
    Figure("running_requests", "num_running_by_level", "Of a priority level in the engine's batch"),
    Figure("waiting_requests", "num_waiting_by_level", "Of a priority level in its queue"),
    Figure("headroom_blocks", "headroom_by_level_blocks", "KV blocks kept free beside a level"),
    Figure("ttft_p99_seconds", "ttft_p99_by_level_s", "p99 of the time to first token of a level"),
)
"""Each value of the field's dictionary has its level as a label."""
INSTANCE_COUNTERS = (
    Figure("evictions", "num_evictions", "Requests that lost their blocks, in this process"),
    Figure("steps", "num_steps", "Engine steps of this process"),
    Figure("busy_seconds", "busy_s", "What the engine steps of this process took"),
    *_MEMBER_COUNTERS,
)
FRONTEND_GAUGES = (
    Figure("live_requests", "num_live_reqs", "Requests asked for or running"),
    Figure("tpot_p99_seconds", "tpot_p99_s", "p99 of the time per output token, last minute"),
    *_MEMBER_GAUGES,
)
FRONTEND_COUNTERS = _MEMBER_COUNTERS


def render(
    status: ClusterStatus, event_counts: Mapping[EventKind, int], move_log: MoveLog
) -> bytes:
    """`event_counts`: since the controller started; kinds that never happened may be missing."""
    return generate_latest(ClusterMetrics(status, event_counts, move_log))


class ClusterMetrics(Collector):
    """What `render` writes."""

    def __init__(
        self, status: ClusterStatus, event_counts: Mapping[EventKind, int], move_log: MoveLog
    ) -> None:
        self._status = status
        self._event_counts = event_counts
        self._move_log = move_log

    def collect(self) -> Iterator[Metric]:
        status = self._status
        yield from _of_cluster(status)
        yield from _held(status)
        yield from _autoscale(status)
        yield from _overload(status)
        yield _events(self._event_counts)
        yield from _moves(len(status.moves), self._move_log)
        yield from _replays(status.replays)
        for kind, members, gauges, counters in (
            ("instance", status.instances, INSTANCE_GAUGES, INSTANCE_COUNTERS),
            ("frontend", status.frontends, FRONTEND_GAUGES, FRONTEND_COUNTERS),
        ):
            yield _states(kind, members)
            yield from _figures(GaugeMetricFamily, kind, members, gauges)
            yield from _figures(CounterMetricFamily, kind, members, counters)
        yield from _by_level(status)
        yield from _queue_heads(status.instances)


def _of_cluster(status: ClusterStatus) -> Iterator[Metric]:
    yield _info("llumctl_build_info", "llumctl's version", {"version": own_version() or "unknown"})
    about = {
        "name": status.cluster,
        "model": status.model,
        "engine": status.engine,
        "policy": status.policy,
    }
    yield _info("llumctl_cluster_info", "What the cluster serves, and how", about)
    state = GaugeMetricFamily(
        "llumctl_cluster_state", "1 for the state that it is in, 0 for others", labels=["state"]
    )
    for each in ClusterState:
        state.add_metric([each], status.state is each)
    yield state
    yield GaugeMetricFamily(
        "llumctl_uptime_seconds", "Since this controller started", status.uptime_s
    )
    yield GaugeMetricFamily(
        "llumctl_cluster_uptime_seconds", "Since the cluster was started", status.cluster_uptime_s
    )


def _events(counts: Mapping[EventKind, int]) -> Metric:
    family = CounterMetricFamily(
        "llumctl_events", "Events since this controller started", labels=["kind"]
    )
    for kind in EventKind:
        family.add_metric([kind], counts.get(kind, 0))
    return family


def _held(status: ClusterStatus) -> Iterator[Metric]:
    held = status.held
    yield GaugeMetricFamily(
        "llumctl_held_requests", "Requests that wait at the controller", status.num_held_reqs
    )
    by_level = GaugeMetricFamily(
        "llumctl_held_level_requests",
        "Requests of a priority level that wait at the controller",
        labels=["level"],
    )
    none = dict.fromkeys((level.name for level in status.levels), 0)
    for level, number in (none | (held.num_by_level if held else {})).items():
        by_level.add_metric([level], number)
    yield by_level
    yield GaugeMetricFamily(
        "llumctl_held_demand_blocks",
        "KV blocks that the requests at the controller need together",
        (held and held.demand_blocks) or 0,
    )
    yield GaugeMetricFamily(
        "llumctl_held_oldest_wait_seconds",
        "Since the first of the requests at the controller arrived",
        held.oldest_wait_s if held else 0,
    )
    yield GaugeMetricFamily(
        "llumctl_held_head_lacking_blocks",
        "KV blocks that the first request at the controller lacks, on the instance kept for it",
        (held and held.head.lacking_blocks) or 0,
    )
    kept = GaugeMetricFamily(
        "llumctl_instance_kept_requests",
        "1 if the instance is kept free for a request at the controller",
        labels=["instance_id"],
    )
    for instance in status.instances:
        if instance.num_running_reqs is not None:
            kept.add_metric([instance.id], instance.kept_for is not None)
    yield kept


def _autoscale(status: ClusterStatus) -> Iterator[Metric]:
    """Before the first look as many are wanted as there are, and F_scale has no sample."""
    found = status.autoscale
    state = GaugeMetricFamily(
        "llumctl_autoscale_state", "1 for the state that it is in, 0 for others", labels=["state"]
    )
    checks = CounterMetricFamily(
        "llumctl_autoscale_checks", "Looks at the load, by what came of them", labels=["reason"]
    )
    steps = GaugeMetricFamily(
        "llumctl_autoscale_freeness_steps", "F_scale of the instances that serve, at the last look"
    )
    if found.last is not None and math.isfinite(found.last.freeness_steps):
        steps.add_metric([], found.last.freeness_steps)
    present = found.mode if found.held is None else HELD
    for each in (*get_args(AutoscaleMode), HELD):
        state.add_metric([each], present == each)
    for reason in ScaleReason:
        checks.add_metric([reason], found.num_checks_by_reason.get(reason, 0))
    wanted = found.num_instances if found.num_wanted is None else found.num_wanted
    for name, text, value in (
        ("wanted_instances", "Instances that auto-scaling wants", wanted),
        ("planned_instances", "Instances that are there or start", found.num_instances),
    ):
        yield GaugeMetricFamily(f"llumctl_autoscale_{name}", text, value)
    yield steps
    yield state
    yield checks


def _overload(status: ClusterStatus) -> Iterator[Metric]:
    refused = CounterMetricFamily(
        "llumctl_refused_requests",
        "Requests that the controller refused since it started",
        labels=["reason", "level"],
    )
    numbers = {(str(code), level.name): 0 for code in RejectCode for level in status.levels}
    numbers |= {(each.reason, each.level): each.num_refused for each in status.refused}
    for (reason, level), number in numbers.items():
        refused.add_metric([reason, level], number)
    yield refused
    live = GaugeMetricFamily(
        "llumctl_key_live_requests", "Live requests of an API key", labels=["key"]
    )
    tokens = GaugeMetricFamily(
        "llumctl_key_minute_tokens",
        "Tokens that an API key used in the last minute",
        labels=["key"],
    )
    over = CounterMetricFamily(
        "llumctl_key_refused_requests",
        "Requests over a limit of their API key, since this controller started",
        labels=["key"],
    )
    for each in status.keys:
        live.add_metric([each.key], each.num_live_reqs)
        tokens.add_metric([each.key], each.num_tokens_last_minute)
        over.add_metric([each.key], each.num_refused)
    yield from (live, tokens, over)


def _moves(num_moves: int, log: MoveLog) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "llumctl_migrations_in_flight_requests", "Requests that are being moved", num_moves
    )
    ended = CounterMetricFamily(
        "llumctl_migrations_ended",
        "Moves that ended since this controller began",
        labels=["outcome", "reason"],
    )
    for outcome in log.num_by_outcome:
        for reason in MOVE_REASONS:
            ended.add_metric([outcome, reason], log.num_by_reason[outcome, reason])
    yield ended
    yield CounterMetricFamily(
        "llumctl_migrations_copied_bytes",
        "KV blocks copied between instances since this controller began",
        log.num_bytes,
    )
    downtimes = HistogramMetricFamily(
        "llumctl_migration_downtime_seconds",
        "From the last token of one instance to the first of the other",
    )
    bounds = [*(str(bound) for bound in DOWNTIME_BOUNDS_S), "+Inf"]
    buckets = list(zip(bounds, accumulate(log.num_downtimes), strict=True))
    downtimes.add_metric([], buckets, log.sum_downtimes_s)
    yield downtimes


def _replays(replays: ReplaysStatus) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "llumctl_replays_in_flight_requests",
        "Requests that were lost with an instance and have no token since",
        replays.num_replaying,
    )
    saved = CounterMetricFamily(
        "llumctl_saved_requests",
        "Requests that left an instance or were lost with it, since this controller started",
        labels=["way", "reason"],
    )
    numbers = {(str(Way.MOVED), str(reason)): 0 for reason in LEAVES_BY_MOVES}
    numbers |= {(str(way), str(reason)): 0 for way in LOST_WAYS for reason in ExitReason}
    numbers |= {(each.way, each.reason): each.num_saved for each in replays.saved}
    for labels, number in numbers.items():
        saved.add_metric(labels, number)
    yield saved


def _states(kind: str, members: Members) -> Metric:
    family = GaugeMetricFamily(
        f"llumctl_{kind}_state",
        "1 for the state that it is in, 0 for others",
        labels=[f"{kind}_id", "state"],
    )
    for member in members:
        for each in InstanceState:
            family.add_metric([member.id, each], member.state is each)
    return family


def _figures(
    make: type[Family], kind: str, members: Members, figures: Iterable[Figure]
) -> Iterator[Metric]:
    for figure in figures:
        family = make(f"llumctl_{kind}_{figure.name}", figure.help, labels=[f"{kind}_id"])
        for member in members:
            _add(family, [member.id], getattr(member, figure.field))
        yield family


def _by_level(status: ClusterStatus) -> Iterator[Metric]:
    """Every level has a sample at every instance that has reported, but for latencies."""
    none = dict.fromkeys((level.name for level in status.levels), 0)
    for figure in INSTANCE_LEVEL_GAUGES:
        family = GaugeMetricFamily(
            f"llumctl_instance_level_{figure.name}", figure.help, labels=["instance_id", "level"]
        )
        for instance in status.instances:
            found: dict[str, float] = getattr(instance, figure.field)
            if instance.num_running_reqs is not None and not figure.name.endswith("_seconds"):
                found = none | found
            for level, value in found.items():
                _add(family, [instance.id, level], value)
        yield family


def _queue_heads(instances: Iterable[InstanceStatus]) -> Iterator[Metric]:
    waited = GaugeMetricFamily(
        "llumctl_instance_queue_head_waited_seconds",
        "Since the first request in the queue arrived; 0 if nothing waits",
        labels=["instance_id"],
    )
    demand = GaugeMetricFamily(
        "llumctl_instance_queue_head_demand_blocks",
        "KV blocks that the first request in the queue needs; 0 if nothing waits",
        labels=["instance_id"],
    )
    for instance in instances:
        if instance.num_waiting_reqs is not None:
            head = instance.queue_head
            _add(waited, [instance.id], head.waited_s if head else 0)
            _add(demand, [instance.id], head.demand_blocks if head else 0)
    yield waited
    yield demand


def _info(name: str, text: str, labels: Mapping[str, str]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=list(labels))
    family.add_metric(list(labels.values()), 1)
    return family


def _add(family: Family, labels: Sequence[str], value: float | None) -> None:
    if value is not None and math.isfinite(value):
        family.add_metric(labels, value)
