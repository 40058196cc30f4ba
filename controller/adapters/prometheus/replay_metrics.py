"""Metrics of requests that were lost with an instance, and of how requests were saved."""

from collections.abc import Iterator

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from controller.api.wire.replays import ReplaysStatus
from controller.core.operations.cluster_spec import LEAVES_BY_MOVES, ExitReason
from controller.core.replay.replay_log import LOST_WAYS, Way


def replay_metrics(replays: ReplaysStatus) -> Iterator[Metric]:
    """Every way has a sample of each of its reasons from the start on: a rate needs the 0 before
    the first one."""
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
