"""Auto-scaling in the dashboard: its line, and its modes by key and by name."""

from typing import Any

import pytest

from controller.api.operations.on_cluster import SettingsPatch
from controller.api.settings.setting_values import changed
from controller.api.wire.status import AutoscaleCheck, AutoscaleHoldStatus, AutoscaleStatus
from controller.api.wire.stream import StatusFrame
from tests.unit.tui.tui_bed import Bed, acting
from tests.unit.tui.tui_support import drawn, presses, settle
from tools import synthetic_cluster as synthetic
from tui.drawing import ASCII, Line, Tone
from tui.panes import header
from tui.screens.dialogs import ChooseScreen

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


def text_of(line: Line) -> str:
    return "".join(span.text for span in line)


def scaling(**fields: Any) -> AutoscaleStatus:
    known: dict[str, Any] = {
        "mode": "on",
        "min_instances": 1,
        "max_instances": 16,
        "num_instances": 12,
        "num_wanted": 14,
        "last": LAST,
        "last_change": LAST,
    }
    return AutoscaleStatus(**(known | fields))


def status_with(found: AutoscaleStatus) -> StatusFrame:
    frame = list(synthetic.frames(1, num_instances=12))[-1]
    assert isinstance(frame, StatusFrame)
    return frame.model_copy(
        update={"status": frame.status.model_copy(update={"autoscale": found, "revision": 7})}
    )


async def shows(bed: Bed, found: AutoscaleStatus) -> list[str]:
    bed.source.feed([status_with(found)])
    await settle(bed.app, bed.pilot)
    return (await drawn(bed.pilot)).splitlines()


async def test_the_main_screen_has_its_state_target_and_last_decision() -> None:
    async with acting(size=(160, 40)) as bed:
        lines = await shows(bed, scaling(target_ttft_s=2.0))
        (line,) = (each for each in lines if "autoscale" in each)
        assert line.strip() == (
            "autoscale on  12 of 1..16, wanted 14  ttft 2.0s  last add 2, done 12s ago:"
            " the cluster has 85 steps, fewer than 160"
        )
        assert not any("autoscale" in each for each in await shows(bed, scaling(mode="off")))
        height = len(lines)
    async with acting(size=(80, 9)) as small:
        assert not any("autoscale" in each for each in await shows(small, scaling()))
    assert height == 40


@pytest.mark.parametrize(
    ("found", "tone", "words"),
    [
        (scaling(), Tone.PLAIN, "autoscale on  12 of 1..16"),
        (scaling(mode="dry-run"), Tone.PLAIN, "autoscale dry-run"),
        (
            scaling(held=AutoscaleHoldStatus(actor="ana", num_instances=12, since_s=1.0)),
            Tone.WARN,
            "autoscale on, held at 12",
        ),
        (
            scaling(last=LAST.model_copy(update={"outcome": "blocked"})),
            Tone.WARN,
            "autoscale on  12 of",
        ),
    ],
)
def test_what_it_cannot_do_stands_out(found: AutoscaleStatus, tone: Tone, words: str) -> None:
    status = status_with(found).status
    line = header.scaling_line(status, synthetic.START_S, 40, ASCII)
    assert [span.tone for span in line] == [tone]
    assert text_of(line).startswith(words)
    assert len(text_of(line)) <= 40


@presses("autoscale")
async def test_its_mode_is_chosen(key: str) -> None:
    async with acting() as bed:
        held = AutoscaleHoldStatus(actor="ana", num_instances=12, since_s=1.0)
        await shows(bed, scaling(mode="dry-run", held=held))
        await bed.press(key)
        assert isinstance(bed.app.screen, ChooseScreen)
        text = await drawn(bed.pilot)
        assert "off       instances come and go by hand only" in text
        assert "now, and held by an operator's scale" in text
        await bed.press("down", "down", "enter")
        wanted = SettingsPatch(changes={"autoscale.mode": "on"}, if_revision=7)
        assert bed.control.calls == [("set", "", wanted)]
        assert "scale auto on: was off" in await bed.bottom()


async def test_it_is_typed() -> None:
    async with acting() as bed:
        await bed.type("colon", "scale auto dry-run")
        assert [each.changes for _, _, each in bed.control.calls] == [{"autoscale.mode": "dry-run"}]
        await bed.type("colon", "scale auto often")
        assert "no mode 'often'" in await bed.bottom()
        assert len(bed.control.calls) == 1


async def test_a_scale_by_hand_says_that_it_wins() -> None:
    async with acting() as bed:
        bed.control.tuned = changed(bed.control.tuned, {"autoscale.mode": "on"})
        await bed.type("colon", "scale 14")
        assert "auto-scaling would leave it there, until llumctl scale auto on" in await drawn(
            bed.pilot
        )
        await bed.press("y")
        assert "auto-scaling leaves it there, until" in await bed.bottom()


async def test_not_where_the_screen_shows_no_present() -> None:
    async with acting(readonly=True) as bed:
        await shows(bed, scaling())
        await bed.press("A")
        assert "no autoscale now" in await bed.bottom()
        assert bed.control.calls == []
