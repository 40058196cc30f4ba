"""Auto-scaling in the dashboard: its line, and its modes by key and by name."""

from typing import Any

import pytest

from controller.api.operations.on_cluster import SettingsPatch
from controller.api.settings.setting_values import changed
from controller.api.wire.status import AutoscaleCheck, AutoscaleHoldStatus, AutoscaleStatus
from tests.unit.tui.tui_support import acting, presses, text_of
from tools import synthetic_cluster as synthetic
from tui.drawing import ASCII, Tone
from tui.panes import header

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
HELD = AutoscaleHoldStatus(actor="ana", num_instances=12, since_s=1.0)


def scaling(mode: str = "on", last: AutoscaleCheck = LAST, **fields: Any) -> AutoscaleStatus:
    return AutoscaleStatus(
        mode=mode,
        min_instances=1,
        max_instances=16,
        num_instances=12,
        num_wanted=14,
        last=last,
        last_change=LAST,
        **fields,
    )


@pytest.mark.parametrize(
    ("found", "tone", "words"),
    [
        (
            scaling(target_ttft_s=2.0),
            Tone.PLAIN,
            "autoscale on  12 of 1..16, wanted 14  ttft 2.0s  last add 2, done 12s ago:"
            " the cluster has 85 steps, fewer than 160",
        ),
        (scaling("dry-run"), Tone.PLAIN, "autoscale dry-run"),
        (scaling(held=HELD), Tone.WARN, "autoscale on, held at 12"),
        (
            scaling(last=LAST.model_copy(update={"outcome": "blocked"})),
            Tone.WARN,
            "autoscale on  12 of",
        ),
    ],
)
def test_its_line_has_its_state_and_last_decision(
    found: AutoscaleStatus, tone: Tone, words: str
) -> None:
    status = synthetic.cluster(()).model_copy(update={"autoscale": found})
    for width in (160, 40):
        line = header.scaling_line(status, synthetic.START_S, width, ASCII)
        assert [span.tone for span in line] == [tone]
        assert text_of(line).startswith(words[:width])
        assert len(text_of(line)) <= width


@presses("autoscale")
async def test_its_line_is_shown_while_it_is_on_and_its_mode_is_chosen(key: str) -> None:
    async with acting((160, 40)) as bed:
        assert "autoscale" not in await bed.shown()
        await bed.tick({"autoscale": scaling("dry-run", held=HELD)})
        assert "autoscale dry-run" in await bed.shown()
        await bed.press(key)
        assert "off       instances come and go by hand only" in await bed.shown()
        assert "now, and held by an operator's scale" in await bed.shown()
        await bed.press("down", "down", "enter")
        wanted = SettingsPatch(changes={"autoscale.mode": "on"}, if_revision=7)
        assert bed.control.calls == [("autoscale", "", wanted)]
        assert "scale auto on: was off" in await bed.bottom()
        await bed.resize(80, 9)
        bed.app.session.message.clear()
        assert "autoscale" not in await bed.shown()


async def test_it_is_typed_and_a_scale_by_hand_says_that_it_wins() -> None:
    async with acting() as bed:
        await bed.type("colon", "scale auto dry-run")
        assert [each.changes for _, _, each in bed.control.calls] == [{"autoscale.mode": "dry-run"}]
        await bed.type("colon", "scale auto often")
        assert "no mode 'often'" in await bed.bottom()
        assert len(bed.control.calls) == 1
        bed.control.tuned = changed(bed.control.tuned, {"autoscale.mode": "on"})
        await bed.type("colon", "scale 14")
        words = "auto-scaling would leave it there, until llumctl scale auto on"
        assert words in await bed.shown()
        await bed.press("y")
        assert "auto-scaling leaves it there, until" in await bed.bottom()
