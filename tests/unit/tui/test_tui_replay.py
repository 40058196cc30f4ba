"""A recording replays to the same screens as when it was made."""

from datetime import UTC
from pathlib import Path

import pytest
from rich.cells import cell_len

from controller.api.errors import UsageError
from controller.api.recording import RecordingReader, RequestNumbers
from controller.api.wire.requests import Event, RequestList, RequestState
from controller.api.wire.stream import EventFrame, Frame, StatusFrame
from tests.unit.tui import svg_snapshots
from tests.unit.tui.tui_support import FakeSource, dashboard, drawn, recorded, replaying, settle
from tools import synthetic_cluster as synthetic
from tui import replay
from tui.actions import Target
from tui.app import Dashboard
from tui.drawing import ASCII, UNICODE, Glyphs
from tui.panes import header
from tui.panes.header import Liveness
from tui.replay import Progress, ReplaySource, typed_moment_s
from tui.screens.dashboard import DashboardScreen
from tui.state import Arrived, DashboardState, Replayed, reduce
from tui.widgets import Bottom, Lines

MOMENTS_S = (0.0, 1.0, 7.5, 61.3, 150.0, 299.0)


def picture(app: Dashboard) -> str:
    """The screen without the header and the last line, which differ between a replay and a live
    screen."""
    assert isinstance(app.screen, DashboardScreen)
    app.screen.query_one(Bottom).say(())
    app.screen.query_one("#header", Lines).show([])
    return svg_snapshots.svg(app)


async def test_five_minutes_replay_to_the_same_screens(tmp_path: Path) -> None:
    frames = list(synthetic.frames(300))
    live: list[str] = []
    source = FakeSource()
    async with dashboard(source) as (app, pilot):
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
    async with replaying(tmp_path, frames) as (app, pilot, clock):
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
        assert "42s of 59s  x1" in await drawn(pilot)


async def test_requests_are_not_recorded_and_it_says_so(tmp_path: Path) -> None:
    async with replaying(tmp_path, synthetic.frames(60), at_s=30) as (app, pilot, _):
        await settle(app, pilot)
        await pilot.press("enter")
        await settle(app, pilot)
        assert "no requests are recorded up to here" in await drawn(pilot)


async def test_recorded_requests_stand_on_their_screens_at_each_moment(tmp_path: Path) -> None:
    """The list of an instance, and the life of a request as the recorded events tell it."""
    numbers, frames = RequestNumbers(), list(synthetic.frames(20))
    for place, at_s in ((5, 4.5), (12, 11.5)):
        found = synthetic.requests("i-3", count=place)
        frame = numbers.frame(found, synthetic.START_S + at_s)
        assert frame is not None
        frames.append(frame)
    admitted = Event(
        kind="admitted",
        time_s=synthetic.START_S + 8.0,
        cause_id="c",
        request_id="r9000",
        instance_id="i-3",
    )
    frames.append(EventFrame(time_s=admitted.time_s, event=admitted))
    frames.sort(key=lambda frame: frame.time_s)
    async with replaying(tmp_path, frames, at_s=9.0) as (app, pilot, _):
        await settle(app, pilot)
        await pilot.press("space")
        app.open(Target("i-3"))
        await settle(app, pilot)
        await settle(app, pilot)
        assert "Requests (5)" in await drawn(pilot)
        assert app.session.replay is not None
        app.session.replay.seek(10.0)
        await settle(app, pilot)
        await settle(app, pilot)
        assert "Requests (12)" in await drawn(pilot)
        app.open(Target("i-3", "r9000"))
        await settle(app, pilot)
        await settle(app, pilot)
        assert "admitted" in await drawn(pilot)
        app.session.replay.seek(-60.0)
        await settle(app, pilot)
        await settle(app, pilot)
        assert "no requests are recorded up to here" in await drawn(pilot)


async def test_silence_in_a_recording_is_stale_again(tmp_path: Path) -> None:
    first, later = list(synthetic.frames(1, 2)), list(synthetic.frames(21, 2))[-1]
    async with replaying(tmp_path, [*first, later]) as (app, pilot, clock):
        clock.now_s = 12
        await settle(app, pilot)
        assert "12s of 20s  x1  ! STALE 12s" in await drawn(pilot)
        clock.now_s = 20.2
        await settle(app, pilot)
        assert "STALE" not in await drawn(pilot)
        assert "live" not in await drawn(pilot)
        assert "20s of 20s  ended  < start  Left 10 s back  q leave" in await drawn(pilot)


def statuses(times_s: list[float]) -> list[StatusFrame]:
    status = synthetic.cluster(())
    return [StatusFrame(time_s=time_s, status=status) for time_s in times_s]


