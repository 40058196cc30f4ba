"""Metrics of auto-scaling: how many instances are wanted, and what was decided."""

import math
from collections.abc import Iterator
from typing import get_args

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from controller.api.wire.autoscale import AutoscaleMode
from controller.api.wire.models import ClusterStatus
from controller.core.fleet.autoscaler import ScaleReason

HELD = "held"
"""On, or in a dry run, while an operator's own scale wins."""


def autoscale_metrics(status: ClusterStatus) -> Iterator[Metric]:
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
