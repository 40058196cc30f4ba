"""The controller's metrics: each field of the status where it belongs, and nothing else."""

import math

import pytest

from controller.adapters.prometheus import (
    FRONTEND_COUNTERS,
    FRONTEND_GAUGES,
    INSTANCE_COUNTERS,
    INSTANCE_GAUGES,
)
from controller.api.wire.status import (
    AutoscaleCheck,
    FrontendStatus,
    HeldHeadStatus,
    HeldStatus,
    InstanceState,
    InstanceStatus,
    KeptForStatus,
    KeyStatus,
    MoveStatus,
    RefusedStatus,
    ReplaysStatus,
    ReplayStatus,
    SavedStatus,
)
from controller.core.migration.move_records import OUTCOMES, MoveLog, MoveRecord, StageRecord
from controller.core.record.event_log import EventKind
from tests.unit.prometheus.prometheus_support import (
    SECRET,
    busy,
    cluster_of,
    labels_of,
    rendered,
    samples,
    value,
)

ABSENT = InstanceStatus(id="i-9", state=InstanceState.RESTARTING, incarnation=3, num_restarts=2)


@pytest.mark.parametrize("figure", INSTANCE_GAUGES, ids=lambda figure: figure.name)
def test_a_gauge_has_its_fields_value(figure: object) -> None:
    name, field, _ = figure
    instance = busy()
    got = value(rendered(cluster_of(instance)), f"llumctl_instance_{name}", instance_id="i-0")
    assert got == getattr(instance, field)
    assert got is not None


def test_counters_have_their_fields_values() -> None:
    text = rendered(cluster_of(busy()))
    assert value(text, "llumctl_instance_evictions_total", instance_id="i-0") == 5
    assert value(text, "llumctl_instance_steps_total", instance_id="i-0") == 900
    assert value(text, "llumctl_instance_busy_seconds_total", instance_id="i-0") == 27.5
    assert value(text, "llumctl_instance_restarts_total", instance_id="i-0") == 1
    assert value(text, "llumctl_frontend_restarts_total", frontend_id="f-0") == 0


def test_frontends_and_the_cluster() -> None:
    text = rendered(cluster_of(busy()))
    assert value(text, "llumctl_frontend_live_requests", frontend_id="f-0") == 19
    assert value(text, "llumctl_frontend_ttft_p99_seconds", frontend_id="f-0") == 2.5
    assert value(text, "llumctl_held_requests") == 6
    assert value(text, "llumctl_uptime_seconds") == 62
    assert value(text, "llumctl_cluster_uptime_seconds") == 6200
    about = {"name": "default", "model": 'my "model"\\1', "engine": "vllm", "policy": "llumnix"}
    assert value(text, "llumctl_cluster_info", **about) == 1


