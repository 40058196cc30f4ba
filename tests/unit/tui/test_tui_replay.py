"""A recording replays to the screens that were there when it was made."""

from pathlib import Path

import pytest

from controller.api.recording import RecordingReader
from controller.api.wire.models import StatusFrame
from tests.unit.tui import svg_snapshots
from tests.unit.tui import tui_synthetic as synthetic
from tests.unit.tui.tui_support import (
    NARROW,
    WIDE,
    FakeSource,
    dashboard,
    drawn,
    recorded,
    replaying,
    settle,
)
from tui.app import Dashboard
from tui.feed.replay import ReplaySource
from tui.feed.state import Arrived, Lost
from tui.screens.dashboard import DashboardScreen
from tui.widgets.bottom import Bottom
from tui.widgets.lines import Lines

MOMENTS_S = (0.0, 1.0, 7.5, 61.3, 150.0, 299.0)


def picture(app: Dashboard) -> str:
    """Of everything but the first line and the last, which tell a replay from a live screen."""
    assert isinstance(app.screen, DashboardScreen)
    app.screen.query_one(Bottom).say(())
    header = app.screen.query_one("#header", Lines)
    header.show([(), *header._lines[1:]])
    return svg_snapshots.svg(app)


@pytest.mark.parametrize("size", [NARROW, WIDE], ids=["80x24", "120x36"])
async def test_five_minutes_replay_to_the_same_screens(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    frames = list(synthetic.frames(300))
    live: list[str] = []
    source = FakeSource()
    async with dashboard(source, size) as (app, pilot):
        rest = iter(frames)
        frame = next(rest, None)
        for moment_s in MOMENTS_S:
            now_s = synthetic.START_S + moment_s
            while frame is not None and frame.time_s <= now_s:
                source.feed([frame])
                frame = next(rest, None)
            source.clock_s = now_s
            await settle(app, pilot)
            live.append(picture(app))
    assert len(set(live)) == len(MOMENTS_S)
    async with replaying(tmp_path, frames, size) as (app, pilot, clock):
        for moment_s, expected in zip(MOMENTS_S, live, strict=True):
            clock.now_s = moment_s
            await settle(app, pilot)
            assert picture(app) == expected


async def test_a_replay_begins_where_it_is_told(tmp_path: Path) -> None:
    frames = list(synthetic.frames(60))
    async with replaying(tmp_path, frames, at_s=42.5) as (app, pilot, _):
        await settle(app, pilot)
        assert "live" not in await drawn(pilot)
        assert "12:00:42" in await drawn(pilot)
        assert "REPLAY 42s x1" in await drawn(pilot)


async def test_requests_are_not_recorded_and_it_says_so(tmp_path: Path) -> None:
    async with replaying(tmp_path, synthetic.frames(60), at_s=30) as (app, pilot, _):
        await settle(app, pilot)
        await pilot.press("enter")
        await settle(app, pilot)
        assert "requests are not recorded" in await drawn(pilot)


async def test_silence_in_a_recording_is_stale_again(tmp_path: Path) -> None:
    first, later = list(synthetic.frames(1, 2)), list(synthetic.frames(21, 2))[-1]
    async with replaying(tmp_path, [*first, later]) as (app, pilot, clock):
        clock.now_s = 12
        await settle(app, pilot)
        assert "REPLAY 12s x1  ! STALE 12s" in await drawn(pilot)
        clock.now_s = 20.2
        await settle(app, pilot)
        assert "STALE" not in await drawn(pilot)
        assert "live" not in await drawn(pilot)
        assert "REPLAY 20s ended" in await drawn(pilot)


def statuses(times_s: list[float]) -> list[StatusFrame]:
    status = synthetic.cluster(())
    return [StatusFrame(time_s=time_s, status=status) for time_s in times_s]


class Replay:
    """A replay source of these times, its clock by hand."""

    def __init__(self, folder: Path, times_s: list[float], **options: float) -> None:
        self.now_s = 0.0
        self.reader = RecordingReader(recorded(folder, statuses(times_s)))
        self.source = ReplaySource(self.reader, clock=lambda: self.now_s, **options)
        self.source.start()

    def due(self, now_s: float) -> list[float]:
        self.now_s = now_s
        found = self.source.take()
        if self.source.ended:
            self.source.stop()
        return [item.at_s for item in found if isinstance(item, Arrived)]


def test_frames_keep_their_distances(tmp_path: Path) -> None:
    replay = Replay(tmp_path, [100.0, 101.0, 104.0], speed=2.0)
    assert replay.due(0.0) == [100.0]
    assert replay.due(0.4) == []
    assert replay.due(0.5) == [101.0]
    assert replay.due(1.9) == []
    assert replay.due(2.0) == [104.0]
    assert replay.source.ended
    assert replay.source.now_s() == 104.0
    replay.now_s = 99.0
    assert replay.source.now_s() == 104.0


def test_a_clock_that_was_set_back_is_no_distance(tmp_path: Path) -> None:
    replay = Replay(tmp_path, [100.0, 50.0, 51.0])
    assert replay.due(0.0) == [100.0, 100.0]
    assert replay.due(1.0) == [101.0]


def test_beyond_the_end_is_the_end(tmp_path: Path) -> None:
    replay = Replay(tmp_path, [100.0, 101.0], at_s=500.0)
    assert replay.due(0.0) == [100.0, 101.0]
    assert replay.source.position_s() == 1.0


def test_a_recording_without_frames_has_ended(tmp_path: Path) -> None:
    path = recorded(tmp_path, statuses([1.0]))
    path.write_text(path.read_text().splitlines(keepends=True)[0])
    source = ReplaySource(RecordingReader(path), clock=lambda: 0.0)
    source.start()
    assert source.take() == []
    assert source.ended
    source.stop()


def test_a_bad_line_ends_it_with_where(tmp_path: Path) -> None:
    path = recorded(tmp_path, statuses([1.0, 2.0]))
    path.write_text(path.read_text() + "nonsense\n")
    source = ReplaySource(RecordingReader(path), at_s=60.0, clock=lambda: 0.0)
    source.start()
    *frames, last = source.take()
    source.stop()
    assert len(frames) == 2
    assert isinstance(last, Lost)
    assert last.reason == f"{path}:4: not a frame of a recording"
