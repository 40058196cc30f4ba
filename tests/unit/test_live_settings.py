"""Which settings may be changed while the cluster runs, and the configuration that they become."""

from collections.abc import Callable
from typing import Any

import pytest

from controller.adapters.http.live_settings import live_config
from controller.api.settings.setting_values import (
    SettingError,
    changed,
    changed_for_model,
    live_settings,
)
from controller.api.settings.settings import Settings
from controller.api.wire import SettingValue
from controller.core.admission.policies import SchedulerConfig
from controller.core.settings import AutoscaleConfig, HoldingConfig, KeyLimits, ReplayConfig
from controller.runtime.controller.roster import LiveConfig

DEFAULTS = Settings()


def test_the_defaults_are_those_of_what_goes_by_them() -> None:
    """Except for late binding, which is a separate part of the configuration."""
    plus = live_config(DEFAULTS)
    assert plus.scheduler == SchedulerConfig(policy="llumnix+", holding=HoldingConfig())
    assert live_config(changed(DEFAULTS, {"scheduler.policy": "llumnix"})) == LiveConfig()
    assert plus.frontends.replay == ReplayConfig()


PARTS: dict[str, Callable[[LiveConfig], Any]] = {
    "holding": lambda found: found.scheduler.holding,
    "migration": lambda found: found.rescheduling,
    "autoscale": lambda found: found.autoscale.config,
    "replay": lambda found: found.frontends.replay,
}


