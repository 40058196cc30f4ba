"""Every key: what it does, and to what."""

from pathlib import Path
from typing import Any

import pytest
from textual.command import CommandPalette
from textual.pilot import Pilot
from textual.widgets import Input

from controller.api.wire.status import ClusterStatus
from controller.api.wire.stream import PingFrame, StatusFrame
from tests.unit.tui import (
    test_tui_acting,
    test_tui_autoscale,
    test_tui_marks,
    test_tui_replay_keys,
    test_tui_tuning,
    test_tui_undo,
)
from tests.unit.tui.tui_support import (
    NARROW,
    TESTED,
    FakeSource,
    dashboard,
    drawn,
    presses,
    replaying,
    settle,
)
from tools import synthetic_cluster as synthetic
from tui.actions import ACTIONS, TOGETHER, Place, Target
from tui.app import Dashboard
from tui.drawing import ASCII
from tui.panes.instances import ORDERS
from tui.screens.dashboard import DashboardScreen, Pane
from tui.screens.details import HelpScreen, InstanceScreen, RequestScreen


def test_every_key_is_pressed_by_a_test() -> None:
    assert test_tui_acting is not None
    assert test_tui_autoscale is not None
    assert test_tui_marks is not None
    assert test_tui_replay_keys is not None
    assert test_tui_tuning is not None
    assert test_tui_undo is not None
    assert {(entry.action_id, key) for entry in ACTIONS for key in entry.keys} == TESTED


def test_no_key_means_two_things_in_one_place() -> None:
    for places in TOGETHER:
        found = [key for entry in ACTIONS if entry.place in places for key in entry.keys]
        assert len(found) == len(set(found))


def test_keys_that_tmux_and_accidents_claim_are_free() -> None:
    claimed = {"ctrl+a", "ctrl+b", "ctrl+d", "ctrl+k"}
    assert not claimed & {key for entry in ACTIONS for key in entry.keys}


def test_action_ids_are_unique() -> None:
    assert len({entry.action_id for entry in ACTIONS}) == len(ACTIONS)


def main(app: Dashboard) -> DashboardScreen:
    assert isinstance(app.screen, DashboardScreen)
    return app.screen


def cursor(app: Dashboard, pane: Pane = Pane.INSTANCES) -> str | None:
    return main(app).table(pane).cursor_id


def order(app: Dashboard) -> list[str]:
    return [item.id for item in main(app).table(Pane.INSTANCES).items]


async def fed(
    app: Dashboard, pilot: Pilot[None], source: FakeSource, seconds: int = 10, **options: Any
) -> None:
    source.feed(synthetic.frames(seconds, **options))
    await settle(app, pilot)


@pytest.fixture
def source() -> FakeSource:
    return FakeSource()


@presses("row_down")
async def test_down(source: FakeSource, key: str) -> None:
    async with dashboard(source) as (app, pilot):
        await fed(app, pilot, source)
        assert cursor(app) == order(app)[0]
        await pilot.press(key)
        assert cursor(app) == order(app)[1]


@presses("row_up")
async def test_up(source: FakeSource, key: str) -> None:
    async with dashboard(source) as (app, pilot):
        await fed(app, pilot, source)
        await pilot.press("j", "j", key)
        assert cursor(app) == order(app)[1]
        await pilot.press(key, key)
        assert cursor(app) == order(app)[0]


@presses("row_page_down")
async def test_page_down(source: FakeSource, key: str) -> None:
    async with dashboard(source, NARROW) as (app, pilot):
        await fed(app, pilot, source, num_instances=64)
        await pilot.press(key)
        place = order(app).index(cursor(app) or "")
        assert place > 5
        assert f"{place - 11}-{place + 1} of 64" in await drawn(pilot)


@presses("row_page_up")
async def test_page_up(source: FakeSource, key: str) -> None:
    async with dashboard(source, NARROW) as (app, pilot):
        await fed(app, pilot, source, num_instances=64)
        await pilot.press("G", key)
        assert 0 < order(app).index(cursor(app) or "") < 60


