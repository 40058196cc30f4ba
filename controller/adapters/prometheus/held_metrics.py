"""Metrics of what waits at the controller.

0 where nothing does: a series with gaps cannot be averaged or alerted on."""

from collections.abc import Iterator

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from controller.api.wire.models import ClusterStatus


def held_metrics(status: ClusterStatus) -> Iterator[Metric]:
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
