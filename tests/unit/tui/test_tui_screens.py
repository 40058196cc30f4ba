"""The screens in odd conditions: sizes, things that vanish, slow painting."""

import re

import pytest

from controller.api.wire.requests import Event
from controller.api.wire.stream import EventFrame, StatusFrame
from tests.unit.tui.tui_support import NARROW, WALL, WIDE, FakeSource, dashboard, drawn, settle
from tools import synthetic_cluster as synthetic
from tui.actions import Target
from tui.drawing import ASCII, GAP, Span, Tone
from tui.screens.dashboard import DashboardScreen, Pane
from tui.state import RecordingFailed, RequestsArrived
from tui.themes import THEMES
from tui.widgets import Lines, TableView


@pytest.fixture
def source() -> FakeSource:
    return FakeSource()


@pytest.mark.parametrize(
    "size", [(1, 1), (3, 2), (20, 5), (40, 9), (40, 10), (79, 24), (109, 30), (110, 12), (300, 90)]
)
async def test_any_size_works(source: FakeSource, size: tuple[int, int]) -> None:
    async with dashboard(source, size) as (app, pilot):
        source.feed(synthetic.frames(10))
        await settle(app, pilot)
        await pilot.press("j", "tab", "tab", "e", "z", "enter")
        await settle(app, pilot)
        await pilot.press("escape", "question_mark", "escape", "slash", "x", "escape")
        await settle(app, pilot)
        assert len((await drawn(pilot)).splitlines()) == size[1]
        assert app.is_running


async def test_resizing_keeps_cursor_and_focus(source: FakeSource) -> None:
    async with dashboard(source, WIDE) as (app, pilot):
        source.feed(synthetic.frames(10))
        await settle(app, pilot)
        assert isinstance(app.screen, DashboardScreen)
        await pilot.press("j", "j", "3", "k")
        chosen = [app.screen.table(pane).cursor_id for pane in Pane]
        for size in (NARROW, (30, 6), WIDE):
            await pilot.resize_terminal(*size)
            await settle(app, pilot)
            assert app.screen.table(Pane.EVENTS).has_focus
            assert [app.screen.table(pane).cursor_id for pane in Pane] == chosen


async def test_the_cursor_stays_with_its_row_while_rows_move(source: FakeSource) -> None:
    async with dashboard(source) as (app, pilot):
        frames = [frame for frame in synthetic.frames(40) if isinstance(frame, StatusFrame)]
        source.feed(frames[:1])
        await settle(app, pilot)
        assert isinstance(app.screen, DashboardScreen)
        await pilot.press("j", "j", "j")
        table = app.screen.table(Pane.INSTANCES)
        chosen, places = table.cursor_id, set()
        for frame in frames[1:]:
            source.feed([frame])
            await settle(app, pilot)
            assert table.cursor_id == chosen
            places.add([item.id for item in table.items].index(str(chosen)))
        assert len(places) > 1


async def test_an_instance_that_leaves_under_the_cursor(source: FakeSource) -> None:
    async with dashboard(source) as (app, pilot):
        some = [synthetic.instance(f"i-{place}", freeness_steps=place) for place in range(3)]
        source.feed([StatusFrame(time_s=source.clock_s, status=synthetic.cluster(tuple(some)))])
        await settle(app, pilot)
        await pilot.press("j", "enter")
        later_s = source.clock_s + 1
        left = synthetic.cluster((some[0], some[2]), later_s)
        source.feed([StatusFrame(time_s=later_s, status=left)])
        await settle(app, pilot)
        assert "i-1  is no longer part of the cluster" in await drawn(pilot)
        assert "gone" in await drawn(pilot)
        await pilot.press("escape")
        assert isinstance(app.screen, DashboardScreen)
        assert app.screen.table(Pane.INSTANCES).cursor_id == "i-2"
        source.feed([StatusFrame(time_s=later_s + 1, status=synthetic.cluster((), later_s + 1))])
        await settle(app, pilot)
        assert "no instances yet" in await drawn(pilot)
        await pilot.press("enter", "j", "G")
        assert isinstance(app.screen, DashboardScreen)


