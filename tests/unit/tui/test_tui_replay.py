"""A recording replays to the same states as when it was made, and every key of a replay works."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from controller.api.errors import UsageError
from controller.api.recording import RecordingReader, RequestNumbers
from controller.api.wire.requests import Event
from controller.api.wire.stream import EventFrame, Frame, StatusFrame
from tests.unit.tui.tui_support import (
    NARROW,
    Replay,
    after,
    keys_of,
    presses,
    recorded,
    replaying,
    text_of,
)
from tools import synthetic_cluster as synthetic
from tui import replay as replay_module
from tui.actions import Target
from tui.drawing import ASCII, UNICODE
from tui.panes import header
from tui.panes.header import Liveness
from tui.replay import Progress, ReplaySource, typed_moment_s
from tui.screens.dashboard import DashboardScreen
from tui.state import DashboardState, Replayed, reduce

NOT_RECORDED = "no requests are recorded up to here"


async def test_recorded_requests_stand_on_their_screens_at_each_moment(tmp_path: Path) -> None:
    """The list of an instance, and the life of a request as the recorded events tell it."""
    numbers, frames = RequestNumbers(), list(synthetic.frames(20))
    for count, at_s in ((5, 4.5), (12, 11.5)):
        found = synthetic.requests("i-3", count=count)
        frame = numbers.frame(found, synthetic.START_S + at_s)
        assert frame is not None
        frames.append(frame)
    at_s = synthetic.START_S + 8.0
    about = {"cause_id": "c", "request_id": "r9000", "instance_id": "i-3"}
    frames.append(EventFrame(time_s=at_s, event=Event(kind="admitted", time_s=at_s, **about)))
    frames.sort(key=lambda frame: frame.time_s)
    async with replaying(tmp_path, frames, at_s=9.0) as replay:
        await replay.press("space")
        await replay.open(Target("i-3"))
        for moment, words in (("9s", "Requests (5)"), ("19s", "Requests (12)")):
            await replay.type("at", f"seek {moment}")
            await replay.settle()
            assert words in await replay.shown()
        await replay.open(Target("i-3", "r9000"))
        await replay.settle()
        assert "admitted" in await replay.shown()
        await replay.type("at", "seek 1s")
        await replay.settle()
        assert NOT_RECORDED in await replay.shown()
        await replay.press("escape")
        assert NOT_RECORDED in await replay.shown()


# The source


class Played:
    """A replay source and its clock, which is set by hand."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.now_s = 0.0
        self.reader = RecordingReader(path)
        self.source = ReplaySource(self.reader, clock=lambda: self.now_s, **options)
        self.source.start()
        self.state = DashboardState()

    def heard_s(self, now_s: float) -> float | None:
        """The time of the newest frame that is due now."""
        self.now_s = now_s
        self.state = reduce(self.state, self.source.take())
        return self.state.heard_at_s

    def at(self, position_s: float) -> DashboardState:
        """The state at a moment to which the replay jumps."""
        self.source.seek(position_s)
        (found,) = self.source.take()
        assert isinstance(found, Replayed)
        return found.state


@contextmanager
def played(path: Path, **options: Any) -> Iterator[Played]:
    found = Played(path, **options)
    yield found
    found.source.stop()


def at_times(folder: Path, *times_s: float) -> Path:
    """A recording of statuses at these times, in place of the one before."""
    (folder / "recording.jsonl").unlink(missing_ok=True)
    status = synthetic.cluster(())
    return recorded(folder, [StatusFrame(time_s=time_s, status=status) for time_s in times_s])


def test_frames_keep_their_distances(tmp_path: Path) -> None:
    """A clock that was set back is no distance. Beyond the end is the end."""
    with played(at_times(tmp_path, 100.0, 101.0, 104.0), speed=2.0) as replay:
        found = [replay.heard_s(now_s) for now_s in (0.0, 0.4, 0.5, 1.9)]
        assert found == [100.0, 100.0, 101.0, 101.0]
        assert not replay.source.ended
        assert replay.heard_s(2.0) == 104.0
        assert replay.source.ended
        replay.now_s = 99.0
        assert replay.source.now_s() == 104.0
    with played(path := at_times(tmp_path, 100.0, 50.0, 51.0)) as replay:
        assert replay.heard_s(0.0) == 100.0
        assert replay.state.time_s == 50.0, "the second came at once"
        assert replay.heard_s(1.0) == 101.0
    with played(path, at_s=500.0) as replay:
        assert replay.heard_s(0.0) == 101.0
        assert replay.source.position_s() == 1.0
    path.write_text(path.read_text().splitlines(keepends=True)[0])
    with played(path) as replay:
        assert replay.source.take() == []
        assert replay.source.ended


