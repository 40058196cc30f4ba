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


def test_every_default_can_be_typed_as_it_is_shown() -> None:
    settings = Settings()
    for each in live_settings(settings).values():
        value = value_of(each.key, setting_value(each.value))
        assert changed(settings, {each.key: value}) == settings, each.key
    assert assignments({"a.b": 2.0, "c.d": None}.items()) == "a.b=2 c.d=none"


def test_a_text_means_what_its_setting_takes() -> None:
    meant: dict[tuple[str, str], SettingValue] = {
        ("holding.making_room", "on"): True,
        ("migration.enabled", "false"): False,
        ("migration.enabled", "True"): True,
        ("migration.enabled", "never"): "never",
        ("autoscale.mode", "off"): "off",
        ("scheduler.policy", "7"): "7",
        ("migration.max_moves", "2.5"): 2.5,
        ("endpoint.request_timeout_s", "none"): None,
        ("priority.high.target_load_tokens", "800"): 800,
        ("of.a.later.version", "true"): True,
    }
    found = {of: value_of(*of) for of in meant}
    assert found == meant
    assert [type(value) for value in found.values()] == [type(value) for value in meant.values()]


def previewed(*roles: tuple[str, float | None, Role, Role]) -> list[str]:
    found = tuple(
        InstanceRole(instance_id=name, freeness_steps=steps, now=now, then=then)
        for name, steps, now, then in roles
    )
    return preview(SettingChanges(dry_run=True, changes=(), roles=found))


def test_what_changes_is_named_first_with_few_words_where_nothing_does() -> None:
    assert previewed(*ROLES) == [
        "sources: i-0 (86, new), i-5 (draining), i-1 (-81)",
        "destinations: i-4 (950), i-3 (900); no more: i-2",
    ]
    assert previewed() == []
    (words,) = previewed(ROLES[1], ROLES[3])
    assert words.startswith("no instance becomes a source")
    nobody = ["sources: none; no more: i-1", "destinations: none"]
    assert previewed(("i-1", -81.0, "source", "neither")) == nobody