def test_auto_scaling() -> None:
    status = cluster_of(busy())
    text = rendered(status)
    assert value(text, "llumctl_autoscale_wanted_instances") == 5
    assert value(text, "llumctl_autoscale_planned_instances") == 3
    assert value(text, "llumctl_autoscale_freeness_steps") is None, "before the first look"
    states = {name: value(text, "llumctl_autoscale_state", state=name) for name in ("on", "held")}
    assert states == {"on": 0, "held": 1}
    assert value(text, "llumctl_autoscale_checks_total", reason="low_freeness") == 7
    assert value(text, "llumctl_autoscale_checks_total", reason="no_traffic") == 0
    look = AutoscaleCheck(
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
    looked = status.autoscale.model_copy(update={"last": look})
    after = rendered(status.model_copy(update={"autoscale": looked}))
    assert value(after, "llumctl_autoscale_freeness_steps") == 31.5
    assert SECRET not in after
    found = status.autoscale.model_copy(update={"held": None, "num_wanted": None})
    before = rendered(status.model_copy(update={"autoscale": found}))
    assert value(before, "llumctl_autoscale_state", state="on") == 1
    assert value(before, "llumctl_autoscale_wanted_instances") == 3, "before the first look"


def test_exactly_one_state_is_set() -> None:
    text = rendered(cluster_of(busy(), ABSENT))
    set_ones = {
        (name, *sorted(dict(labels).values()))
        for (name, labels), number in samples(text).items()
        if name.endswith("_state") and number == 1
    }
    assert set_ones == {
        ("llumctl_cluster_state", "ready"),
        ("llumctl_autoscale_state", "held"),
        ("llumctl_instance_state", "active", "i-0"),
        ("llumctl_instance_state", "i-9", "restarting"),
        ("llumctl_frontend_state", "active", "f-0"),
    }
    assert value(text, "llumctl_instance_state", instance_id="i-0", state="failed") == 0


def test_a_draining_instance_has_no_freeness() -> None:
    draining = busy(
        "i-1", state=InstanceState.DRAINING, freeness_steps=None, virtual_usage_blocks=None
    )
    text = rendered(cluster_of(busy(), draining))
    for name in ("llumctl_instance_freeness_steps", "llumctl_instance_virtual_usage_blocks"):
        assert value(text, name, instance_id="i-0") is not None
        assert value(text, name, instance_id="i-1") is None
    assert value(text, "llumctl_instance_running_requests", instance_id="i-1") == 12


def test_an_instance_without_a_report_has_only_what_the_controller_knows() -> None:
    text = rendered(cluster_of(ABSENT))
    there = {name for name, labels in samples(text) if ("instance_id", "i-9") in labels}
    assert there == {
        "llumctl_instance_state",
        "llumctl_instance_restarts_total",
        "llumctl_instance_unreported_requests",
        "llumctl_instance_replays_in_requests",
        "llumctl_instance_replays_out_requests",
    }


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
def test_nothing_is_infinite(number: float) -> None:
    sick = busy(freeness_steps=number, ttft_p99_s=number)
    text = rendered(cluster_of(sick))
    assert all(math.isfinite(each) for each in samples(text).values())
    assert value(text, "llumctl_instance_freeness_steps", instance_id="i-0") is None


def test_levels_and_queue_heads_start_at_zero() -> None:
    idle = busy(num_running_by_level={}, num_running_reqs=0, num_waiting_reqs=0, queue_head=None)
    text = rendered(cluster_of(busy(), idle.model_copy(update={"id": "i-1"})))
    by_level = "llumctl_instance_level_running_requests"
    assert value(text, by_level, instance_id="i-0", level="high") == 2
    assert value(text, by_level, instance_id="i-1", level="high") == 0
    assert value(text, "llumctl_instance_queue_head_waited_seconds", instance_id="i-0") == 1.25
    assert value(text, "llumctl_instance_queue_head_demand_blocks", instance_id="i-0") == 30
    assert value(text, "llumctl_instance_queue_head_waited_seconds", instance_id="i-1") == 0


def test_saved_requests() -> None:
    replays = ReplaysStatus(
        under_way=(
            ReplayStatus(
                request_id="req-77",
                from_instance_id="i-0",
                state="placing",
                num_tokens=5,
                pause_s=0.1,
            ),
        ),
        num_replaying=70,
        saved=(
            SavedStatus(way="moved", reason="slow", num_saved=4),
            SavedStatus(way="replayed", reason="fenced", num_saved=3),
        ),
    )
    to = busy(num_replays_in=70)
    text = rendered(cluster_of(to).model_copy(update={"replays": replays}))
    assert value(text, "llumctl_replays_in_flight_requests") == 70
    assert value(text, "llumctl_instance_replays_in_requests", instance_id="i-0") == 70
    assert value(text, "llumctl_instance_replays_out_requests", instance_id="i-0") == 0
    total = "llumctl_saved_requests_total"
    assert value(text, total, way="moved", reason="slow") == 4
    assert value(text, total, way="replayed", reason="fenced") == 3
    assert value(text, total, way="failed", reason="death") == 0
    assert value(text, total, way="moved", reason="death") is None, "the dead cannot move any"
    assert "req-77" not in text


def test_moves() -> None:
    log = MoveLog()
    stages = (StageRecord(6, 6000, 0.01), StageRecord(1, 1000, 0.002))
    for number, (outcome, code) in enumerate((("migrated", ""), ("migrated", ""), ("kept", "x"))):
        moved = MoveRecord(f"m-{number}", "r", "i-0", "i-1", "", outcome, code, 9, 0, 0.1, stages)
        log.ended(moved, 1.0, "drain" if number else "by_hand")
    log.timed("m-0", 0.004, 0.001)
    log.timed("m-1", 9.0, 8.0)
    move = MoveStatus(
        migration_id="m-3",
        request_id="req-77",
        from_instance_id="i-0",
        to_instance_id="i-1",
        state="copying",
        stage=0,
        num_blocks_copied=1,
        num_blocks=2,
        age_s=0.1,
    )
    status = cluster_of(busy()).model_copy(update={"moves": (move,)})
    text = rendered(status, moves=log)
    assert value(text, "llumctl_migrations_in_flight_requests") == 1
    total = "llumctl_migrations_ended_total"
    ended = {o: value(text, total, outcome=o, reason="drain") for o in OUTCOMES}
    assert ended == {"migrated": 1, "kept": 1, "resumed": 0, "ended": 0}
    assert value(text, total, outcome="migrated", reason="by_hand") == 1
    assert value(text, total, outcome="migrated", reason="behind_a_blocked_head") == 0
    assert value(text, "llumctl_migrations_copied_bytes_total") == 21_000
    downtime = "llumctl_migration_downtime_seconds"
    assert value(text, f"{downtime}_bucket", le="0.005") == 1
    assert value(text, f"{downtime}_bucket", le="5.0") == 1
    assert value(text, f"{downtime}_bucket", le="+Inf") == 2
    assert value(text, f"{downtime}_count") == 2
    assert value(text, f"{downtime}_sum") == 9.004
    assert "req-77" not in text


def test_every_kind_of_event_is_counted() -> None:
    text = rendered(cluster_of(), {EventKind.EVICTED: 7})
    counted = {
        dict(labels)["kind"]: number
        for (name, labels), number in samples(text).items()
        if name == "llumctl_events_total"
    }
    assert counted == dict.fromkeys(EventKind, 0) | {"evicted": 7}


def test_what_waits_at_the_controller() -> None:
    kept_for = KeptForStatus(
        request_id="req-88", level="high", demand_blocks=30, lacking_blocks=9, waited_s=4.0
    )
    head = HeldHeadStatus(
        request_id="req-88",
        frontend_id="f-0",
        level="high",
        rank=1,
        place=1,
        why="kept",
        demand_blocks=30,
        lacking_blocks=9,
        instance_id="i-1",
        waited_s=4.0,
    )
    held = HeldStatus(num_by_level={"high": 6}, demand_blocks=120, oldest_wait_s=5.5, head=head)
    status = cluster_of(busy("i-0"), busy("i-1", kept_for=kept_for))
    text = rendered(status.model_copy(update={"held": held}))
    assert value(text, "llumctl_held_requests") == 6
    assert value(text, "llumctl_held_level_requests", level="high") == 6
    assert value(text, "llumctl_held_level_requests", level="normal") == 0
    assert value(text, "llumctl_held_demand_blocks") == 120
    assert value(text, "llumctl_held_oldest_wait_seconds") == 5.5
    assert value(text, "llumctl_held_head_lacking_blocks") == 9
    assert value(text, "llumctl_instance_kept_requests", instance_id="i-0") == 0
    assert value(text, "llumctl_instance_kept_requests", instance_id="i-1") == 1
    assert "req-88" not in text
    none = rendered(status.model_copy(update={"num_held_reqs": 0}))
    for name in ("demand_blocks", "oldest_wait_seconds", "head_lacking_blocks"):
        assert value(none, f"llumctl_held_{name}") == 0


def test_no_words_and_no_requests_are_served() -> None:
    text = rendered(cluster_of(busy()))
    for word in (SECRET, "req-77", "4242", "127.0.0.1"):
        assert word not in text


def test_series_grow_with_members_only() -> None:
    per_instance = len(samples(rendered(cluster_of(busy("i-0"), busy("i-1"))))) - len(
        samples(rendered(cluster_of(busy("i-0"))))
    )
    # States, levels of which two are configured (one had a first token), queue head, kept, figures.
    figures = len(INSTANCE_GAUGES) + len(INSTANCE_COUNTERS)
    assert per_instance == len(InstanceState) + 3 * 2 + 1 + 2 + 1 + figures
    members, words = {"instance_id", "frontend_id"}, {"kind", "outcome", "reason", "way"}
    allowed = {*members, *words, "state", "level", "key"}
    infos = {"llumctl_build_info", "llumctl_cluster_info"}
    for name, labels in labels_of(rendered(cluster_of(busy()))).items():
        assert name in infos or labels <= allowed, name


def test_figures_are_fields_of_the_status() -> None:
    for model, figures in (
        (InstanceStatus, (*INSTANCE_GAUGES, *INSTANCE_COUNTERS)),
        (FrontendStatus, (*FRONTEND_GAUGES, *FRONTEND_COUNTERS)),
    ):
        names = [figure.name for figure in figures]
        assert len(set(names)) == len(names)
        assert {figure.field for figure in figures} <= set(model.model_fields)


def test_refusals_by_reason_and_level_and_what_keys_use() -> None:
    refused = RefusedStatus(
        reason="overloaded", level="normal", num_refused=7, num_refused_last_minute=2
    )
    used = KeyStatus(key="0123456789ab", num_live_reqs=3, num_tokens_last_minute=900, num_refused=4)
    status = cluster_of(busy()).model_copy(update={"refused": (refused,), "keys": (used,)})
    text = rendered(status)
    told = "llumctl_refused_requests_total"
    assert value(text, told, reason="overloaded", level="normal") == 7
    assert value(text, told, reason="overloaded", level="high") == 0
    assert value(text, told, reason="token_limit", level="normal") == 0
    assert value(text, "llumctl_key_live_requests", key="0123456789ab") == 3
    assert value(text, "llumctl_key_minute_tokens", key="0123456789ab") == 900
    assert value(text, "llumctl_key_refused_requests_total", key="0123456789ab") == 4
