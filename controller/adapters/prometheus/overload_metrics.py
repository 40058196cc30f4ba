"""Metrics of what the controller refused, and of the use of API keys.

A refusal has a sample for each reason and level from the start on: a rate needs the 0 before the
first one. Keys are those of the status, a bounded number."""

from collections.abc import Iterator

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from controller.api.wire.models import ClusterStatus
from controller.core.scheduler_events import RejectCode


def overload_metrics(status: ClusterStatus) -> Iterator[Metric]:
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