@presses("row_first")
async def test_first(source: FakeSource, key: str) -> None:
    async with dashboard(source) as (app, pilot):
        await fed(app, pilot, source)
        await pilot.press("j", "j", key)
        assert cursor(app) == order(app)[0]


@presses("row_last")
async def test_last(source: FakeSource, key: str) -> None:
    async with dashboard(source) as (app, pilot):
        await fed(app, pilot, source)
        await pilot.press(key)
        assert cursor(app) == order(app)[-1]


@presses("row_open")
async def test_open(source: FakeSource, key: str) -> None:
    """The instance is the one under the cursor when the key is pressed, even if rows move then."""
    async with dashboard(source) as (app, pilot):
        await fed(app, pilot, source)
        await pilot.press("j", "j")
        chosen = cursor(app)
        await pilot.press("S", "s", "j", "enter")
        assert cursor(app) == chosen
        await pilot.press(key)
        assert isinstance(app.screen, InstanceScreen)
        assert app.screen.instance_id == chosen
        source.answer = synthetic.requests(str(chosen))
        source.clock_s += 1
        await settle(app, pilot)
        assert set(source.asked) == {chosen}
        lines = await drawn(pilot)
        assert f" {chosen}  " in lines
        assert "Requests (4)" in lines
        assert all(word in lines for word in ("running", "evicted", "waiting"))


@presses("back")
async def test_back(source: FakeSource, key: str) -> None:
    async with dashboard(source) as (app, pilot):
        await fed(app, pilot, source)
        await pilot.press("3", "z", key)
        assert main(app).view.zoomed is None
        assert main(app).view.focused is Pane.EVENTS
        await pilot.press(key)
        assert main(app).table(Pane.INSTANCES).has_focus


@presses("back_main")
async def test_back_to_the_dashboard(source: FakeSource, key: str) -> None:
    async with dashboard(source) as (app, pilot):
        await fed(app, pilot, source)
        await pilot.press("enter")
        assert isinstance(app.screen, InstanceScreen)
        await pilot.press(key)
        assert main(app).table(Pane.INSTANCES).has_focus


@presses("help_close")
async def test_close_help(source: FakeSource, key: str) -> None:
    async with dashboard(source) as (app, pilot):
        await pilot.press("question_mark", key)
        assert isinstance(app.screen, DashboardScreen)


@presses("filter")
async def test_filter(source: FakeSource, key: str) -> None:
    async with dashboard(source) as (app, pilot):
        await fed(app, pilot, source)
        await pilot.press(key, *"stall")
        assert order(app) == ["i-14"]
        await pilot.press("enter")
        assert order(app) == ["i-14"]
        assert "Instances (1/16)" in await drawn(pilot)
        assert "filter:stall" in await drawn(pilot)
        await pilot.press(key, "x", "escape")
        assert order(app) == ["i-14"]
        await pilot.press(key, *["backspace"] * 5, "enter")
        assert len(order(app)) == 16
        assert main(app).table(Pane.INSTANCES).has_focus


async def test_each_pane_has_its_own_filter(source: FakeSource) -> None:
    async with dashboard(source) as (app, pilot):
        await fed(app, pilot, source, seconds=30)
        await pilot.press("3", "slash", *"evicted", "enter")
        events = main(app).table(Pane.EVENTS)
        assert events.has_focus
        assert {item.entry.event.kind for item in events.items} == {"evicted"}
        assert len(order(app)) == 16


@presses("sort")
async def test_sort(source: FakeSource, key: str) -> None:
    async with dashboard(source) as (app, pilot):
        await fed(app, pilot, source)
        await pilot.press("j", "j")
        chosen = cursor(app)
        for column in [*list(ORDERS)[1:], "freeness"]:
            steps = list(ORDERS).index(column) - list(ORDERS).index(main(app).order[0])
            moves = ["j"] * steps + ["k"] * -steps
            await pilot.press(key, *moves, "enter")
            way = "v" if ORDERS[column] else "^"
            assert f"sort:{column}{way}" in await drawn(pilot)
            assert cursor(app) == chosen
        await pilot.press(key, "j", "enter")
        assert order(app)[:3] == ["i-0", "i-1", "i-2"]