BAD = '{"type":"status","time_s":3.0,"status":{}}\n'
"""Begins like a frame, so that it is noticed only when it is read."""


@pytest.mark.parametrize("bad", ["nonsense\n", BAD])
def test_a_bad_line_ends_it_with_where(tmp_path: Path, bad: str) -> None:
    path = at_times(tmp_path, 1.0, 2.0, 4.0)
    lines = path.read_text().splitlines(keepends=True)
    for rest in ([], lines[3:]):
        path.write_text("".join([*lines[:3], bad, *rest]))
        with played(path) as replay:
            state = replay.at(3.0)
            assert state.lost == f"{path}:4: not a frame of a recording"
            assert state.heard_at_s == 2.0
            assert replay.source.length_s == 1.0
            assert replay.source.ended
            state = replay.at(0.5)
            assert (state.lost, state.heard_at_s) == ("", 1.0)


@pytest.mark.parametrize("has_room", [True, False])
def test_any_moment_is_as_if_it_had_been_played_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_room: bool
) -> None:
    """The replay jumps back and forth, over kept states and beyond them, even if there is no room
    to keep states."""
    if not has_room:
        no_room = Mock(side_effect=OSError("no space left on device"))
        monkeypatch.setattr("tempfile.TemporaryFile", no_room)
    monkeypatch.setattr(replay_module, "STRETCH_BYTES", 10_000)
    frames = list(synthetic.frames(90, num_instances=4))
    with played(recorded(tmp_path, frames)) as replay:
        for moment_s in (40.0, 3.3, 89.0, 0.0, 88.9, 40.1, 39.9, 12.0, 60.0):
            due = [each for each in frames if each.time_s - synthetic.START_S <= moment_s]
            assert replay.at(moment_s) == after(due)


def test_a_replay_reads_ahead_and_jumps_from_states_that_it_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_module, "STRETCH_BYTES", 5_000)
    with played(recorded(tmp_path, synthetic.frames(90, num_instances=4))) as replay:
        for _ in range(100):
            replay.source.take()
        read: list[object] = []
        frame = replay.reader.frame
        monkeypatch.setattr(replay.reader, "frame", lambda mark: read.append(mark) or frame(mark))
        replay.at(88.9)
        assert 0 < len(read) < 40, "from a state that was kept"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("90", 90), ("2m30s", 150), ("+30s", 70), ("-1m", -20), ("12:01:05", 65), ("12:02", 120)],
)
def test_moments_as_people_type_them(text: str, expected: float) -> None:
    assert typed_moment_s(text, 40.0, 299.0, synthetic.START_S, UTC) == expected
    before_midnight = synthetic.START_S + 12 * 3600 - 60
    assert typed_moment_s("00:01", 0.0, 300.0, before_midnight, UTC) == 120
    for bad in ("", "soon", "1:2", "+", "12:07", "11:59:00", "99:00"):
        with pytest.raises(UsageError, match=r"no moment|12:00:00 to 12:04:59"):
            typed_moment_s(bad, 40.0, 299.0, synthetic.START_S, UTC)


def test_the_bar_shows_where_trouble_is() -> None:
    progress = Progress(50.0, 100.0, "paused", troubles_s=(10.0, 90.0, 100.0))
    live = Liveness(DashboardState(), 0.0, 1.0, "prod-a", (), UTC, progress)
    text = text_of(header.replay_line(progress, live, 100, UNICODE))
    assert text.startswith(" REPLAY  prod-a  50s of 1m40s  paused  [")
    track = text[text.index("[") + 1 : text.index("]")]
    places = [track.index("!") / len(track), track.rindex("!") / len(track)]
    assert places == pytest.approx([0.1, 1.0], abs=0.05)
    assert track.index("●") == len(track) // 2
    for width in (1, 20, 79):
        assert header.replay_line(progress, live, width, ASCII)[0].text == " REPLAY"


# Every key of a replay


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
