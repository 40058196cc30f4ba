"""Every key of a replay."""

from pathlib import Path

import pytest

from controller.api.wire.requests import Event
from controller.api.wire.stream import EventFrame, Frame
from tests.unit.tui.tui_support import NARROW, drawn, presses, replaying, settle
from tools import synthetic_cluster as synthetic
from tui.screens.dashboard import DashboardScreen


@presses("replay_back")
async def test_ten_seconds_back(tmp_path: Path, key: str) -> None:
    async with replaying(tmp_path, synthetic.frames(60), at_s=42.5) as (app, pilot, clock):
        await pilot.press(key)
        assert "32s of 59s  x1" in await drawn(pilot)
        assert "12:00:32" in await drawn(pilot)
        assert app.session.state.time_s - synthetic.START_S == pytest.approx(32.5, abs=0.5)
        clock.now_s += 1
        await settle(app, pilot)
        assert "33s of 59s  x1" in await drawn(pilot), "it goes on from there"
        await pilot.press(*[key] * 9)
        assert "0.0s of 59s" in await drawn(pilot)


@presses("replay_on")
async def test_ten_seconds_on(tmp_path: Path, key: str) -> None:
    async with replaying(tmp_path, synthetic.frames(60), at_s=12.5) as (_, pilot, _clock):
        await pilot.press("space", key)
        assert "22s of 59s  paused" in await drawn(pilot)


@presses("replay_back_far")
async def test_a_minute_back(tmp_path: Path, key: str) -> None:
    async with replaying(tmp_path, synthetic.frames(90), at_s=72.5) as (_, pilot, _clock):
        await pilot.press(key)
        assert "12s of 1m29s" in await drawn(pilot)


@presses("replay_on_far")
async def test_a_minute_on(tmp_path: Path, key: str) -> None:
    async with replaying(tmp_path, synthetic.frames(90), at_s=10) as (_, pilot, _clock):
        await pilot.press(key)
        assert "1m10s of 1m29s" in await drawn(pilot)


@presses("replay_start")
async def test_from_the_end_to_the_start(tmp_path: Path, key: str) -> None:
    async with replaying(tmp_path, synthetic.frames(60), at_s=90) as (app, pilot, clock):
        assert "59s of 59s  ended" in await drawn(pilot)
        await pilot.press(key)
        clock.now_s += 2
        await settle(app, pilot)
        assert "2.0s of 59s  x1" in await drawn(pilot)


@presses("replay_end")
async def test_to_the_end(tmp_path: Path, key: str) -> None:
    async with replaying(tmp_path, synthetic.frames(60), NARROW) as (_, pilot, _clock):
        await pilot.press(key)
        bar = (await drawn(pilot)).splitlines()[0]
        assert "59s of 59s  ended  < start  Left 10 s back  q leave" in bar
        assert bar.rstrip().endswith("12:00:59")


@presses("replay_step")
async def test_a_frame_on(tmp_path: Path, key: str) -> None:
    frames = list(synthetic.frames(30))
    async with replaying(tmp_path, frames, at_s=10) as (app, pilot, clock):
        await pilot.press(key)
        found_s = [frame.time_s for frame in frames if frame.time_s > synthetic.START_S + 10]
        assert app.session.state.heard_at_s == pytest.approx(found_s[0])
        await pilot.press(key, key)
        assert app.session.state.heard_at_s == pytest.approx(found_s[2])
        clock.now_s += 5
        await settle(app, pilot)
        assert app.session.state.heard_at_s == pytest.approx(found_s[2]), "it is paused"
        assert "paused" in await drawn(pilot)


@presses("replay_step_back")
async def test_a_frame_back(tmp_path: Path, key: str) -> None:
    frames = list(synthetic.frames(30))
    async with replaying(tmp_path, frames, at_s=10.05) as (app, pilot, _):
        await pilot.press(key, key)
        found_s = [frame.time_s for frame in frames if frame.time_s < synthetic.START_S + 10]
        assert app.session.state.heard_at_s == pytest.approx(found_s[-1])
        await pilot.press(*[key] * 200)
        assert app.session.state.heard_at_s == synthetic.START_S