async def test_a_filter_that_hides_everything_is_what_is_said(source: FakeSource) -> None:
    async with dashboard(source) as (app, pilot):
        source.feed(synthetic.frames(3))
        await settle(app, pilot)
        app.screen.filter_by("zzz")
        await settle(app, pilot)
        assert "nothing matches the filter" in await drawn(pilot)
        assert "no instances yet" not in await drawn(pilot)
        app.screen.filter_by("")
        await settle(app, pilot)
        assert "nothing matches the filter" not in await drawn(pilot)
        source.answer = synthetic.requests("i-3", 11)
        app.open(Target("i-3"))
        await settle(app, pilot)
        app.screen.filter_by("zzz")
        await settle(app, pilot)
        assert "nothing matches the filter" in await drawn(pilot)


async def test_wide_ids_are_told_apart_in_a_narrow_terminal(source: FakeSource) -> None:
    async with dashboard(source, (80, 24)) as (app, pilot):
        source.feed(synthetic.frames(3))
        found = synthetic.requests("i-3", 2)
        wide = [
            item.model_copy(update={"id": f"{'会話' * 7}{number}"})
            for number, item in enumerate(found.requests, start=7)
        ]
        source.answer = found.model_copy(update={"requests": tuple(wide)})
        await settle(app, pilot)
        app.open(Target("i-3"))
        await settle(app, pilot)
        lines = (await drawn(pilot)).splitlines()
        for number in (7, 8):
            assert any(re.search(rf"会\S*…\S*{number}\s", line) for line in lines)


async def test_the_log_of_an_instance_stands_on_its_screen(source: FakeSource) -> None:
    """On a short screen the log takes the place of the history. Its text cannot control the
    terminal."""
    source.log = (*(f"line {n}" for n in range(90)), "2026 ERROR x: \x1b[2Jno room\tleft")
    async with dashboard(source, NARROW) as (app, pilot):
        source.feed(synthetic.frames(3))
        await settle(app, pilot)
        app.open(Target("i-3"))
        await settle(app, pilot)
        assert "[History]  Log" in await drawn(pilot)
        assert "ERROR" not in await drawn(pilot)
        await pilot.press("tab", "tab")
        await settle(app, pilot)
        await settle(app, pilot)
        shown = await drawn(pilot)
        assert "History  [Log]" in shown
        assert "ERROR x: \\x1b[2Jno room    left" in shown
        await pilot.press("g")
        await settle(app, pilot)
        assert "line 0" in await drawn(pilot)
        assert "ERROR" not in await drawn(pilot)
        await pilot.press("tab")
        await pilot.resize_terminal(*WALL)
        await settle(app, pilot)
        shown = await drawn(pilot)
        assert "History  sort" in shown
        assert "Log  sort" in shown


async def test_questions_about_requests_go_on_and_failures_are_said(source: FakeSource) -> None:
    async with dashboard(source) as (app, pilot):
        source.feed(synthetic.frames(3))
        await settle(app, pilot)
        app.open(Target("i-3"))
        await settle(app, pilot)
        assert "asking ..." in await drawn(pilot)
        assert source.asked == ["i-3"]
        source.hear(RequestsArrived("i-3", None, "no answer within 5 s", source.clock_s))
        await settle(app, pilot)
        assert "no answer within 5 s" in await drawn(pilot)
        answer = synthetic.requests("i-3").model_copy(update={"silent_frontends": ("f-1",)})
        source.hear(RequestsArrived("i-3", answer, "", source.clock_s))
        source.clock_s += 1
        await settle(app, pilot)
        assert "without those of f-1: no answer" in await drawn(pilot)
        assert source.asked == ["i-3", "i-3"]


async def test_many_requests_are_asked_for_seldom_and_their_age_is_shown(
    source: FakeSource,
) -> None:
    source.answer = synthetic.requests("i-3", 2000)
    async with dashboard(source) as (app, pilot):
        source.feed(synthetic.frames(3))
        await settle(app, pilot)
        app.open(Target("i-3"))
        await settle(app, pilot)
        source.clock_s += 2
        await settle(app, pilot)
        num = len(source.asked)
        source.clock_s += 1
        await settle(app, pilot)
        assert "Requests (2000)  1s ago" in await drawn(pilot)
        assert len(source.asked) == num
        source.clock_s += 1
        await settle(app, pilot)
        assert len(source.asked) == num + 1


async def test_two_thousand_requests_scroll(source: FakeSource) -> None:
    source.answer = synthetic.requests("i-3", 2000)
    async with dashboard(source) as (app, pilot):
        source.feed(synthetic.frames(3))
        await settle(app, pilot)
        app.open(Target("i-3"))
        source.clock_s += 1
        await settle(app, pilot)
        await pilot.press("G")
        assert "of 2000" in await drawn(pilot)
        assert "waiting" in await drawn(pilot)