class Replay:
    """A replay source with these times and a clock that is set by hand."""

    def __init__(self, folder: Path, times_s: list[float], **options: float) -> None:
        self.now_s = 0.0
        self.reader = RecordingReader(recorded(folder, statuses(times_s)))
        self.source = ReplaySource(self.reader, clock=lambda: self.now_s, **options)
        self.source.start()
        self.state = DashboardState()

    def heard_s(self, now_s: float) -> float | None:
        """The time of the newest frame that is due now."""
        self.now_s = now_s
        self.state = reduce(self.state, self.source.take())
        return self.state.heard_at_s


def test_frames_keep_their_distances(tmp_path: Path) -> None:
    replay = Replay(tmp_path, [100.0, 101.0, 104.0], speed=2.0)
    found = [replay.heard_s(now_s) for now_s in (0.0, 0.4, 0.5, 1.9)]
    assert found == [100.0, 100.0, 101.0, 101.0]
    assert not replay.source.ended
    assert replay.heard_s(2.0) == 104.0
    assert replay.source.ended
    assert replay.source.now_s() == 104.0
    replay.now_s = 99.0
    assert replay.source.now_s() == 104.0
    replay.source.stop()


def test_a_clock_that_was_set_back_is_no_distance(tmp_path: Path) -> None:
    replay = Replay(tmp_path, [100.0, 50.0, 51.0])
    assert replay.heard_s(0.0) == 100.0
    assert replay.state.time_s == 50.0, "the second came at once"
    assert replay.heard_s(1.0) == 101.0
    replay.source.stop()


def test_beyond_the_end_is_the_end(tmp_path: Path) -> None:
    replay = Replay(tmp_path, [100.0, 101.0], at_s=500.0)
    assert replay.heard_s(0.0) == 101.0
    assert replay.source.position_s() == 1.0
    replay.source.stop()


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
    (found,) = source.take()
    source.stop()
    assert isinstance(found, Replayed)
    assert found.state.heard_at_s == 2.0
    assert found.state.lost == f"{path}:4: not a frame of a recording"


def test_a_bad_line_in_the_middle_ends_it_there(tmp_path: Path) -> None:
    """The bad line begins like a frame, so it is noticed only when it is read."""
    path = recorded(tmp_path, statuses([1.0, 2.0, 3.0, 4.0]))
    lines = path.read_text().splitlines(keepends=True)
    bad = '{"type":"status","time_s":3.0,"status":{}}\n'
    path.write_text("".join([*lines[:3], bad, lines[4]]))
    source = ReplaySource(RecordingReader(path), clock=lambda: 0.0)
    source.start()
    assert source.length_s == 3.0
    source.seek(3.0)
    (found,) = source.take()
    assert isinstance(found, Replayed)
    assert found.state.lost == f"{path}:4: not a frame of a recording"
    assert source.length_s == 1.0
    assert source.ended
    source.seek(0.5)
    (found,) = source.take()
    assert isinstance(found, Replayed)
    assert (found.state.lost, found.state.heard_at_s) == ("", 1.0)
    source.stop()


