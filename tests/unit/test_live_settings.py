"""Which settings may be changed while the cluster runs, and the configuration that they become."""

from fnmatch import fnmatchcase

import pytest

from controller.adapters.http.live_settings import live_config
from controller.api.settings.setting_values import LIVE, SettingError, changed, live_settings
from controller.api.settings.settings import PriorityTable, Settings
from controller.api.settings.table import kinds
from controller.api.wire import SettingValue
from controller.core.admission.policies import SchedulerConfig
from controller.core.settings import (
    AutoscaleConfig,
    HoldingConfig,
    KeyLimits,
    ReplayConfig,
    ReschedulingConfig,
)
from controller.runtime.controller.roster import LiveConfig

DEFAULTS = Settings()


def test_each_line_of_the_list_names_a_setting() -> None:
    keys = list(live_settings(DEFAULTS))
    for pattern in LIVE:
        assert any(fnmatchcase(key, pattern) for key in keys), pattern


def test_what_is_listed_is_the_tables() -> None:
    found = live_settings(DEFAULTS)
    assert {key for key in found if key.startswith("migration.")} == {
        f"migration.{field}" for field in kinds(type(DEFAULTS.migration))
    }
    assert found["migration.max_moves"].meaning.startswith(
        "How many moves to and from one instance"
    )
    assert all(each.meaning for each in found.values())
    assert all(each.value == each.default for each in found.values())
    high = found["priority.high.target_load_tokens"]
    assert (high.value, found["priority.normal.target_load_tokens"].value) == (1600, None)
    for absent in ("endpoint.port", "priority.high.rank", "cluster.model", "control.port"):
        assert absent not in found


def test_the_defaults_are_those_of_what_goes_by_them() -> None:
    """Except for late binding, which is a separate part of the configuration."""
    plus = live_config(DEFAULTS)
    assert plus.scheduler == SchedulerConfig(policy="llumnix+", holding=HoldingConfig())
    assert live_config(changed(DEFAULTS, {"scheduler.policy": "llumnix"})) == LiveConfig()


def test_every_setting_of_late_binding_reaches_it() -> None:
    values: dict[str, SettingValue] = {
        "holding.max_held_reqs": 5,
        "holding.room_to_grow_tokens": 6,
        "holding.making_room": False,
        "holding.fair_keys": False,
        "holding.reserved_share": 0.8,
    }
    assert {key for key in live_settings(DEFAULTS) if key.startswith("holding.")} == set(values)
    settings = changed(DEFAULTS, values | {"scheduler.policy": "llumnix+"})
    wanted = {key.removeprefix("holding."): value for key, value in values.items()}
    assert live_config(settings).scheduler.holding == HoldingConfig(**wanted)
    other = changed(settings, {"scheduler.policy": "llumnix"})
    assert live_config(other).scheduler.holding is None


def test_every_setting_of_moves_reaches_them() -> None:
    moves: dict[str, SettingValue] = {
        "enabled": False,
        "source_below_steps": 5.5,
        "destination_above_steps": 6.5,
        "max_moves_per_minute": 7,
    }
    limits: dict[str, SettingValue] = {"max_moves": 8, "max_bytes_per_s": 9.5}
    values = {f"migration.{key}": value for key, value in (moves | limits).items()}
    assert {key for key in live_settings(DEFAULTS) if key.startswith("migration.")} == set(values)
    found = live_config(changed(DEFAULTS, values))
    assert found.rescheduling == ReschedulingConfig(**moves, **limits)


@pytest.mark.parametrize(
    ("engine", "speed", "times_s"),
    [
        ("vllm", 4.0, (0.1, 10.0, 3.0, 60.0)),
        ("emulated", 4.0, (0.025, 2.5, 0.75, 15.0)),
        ("emulated", 0.5, (0.2, 20.0, 6.0, 120.0)),
        ("emulated", 1000.0, (0.01, 0.01, 0.003, 0.06)),  # rounds have a least interval
    ],
)
def test_the_schedulers_own_times_follow_the_speed_of_emulated_engines(
    engine: str, speed: float, times_s: tuple[float, ...]
) -> None:
    tables = {"cluster": {"engine": engine}, "emulated": {"speed": speed}}
    found = live_config(Settings.model_validate(tables))
    moves, holding = found.rescheduling, found.scheduler.holding
    assert holding is not None
    own = (
        *(moves.interval_s, moves.not_back_s),
        *(holding.reserve_after_s, holding.share_doubles_s),
    )
    assert own == pytest.approx(times_s)


def test_every_setting_of_auto_scaling_reaches_it() -> None:
    """The cluster acts on what two checks in a row found, and `cluster.start_timeout_s` counts here
    too."""
    config: dict[str, SettingValue] = {
        "min_instances": 2,
        "max_instances": 9,
        "up_below_steps": 5.5,
        "down_above_steps": 6.5,
        "target_ttft_s": 1.5,
        "target_tpot_s": 0.5,
        "check_interval_s": 8.0,
    }
    values = {f"autoscale.{key}": value for key, value in {**config, "mode": "dry-run"}.items()}
    assert {key for key in live_settings(DEFAULTS) if key.startswith("autoscale.")} == set(values)
    started = Settings.model_validate({"cluster": {"start_timeout_s": 12.0}})
    found = live_config(changed(started, values)).autoscale
    assert found.config == AutoscaleConfig(
        mode="dry-run",
        **config,
        first_check_after_s=8.0,
        up_persistence_s=8.0,
        down_persistence_s=8.0,
    )
    assert found.start_timeout_s == 12.0


@pytest.mark.parametrize(
    ("policy", "asked"), [("llumnix+", True), ("llumnix", False), ("prefix-aware", True)]
)
def test_frontends_hash_prompts_only_for_a_policy_that_goes_by_it(policy, asked) -> None:
    settings = changed(DEFAULTS, {"scheduler.policy": policy})
    assert live_config(settings).frontends.hash_prefixes is asked