def another(value: SettingValue) -> SettingValue:
    """Another value that a setting may have."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return "dry-run"
    return 1.5 if value is None else value + (1 if isinstance(value, int) else 0.25)


@pytest.mark.parametrize("table", PARTS)
def test_every_setting_of_a_table_reaches_its_part_of_the_cluster(table: str) -> None:
    known = live_settings(DEFAULTS).values()
    assert all(each.meaning and each.value == each.default for each in known)
    wanted = {e.key: another(e.value) for e in known if e.key.startswith(f"{table}.")}
    part = PARTS[table](live_config(changed(DEFAULTS, wanted)))
    assert {key: getattr(part, key.removeprefix(f"{table}.")) for key in wanted} == wanted
    assert wanted


def test_auto_scaling_waits_for_two_checks_and_as_long_as_a_start_may_take() -> None:
    started = Settings.model_validate({"cluster": {"start_timeout_s": 12.0}})
    found = live_config(changed(started, {"autoscale.check_interval_s": 8.0})).autoscale
    waits = {"first_check_after_s": 8.0, "up_persistence_s": 8.0, "down_persistence_s": 8.0}
    assert found.config == AutoscaleConfig(check_interval_s=8.0, **waits)
    assert found.start_timeout_s == 12.0


def test_other_settings_reach_what_goes_by_them() -> None:
    changes: dict[str, SettingValue] = {"scheduler.policy": "vllm-dp", "control.max_events": 3}
    changes |= {"scheduler.max_held_reqs": 7, "scheduler.status_interval_s": 0.5}
    changes |= {"limits.live_requests": 4, "limits.tokens_per_minute": 90_000}
    changes |= {"endpoint.max_live_requests": 2, "priority.high.target_load_tokens": 320}
    config = live_config(changed(DEFAULTS, changes))
    assert (config.scheduler.policy, config.scheduler.max_held_reqs) == ("vllm-dp", 7)
    assert config.scheduler.holding is None
    assert config.scheduler.key_limits == KeyLimits(4, 90_000) == config.frontends.key_limits
    assert (config.scheduler.status_interval_s, config.max_events) == (0.5, 3)
    assert config.frontends.max_live_requests == 2
    targets = {level.name: level.target_load_tokens for level in config.scheduler.levels}
    assert targets == {"normal": None, "high": 320}


def test_the_schedulers_own_times_follow_the_speed_of_emulated_engines() -> None:
    for engine, speed, times_s in (
        ("vllm", 4.0, (0.1, 10.0, 2.0, 3.0, 60.0, 0.3)),
        ("emulated", 4.0, (0.025, 2.5, 0.5, 0.75, 15.0, 0.075)),
        ("emulated", 0.5, (0.2, 20.0, 4.0, 6.0, 120.0, 0.6)),
        (
            "emulated",
            1000.0,
            (0.01, 0.01, 0.002, 0.003, 0.06, 0.0003),
        ),  # rounds have a least interval
    ):
        tables = {"cluster": {"engine": engine}, "emulated": {"speed": speed}}
        found = live_config(Settings.model_validate(tables))
        moves, holding = found.rescheduling, found.scheduler.holding
        own = (
            moves.interval_s,
            moves.not_back_s,
            moves.gain_ahead_s,
            holding.reserve_after_s,
            holding.share_doubles_s,
            holding.max_backlog_s,
        )
        assert own == pytest.approx(times_s)


def test_frontends_hash_prompts_only_for_a_policy_that_goes_by_it() -> None:
    for policy, asked in (("llumnix+", True), ("llumnix", False), ("prefix-aware", True)):
        settings = changed(DEFAULTS, {"scheduler.policy": policy})
        assert live_config(settings).frontends.hash_prefixes is asked


def test_one_setting_is_changed_and_no_other() -> None:
    value: SettingValue
    for key, value in (
        ("migration.enabled", False),
        ("migration.source_below_steps", -5.5),
        ("endpoint.request_timeout_s", None),
        ("priority.normal.target_load_tokens", 4000),
    ):
        before = changed(DEFAULTS, {"endpoint.request_timeout_s": 9.0})
        after = changed(before, {key: value})
        values, known = (
            {name: each.value for name, each in live_settings(settings).items()}
            for settings in (after, before)
        )
        assert values == known | {key: value}
        assert changed(after, {key: known[key]}) == before


def test_what_may_not_be_is_said() -> None:
    changes: dict[str, SettingValue]
    for changes, why in (
        ({"migration.max_moves": -1}, "migration.max_moves must be at least 0, not -1"),
        ({"migration.max_moves": 1025}, "migration.max_moves must be at most 1024, not 1025"),
        ({"migration.max_moves": 2.5}, "migration.max_moves must be an integer, not"),
        ({"migration.enabled": 1}, "migration.enabled must be true or false, not 1"),
        ({"autoscale.mode": "any"}, "autoscale.mode must be 'off', 'dry-run' or 'on'"),
        ({"migration.source_below_steps": float("nan")}, "source_below_steps must be a finite"),
        ({"migration.source_below_steps": 60}, "must not exceed destination_above_steps (48)"),
        ({"priority.high.target_load_tokens": -1}, "high.target_load_tokens must be at least 0"),
        ({"priority.low.target_load_tokens": 1}, "there is no setting 'priority.low.target_load"),
        ({"migration.max_move": 1}, "did you mean migration.max_moves?"),
        ({"a" * 500: 1}, "there is no setting 'aaaaaa"),
        ({"engine.seed": 1}, "engine.seed cannot be changed while"),
        ({"priority.high.rank": 1}, "priority.high.rank cannot be changed while"),
    ):
        with pytest.raises(SettingError) as raised:
            changed(DEFAULTS, {"scheduler.grace_s": 1.0, **changes})
        assert why in str(raised.value)
        assert len(str(raised.value)) < 300
        if "cannot be changed" in why:
            assert raised.value.hint == "llumctl down      then      llumctl up"


def test_a_policy_that_does_not_exist_is_refused() -> None:
    for policy, why, hint in (
        ("lumnix", "unknown dispatch policy 'lumnix': did you mean", ""),
        ("power-of-two", "'power-of-two': valid are llumnix, ", "llumctl simulate -p"),
    ):
        with pytest.raises(SettingError, match=why) as raised:
            live_config(changed(DEFAULTS, {"scheduler.policy": policy}))
        assert hint in raised.value.hint


def test_a_model_has_its_own_changes_and_the_shared_ones_of_the_first_model() -> None:
    live, moves = "endpoint.max_live_requests", "migration.max_moves"
    own, of_first = {live: 1, moves: 2}, {live: 3, moves: 4, "migration.enabled": False}
    assert changed_for_model(own, of_first) == {live: 3, moves: 2}
