"""The tuning screen: which settings it shows, and which call a new value makes."""

from pathlib import Path
from typing import Any

import pytest

from controller.api.errors import ConflictError
from controller.api.operations.on_cluster import InstanceRole, SetSettings, Setting, SettingsPatch
from controller.api.wire.status import AutoscaleCheck, AutoscaleHoldStatus, AutoscaleStatus
from tests.unit.tui.tui_support import NARROW, Bed, acting, presses, replaying, text_of
from tools import synthetic_cluster as synthetic
from tui.drawing import ASCII, Tone
from tui.panes import header
from tui.screens import tuning
from tui.screens.tuning import EditScreen, TuningScreen

LOW = "migration.source_below_steps"
MOVES = "migration.max_moves"


@presses("tune", "tune")
@presses("setting_edit", "edit")
async def test_a_threshold_is_changed_after_its_preview_was_shown(tune: str, edit: str) -> None:
    async with acting(NARROW) as bed:
        bed.control.roles = (
            InstanceRole(instance_id="i-3", freeness_steps=40.0, now="neither", then="source"),
            InstanceRole(instance_id="i-5", freeness_steps=9.0, now="destination", then="neither"),
        )
        await bed.press(tune)
        await bed.type("slash", LOW)
        await bed.sees(f" {LOW} = 48  (the default)", " allowed: a number")
        await bed.press(edit)
        await bed.type("", "40")
        await bed.sees(
            f"Set {LOW}=40?",
            f"{LOW}: 48 -> 40",
            "sources: i-3 (40, new)",
            "destinations: none; no more: i-5",
        )
        assert bed.control.calls == []
        await bed.tick()
        await bed.press("y")
        order = SettingsPatch(changes={LOW: 40}, if_revision=7)
        assert bed.control.calls == [("set", "", order)]
        await bed.tick()
        await bed.sees(f"set {LOW}=40: was 48  (U takes it back)", f" {LOW} = 40  (set since;")
        await bed.press("L", "y")
        assert bed.app.clipboard == f"llumctl set {LOW}=40"


async def test_a_value_that_cannot_be_is_said_and_can_be_typed_again(bed: Bed) -> None:
    await bed.press("t")
    await bed.type("slash", "migration.max_bytes_per_s")
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
    await bed.press("escape", "enter")
    assert "no set now: what the screen shows is 9.0s old" in await bed.bottom()
    assert isinstance(bed.app.screen, TuningScreen)
    assert bed.control.calls == []


async def test_settings_are_typed_and_a_recording_has_none(tmp_path: Path) -> None:
    async with acting() as bed:
        await bed.type("colon", f"set {MOVES}=")
        assert f"'{MOVES}' has no value" in await bed.bottom()
        await bed.type("colon", f"set {MOVES}=2")
        bed.control.failing = {"set": ConflictError("the cluster was changed meanwhile")}
        await bed.press("y")
        assert f"set {MOVES}=2: the cluster was changed meanwhile" in await bed.bottom()
        await bed.type("colon", "tune")
        await bed.press("s", "j", "enter")
        assert "sort:changed" in await bed.shown()
    async with replaying(tmp_path, 3) as replay:
        await replay.press("t")
        assert "a recording has no settings" in await replay.shown()


def test_settings_are_ordered_by_their_place_or_by_change() -> None:
    found = [Setting(key=name, value=number, default=0) for number, name in enumerate("abc")]
    for sort, descending, keys in (
        ("table", True, "cba"),
        ("changed", True, "bca"),
        ("changed", False, "abc"),
    ):
        ordered = tuning.ordered(found, sort, descending=descending)
        assert "".join(each.id for each in ordered) == keys
    assert SetSettings.to(["a.b=x y", "c=2"]).command == "llumctl set 'a.b=x y' c=2"


# Auto-scaling: its line, and its modes by key and by name

LAST = AutoscaleCheck(
    cause_id="autoscale-a-7",
    time_s=synthetic.START_S - 12,
    reason="low_freeness",
    why="the cluster has 85 steps, fewer than 160",
    deed="add 2",
    outcome="done",
    num_wanted=14,
    num_requests=90,
    freeness_steps=85.0,
    freeness_started_steps=85.0,
)
BLOCKED = LAST.model_copy(update={"outcome": "blocked"})
HELD = AutoscaleHoldStatus(actor="ana", num_instances=12, since_s=1.0)


def scaling(mode: str = "on", last: AutoscaleCheck = LAST, **fields: Any) -> AutoscaleStatus:
    known: dict[str, Any] = {"mode": mode, "last": last, "last_change": LAST}
    known |= {"min_instances": 1, "max_instances": 16, "num_instances": 12, "num_wanted": 14}
    return AutoscaleStatus(**known, **fields)


@pytest.mark.parametrize(
    ("found", "tone", "words"),
    [
        (
            scaling(target_ttft_s=2.0),
            Tone.PLAIN,
            "autoscale on  12 of 1..16, wanted 14  ttft 2.0s  last add 2, done 12s ago:"
            " the cluster has 85 steps, fewer than 160",
        ),
        (scaling(held=HELD), Tone.WARN, "autoscale on, held at 12"),
        (scaling(last=BLOCKED), Tone.WARN, "autoscale on  12 of"),
    ],
)
def test_its_line_has_its_state_and_last_decision(
    found: AutoscaleStatus, tone: Tone, words: str
) -> None:
    status = synthetic.cluster(()).model_copy(update={"autoscale": found})
    for width in (160, 40):
        line = header.scaling_line(status, synthetic.START_S, width, ASCII)
        assert [span.tone for span in line] == [tone]
        assert text_of(line).startswith(words[: width - 1])
        assert len(text_of(line)) <= width


@presses("autoscale")
async def test_its_line_is_shown_while_it_is_on_and_its_mode_is_chosen(key: str) -> None:
    async with acting((160, 40)) as bed:
        assert "autoscale" not in await bed.shown()
        await bed.tick({"autoscale": scaling("dry-run", held=HELD)})
        assert "autoscale dry-run" in await bed.shown()
        await bed.press(key)
        await bed.sees(
            "off       instances come and go by hand only", "now, and held by an operator's scale"
        )
        await bed.press("down", "down", "enter")
        wanted = SettingsPatch(changes={"autoscale.mode": "on"}, if_revision=7)
        assert bed.control.calls == [("autoscale", "", wanted)]
        assert "scale auto on: was off" in await bed.bottom()
        await bed.resize(80, 9)
        bed.app.session.message.clear()
        assert "autoscale" not in await bed.shown()


async def test_it_is_typed_and_a_scale_by_hand_says_that_it_wins(bed: Bed) -> None:
    await bed.type("colon", "scale auto on")
    assert [each.changes for _, _, each in bed.control.calls] == [{"autoscale.mode": "on"}]
    await bed.type("colon", "scale auto often")
    assert "no mode 'often'" in await bed.bottom()
    assert len(bed.control.calls) == 1
    await bed.type("colon", "scale 14")
    words = "auto-scaling would leave it there, until llumctl scale auto on"
    assert words in await bed.shown()
    await bed.press("y")
    assert "auto-scaling leaves it there, until" in await bed.bottom()