@presses("sort_same")
async def test_the_same_order_is_reversed(source: FakeSource, key: str) -> None:
    async with dashboard(source) as (app, pilot):
        await fed(app, pilot, source)
        await pilot.press("s")
        assert "in force; again: largest first" in await drawn(pilot)
        await pilot.press(key)
        assert "sort:freenessv" in await drawn(pilot)
        await pilot.press("s", "enter")
        assert "sort:freeness^" in await drawn(pilot)


@presses("sort_none")
async def test_an_order_need_not_be_chosen(source: FakeSource, key: str) -> None:
    async with dashboard(source) as (app, pilot):
        await fed(app, pilot, source)
        await pilot.press("s", "j", key)
        assert app.screen is main(app)
        assert "sort:freeness^" in await drawn(pilot)


@presses("sort_reverse")
async def test_reverse(source: FakeSource, key: str) -> None:
    async with dashboard(source) as (app, pilot):
        await fed(app, pilot, source)
        await pilot.press("s", "j", "enter", key)
        assert order(app)[:2] == ["i-15", "i-14"]
        assert "sort:idv" in await drawn(pilot)


@presses("freeze")
async def test_freeze(source: FakeSource, key: str) -> None:
    async with dashboard(source) as (app, pilot):
        frames = list(synthetic.frames(40))
        source.feed(frames[:40])
        await settle(app, pilot)
        await pilot.press(key)
        frozen = (await drawn(pilot)).splitlines()[3:-1]
        source.feed(frames[40:])
        await settle(app, pilot)
        assert (await drawn(pilot)).splitlines()[3:-1] == frozen
        assert "[FROZEN " in await drawn(pilot)
        assert "live 0.0s ago" in await drawn(pilot)
        await pilot.press(key)
        assert (await drawn(pilot)).splitlines()[3:-1] != frozen
        assert "FROZEN" not in await drawn(pilot)


@presses("freeze")
async def test_pause(tmp_path: Any, key: str) -> None:
    async with replaying(tmp_path, synthetic.frames(30)) as (app, pilot, clock):
        clock.now_s += 5
        await settle(app, pilot)
        await pilot.press(key)
        before = (await drawn(pilot)).splitlines()[:-1]
        clock.now_s += 5
        await settle(app, pilot)
        assert (await drawn(pilot)).splitlines()[:-1] == before
        assert "5.0s of 29s  paused" in await drawn(pilot)
        await pilot.press(key)
        clock.now_s += 2
        await settle(app, pilot)
        assert "7.0s of 29s  x1" in await drawn(pilot)


@presses("replay_slower")
async def test_slower(tmp_path: Any, key: str) -> None:
    async with replaying(tmp_path, synthetic.frames(30)) as (app, pilot, clock):
        await pilot.press(key)
        clock.now_s += 8
        await settle(app, pilot)
        assert "4.0s of 29s  x0.5" in await drawn(pilot)
        await pilot.press(*[key] * 9)
        assert "x0.125" in await drawn(pilot)


@presses("replay_faster")
async def test_faster(tmp_path: Any, key: str) -> None:
    async with replaying(tmp_path, synthetic.frames(30)) as (app, pilot, clock):
        clock.now_s += 1
        await pilot.press(key, key)
        clock.now_s += 2
        await settle(app, pilot)
        assert "9.0s of 29s  x4" in await drawn(pilot)


async def test_keys_of_a_replay_are_nothing_in_a_live_dashboard(source: FakeSource) -> None:
    async with dashboard(source) as (app, pilot):
        await fed(app, pilot, source)
        before = await drawn(pilot)
        await pilot.press(*(key for each in ACTIONS if each.replay for key in each.keys))
        assert await drawn(pilot) == before
        assert "slower" not in before
        await typed(pilot, "colon", "seek 5s", "enter")
        assert "only a replay has other moments" in await drawn(pilot)


