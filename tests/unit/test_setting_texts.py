"""Settings in words: which values they may have, and what a change would do."""

from controller.api.operations.on_cluster import (
    InstanceRole,
    Role,
    SettingChanges,
    assignments,
    preview,
)
from controller.api.settings.setting_values import changed, live_settings, value_of
from controller.api.settings.settings import Settings
from controller.api.text.quantities import setting_value
from controller.api.wire import SettingValue

ROLES: tuple[tuple[str, float | None, Role, Role], ...] = (
    ("i-0", 86.0, "neither", "source"),
    ("i-1", -81.4, "source", "source"),
    ("i-2", 160.0, "destination", "neither"),
    ("i-3", 900.0, "destination", "destination"),
    ("i-4", 950.0, "destination", "destination"),
    ("i-5", None, "source", "source"),
)


def changes(*roles: tuple[str, float | None, Role, Role]) -> SettingChanges:
    found = tuple(
        InstanceRole(instance_id=name, freeness_steps=steps, now=now, then=then)
        for name, steps, now, then in roles
    )
    return SettingChanges(dry_run=True, changes=(), roles=found)


def test_which_values_a_setting_may_have() -> None:
    allowed = {
        "migration.enabled": "true, false",
        "autoscale.mode": "off, dry-run, on",
        "migration.max_moves": "0 to 1024",
        "migration.source_below_steps": "a number",
        "control.max_events": "1 to 1000000",
        "endpoint.request_timeout_s": "more than 0, none",
        "priority.high.target_load_tokens": "0 or more, none",
    }
    settings = live_settings(Settings())
    assert {key: settings[key].allowed for key in allowed} == allowed


def test_every_default_can_be_typed_as_it_is_shown() -> None:
    settings = Settings()
    for each in live_settings(settings).values():
        value = value_of(each.key, setting_value(each.value))
        assert changed(settings, {each.key: value}) == settings, each.key
    assert assignments({"a.b": 2.0, "c.d": None}.items()) == "a.b=2 c.d=none"


def test_a_text_means_what_its_setting_takes() -> None:
    meant: dict[tuple[str, str], SettingValue] = {
        ("holding.making_room", "off"): False,
        ("holding.making_room", "on"): True,
        ("migration.enabled", "false"): False,
        ("migration.enabled", "True"): True,
        ("migration.enabled", "never"): "never",
        ("autoscale.mode", "off"): "off",
        ("scheduler.policy", "7"): "7",
        ("migration.max_moves", "8"): 8,
        ("migration.max_moves", "2.5"): 2.5,
        ("endpoint.request_timeout_s", "none"): None,
        ("endpoint.request_timeout_s", "2.5"): 2.5,
        ("priority.high.target_load_tokens", "800"): 800,
        ("of.a.later.version", "true"): True,
        ("unknown", "7"): 7,
    }
    found = {of: value_of(*of) for of in meant}
    assert found == meant
    assert [type(value) for value in found.values()] == [type(value) for value in meant.values()]


def test_what_changes_is_named_first() -> None:
    assert preview(changes(*ROLES)) == [
        "sources: i-0 (86, new), i-5 (draining), i-1 (-81)",
        "destinations: i-4 (950), i-3 (900); no more: i-2",
    ]


def test_few_words_where_nothing_changes_or_nobody_is_left() -> None:
    assert preview(changes()) == []
    (words,) = preview(changes(ROLES[1], ROLES[3]))
    assert words.startswith("no instance becomes a source")
    nobody = ["sources: none; no more: i-1", "destinations: none"]
    assert preview(changes(("i-1", -81.0, "source", "neither"))) == nobody
    many = [(f"i-{n}", float(n), "neither", "source") for n in range(20)]
    assert preview(changes(*many))[0].endswith("i-11 (11, new) and 8 more")
