"""Every key of a replay."""

from pathlib import Path

import pytest

from controller.api.wire.requests import Event
from controller.api.wire.stream import EventFrame, Frame
from tests.unit.tui.tui_support import NARROW, Replay, keys_of, presses, replaying
from tools import synthetic_cluster as synthetic
from tui.screens.dashboard import DashboardScreen


def eventful() -> list[Frame]:
    """Routine frames, with a death at 20 s, a recovery at 30 s and another death at 40 s."""
    frames: list[Frame] = list(synthetic.frames(60, events_per_s=0))
    for second, kind in ((20, "instance_died"), (30, "instance_recovered"), (40, "instance_died")):
        at_s = synthetic.START_S + second + 0.25
        event = Event(kind=kind, time_s=at_s, cause_id="x", instance_id="i-3", reason="lost")
        frames.append(EventFrame(time_s=at_s, event=event))
    return sorted((each for each in frames if each.type != "gap"), key=lambda each: each.time_s)


def key_of(name: str) -> str:
    (key,) = keys_of(f"replay_{name}")
    return key


BACK, ON, START, END = map(key_of, ("back", "on", "start", "end"))
FAR_BACK, FAR_ON, SLOWER, FASTER = map(key_of, ("back_far", "on_far", "slower", "faster"))
TROUBLE, TROUBLE_BEFORE = map(key_of, ("trouble", "trouble_before"))
NOTABLE, NOTABLE_BEFORE = map(key_of, ("notable", "notable_before"))


async def pressed(replay: Replay, *keys: str, wait_s: float = 0.0) -> str:
    """The bar at the top after these keys and this time."""
    await replay.press(*keys)
    await replay.wait(wait_s)
    return (await replay.lines())[0]


async def test_keys_go_to_other_moments(tmp_path: Path) -> None:
    async with replaying(tmp_path, 90, NARROW, at_s=72.5) as replay:
        for keys, bar in (
            ([BACK], "1m02s of 1m29s  x1"),
            ([FAR_BACK], "2.5s of 1m29s  x1"),
            ([FAR_BACK], "0.0s of 1m29s  x1"),
            ([ON], "10s of 1m29s  x1"),
            ([FAR_ON], "1m10s of 1m29s  x1"),
            (["space", ON], "1m20s of 1m29s  paused"),
            (["space", ON, ON], "1m29s of 1m29s  ended  < start  Left 10 s back  q leave"),
            ([START], "0.0s of 1m29s  x1"),
            ([END], "1m29s of 1m29s  ended"),
            ([BACK], "1m19s of 1m29s  x1"),
        ):
            assert bar in await pressed(replay, *keys), keys
        assert "12:01:19" in await replay.shown()
        assert replay.status.time_s - synthetic.START_S == 79
        assert "1m20s of 1m29s" in await pressed(replay, wait_s=1), "it goes on from there"


async def test_keys_pause_and_change_the_speed(tmp_path: Path) -> None:
    async with replaying(tmp_path, 30) as replay:
        for keys, wait_s, bar in (
            ([], 5, "5.0s of 29s  x1"),
            (["space"], 5, "5.0s of 29s  paused"),
            (["space"], 2, "7.0s of 29s  x1"),
            ([FASTER, FASTER], 2, "15s of 29s  x4"),
            ([SLOWER] * 9, 8, "16s of 29s  x0.125"),
            ([FASTER] * 12, 0, "16s of 29s  x64"),
        ):
            assert bar in await pressed(replay, *keys, wait_s=wait_s), keys


@presses("replay_step", "on")
@presses("replay_step_back", "back")
async def test_a_frame_on_and_back(tmp_path: Path, on: str, back: str) -> None:
    frames = list(synthetic.frames(30))
    times_s = [each.time_s - synthetic.START_S for each in frames if each.type != "ping"]
    before, behind = [t for t in times_s if t < 10], [t for t in times_s if t > 10]
    async with replaying(tmp_path, frames, at_s=10) as replay:
        for keys, heard_at_s in (
            ([on], behind[0]),
            ([on, on], behind[2]),
            ([back] * 4, before[-1]),
        ):
            assert "paused" in await pressed(replay, *keys, wait_s=5)
            assert replay.heard_at_s == pytest.approx(heard_at_s)
        await replay.pilot.press(*[back] * 200)
        assert replay.heard_at_s == 0


async def test_keys_go_to_trouble_and_notable_events(tmp_path: Path) -> None:
    async with replaying(tmp_path, eventful()) as replay:
        for keys, bar, bottom in (
            ([TROUBLE], "20s of 59s  paused", "12:00:20 instance died i-3  lost"),
            ([TROUBLE], "40s of 59s  paused", "12:00:40 instance died i-3  lost"),
            ([TROUBLE], "40s of 59s  paused", "no trouble after 40s"),
            ([NOTABLE_BEFORE], "30s of 59s  paused", "12:00:30 instance recovered i-3"),
            ([NOTABLE], "40s of 59s  paused", "12:00:40 instance died i-3  lost"),
            ([TROUBLE_BEFORE], "20s of 59s  paused", "12:00:20 instance died i-3  lost"),
            ([NOTABLE], "30s of 59s  paused", "12:00:30 instance recovered i-3"),
            ([TROUBLE_BEFORE] * 2, "20s of 59s  paused", "no trouble before 20s"),
            ([NOTABLE_BEFORE], "20s of 59s  paused", "no notable event before 20s"),
        ):
            assert bar in await pressed(replay, *keys), keys
            assert bottom in await replay.bottom()
        assert replay.app.session.state.entries[-1].event.kind == "instance_died"
        assert "25s of 59s  x1" in await pressed(replay, "space", wait_s=5)


@presses("seek")
@pytest.mark.parametrize("opened", ["instance i-3", "requests {request}"])
async def test_they_work_on_the_screens_behind_too(tmp_path: Path, opened: str, key: str) -> None:
    async with replaying(tmp_path, eventful()) as replay:
        heads = [each.queue_head for each in replay.status.instances if each.queue_head]
        replay.app.run_command(opened.format(request=heads[0].request_id))
        await replay.settle()
        behind = replay.app.screen
        assert not isinstance(behind, DashboardScreen)
        for keys, bar in (
            ([TROUBLE], "20s of 59s  paused"),
            ([ON], "30s of 59s  paused"),
            ([END], "59s of 59s  ended"),
            ([START], "0.0s of 59s"),
            (["full_stop"], "1.0s of 59s  paused"),
            ([FASTER, "space"], "x2"),
            ([key, *"12:00:40", "enter"], "40s of 59s"),
            ([key, *"+5s", "enter"], "45s of 59s"),
            ([key, *"later", "enter"], "45s of 59s"),
        ):
            assert bar in await pressed(replay, *keys), keys
        assert "'later' is no moment" in await replay.bottom()
        assert replay.app.screen is behind