@presses("copy_id")
async def test_copy_id(source: FakeSource, key: str) -> None:
    """The id of the row under the cursor is copied in full, even if the row cuts it, and shown."""
    async with dashboard(source, NARROW) as (app, pilot):
        await fed(app, pilot, source)
        await pilot.press("j", key)
        assert app.clipboard == order(app)[1]
        assert f"copied {order(app)[1]}" in await drawn(pilot)
        found = source_status(app).model_copy(
            update={"moves": tuple(
                move.model_copy(update={"request_id": f"cmpl-{place}d36e06fa6a667f4-0-7c3a17"})
                for place, move in enumerate(source_status(app).moves)
            )}
        )  # fmt: skip
        source.feed([StatusFrame(time_s=source.clock_s + 1, status=found)])
        await settle(app, pilot)
        await pilot.press("1", "j", key)
        whole = "cmpl-1d36e06fa6a667f4-0-7c3a17"
        assert app.clipboard == whole
        shown = await drawn(pilot)
        assert f"copied {whole}" in shown
        assert "1d36…3a17" in shown
        await pilot.press("enter")
        await settle(app, pilot)
        assert f" {whole} " in await drawn(pilot)
        await pilot.press("question_mark", key)
        assert app.clipboard == whole


def source_status(app: Dashboard) -> ClusterStatus:
    assert app.session.state.status is not None
    return app.session.state.status


@presses("events_follow")
async def test_follow(source: FakeSource, key: str) -> None:
    async with dashboard(source) as (app, pilot):
        frames = list(synthetic.frames(60))
        source.feed(frames[:200])
        await settle(app, pilot)
        await pilot.press("3", "k")
        held = cursor(app, Pane.EVENTS)
        assert "[F]ollow" in await drawn(pilot)
        source.feed(frames[200:])
        await settle(app, pilot)
        assert cursor(app, Pane.EVENTS) == held
        await pilot.press(key)
        newest = main(app).table(Pane.EVENTS).items[-1].id
        assert cursor(app, Pane.EVENTS) == newest
        assert "[F]ollow" not in await drawn(pilot)
        await pilot.press(key)
        assert "[F]ollow" in await drawn(pilot)


@presses("events_expand")
async def test_expand(source: FakeSource, key: str) -> None:
    async with dashboard(source) as (app, pilot):
        await fed(app, pilot, source)
        await pilot.press(key)
        text = await drawn(pilot)
        assert "CAUSE" in text
        assert "ttft 310ms" in text
        assert "finished" in text
        assert "dispatched/s" not in text
        assert "Queue heads (" not in text
        assert main(app).table(Pane.EVENTS).has_focus
        await pilot.press(key)
        text = await drawn(pilot)
        assert "CAUSE" not in text
        assert "dispatched/s" in text
        assert " finished  " not in text


@presses("pane_zoom")
async def test_zoom(source: FakeSource, key: str) -> None:
    async with dashboard(source) as (app, pilot):
        await fed(app, pilot, source)
        await pilot.press("2", key)
        text = await drawn(pilot)
        assert "Queue heads" in text
        assert "Instances (" not in text
        assert "Events (" not in text
        await pilot.press(key)
        assert "Instances (" in await drawn(pilot)


@presses("pane_instances")
async def test_to_the_instances(source: FakeSource, key: str) -> None:
    async with dashboard(source) as (app, pilot):
        await pilot.press("2", key)
        assert main(app).table(Pane.INSTANCES).has_focus


@presses("pane_migrations")
async def test_to_the_migrations(source: FakeSource, key: str) -> None:
    async with dashboard(source, NARROW) as (app, pilot):
        await fed(app, pilot, source)
        await pilot.press(key)
        assert "[1 Migrations]" in await drawn(pilot)
        assert main(app).table(Pane.MIGRATIONS).has_focus
        assert cursor(app, Pane.MIGRATIONS) == "m-a1-9"
        await pilot.press("enter")
        assert isinstance(app.screen, RequestScreen)
        assert app.screen.request_id == "r77c0"
        await pilot.press("escape")
        assert main(app).target() == Target("i-3", "r77c0"), "where the request still is"
        await pilot.press("end")
        assert main(app).target().instance_id == "i-1", "where it went"


