"""Pictures of the screens, and of each state of the main screen at three sizes."""

from pathlib import Path

import pytest
from textual.pilot import Pilot

from tests.unit.tui import svg_snapshots
from tests.unit.tui.tui_control import FakeControl
from tests.unit.tui.tui_support import (
    NARROW,
    WALL,
    WIDE,
    FakeCaller,
    FakeSource,
    dashboard,
    replaying,
    settle,
)
from tools import synthetic_cluster as synthetic
from tui.actions import Target
from tui.app import Dashboard
from tui.drawing import ASCII
from tui.startup import MONOCHROME

REASON = "the controller at http://10.0.0.5:8700 said nothing for 5 s"
both_sizes = pytest.mark.parametrize("size", [NARROW, WIDE], ids=["80x24", "120x36"])


def named(what: str, size: tuple[int, int]) -> str:
    return f"{what}-{size[0]}x{size[1]}"


async def checked(app: Dashboard, pilot: Pilot[None], what: str) -> None:
    """Compares the screen at each size, in one run of the application: starting it costs as much as
    ten pictures."""
    for size in (NARROW, WIDE, WALL):
        await pilot.resize_terminal(*size)
        await settle(app, pilot)
        svg_snapshots.check(app, named(what, size))


async def test_live_then_read_only_then_frozen_then_stale() -> None:
    source = FakeSource()
    async with dashboard(source, caller=FakeCaller(FakeControl())) as (app, pilot):
        source.feed(synthetic.frames(70))
        source.clock_s += 0.4
        await settle(app, pilot)
        await checked(app, pilot, "live")
        app.session.toggle_read_only()
        app.session.message.clear()
        await checked(app, pilot, "readonly")
        app.session.toggle_read_only()
        app.session.message.clear()
        app.session.toggle_freeze()
        source.clock_s += 2
        await checked(app, pilot, "frozen")
        app.session.toggle_freeze()
        app.session.message.clear()
        source.clock_s += 10
        source.lose(REASON)
        await checked(app, pilot, "stale")


async def test_overloaded() -> None:
    """A large screen has a column for each level, the last hour, and the matrix of moves."""
    source = FakeSource()
    async with dashboard(source) as (app, pilot):
        source.feed(synthetic.overloaded(70))
        source.clock_s += 0.4
        await settle(app, pilot)
        await checked(app, pilot, "overloaded")


async def test_several_nodes_of_which_one_is_lost() -> None:
    """Instances stand in groups; replays and an evacuation stand beside the moves."""
    source = FakeSource()
    async with dashboard(source) as (app, pilot):
        source.feed(synthetic.on_four_nodes(70))
        source.clock_s += 0.4
        await settle(app, pilot)
        await checked(app, pilot, "nodes")


async def test_held_at_the_controller() -> None:
    """The controller's queue stands before those of the instances, two of which are kept free."""
    source = FakeSource()
    async with dashboard(source) as (app, pilot):
        source.feed(synthetic.late_binding(70))
        source.clock_s += 0.4
        await settle(app, pilot)
        await checked(app, pilot, "held")


async def test_replay(tmp_path: Path) -> None:
    async with replaying(tmp_path, synthetic.frames(90), at_s=42.5) as (app, pilot, _):
        await pilot.press("space")
        await checked(app, pilot, "replay")


async def test_empty_then_an_error() -> None:
    source = FakeSource()
    async with dashboard(source) as (app, pilot):
        await checked(app, pilot, "empty")
        source.lose("the controller at http://10.0.0.5:8700 refused the token")
        await checked(app, pilot, "error")


@both_sizes
async def test_instance(size: tuple[int, int]) -> None:
    source = FakeSource()
    source.answer = synthetic.requests("i-3", 11)
    async with dashboard(source, size) as (app, pilot):
        source.feed(synthetic.frames(70))
        await settle(app, pilot)
        app.open(Target("i-3"))
        await settle(app, pilot)
        svg_snapshots.check(app, named("instance", size))


async def test_monochrome_ascii() -> None:
    source = FakeSource()
    async with dashboard(source, WIDE, glyphs=ASCII, theme=MONOCHROME) as (app, pilot):
        source.feed(synthetic.frames(70))
        await settle(app, pilot)
        svg_snapshots.check(app, named("ascii", WIDE))


async def test_help() -> None:
    async with dashboard(FakeSource(), NARROW) as (app, pilot):
        await pilot.press("question_mark")
        await settle(app, pilot)
        svg_snapshots.check(app, named("help", NARROW))


async def test_a_picture_that_differs_is_shown_and_kept_for_review(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UPDATE_SNAPSHOTS", raising=False)
    monkeypatch.setattr(svg_snapshots, "FOLDER", tmp_path)
    async with dashboard(FakeSource(), NARROW) as (app, _):
        with pytest.raises(AssertionError, match="the screen differs"):
            svg_snapshots.check(app, "x")
        assert (svg_snapshots.FOLDER / "x.new.svg").exists()
        monkeypatch.setenv("UPDATE_SNAPSHOTS", "1")
        svg_snapshots.check(app, "x")
        assert not (svg_snapshots.FOLDER / "x.new.svg").exists()
        monkeypatch.delenv("UPDATE_SNAPSHOTS")
        svg_snapshots.check(app, "x")


@pytest.mark.parametrize(("key", "what"), [("d", "confirm"), ("m", "choose")])
async def test_dialogs(key: str, what: str) -> None:
    source, control = FakeSource(), FakeControl(departures=20)
    async with dashboard(source, caller=FakeCaller(control)) as (app, pilot):
        source.feed(synthetic.frames(70))
        await settle(app, pilot)
        await pilot.press("2", key)
        await settle(app, pilot)
        await checked(app, pilot, what)
