"""The controller's `/metrics`: the wire status in Prometheus's text format.

A field that is null has no sample, and nothing is infinite: a draining instance's freeness as -Inf
would spoil every sum and mean over instances. Labels have few values (ids, states, levels, kinds
of events): sentences and request ids stay out.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from controller.adapters.prometheus.autoscale_metrics import autoscale_metrics
from controller.adapters.prometheus.held_metrics import held_metrics
from controller.adapters.prometheus.member_metrics import (
    FRONTEND_COUNTERS,
    FRONTEND_GAUGES,
    INSTANCE_COUNTERS,
    INSTANCE_GAUGES,
    INSTANCE_LEVEL_GAUGES,
    Figure,
)
from controller.adapters.prometheus.move_metrics import move_metrics
from controller.adapters.prometheus.overload_metrics import overload_metrics
from controller.adapters.prometheus.replay_metrics import replay_metrics
from controller.api.version import own_version
from controller.api.wire.models import (
    ClusterState,
    ClusterStatus,
    FrontendStatus,
    InstanceState,
    InstanceStatus,
)
from controller.core.migration.move_records import MoveLog
from controller.core.record.event_log import EventKind

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Family = GaugeMetricFamily | CounterMetricFamily
Members = Sequence[InstanceStatus] | Sequence[FrontendStatus]


def render(
    status: ClusterStatus, event_counts: Mapping[EventKind, int], move_log: MoveLog
) -> bytes:
    """`event_counts`: since the controller started; kinds that never happened may be missing."""
    return generate_latest(_Families(status, event_counts, move_log))


class _Families(Collector):
    def __init__(
        self, status: ClusterStatus, event_counts: Mapping[EventKind, int], move_log: MoveLog
    ) -> None:
        self._status = status
        self._event_counts = event_counts
        self._move_log = move_log

    def collect(self) -> Iterator[Metric]:
        status = self._status
        yield from _of_cluster(status)
        yield from held_metrics(status)
        yield from autoscale_metrics(status)
        yield from overload_metrics(status)
        yield _events(self._event_counts)
        yield from move_metrics(len(status.moves), self._move_log)
        yield from replay_metrics(status.replays)
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
    """Every kind has a sample from the start on: a rate needs the 0 before the first event."""
    family = CounterMetricFamily(
        "llumctl_events", "Events since this controller started", labels=["kind"]
    )
    for kind in EventKind:
        family.add_metric([kind], counts.get(kind, 0))
    return family


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
    """0 where nothing waits: a series with gaps cannot be averaged or alerted on."""
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
