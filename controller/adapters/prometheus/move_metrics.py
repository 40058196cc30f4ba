"""Metrics of moves: those under way, and how the others ended."""

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from controller.core.migration.move_records import DOWNTIME_BOUNDS_S, MoveLog
from controller.core.operations.cluster_spec import MOVE_REASONS


def move_metrics(num_moves: int, log: MoveLog) -> Iterator[Metric]:
    """Every outcome and every reason has a sample from the start on: a rate needs the 0 before the
    first move."""
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
