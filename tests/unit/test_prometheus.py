"""The metrics that are served: each field of the status where it belongs and nothing else, what
frontends measure, and the documents and examples that name metrics."""

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from controller.adapters import prometheus as cluster_metrics
from controller.adapters.prometheus import (
    FRONTEND_COUNTERS,
    FRONTEND_GAUGES,
    INSTANCE_COUNTERS,
    INSTANCE_GAUGES,
    RequestMetrics,
)
from controller.adapters.vllm.process_setup import share_metrics
from controller.api.wire.status import (
    AutoscaleCheck,
    AutoscaleHoldStatus,
    AutoscaleStatus,
    ClusterStatus,
    InstanceState,
    InstanceStatus,
    KeyStatus,
    QueueHeadStatus,
    RefusedStatus,
    SavedStatus,
    VerdictStatus,
)
from controller.core.migration.move_records import MoveLog, MoveRecord, StageRecord
from controller.core.record.event_log import EventKind
from controller.core.record.request_record import RequestRecord, RequestState
from controller.core.replay.replay_machine import ReplayRefusal
from tools import synthetic_cluster as synthetic

ROOT = Path(__file__).parents[2]
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
        "backlog_s": 0.2,
        "step_limit_s": 0.05,
        "num_prompt_tokens": 9000,
        "num_cached_tokens": 7000,
        "num_fetched_tokens": 500,
        "num_loaded_tokens": 300,
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
    found = cluster_metrics.ClusterMetrics(status, counts or {}, moves or MoveLog())
    return cluster_metrics.render({"": found}).decode()


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
        "num_continued": 1,
        "first_token_time_s": 100.5,
        "end_time_s": 102.5,
        "finish_reason": "stop",
    }
    return RequestRecord(**(fields | changes))


# -- of the controller ------------------------------------------------------------------


ABSENT = InstanceStatus(id="i-9", state=InstanceState.RESTARTING, incarnation=3, num_restarts=2)
CHECK = AutoscaleCheck(
    cause_id="autoscale-1",
    time_s=1.0,
    reason="in_range",
    why=SECRET,
    outcome="nothing",
    num_wanted=5,
    num_requests=7,
    freeness_steps=31.5,
    freeness_started_steps=31.5,
)


def ended_moves() -> MoveLog:
    log = MoveLog()
    stages = (StageRecord(6, 6000, 0.01), StageRecord(1, 1000, 0.002))
    for number, (outcome, code) in enumerate((("migrated", ""), ("migrated", ""), ("kept", "x"))):
        moved = MoveRecord(f"m-{number}", "r", "i-0", "i-1", "", outcome, code, 9, 0, 0.1, stages)
        log.ended(moved, 1.0, "drain" if number else "by_hand")
    log.timed("m-0", 0.004, 0.001)
    log.timed("m-1", 9.0, 8.0)
    return log


def full() -> str:
    """Of a cluster in which something of each kind goes on; i-1 is idle and kept for a request."""
    waiting = next(synthetic.late_binding(1)).status
    kept_for = waiting.instances[9].kept_for
    idle = busy("i-1", num_running_by_level={}, num_running_reqs=0, queue_head=None)
    members = busy(num_replays_in=70), idle.model_copy(update={"kept_for": kept_for})
    status = synthetic.with_replays(synthetic.moving(cluster_of(*members)), members)
    saved = (
        SavedStatus(way="moved", reason="slow", num_saved=4),
        SavedStatus(way="replayed", reason="fenced", num_saved=3),
    )
    refused = RefusedStatus(
        reason="overloaded", level="normal", num_refused=7, num_refused_last_minute=2
    )
    key = KeyStatus(key="0123456789ab", num_live_reqs=3, num_tokens_last_minute=900, num_refused=4)
    more = {
        "autoscale": status.autoscale.model_copy(update={"last": CHECK}),
        "held": waiting.held,
        "replays": status.replays.model_copy(update={"saved": saved}),
        "verdict": VerdictStatus(word="overloaded", since_s=1.0, why=SECRET),
        "refused": (refused,),
        "keys": (key,),
        "levels": tuple(
            level.model_copy(update={"goodput": 0.875 if level.name == "high" else None})
            for level in status.levels
        ),
    }
    return rendered(status.model_copy(update=more), {EventKind.EVICTED: 7}, ended_moves())