def eventful() -> list[Frame]:
    """Routine frames, with a death at 20 s, a recovery at 30 s and another death at 40 s."""
    frames: list[Frame] = list(synthetic.frames(60, events_per_s=0))
    for second, kind in ((20, "instance_died"), (30, "instance_recovered"), (40, "instance_died")):
        at_s = synthetic.START_S + second + 0.25
        event = Event(kind=kind, time_s=at_s, cause_id="x", instance_id="i-3", reason="lost")
        frames.append(EventFrame(time_s=at_s, event=event))
    return sorted((each for each in frames if each.type != "gap"), key=lambda each: each.time_s)


@presses("replay_trouble")
async def test_to_the_next_trouble(tmp_path: Path, key: str) -> None:
    async with replaying(tmp_path, eventful()) as (app, pilot, clock):
        await pilot.press(key)
        assert "20s of 59s  paused" in await drawn(pilot)
        assert "12:00:20 instance died i-3  lost" in (await drawn(pilot)).splitlines()[-1]
        assert app.session.state.entries[-1].event.kind == "instance_died"
        await pilot.press(key)
        assert "40s of 59s  paused" in await drawn(pilot)
        await pilot.press(key)
        assert "40s of 59s  paused" in await drawn(pilot)
        assert "no trouble after 40s" in await drawn(pilot)
        await pilot.press("space")
        clock.now_s += 5
        await settle(app, pilot)
        assert "45s of 59s  x1" in await drawn(pilot)


@presses("replay_trouble_before")
async def test_to_the_trouble_before(tmp_path: Path, key: str) -> None:
    async with replaying(tmp_path, eventful(), at_s=50) as (_, pilot, _clock):
        await pilot.press(key, key)
        assert "20s of 59s  paused" in await drawn(pilot)
        await pilot.press(key)
        assert "no trouble before 20s" in await drawn(pilot)


@presses("replay_notable")
async def test_to_the_next_notable_event(tmp_path: Path, key: str) -> None:
    async with replaying(tmp_path, eventful()) as (_, pilot, _clock):
        await pilot.press(key, key)
        assert "30s of 59s  paused" in await drawn(pilot)
        assert "12:00:30 instance recovered i-3" in await drawn(pilot)


@presses("replay_notable_before")
async def test_to_the_notable_event_before(tmp_path: Path, key: str) -> None:
    async with replaying(tmp_path, eventful(), at_s=35) as (_, pilot, _clock):
        await pilot.press(key)
        assert "30s of 59s  paused" in await drawn(pilot)
        await pilot.press(key, key)
        assert "no notable event before 20s" in await drawn(pilot)


@presses("seek")
async def test_to_a_moment(tmp_path: Path, key: str) -> None:
    async with replaying(tmp_path, synthetic.frames(60)) as (_, pilot, _clock):
        for text, expected in (("45s", "45s of"), ("12:00:07", "7.0s of"), ("+5s", "12s of")):
            await pilot.press(key, *text, "enter")
            assert expected in await drawn(pilot)
        await pilot.press(key, *"later", "enter")
        assert "'later' is no moment" in (await drawn(pilot)).splitlines()[-1]
        assert "12s of" in await drawn(pilot)


@pytest.mark.parametrize("open_it", [":instance i-3", ":requests {request}"])
async def test_they_work_on_the_screens_behind_too(tmp_path: Path, open_it: str) -> None:
    frames = [*eventful()]
    async with replaying(tmp_path, frames) as (app, pilot, _):
        assert app.session.state.status is not None
        heads = [each.queue_head for each in app.session.state.status.instances if each.queue_head]
        app.run_command(open_it[1:].format(request=heads[0].request_id))
        await settle(app, pilot)
        behind = app.screen
        assert not isinstance(behind, DashboardScreen)
        for key, shown in (
            ("w", "20s of 59s  paused"),
            ("v", "30s of 59s  paused"),
            ("V", "20s of 59s  paused"),
            ("right", "30s of 59s  paused"),
            ("greater_than_sign", "59s of 59s  ended"),
            ("less_than_sign", "0.0s of 59s"),
            ("full_stop", "1.0s of 59s  paused"),
            ("]", "x2"),
        ):
            await pilot.press(key)
            if key == "]":
                await pilot.press("space")
            await settle(app, pilot)
            assert shown in (await drawn(pilot)).splitlines()[0], key
        await pilot.press("at", *"40s", "enter")
        await settle(app, pilot)
        assert "40s of 59s" in (await drawn(pilot)).splitlines()[0]
        assert app.screen is behind
