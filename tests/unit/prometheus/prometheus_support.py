"""A status with everything in it, and readers of the metrics that are served."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from controller.adapters import prometheus as cluster_metrics
from controller.api.wire.status import (
    AutoscaleHoldStatus,
    AutoscaleStatus,
    ClusterStatus,
    InstanceStatus,
    QueueHeadStatus,
)
from controller.core.migration.move_records import MoveLog
from controller.core.record.event_log import EventKind
from controller.core.record.request_record import RequestRecord, RequestState
from tools import synthetic_cluster as synthetic

ROOT = Path(__file__).parents[3]
SECRET = "s3cr3t-token"
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def busy(id: str = "i-0", **changes: Any) -> InstanceStatus:  # noqa: A002 - the field's name
    """An active instance with 12 requests running and 3 waiting, of which every figure is known."""
    known: dict[str, Any] = {
        "detail": SECRET,
        "freeness_steps": -12.5,
        "num_running_by_level": {"high": 2, "normal": 10},
        "num_waiting_reqs": 3,
        "num_waiting_by_level": {"normal": 3},
        "headroom_by_level_blocks": {"high": 20},
        "ttft_p99_by_level_s": {"high": 0.4},
        "num_unreported_reqs": 4,
        "queue_head": QueueHeadStatus(
            request_id="req-77", level="high", demand_blocks=30, waited_s=1.25, evicted=True
        ),
        "cpu_cores": 0.7,
        "busy_s": 27.5,
    }
    return synthetic.instance(id, **(known | changes))


def cluster_of(*instances: InstanceStatus) -> ClusterStatus:
    frontend = {"detail": SECRET, "num_live_reqs": 19, "tpot_p99_s": 0.06, "up_s": 60.0}
    status = synthetic.cluster(instances)
    return status.model_copy(
        update={
            "cluster": "default",
            "detail": SECRET,
            "model": 'my "model"\\1',
            "endpoint_url": f"http://user:{SECRET}@127.0.0.1:8000",
            "cluster_uptime_s": 72000.0,
            "num_held_reqs": 6,
            "autoscale": AutoscaleStatus(
                mode="on",
                held=AutoscaleHoldStatus(actor=SECRET, num_instances=3, since_s=1.0),
                min_instances=1,
                max_instances=8,
                num_instances=3,
                num_wanted=5,
                num_checks_by_reason={"low_freeness": 7},
            ),
            "last_event": f"{SECRET}-9",
            "frontends": tuple(each.model_copy(update=frontend) for each in status.frontends),
        }
    )


def rendered(
    status: ClusterStatus,
    counts: Mapping[EventKind, int] | None = None,
    moves: MoveLog | None = None,
) -> str:
    return cluster_metrics.render(status, counts or {}, moves or MoveLog()).decode()


def samples(text: str) -> Samples:
    """By name and labels; each only once. The `_created` times, which the client adds, are left
    out."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if not sample.name.endswith("_created"):
                key = (sample.name, frozenset(sample.labels.items()))
                assert key not in found, key
                found[key] = sample.value
    return found


def value(text: str, name: str, /, **labels: str) -> float | None:
    return samples(text).get((name, frozenset(labels.items())))


def declared(text: str) -> dict[str, str]:
    """The type of each metric, by the name that the documents use."""
    found = re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE)
    return {name: kind for name, kind in found if not name.endswith("_created")}


def labels_of(text: str) -> dict[str, set[str]]:
    """The label names of each metric; a histogram's under its own name, without `le`."""
    found: dict[str, set[str]] = {}
    for name, labels in samples(text):
        base = re.sub(r"_(bucket|sum|count)$", "", name)
        found.setdefault(base, set()).update({label for label, _ in labels} - {"le"})
    return found


def record(**changes: Any) -> RequestRecord:
    """Arrived at 100 s, first token at 100.5 s, eleventh and last at 102.5 s."""
    fields: dict[str, Any] = {
        "request_id": "req-1",
        "client_request_id": "chatcmpl-1",
        "parent_id": None,
        "frontend_id": "f-0",
        "level": "normal",
        "state": RequestState.FINISHED,
        "instance_id": "i-0",
        "incarnation": 1,
        "arrival_time_s": 100.0,
        "num_prompt_tokens": 40,
        "num_output_tokens": 11,
        "num_evictions": 2,
        "first_token_time_s": 100.5,
        "end_time_s": 102.5,
        "finish_reason": "stop",
    }
    return RequestRecord(**(fields | changes))
