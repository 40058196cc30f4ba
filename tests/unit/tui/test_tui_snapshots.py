"""Pictures of the screens, and of each state of the main screen at three sizes."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from controller.api.wire.stream import Frame
from tests.unit.tui import svg_snapshots, tui_lives
from tests.unit.tui.tui_support import NARROW, WALL, WIDE, Driven, FakeSource, replaying, watching
from tools import synthetic_cluster as synthetic
from tui.actions import Target
from tui.drawing import ASCII
from tui.startup import MONOCHROME
from tui.state import Lost

REASON = "the controller at http://10.0.0.5:8700 said nothing for 5 s"


async def checked(driven: Driven, what: str, *sizes: tuple[int, int]) -> None:
    """Compares the screen at each size, in one run of the application: starting it costs as much as
    ten pictures."""
    for size in sizes or (NARROW, WIDE, WALL):
        await driven.resize(*size)
        svg_snapshots.check(driven.app, f"{what}-{size[0]}x{size[1]}")


async def test_live_then_read_only_then_frozen_then_stale() -> None:
    async with watching(70) as bed:
        session = bed.app.session
        await bed.wait(0.4)
        await checked(bed, "live")
        session.toggle_read_only()
        session.message.clear()
        await checked(bed, "readonly")
        session.toggle_read_only()
        session.message.clear()
        session.toggle_freeze()
        bed.source.clock_s += 2
        await checked(bed, "frozen")
        session.toggle_freeze()
        session.message.clear()
        bed.source.clock_s += 10
        bed.source.hear(Lost(REASON, bed.source.clock_s))
        await checked(bed, "stale")


@pytest.mark.parametrize(
    ("frames", "what"),
    [
        (synthetic.overloaded, "overloaded"),
        (synthetic.on_four_nodes, "nodes"),
        (synthetic.late_binding, "held"),
        (synthetic.of_two_models, "models"),
    ],
)
async def test_states_of_the_cluster(frames: Callable[[int], Iterator[Frame]], what: str) -> None:
    """A large screen has a column for each level, the last hour, and the matrix of moves; of
    several nodes one is lost; a queue is at the controller, and two instances are kept free; the
    instances of two models stand in groups."""
    async with watching(frames(70)) as bed:
        await bed.wait(0.4)
        await checked(bed, what)


async def test_replay(tmp_path: Path) -> None:
    async with replaying(tmp_path, 90, at_s=42.5) as replay:
        await replay.press("space")
        await checked(replay, "replay")


async def test_empty_then_an_error() -> None:
    async with watching(()) as bed:
        await checked(bed, "empty")
        await bed.press("question_mark")
        await checked(bed, "help", NARROW)
        await bed.press("escape")
        await bed.hear(Lost("the controller at http://10.0.0.5:8700 refused the token", 0.0))
        await checked(bed, "error")


async def test_instance() -> None:
    source = FakeSource()
    source.answer = synthetic.requests("i-3", 11)
    async with watching(70, WIDE, source) as bed:
        await bed.open(Target("i-3"))
        await checked(bed, "instance", NARROW, WIDE)


async def test_request() -> None:
    source = FakeSource()
    source.explanation = tui_lives.eventful()
    async with watching(20, WIDE, source) as bed:
        await bed.open(Target("i-1", tui_lives.REQUEST_ID))
        await checked(bed, "request", WIDE, NARROW)
        await bed.press("G", "y")
        assert bed.app.clipboard == tui_lives.REQUEST_ID


async def test_monochrome_ascii() -> None:
    async with watching(70, glyphs=ASCII, theme=MONOCHROME) as bed:
        await checked(bed, "ascii", WIDE)


@pytest.mark.parametrize(("key", "what"), [("d", "confirm"), ("m", "choose")])
async def test_dialogs(key: str, what: str) -> None:
    async with watching(70) as bed:
        bed.control.departures = 20
        await bed.press("2", key)
        await checked(bed, what)