def test_replays_reach_the_frontends() -> None:
    values = {"replay.max_replays": 1, "replay.max_tokens_kept": 5, "replay.patience_s": 7.5}
    assert {key for key in live_settings(DEFAULTS) if key.startswith("replay.")} == set(values)
    assert live_config(DEFAULTS).frontends.replay == ReplayConfig()
    assert live_config(changed(DEFAULTS, values)).frontends.replay == ReplayConfig(1, 5, 7.5)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("migration.enabled", False),
        ("scheduler.status_push", "begin"),
        ("migration.source_below_steps", -5.5),
        ("migration.max_moves", 0),
        ("scheduler.policy", "round-robin"),
        ("scheduler.hold_timeout_s", 3),
        ("endpoint.request_timeout_s", 7.5),
        ("replay.max_replays", 0),
        ("endpoint.request_timeout_s", None),
        ("priority.high.target_load_tokens", 320),
        ("priority.high.target_load_tokens", None),
        ("priority.normal.target_load_tokens", 4000),
    ],
)
def test_one_is_changed_and_no_other(key: str, value: SettingValue) -> None:
    before = changed(DEFAULTS, {"endpoint.request_timeout_s": 9.0})
    after = changed(before, {key: value})
    found, known = live_settings(after), live_settings(before)
    assert found[key].value == value
    assert {k: v for k, v in found.items() if k != key} == {
        k: v for k, v in known.items() if k != key
    }
    assert changed(after, {key: known[key].value}) == before


def test_each_reaches_what_the_cluster_goes_by() -> None:
    config = live_config(
        changed(
            DEFAULTS,
            {
                "migration.enabled": False,
                "migration.max_bytes_per_s": 5,
                "scheduler.policy": "vllm-dp",
                "scheduler.max_held_reqs": 7,
                "limits.live_requests": 4,
                "limits.tokens_per_minute": 90_000,
                "scheduler.status_interval_s": 0.5,
                "control.max_events": 3,
                "endpoint.max_live_requests": 2,
                "priority.high.target_load_tokens": 320,
            },
        )
    )
    assert config.rescheduling.enabled is False
    assert config.rescheduling.max_bytes_per_s == 5.0
    assert (config.scheduler.policy, config.scheduler.max_held_reqs) == ("vllm-dp", 7)
    assert config.scheduler.key_limits == KeyLimits(4, 90_000) == config.frontends.key_limits
    assert (config.scheduler.status_interval_s, config.max_events) == (0.5, 3)
    assert config.frontends.max_live_requests == 2
    assert {level.name: level.target_load_tokens for level in config.scheduler.levels} == {
        "normal": None,
        "high": 320,
    }


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"migration.max_moves": -1}, "migration.max_moves must be at least 0, not -1"),
        ({"migration.max_moves": 2.5}, "migration.max_moves must be an integer, not"),
        ({"migration.max_moves": True}, "migration.max_moves must be an integer, not"),
        ({"migration.max_moves": None}, "migration.max_moves must be an integer, not"),
        ({"migration.enabled": 1}, "migration.enabled must be true or false, not 1"),
        ({"autoscale.mode": "any"}, "autoscale.mode must be 'off', 'dry-run' or 'on'"),
        (
            {"migration.source_below_steps": float("nan")},
            "source_below_steps must be a finite",
        ),
        (
            {"migration.source_below_steps": 60},
            "migration: source_below_steps (60) must not exceed destination_above_steps (48)",
        ),
        (
            {"priority.high.target_load_tokens": -1},
            "high.target_load_tokens must be at least 0",
        ),
        ({"priority.low.target_load_tokens": 1}, "there is no setting 'priority.low.target_load"),
        ({"migration.max_move": 1}, "did you mean migration.max_moves?"),
        ({"": 1}, "there is no setting ''"),
        ({"migration": 1}, "there is no setting 'migration'"),
        ({"a" * 500: 1}, "there is no setting 'aaaaaa"),
    ],
)
def test_what_may_not_be_is_said(changes: dict[str, SettingValue], why: str) -> None:
    with pytest.raises(SettingError) as raised:
        changed(DEFAULTS, {"scheduler.grace_s": 1.0, **changes})
    assert why in str(raised.value)
    assert len(str(raised.value)) < 300


@pytest.mark.parametrize(
    "key", ["cluster.model", "endpoint.port", "priority.high.rank", "engine.seed", "emulated.speed"]
)
def test_what_takes_a_restart_is_named(key: str) -> None:
    with pytest.raises(SettingError, match=f"{key} cannot be changed while") as raised:
        changed(DEFAULTS, {key: "x"})
    assert raised.value.hint == "llumctl down      then      llumctl up"


def test_levels_of_ones_own() -> None:
    levels = (*DEFAULTS.priority, PriorityTable(name="batch", rank=-1, target_load_tokens=5))
    after = changed(
        DEFAULTS.model_copy(update={"priority": levels}), {"priority.batch.target_load_tokens": 9}
    )
    found = live_settings(after)["priority.batch.target_load_tokens"]
    assert (found.value, found.default) == (9, None)


def test_a_policy_that_there_is_not() -> None:
    with pytest.raises(SettingError, match="unknown dispatch policy 'lumnix': did you mean"):
        live_config(changed(DEFAULTS, {"scheduler.policy": "lumnix"}))


def test_a_policy_of_the_simulator_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(SettingError, match="'power-of-two': valid are llumnix, ") as raised:
        live_config(changed(DEFAULTS, {"scheduler.policy": "power-of-two"}))
    assert "llumctl simulate -p" in raised.value.hint