async def test_an_event_about_no_instance_opens_none(source: FakeSource) -> None:
    async with dashboard(source) as (app, pilot):
        about = Event(kind="controller_started", time_s=source.clock_s, cause_id="x")
        source.feed([EventFrame(time_s=source.clock_s, event=about)])
        await settle(app, pilot)
        await pilot.press("3", "enter")
        assert isinstance(app.screen, DashboardScreen)
        assert "about no instance" in (await drawn(pilot)).splitlines()[-1]


async def test_a_recording_that_fails_is_on_the_screen(source: FakeSource) -> None:
    async with dashboard(source, recording=True) as (app, pilot):
        assert "[REC]" in await drawn(pilot)
        source.hear(RecordingFailed("cannot write the recording: No space left", 1.0))
        await settle(app, pilot)
        assert "[REC FAILED]" in await drawn(pilot)
        assert "No space left" in (await drawn(pilot)).splitlines()[-1]


async def test_nothing_beyond_ascii_on_an_ascii_terminal(source: FakeSource) -> None:
    async with dashboard(source, glyphs=ASCII) as (app, pilot):
        source.feed(synthetic.frames(20))
        odd = synthetic.instance("i-0", node="größer", detail="日本")
        source.feed([StatusFrame(time_s=source.clock_s, status=synthetic.cluster((odd,)))])
        await settle(app, pilot)
        for key in ("e", "question_mark", "escape", "0", "enter"):
            assert (await drawn(pilot)).isascii()
            await pilot.press(key)
            await settle(app, pilot)
        assert (await drawn(pilot)).isascii()


@pytest.mark.parametrize("theme", THEMES)
async def test_every_theme_paints_every_tone(source: FakeSource, theme: str) -> None:
    async with dashboard(source, theme=theme) as (app, pilot):
        source.feed(synthetic.frames(3))
        await settle(app, pilot)
        lines = app.screen.query_one("#header", Lines)
        lines.show([(Span(str(tone), tone),) for tone in Tone][:2])
        assert app.theme == theme
        assert "prod-a" not in (await drawn(pilot)).splitlines()[0]


async def test_only_what_changed_is_painted(source: FakeSource) -> None:
    async with dashboard(source) as (app, pilot):
        source.feed(synthetic.frames(10))
        await settle(app, pilot)
        assert isinstance(app.screen, DashboardScreen)
        table = app.screen.table(Pane.INSTANCES)
        painted: list[object] = []
        table.refresh = lambda *regions, **_: painted.extend(regions) or table
        app.pump()
        assert painted == []
        status = app.session.state.status
        assert status is not None
        waiting = status.instances[0].num_waiting_reqs
        changed = status.instances[0].model_copy(update={"num_waiting_reqs": waiting + 1})
        instances = (changed, *status.instances[1:])
        same_time = status.model_copy(update={"instances": instances})
        source.feed([StatusFrame(time_s=source.clock_s, status=same_time)])
        app.pump()
        place = [item.id for item in table.items].index(changed.id)
        (region,) = painted
        assert (region.y, region.height) == (place + 2, 1)
        assert region.width == 4 + GAP


async def test_a_table_of_nothing_takes_keys(source: FakeSource) -> None:
    async with dashboard(source) as (app, pilot):
        for key in ("j", "k", "g", "G", "pagedown", "pageup", "enter", "z", "e", "space"):
            await pilot.press(key)
        assert isinstance(app.screen, DashboardScreen)
        assert all(table.cursor_id is None for table in app.screen.query(TableView))


@pytest.mark.parametrize(
    "size", [(20, 5), (20, 24), (21, 7), (40, 10), (80, 5), (110, 9), (130, 70), (220, 70)]
)
async def test_every_key_of_the_main_screen_works_at_any_size(
    source: FakeSource, size: tuple[int, int]
) -> None:
    async with dashboard(source, size) as (app, pilot):
        source.feed(synthetic.overloaded(12))
        await settle(app, pilot)
        for key in (
            "e",
            "e",
            "z",
            "1",
            "z",
            "2",
            "3",
            "0",
            "tab",
            "j",
            "enter",
            "escape",
            "s",
            "escape",
        ):
            await pilot.press(key)
            await settle(app, pilot)
            lines = (await drawn(pilot)).splitlines()
            assert len(lines) == size[1]
            assert all(len(line) <= size[0] for line in lines)
        alarm = "! i-6: 61 wait"[: size[0] - 6]
        assert (alarm in await drawn(pilot)) is (size[1] >= 6)
