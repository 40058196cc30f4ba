"""The controller's metrics: each field of the status where it belongs, and nothing else."""

import math

from controller.adapters.prometheus import (
    FRONTEND_COUNTERS,
    FRONTEND_GAUGES,
    INSTANCE_COUNTERS,
    INSTANCE_GAUGES,
)
from controller.api.wire.status import (
    AutoscaleCheck,
    InstanceState,
    InstanceStatus,
    KeyStatus,
    RefusedStatus,
    SavedStatus,
)
from controller.core.migration.move_records import MoveLog, MoveRecord, StageRecord
from controller.core.record.event_log import EventKind
from tests.unit.prometheus.prometheus_support import (
    SECRET,
    busy,
    cluster_of,
    rendered,
    samples,
    value,
)
from tools import synthetic_cluster as synthetic

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
        "refused": (refused,),
        "keys": (key,),
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
    for name in ("demand_blocks", "oldest_wait_seconds", "head_lacking_blocks"):
        assert value(text, f"llumctl_held_{name}") == 0
    assert value(text, "llumctl_held_level_requests", level="normal") == 0


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