ABOUT = {"name": "default", "model": 'my "model"\\1', "engine": "vllm", "policy": "llumnix"}
KEY = {"key": "0123456789ab"}
FIGURES: list[tuple[str, dict[str, str], float | None]] = [
    ("cluster_info", ABOUT, 1),
    ("uptime_seconds", {}, 7200),
    ("cluster_uptime_seconds", {}, 72000),
    ("events_total", {"kind": "evicted"}, 7),
    ("events_total", {"kind": "instance_died"}, 0),
    ("verdict", {"word": "overloaded"}, 1),
    ("verdict", {"word": "short of memory"}, 0),
    ("level_goodput_ratio", {"level": "high"}, 0.875),
    ("level_goodput_ratio", {"level": "normal"}, None),
    ("held_requests", {}, 6),
    ("held_level_requests", {"level": "high"}, 3),
    ("held_demand_blocks", {}, 4321),
    ("held_oldest_wait_seconds", {}, 40.5),
    ("held_head_lacking_blocks", {}, 172),
    ("instance_kept_requests", {"instance_id": "i-0"}, 0),
    ("instance_kept_requests", {"instance_id": "i-1"}, 1),
    ("autoscale_wanted_instances", {}, 5),
    ("autoscale_planned_instances", {}, 3),
    ("autoscale_freeness_steps", {}, 31.5),
    ("autoscale_checks_total", {"reason": "low_freeness"}, 7),
    ("autoscale_checks_total", {"reason": "no_traffic"}, 0),
    ("refused_requests_total", {"reason": "overloaded", "level": "normal"}, 7),
    ("refused_requests_total", {"reason": "token_limit", "level": "high"}, 0),
    ("key_live_requests", KEY, 3),
    ("key_minute_tokens", KEY, 900),
    ("key_refused_requests_total", KEY, 4),
    ("migrations_in_flight_requests", {}, 3),
    ("migrations_ended_total", {"outcome": "migrated", "reason": "drain"}, 1),
    ("migrations_ended_total", {"outcome": "kept", "reason": "drain"}, 1),
    ("migrations_ended_total", {"outcome": "migrated", "reason": "by_hand"}, 1),
    ("migrations_ended_total", {"outcome": "migrated", "reason": "behind_a_blocked_head"}, 0),
    ("migrations_copied_bytes_total", {}, 21_000),
    ("migration_downtime_seconds_bucket", {"le": "0.005"}, 1),
    ("migration_downtime_seconds_bucket", {"le": "+Inf"}, 2),
    ("migration_downtime_seconds_sum", {}, 9.004),
    ("replays_in_flight_requests", {}, 2),
    ("instance_replays_in_requests", {"instance_id": "i-0"}, 70),
    ("saved_requests_total", {"way": "moved", "reason": "slow"}, 4),
    ("saved_requests_total", {"way": "moved", "reason": "death"}, None),  # the dead cannot move any
    ("saved_requests_total", {"way": "failed", "reason": "death"}, 0),
    ("instance_level_running_requests", {"instance_id": "i-0", "level": "high"}, 2),
    ("instance_level_running_requests", {"instance_id": "i-1", "level": "high"}, 0),
    ("instance_queue_head_waited_seconds", {"instance_id": "i-0"}, 1.25),
    ("instance_queue_head_demand_blocks", {"instance_id": "i-0"}, 30),
    ("instance_queue_head_waited_seconds", {"instance_id": "i-1"}, 0),
]


def test_each_figure_of_the_cluster() -> None:
    text = full()
    found = [
        (name, labels, value(text, f"llumctl_{name}", **labels)) for name, labels, _ in FIGURES
    ]
    assert found == FIGURES


def test_each_figure_of_a_member_has_its_fields_value() -> None:
    instance = busy()
    status = cluster_of(instance)
    text = rendered(status)
    (frontend,) = status.frontends
    for member, label, kind, suffix, figures in (
        (instance, "instance_id", "instance", "", INSTANCE_GAUGES),
        (instance, "instance_id", "instance", "_total", INSTANCE_COUNTERS),
        (frontend, "frontend_id", "frontend", "", FRONTEND_GAUGES),
        (frontend, "frontend_id", "frontend", "_total", FRONTEND_COUNTERS),
    ):
        assert len({figure.name for figure in figures}) == len(figures)
        for name, field, _ in figures:
            found = value(text, f"llumctl_{kind}_{name}{suffix}", **{label: member.id})
            assert found is not None, name
            assert found == getattr(member, field), name


