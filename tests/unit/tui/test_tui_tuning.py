"""The tuning screen: which settings it shows, and which call a new value makes."""

from pathlib import Path

import pytest

from controller.api.errors import AnswerLostError, ConflictError
from controller.api.operations.on_cluster import InstanceRole, SetSettings, Setting, SettingsPatch
from tests.unit.tui.tui_support import NARROW, Bed, acting, presses, replaying
from tui.screens import tuning
from tui.screens.dialogs import ConfirmScreen
from tui.screens.tuning import EditScreen, TuningScreen

LOW = "migration.source_below_steps"
MOVES = "migration.max_moves"


async def row(bed: Bed, key: str) -> None:
    """Opens the screen of the settings, with the cursor on this one."""
    await bed.press("t")
    assert isinstance(bed.app.screen, TuningScreen)
    await bed.type("slash", key)


@presses("setting_edit")
async def test_a_threshold_is_changed_after_its_preview_was_shown(key: str) -> None:
    async with acting(NARROW) as bed:
        bed.control.roles = (
            InstanceRole(instance_id="i-3", freeness_steps=40.0, now="neither", then="source"),
            InstanceRole(instance_id="i-5", freeness_steps=9.0, now="destination", then="neither"),
        )
        await row(bed, LOW)
        text = await bed.shown()
        assert f" {LOW} = 48  (the default)" in text
        assert " allowed: a number" in text
        assert "Requests are moved away from instances whose freeness is lower." in text
        await bed.press(key)
        await bed.type("", "40")
        text = await bed.shown()
        assert f"Set {LOW}=40?" in text
        assert f"{LOW}: 48 -> 40" in text
        assert "sources: i-3 (40, new)" in text
        assert "destinations: none; no more: i-5" in text
        assert bed.control.calls == []
        await bed.tick()
        await bed.press("y")
        order = SettingsPatch(changes={LOW: 40}, if_revision=7)
        assert bed.control.calls == [("set", "", order)]
        assert f"set {LOW}=40: was 48  (U takes it back)" in await bed.bottom()
        await bed.tick()
        assert f" {LOW} = 40  (set since; default 48)" in await bed.shown()
        await bed.press("L", "y")
        assert bed.app.clipboard == f"llumctl set {LOW}=40"


async def test_a_value_that_cannot_be_is_said_and_can_be_typed_again() -> None:
    async with acting() as bed:
        await row(bed, "migration.max_bytes_per_s")
        await bed.press("enter")
        assert isinstance(bed.app.screen, EditScreen)
        for text, words in (
            ("many", "migration.max_bytes_per_s must be a number, not 'many'"),
            ("0", "it has this value already"),
            ("  ", "type a value"),
        ):
            await bed.type("", text)
            assert words in await bed.shown()
        bed.caller.held = True
        await bed.type("", "5")
        assert "asking what it would do" in await bed.shown()
        await bed.press("enter", "escape")
        bed.caller.release()
        await bed.settle()
        await bed.press("enter")
        await bed.wait(9)
        await bed.type("", "5")
        assert "not now: what the screen shows is 9.0s old" in await bed.shown()
        await bed.press("escape")
        assert isinstance(bed.app.screen, TuningScreen)
        await bed.press("enter")
        assert "no set now: what the screen shows is 9.0s old" in await bed.bottom()
        bed.app.session.message.clear()
        await bed.type("colon", f"set {MOVES}=2")
        assert "no set now: what the screen shows is 9.0s old" in await bed.bottom()
        assert bed.control.calls == []


@presses("tune")
async def test_the_setting_is_that_under_the_cursor_when_the_key_was_pressed(key: str) -> None:
    """That holds even if another operator changes a setting and rows change places; nothing is done
    then, as the revision is another one."""
    async with acting() as bed:
        await bed.press(key)
        await bed.type("slash", "migration.max")
        await bed.press("s", "j", "enter")
        assert "sort:changed" in await bed.shown()
        await bed.press("enter")
        assert isinstance(bed.app.screen, EditScreen)
        wanted = bed.app.screen.setting.key
        bed.control.send(SetSettings(SettingsPatch(changes={MOVES: 2})), key="another")
        bed.control.calls.clear()
        await bed.tick()
        await bed.type("", "7")
        assert f"Set {wanted}=7?" in await bed.shown()
        bed.control.failing = {"set": ConflictError("the cluster was changed meanwhile")}
        await bed.press("y")
        order = SettingsPatch(changes={wanted: 7}, if_revision=8)
        assert bed.control.calls == [("set", "", order)]
        assert f"set {wanted}=7: the cluster was changed meanwhile" in await bed.bottom()


async def test_typed_and_without_an_answer_it_is_not_sent_again(tmp_path: Path) -> None:
    async with acting() as bed:
        await bed.type("colon", f"set {MOVES}=")
        assert f"'{MOVES}' has no value" in await bed.bottom()
        await bed.type("colon", f"set {MOVES}=2")
        assert isinstance(bed.app.screen, ConfirmScreen)
        bed.control.failing = {"set": AnswerLostError("did not answer within 5 s")}
        await bed.press("y")
        assert f"set {MOVES}=2: outcome unknown" in await bed.bottom()
        await bed.tick()
        await bed.tick()
        assert len(bed.control.calls) == 1
        await bed.type("colon", "tune")
        assert isinstance(bed.app.screen, TuningScreen)
    async with replaying(tmp_path, 3) as replay:
        await replay.press("t")
        assert "a recording has no settings" in await replay.shown()


@pytest.mark.parametrize(
    ("sort", "descending", "keys"),
    [
        ("table", False, "abc"),
        ("table", True, "cba"),
        ("changed", True, "bca"),
        ("changed", False, "abc"),
    ],
)
def test_settings_are_ordered_by_their_place_or_by_change(
    sort: str, descending: bool, keys: str
) -> None:
    found = [Setting(key=name, value=number, default=0) for number, name in enumerate("abc")]
    assert "".join(each.id for each in tuning.ordered(found, sort, descending=descending)) == keys


def test_the_command_is_what_a_shell_takes() -> None:
    assert SetSettings.to(["a.b=x y", "c=2"]).command == "llumctl set 'a.b=x y' c=2"
