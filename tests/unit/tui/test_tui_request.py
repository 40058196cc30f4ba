"""The screen of one request."""

from pathlib import Path

import pytest

from tests.unit.tui import svg_snapshots, tui_lives
from tests.unit.tui.tui_support import (
    NARROW,
    WIDE,
    FakeSource,
    dashboard,
    drawn,
    replaying,
    settle,
)
from tools import synthetic_cluster as synthetic
from tui.actions import Target
from tui.screens.dashboard import DashboardScreen, Pane
from tui.screens.details import InstanceScreen, RequestScreen
from tui.state import ExplanationArrived

REQUEST_ID = tui_lives.REQUEST_ID
both_sizes = pytest.mark.parametrize("size", [NARROW, WIDE], ids=["80x24", "120x36"])


@pytest.fixture
def source() -> FakeSource:
    fed = FakeSource()
    fed.explanation = tui_lives.eventful()
    fed.feed(synthetic.frames(20))
    return fed


@both_sizes
async def test_picture(source: FakeSource, size: tuple[int, int]) -> None:
    async with dashboard(source, size) as (app, pilot):
        app.open(Target("i-1", REQUEST_ID))
        await settle(app, pilot)
        svg_snapshots.check(app, f"request-{size[0]}x{size[1]}")


async def test_enter_on_a_request_opens_it_from_everywhere(source: FakeSource) -> None:
    async with dashboard(source) as (app, pilot):
        assert isinstance(app.screen, DashboardScreen)
        for key, pane in (("1", Pane.MIGRATIONS), ("2", Pane.QUEUE), ("3", Pane.EVENTS)):
            await pilot.press(key, "slash", "r", "enter")
            table = app.screen.table(pane)
            wanted = table.target.request_id
            assert wanted
            await pilot.press("enter")
            assert isinstance(app.screen, RequestScreen)
            assert app.screen.request_id == wanted
            await pilot.press("escape")
            assert isinstance(app.screen, DashboardScreen)
        source.answer = synthetic.requests("i-3")
        app.open(Target("i-3"))
        await settle(app, pilot)
        await pilot.press("j", "enter")
        assert isinstance(app.screen, RequestScreen)
        assert app.screen.request_id == "r9001"
        await pilot.press("escape")
        assert isinstance(app.screen, InstanceScreen)


async def test_its_life_and_the_reasons(source: FakeSource) -> None:
    async with dashboard(source) as (app, pilot):
        app.open(Target("i-1", REQUEST_ID))
        await settle(app, pilot)
        text = await drawn(pilot)
        assert REQUEST_ID in text
        assert "running on i-1" in text
        assert "dispatched to i-3, the best of 16 by llumnix" in text
        assert "scores: i-3 521 (chosen)" in text
        assert "yes; freest that has room: i-2" in text
        assert source.asked == [REQUEST_ID]


async def test_it_asks_again_until_the_request_has_ended(source: FakeSource) -> None:
    async with dashboard(source) as (app, pilot):
        app.open(Target("i-1", REQUEST_ID))
        await settle(app, pilot)
        source.clock_s += 1
        source.explanation = tui_lives.ended()
        await settle(app, pilot)
        assert "finished on i-1: stop" in await drawn(pilot)
        source.clock_s += 5
        await settle(app, pilot)
        assert source.asked == [REQUEST_ID, REQUEST_ID]


async def test_what_was_known_stays_when_an_answer_fails(source: FakeSource) -> None:
    async with dashboard(source) as (app, pilot):
        app.open(Target("i-1", REQUEST_ID))
        await settle(app, pilot)
        source.hear(ExplanationArrived(REQUEST_ID, None, "no answer within 5 s", source.clock_s))
        await settle(app, pilot)
        text = await drawn(pilot)
        assert "no answer within 5 s" in text
        assert "dispatched to i-3" in text


async def test_the_answer_about_another_request_is_not_shown(source: FakeSource) -> None:
    source.explanation = None
    async with dashboard(source) as (app, pilot):
        app.open(Target("i-1", "another"))
        found = tui_lives.eventful()
        source.hear(ExplanationArrived(REQUEST_ID, found, "", source.clock_s))
        await settle(app, pilot)
        assert "asking ..." in await drawn(pilot)
        assert "dispatched to i-3" not in await drawn(pilot)


async def test_y_copies_the_whole_id(source: FakeSource) -> None:
    async with dashboard(source, NARROW) as (app, pilot):
        app.open(Target("i-1", REQUEST_ID))
        await settle(app, pilot)
        await pilot.press("G", "y")
        assert app.clipboard == REQUEST_ID
        assert f"copied {REQUEST_ID}" in (await drawn(pilot)).splitlines()[-1]


async def test_filter_sort_and_commands(source: FakeSource) -> None:
    async with dashboard(source) as (app, pilot):
        app.open(Target("i-1", REQUEST_ID))
        await settle(app, pilot)
        screen = app.screen
        assert isinstance(screen, RequestScreen)
        await pilot.press("slash", *"migrated", "enter")
        assert {row.moment.at_s for row in screen.table("timeline").items} == {9.0}
        await pilot.press("colon", *"filter", "space", "f", "i", "r", "s", "t", "enter")
        assert "first token" in screen.table("timeline").items[0].moment.what
        await pilot.press("slash", *["backspace"] * 5, "enter")
        await pilot.press("s", "j", "enter")
        assert "sort:lengthv" in await drawn(pilot)
        assert screen.table("timeline").items[0].moment.length_s is None
        await pilot.press("S")
        assert screen.table("timeline").items[0].moment.phase is None
        await pilot.press("colon", *"sort", "space", *"time", "enter")
        assert "sort:time^" in await drawn(pilot)
        await pilot.press("colon", *"sort", "space", *"kv", "enter")
        assert "no column 'kv'" in (await drawn(pilot)).splitlines()[-1]


async def test_enter_opens_the_instance_with_the_request_in_view(source: FakeSource) -> None:
    async with dashboard(source) as (app, pilot):
        app.open(Target("i-1", REQUEST_ID))
        await settle(app, pilot)
        await pilot.press("j", "enter")
        assert isinstance(app.screen, InstanceScreen)
        assert (app.screen.instance_id, app.screen.request_id) == ("i-3", REQUEST_ID)


async def test_a_recording_has_no_details(tmp_path: Path) -> None:
    async with replaying(tmp_path, synthetic.frames(5), at_s=4.0) as (app, pilot, _):
        await settle(app, pilot)
        app.open(Target("i-1", REQUEST_ID))
        await settle(app, pilot)
        text = await drawn(pilot)
        assert "no requests are recorded up to here" in text
        assert REQUEST_ID in text


async def test_any_size_works(source: FakeSource) -> None:
    for size in ((1, 1), (20, 5), (40, 9), (300, 90)):
        async with dashboard(source, size) as (app, pilot):
            app.open(Target("i-1", REQUEST_ID))
            await settle(app, pilot)
            await pilot.press("j", "G", "s", "enter")
            assert len((await drawn(pilot)).splitlines()) == size[1]