def test_before_the_first_look_the_present_number_of_instances_is_wanted() -> None:
    status = cluster_of(busy())
    before = status.autoscale.model_copy(update={"held": None, "num_wanted": None})
    text = rendered(status.model_copy(update={"autoscale": before, "num_held_reqs": 0}))
    assert value(text, "llumctl_autoscale_state", state="on") == 1
    assert value(text, "llumctl_autoscale_wanted_instances") == 3
    assert value(text, "llumctl_autoscale_freeness_steps") is None
    assert value(text, "llumctl_held_oldest_wait_seconds") == 0


def test_exactly_one_state_is_set() -> None:
    set_ones = {
        (name, *sorted(dict(labels).values()))
        for (name, labels), number in samples(rendered(cluster_of(busy(), ABSENT))).items()
        if name.endswith("_state") and number == 1
    }
    assert set_ones == {
        ("llumctl_cluster_state", "ready"),
        ("llumctl_autoscale_state", "held"),
        ("llumctl_instance_state", "active", "i-0"),
        ("llumctl_instance_state", "i-9", "restarting"),
        ("llumctl_frontend_state", "active", "f-0"),
    }


def test_a_figure_that_is_not_known_has_no_sample() -> None:
    draining = busy("i-1", state=InstanceState.DRAINING, freeness_steps=None)
    sick = busy("i-2", freeness_steps=-math.inf, ttft_p99_s=math.nan)
    text = rendered(cluster_of(busy(), draining, sick, ABSENT))
    name = "llumctl_instance_freeness_steps"
    freeness = [value(text, name, instance_id=f"i-{number}") for number in range(3)]
    assert freeness == [-12.5, None, None]
    assert all(math.isfinite(each) for each in samples(text).values())
    there = {name for name, labels in samples(text) if ("instance_id", "i-9") in labels}
    assert there == {
        "llumctl_instance_state",
        "llumctl_instance_restarts_total",
        "llumctl_instance_unreported_requests",
        "llumctl_instance_replays_in_requests",
        "llumctl_instance_replays_out_requests",
    }


def test_no_words_and_no_requests_are_served() -> None:
    text = full()
    for word in (SECRET, "req-77", "r77c0", "r9001c9", "4242", "127.0.0.1"):
        assert word not in text


# -- of frontends -----------------------------------------------------------------------