@presses("pane_queue")
async def test_to_the_queue(source: FakeSource, key: str) -> None:
    async with dashboard(source, NARROW) as (app, pilot):
        await fed(app, pilot, source)
        await pilot.press("3")
        assert "[3 Events]" in await drawn(pilot)
        await pilot.press(key)
        assert "[2 Queue heads]" in await drawn(pilot)
        assert main(app).table(Pane.QUEUE).has_focus
        head = main(app).target()
        assert head.instance_id == cursor(app, Pane.QUEUE)
        await pilot.press("enter")
        assert isinstance(app.screen, RequestScreen)
        assert app.screen.request_id == head.request_id


@presses("pane_events")
async def test_to_the_events(source: FakeSource, key: str) -> None:
    async with dashboard(source, NARROW) as (app, pilot):
        await fed(app, pilot, source)
        assert "[2 Queue heads]" in await drawn(pilot)
        await pilot.press(key)
        assert "[3 Events]" in await drawn(pilot)
        events = main(app).table(Pane.EVENTS)
        assert events.has_focus
        about = events.items[-1].entry.event.instance_id
        await pilot.press("enter")
        assert isinstance(app.screen, InstanceScreen)
        assert app.screen.instance_id == about


@presses("pane_next")
async def test_next_pane(source: FakeSource, key: str) -> None:
    async with dashboard(source) as (app, pilot):
        for pane in (Pane.MIGRATIONS, Pane.QUEUE, Pane.EVENTS, Pane.INSTANCES):
            await pilot.press(key)
            assert main(app).table(pane).has_focus


@presses("pane_previous")
async def test_previous_pane(source: FakeSource, key: str) -> None:
    async with dashboard(source, NARROW) as (app, pilot):
        for pane in (Pane.EVENTS, Pane.QUEUE, Pane.MIGRATIONS, Pane.INSTANCES):
            await pilot.press(key)
            assert main(app).table(pane).has_focus


async def typed(pilot: Pilot[None], key: str, text: str, end: str) -> None:
    """Types a text at once into the prompt that the key opens."""
    await pilot.press(key)
    pilot.app.screen.query_one(Input).value = text
    await pilot.press(end)


@presses("command")
async def test_command(source: FakeSource, key: str) -> None:
    async with dashboard(source) as (app, pilot):
        await fed(app, pilot, source)
        await typed(pilot, key, "sort kv", "enter")
        assert "sort:kvv" in await drawn(pilot)
        assert main(app).table(Pane.INSTANCES).has_focus
        await typed(pilot, key, "sotr kv", "enter")
        assert "no command 'sotr': did you mean sort?" in (await drawn(pilot)).splitlines()[-1]
        await typed(pilot, key, "theme monochrome", "enter")
        assert app.theme == "monochrome"
        await typed(pilot, key, "filter i-1", "enter")
        assert set(order(app)) == {"i-1", *(f"i-{place}" for place in range(10, 16))}
        await typed(pilot, key, "quit", "escape")
        assert app.is_running
        await typed(pilot, key, "instance i-15", "enter")
        assert isinstance(app.screen, InstanceScreen)
        await pilot.press("escape")
        await typed(pilot, key, "quit", "enter")
    assert source.stopped


async def test_typing_does_not_press_keys(source: FakeSource) -> None:
    async with dashboard(source) as (app, pilot):
        await fed(app, pilot, source)
        await pilot.press("colon", *"q?12 z")
        assert isinstance(app.screen, DashboardScreen)
        assert app.screen.query_one(Input).value == "q?12 z"
        source.clock_s += 1
        await settle(app, pilot)
        assert app.screen.query_one(Input).has_focus