def test_any_moment_is_as_if_it_had_been_played_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replay jumps back and forth, over kept states and beyond them."""
    monkeypatch.setattr(replay, "STRETCH_BYTES", 30_000)
    frames = list(synthetic.frames(90))
    source = ReplaySource(RecordingReader(recorded(tmp_path, frames)), clock=lambda: 0.0)
    source.start()
    for moment_s in (40.0, 3.3, 89.0, 0.0, 88.9, 40.1, 39.9, 12.0, 60.0):
        source.seek(moment_s)
        (found,) = source.take()
        assert isinstance(found, Replayed)
        due = [
            Arrived(frame, frame.time_s)
            for frame in frames
            if frame.time_s - synthetic.START_S <= moment_s
        ]
        assert found.state == reduce(DashboardState(), due)
    source.stop()


def test_a_long_recording_keeps_few_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "STRETCH_BYTES", 5_000)
    source = ReplaySource(
        RecordingReader(recorded(tmp_path, synthetic.frames(90))), clock=lambda: 0.0
    )
    source.start()
    source.seek(89.0)
    source.take()
    kept = source._moments._kept
    assert replay.MAX_KEPT // 2 < len(kept) <= replay.MAX_KEPT + 1
    source.stop()


def test_without_room_for_states_any_moment_is_shown_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(**_: object) -> object:
        raise OSError("no space left on device")

    monkeypatch.setattr(replay, "STRETCH_BYTES", 30_000)
    monkeypatch.setattr("tempfile.TemporaryFile", no_room)
    frames = list(synthetic.frames(40))
    source = ReplaySource(RecordingReader(recorded(tmp_path, frames)), clock=lambda: 0.0)
    source.start()
    for moment_s in (39.0, 20.0):
        source.seek(moment_s)
        (found,) = source.take()
        assert isinstance(found, Replayed)
        assert found.state.status is not None
        assert found.state.status.time_s == synthetic.START_S + moment_s
    assert len(source._moments._kept) == 0
    source.stop()


def test_a_replay_reads_ahead_of_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "STRETCH_BYTES", 50_000)
    reader = RecordingReader(recorded(tmp_path, synthetic.frames(60)))
    source = ReplaySource(reader, clock=lambda: 0.0)
    source.start()
    for _ in range(60):
        source.take()
    read: list[object] = []
    frame = reader.frame
    monkeypatch.setattr(reader, "frame", lambda mark: read.append(mark) or frame(mark))
    source.seek(58.9)
    source.take()
    assert 0 < len(read) < 30, "from a state that was kept"
    source.stop()


@pytest.mark.parametrize(
    ("text", "expected"),
    [("90", 90), ("2m30s", 150), ("+30s", 70), ("-1m", -20), ("12:01:05", 65), ("12:02", 120)],
)
def test_moments_as_people_type_them(text: str, expected: float) -> None:
    assert typed_moment_s(text, 40.0, 299.0, synthetic.START_S, UTC) == expected


@pytest.mark.parametrize("text", ["", "soon", "1:2", "+", "12:07", "11:59:00", "99:00"])
def test_what_is_no_moment(text: str) -> None:
    with pytest.raises(UsageError, match=r"no moment|12:00:00 to 12:04:59"):
        typed_moment_s(text, 40.0, 299.0, synthetic.START_S, UTC)


def test_a_time_of_day_after_midnight() -> None:
    before_midnight = synthetic.START_S + 12 * 3600 - 60
    assert typed_moment_s("00:01", 0.0, 300.0, before_midnight, UTC) == 120


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII], ids=["unicode", "ascii"])
def test_the_bar_shows_where_trouble_is(glyphs: Glyphs) -> None:
    progress = Progress(50.0, 100.0, "paused", troubles_s=(10.0, 90.0, 100.0))
    live = Liveness(DashboardState(), 0.0, 1.0, "prod-a", (), UTC, progress)
    text = "".join(span.text for span in header.replay_line(progress, live, 100, glyphs))
    assert text.startswith(" REPLAY  prod-a  50s of 1m40s  paused  [")
    track = text[text.index("[") + 1 : text.index("]")]
    places = [track.index("!") / len(track), track.rindex("!") / len(track)]
    assert places == pytest.approx([0.1, 1.0], abs=0.05)
    assert track.index("O" if glyphs is ASCII else "●") == len(track) // 2
    assert cell_len(text) == 100
    for width in (1, 20, 40, 60, 79):
        line = header.replay_line(progress, live, width, glyphs)
        assert line[0].text == " REPLAY"


async def test_the_queue_at_the_controller_replays(tmp_path: Path) -> None:
    """The replay has the row of its head, the kept instances, the requests in order, and the reason
    why one waits."""
    waiting = {"state": RequestState.WAITING, "instance_id": None, "ttft_s": None}
    listed = synthetic.requests("i-3", 4).requests
    held = [
        listed[1].model_copy(update={"id": "r-late", "arrival_time_s": 9.0, **waiting}),
        listed[2].model_copy(update={"id": "r-early", "arrival_time_s": 2.0, **waiting}),
        listed[0].model_copy(update={"id": "r9001c9", **waiting}),
    ]
    found = RequestList(requests=(listed[3], *held), num_matching=4)
    frames: list[Frame] = []
    numbers = RequestNumbers()
    for frame in synthetic.late_binding(30):
        frames.append(frame)
        told = numbers.frame(found, frame.time_s)
        frames += [told] if told is not None else []
    async with replaying(tmp_path, frames, at_s=12.0) as (app, pilot, _):
        screen = await drawn(pilot)
        assert "held    r9001c9" in screen
        assert "= i-9     reserved" in screen
        await pilot.press("colon", *"requests", "enter")
        await settle(app, pilot)
        lines = (await drawn(pilot)).splitlines()
        rows = [line.split()[:3] for line in lines[3:] if " held " in line]
        assert rows == [["r9001c9", "held", "1"], ["r-early", "held", "2"], ["r-late", "held", "3"]]
        app.open(Target("", "r9001c9"))
        await settle(app, pilot)
        screen = await drawn(pilot)
        assert "waiting at the controller" in screen
        assert "i-9 is kept for it and lacks 172 blocks" in screen