class Served:
    """The metrics of one frontend with two levels, and what is read from them."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.metrics = RequestMetrics(("normal", "high"), self.registry)

    @property
    def samples(self) -> Samples:
        return samples(generate_latest(self.registry).decode())

    def value(self, name: str, level: str = "normal", **labels: str) -> float | None:
        key = frozenset({"level": level, **labels}.items())
        return self.samples.get((f"llumctl_{name}", key))


@pytest.fixture
def served() -> Served:
    return Served()


def test_a_finished_request(served: Served) -> None:
    served.metrics.dispatched("normal", 0.004)
    served.metrics.first_token("normal", 0.5)
    served.metrics.ended(record())
    for name, expected in (("dispatch", 0.004), ("ttft", 0.5), ("tpot", 0.2), ("e2e_latency", 2.5)):
        assert served.value(f"request_{name}_seconds_count") == 1, name
        assert served.value(f"request_{name}_seconds_sum") == pytest.approx(expected), name
    assert served.value("requests_ended_total", outcome="finished") == 1
    assert served.value("request_prompt_tokens_total") == 40
    assert served.value("request_output_tokens_total") == 11
    assert served.value("request_evictions_total") == 2
    assert served.value("request_continued_total") == 1
    # A bound belongs to its bucket.
    assert served.value("request_ttft_seconds_bucket", le="0.3") == 0
    assert served.value("request_ttft_seconds_bucket", le="0.5") == 1


def test_levels_are_apart_and_start_at_zero(served: Served) -> None:
    before = set(served.samples)
    served.metrics.first_token("high", 0.2)
    served.metrics.ended(record(level="high", state=RequestState.ABORTED))
    assert set(served.samples) == before, "more requests are no more series"
    for level, number in (("high", 1), ("normal", 0)):
        assert served.value("request_ttft_seconds_count", level) == number
        assert served.value("requests_ended_total", level, outcome="aborted") == number
        assert served.value("requests_ended_total", level, outcome="finished") == 0


def test_of_several_models_each_series_names_its_model() -> None:
    registry = CollectorRegistry()
    metrics = RequestMetrics(("normal",), registry, models=("large", "small"))

    def found() -> Samples:
        return samples(generate_latest(registry).decode())

    before = found()
    assert {dict(labels)["model"] for _, labels in before} == {"large", "small"}
    small = metrics.of("small")
    small.first_token("normal", 0.2)
    small.not_replayed(ReplayRefusal.MULTIMODAL)
    after = found()
    assert set(after) == set(before), "more requests are no more series"
    changed = {key for key, value in after.items() if value != before[key]}
    assert {dict(labels)["model"] for _, labels in changed} == {"small"}
    names = {name for name, _ in changed}
    assert {"llumctl_request_ttft_seconds_count", "llumctl_replay_failures_total"} <= names


def test_only_finished_requests_have_latencies(served: Served) -> None:
    served.metrics.ended(record(state=RequestState.FAILED))
    assert served.value("requests_ended_total", outcome="failed") == 1
    assert served.value("request_output_tokens_total") == 11
    assert served.value("request_e2e_latency_seconds_count") == 0
    assert served.value("request_tpot_seconds_count") == 0


@pytest.mark.parametrize(("num_tokens", "first_s"), [(1, 100.5), (0, None), (11, None)])
def test_no_time_per_token_without_two_tokens(
    num_tokens: int, first_s: float | None, served: Served
) -> None:
    served.metrics.ended(record(num_output_tokens=num_tokens, first_token_time_s=first_s))
    assert served.value("request_tpot_seconds_count") == 0
    assert served.value("request_e2e_latency_seconds_count") == 1


def test_a_clock_set_back_makes_no_negative_durations(served: Served) -> None:
    served.metrics.dispatched("normal", -1.0)
    served.metrics.first_token("normal", -1.0)
    served.metrics.ended(record(end_time_s=90.0))
    assert all(number >= 0 for number in served.samples.values())


def test_a_live_request_has_not_ended(served: Served) -> None:
    before = served.samples
    with pytest.raises(ValueError, match="has not ended"):
        served.metrics.ended(record(state=RequestState.RUNNING))
    assert served.samples == before


def test_sharing_too_late_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="was imported before"):
        share_metrics(tmp_path / "metrics")
    assert not (tmp_path / "metrics").exists()


# -- documents and examples -------------------------------------------------------------


@pytest.fixture(scope="module")
def page() -> str:
    """All metrics that are served: the controller's page and the frontends' part of theirs."""
    registry = CollectorRegistry()
    RequestMetrics(("normal", "high"), registry)
    return rendered(cluster_of(busy())) + generate_latest(registry).decode()


def documented() -> dict[str, tuple[str, set[str]]]:
    """The type and the labels by name, as in docs/reference/metrics.md; each name once."""
    text = (ROOT / "docs/reference/metrics.md").read_text()
    rows = re.findall(r"^\| `(llumctl_\w+)` \| (\w+) \| ([^|]*) \|", text, re.MULTILINE)
    found = {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}
    assert len(found) == len(rows)
    return found


def test_what_is_served_is_documented_with_its_type_and_nothing_else(page: str) -> None:
    told = documented()
    assert {name: kind for name, (kind, _) in told.items()} == declared(page)
    labels = labels_of(page)
    assert {name: told[name][1] for name in labels} == labels
    for name, (kind, _) in told.items():
        assert name.endswith("_total") == (kind == "counter"), name
    assert not set().union(*labels.values()) & {"instance", "job"}, "Prometheus sets these itself"


def test_the_dashboard_asks_for_what_there_is(page: str) -> None:
    """Checks metric names, with the suffixes of their types, and label names."""
    board = json.loads((ROOT / "examples" / "grafana" / "llumctl.json").read_text())
    targets = [target for panel in board["panels"] for target in panel.get("targets", ())]
    variables = [v["query"]["query"] for v in board["templating"]["list"] if v["type"] == "query"]
    assert targets
    assert variables
    kinds = declared(page)
    served = {name for name, kind in kinds.items() if kind != "histogram"}
    served |= {f"{name}_bucket" for name, kind in kinds.items() if kind == "histogram"}
    known_labels = set().union(*labels_of(page).values()) | {"le", "cluster"}
    for query in [target["expr"] for target in targets] + variables:
        names = re.findall(r"\bllumctl_\w+", query)
        assert names
        assert set(names) <= served, query
        counters = {name for name in names if name.endswith(("_total", "_bucket"))}
        assert set(re.findall(r"(?:rate|increase)\((\w+)", query)) == counters, query
        matchers = re.findall(r"(\w+)=~?\"", query)
        grouped = [each for by in re.findall(r"by \(([^)]*)\)", query) for each in by.split(", ")]
        assert {*matchers, *grouped} <= known_labels, query


# -- the scrape configuration -------------------------------------------------------------