@presses("suspend")
async def test_suspend(source: FakeSource, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    suspended: list[Dashboard] = []

    def suspend(app: Dashboard) -> None:
        suspended.append(app)

    monkeypatch.setattr(Dashboard, "action_suspend_process", suspend)
    async with dashboard(source) as (app, pilot):
        await pilot.press(key)
        assert suspended == [app]


async def test_a_click_on_a_head_sorts_and_another_reverses(source: FakeSource) -> None:
    async with dashboard(source) as (app, pilot):
        await fed(app, pilot, source)
        line = (await drawn(pilot)).splitlines()
        heads = next(place for place, text in enumerate(line) if "FREENESS" in text)
        for expected in ("sort:waitv", "sort:wait^"):
            await pilot.click(offset=(line[heads].index("WAIT") + 1, heads))
            assert expected in await drawn(pilot)
        await pilot.click(offset=(line[heads].index("TREND"), heads))
        assert "sort:wait^" in await drawn(pilot)


@presses("picture")
async def test_picture(
    source: FakeSource, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source.cluster = "../prod a"
    async with dashboard(source) as (app, pilot):
        source.feed([PingFrame(time_s=synthetic.START_S + 31)])
        await settle(app, pilot)
        await pilot.press(key)
        first = tmp_path / "llumctl-_prod_a-20260101-120031.svg"
        assert f"saved {first.name}" in (await drawn(pilot)).splitlines()[-1]
        before = first.read_text()
        assert before.startswith("<svg")
        assert first.stat().st_mode & 0o777 == 0o600
        await pilot.press("question_mark", key)
        assert first.read_text() == before
        assert "Help" in (tmp_path / "llumctl-_prod_a-20260101-120031-2.svg").read_text()
        await pilot.press("escape")
        await settle(app, pilot)
        monkeypatch.chdir("/proc")
        await pilot.press(key)
        assert "no picture of the screen:" in (await drawn(pilot)).splitlines()[-1]


@presses("palette")
async def test_palette(source: FakeSource, key: str) -> None:
    async with dashboard(source) as (app, pilot):
        await fed(app, pilot, source)
        await pilot.press(key)
        assert isinstance(app.screen, CommandPalette)
        await pilot.press(*"sort headroom")
        await app.workers.wait_for_complete()
        await pilot.pause()
        await pilot.press("down", "enter")
        await pilot.pause()
        assert main(app).view.sort == "headroom"


async def test_ascii_terminals_have_no_palette(source: FakeSource) -> None:
    async with dashboard(source, glyphs=ASCII) as (app, pilot):
        await fed(app, pilot, source)
        await pilot.press("ctrl+p")
        assert isinstance(app.screen, DashboardScreen)
        assert "type : instead" in await drawn(pilot)


@presses("help")
async def test_help(source: FakeSource, key: str) -> None:
    async with dashboard(source, (100, 90)) as (app, pilot):
        await pilot.press(key)
        assert isinstance(app.screen, HelpScreen)
        text = await drawn(pilot)
        for entry in ACTIONS:
            here = entry.place in (Place.MAIN, Place.ROWS, Place.TABLE, Place.ANYWHERE)
            if entry.keys and here and not entry.replay:
                assert entry.text in text
        await pilot.press(key)
        assert isinstance(app.screen, HelpScreen)


@presses("quit")
async def test_quit(source: FakeSource, key: str) -> None:
    async with dashboard(source) as (app, pilot):
        await pilot.press(key)
        await pilot.pause()
        assert not app.is_running or app._exit
    assert source.stopped


async def test_keys_can_be_rebound_by_action_id(source: FakeSource) -> None:
    async with dashboard(source, keymap={"sort": "b", "row_down": "n,ctrl+n"}) as (app, pilot):
        await fed(app, pilot, source)
        await pilot.press("s")
        assert "sort:freeness^" in await drawn(pilot)
        await pilot.press("b", "n", "enter")
        assert "sort:id^" in await drawn(pilot)
        assert " b sort " in (await drawn(pilot)).splitlines()[-1]
        first = cursor(app)
        await pilot.press("n")
        assert cursor(app) != first
        await pilot.press("question_mark")
        assert "n, Ctrl-n" in await drawn(pilot)


async def test_the_mouse_chooses_and_opens(source: FakeSource) -> None:
    async with dashboard(source) as (app, pilot):
        await fed(app, pilot, source)
        await pilot.click("#instances", offset=(6, 5))
        assert cursor(app) == order(app)[3]
        await pilot.click("#queue", offset=(3, 2))
        assert main(app).view.focused is Pane.QUEUE
        wanted = order(app)[4]
        await pilot.click("#instances", offset=(6, 6), times=2)
        await pilot.pause()
        assert isinstance(app.screen, InstanceScreen)
        assert app.screen.instance_id == wanted
