"""Every key that changes nothing in the cluster: what it does, to what, and how it is rebound."""

from pathlib import Path

import pytest
from textual.command import CommandPalette
from textual.widgets import Input

from controller.api.wire.stream import PingFrame, StatusFrame
from tests.unit.tui import test_tui_acting, test_tui_graphs, test_tui_replay, test_tui_tuning
from tests.unit.tui.tui_support import (
    NARROW,
    TESTED,
    Bed,
    FakeSource,
    acting,
    field_of,
    keys_of,
    presses,
    watching,
)
from tools import synthetic_cluster as synthetic
from tui import actions
from tui.actions import ACTIONS, TOGETHER, Group, KeymapError, Place, Target
from tui.app import Dashboard, Next
from tui.drawing import ASCII, Tone
from tui.panes.instances import ORDER_WORDS, ORDERS
from tui.screens.dashboard import DashboardScreen, Pane
from tui.screens.details import InstanceScreen, RequestScreen
from tui.widgets import TableView


def test_every_key_is_pressed_by_a_test() -> None:
    others = (test_tui_acting, test_tui_graphs, test_tui_replay, test_tui_tuning)
    assert all(others), "importing them notes the keys that they press"
    assert {(entry.action_id, key) for entry in ACTIONS for key in entry.keys} == TESTED


def test_a_key_means_one_thing_in_a_place_and_none_that_tmux_and_accidents_claim() -> None:
    assert {place for together in TOGETHER for place in together} == set(Place)
    for places in TOGETHER:
        found = [key for entry in ACTIONS if entry.place in places for key in entry.keys]
        assert len(found) == len(set(found))
        assert not {"ctrl+a", "ctrl+b", "ctrl+d", "ctrl+k"} & set(found)


MOVES: list[tuple[tuple[str, ...], str, int]] = [
    (keys_of("row_down"), "", 1),
    (keys_of("row_up"), "jj", 1),
    (keys_of("row_up"), "", 0),
    (keys_of("row_first"), "jj", 0),
    (keys_of("row_last"), "", -1),
]


async def test_keys_move_the_cursor(watched: Bed) -> None:
    for keys, before, place in MOVES:
        for key in keys:
            await watched.press("home", *before, key)
            assert watched.cursor == watched.ids()[place], key


@presses("row_page_down", "down")
@presses("row_page_up", "up")
async def test_pages(down: str, up: str) -> None:
    async with watching(synthetic.frames(10, num_instances=64), NARROW) as bed:
        await bed.press(down)
        place = bed.ids().index(bed.cursor)
        assert place > 5
        assert f"{place - 11}-{place + 1} of 64" in await bed.shown()
        await bed.press("G", up)
        assert 0 < bed.ids().index(bed.cursor) < 60


@presses("row_open")
async def test_open(watched: Bed, key: str) -> None:
    """The instance is the one under the cursor when the key is pressed, even if rows move then."""
    await watched.press("j", "j")
    chosen = watched.cursor
    await watched.press("S", "s", "j", "enter")
    assert watched.cursor == chosen
    watched.source.answer = synthetic.requests(chosen)
    await watched.press(key)
    assert isinstance(watched.app.screen, InstanceScreen)
    assert watched.app.screen.instance_id == chosen
    await watched.sees(f" {chosen}  ", "Requests (4)", "running", "evicted", "waiting")
    assert set(watched.source.asked) == {chosen}


LEAVING = keys_of("back_main"), keys_of("help_close")


@presses("back")
@presses("pane_zoom", "zoom")
async def test_keys_lead_back(watched: Bed, key: str, zoom: str) -> None:
    await watched.press("3", zoom)
    assert watched.main.view.zoomed is Pane.EVENTS
    assert "Instances (" not in await watched.shown()
    await watched.press(key)
    assert watched.main.view.zoomed is None
    assert watched.main.view.focused is Pane.EVENTS
    await watched.press(key)
    assert watched.table().has_focus
    for opening, keys in zip(("enter", "question_mark"), LEAVING, strict=True):
        for each in keys:
            await watched.press(opening)
            assert not isinstance(watched.app.screen, DashboardScreen)
            await watched.press(each)
            assert watched.table().has_focus


@presses("filter")
async def test_filter(key: str) -> None:
    async with watching(30) as bed:
        await bed.press(key, *"stall")
        assert bed.ids() == ["i-14"]
        await bed.press("enter")
        await bed.sees("Instances (1/16)", "filter:stall")
        await bed.type(key, "other", "escape")
        await bed.press("3")
        await bed.type(key, "evicted")
        assert bed.table(Pane.EVENTS).has_focus
        assert {row.entry.event.kind for row in bed.table(Pane.EVENTS).items} == {"evicted"}
        assert bed.ids() == ["i-14"], "each pane has its own filter"
        for pane_key, pane in (("1", Pane.MIGRATIONS), ("2", Pane.QUEUE)):
            await bed.press(pane_key)
            wanted = bed.table(pane).target.request_id
            await bed.type(key, wanted)
            assert {item.target.request_id for item in bed.table(pane).items} == {wanted}
        await bed.press("0")
        await bed.type(key, "")
        assert len(bed.ids()) == 16
        assert bed.table().has_focus


@presses("back")
async def test_a_filter_has_a_colour_and_goes_with_a_key(watched: Bed, key: str) -> None:
    """Marks go first."""

    def tones() -> list[Tone]:
        return [tone for text, tone in watched.table()._title if text.startswith("filter:")]

    assert tones() == [Tone.DIM]
    await watched.press("x")
    await watched.type("slash", "stall")
    assert tones() == [Tone.WARN]
    await watched.press("x", key)
    assert "marked" not in await watched.shown()
    assert watched.ids() == ["i-14"]
    await watched.press(key)
    assert len(watched.ids()) == 16
    await watched.open(Target("i-3"))
    await watched.type("slash", "nothing")
    await watched.press(LEAVING[0][0])
    await watched.sees("filter:-")
    await watched.press(LEAVING[0][0])
    assert isinstance(watched.app.screen, DashboardScreen)


@presses("sort")
async def test_sort(watched: Bed, key: str) -> None:
    await watched.press("j", "j")
    chosen = watched.cursor
    for column in [*list(ORDERS)[1:], "freeness"]:
        steps = list(ORDERS).index(column) - list(ORDERS).index(watched.main.order[0])
        await watched.press(key, *["j"] * steps + ["k"] * -steps, "enter")
        words = ORDER_WORDS.get(column, column)
        assert f"sort:{words}{'v' if ORDERS[column] else '^'}" in await watched.shown()
        assert watched.cursor == chosen
    await watched.press(key, "j", "enter")
    assert watched.ids()[:3] == ["i-0", "i-1", "i-2"]


@presses("sort_same", "same")
@presses("sort_none", "none")
@presses("sort_reverse", "reverse")
async def test_an_order_is_reversed_or_kept(
    watched: Bed, same: str, none: str, reverse: str
) -> None:
    await watched.press("s")
    assert "in force; again: largest first" in await watched.shown()
    await watched.press(same)
    assert "sort:trouble, freenessv" in await watched.shown()
    for keys in (("s", "enter"), ("s", "j", none)):
        await watched.press(*keys)
        assert "sort:trouble, freeness^" in await watched.shown()
    await watched.press("s", "j", "enter", reverse)
    assert watched.ids()[:2] == ["i-15", "i-14"]
    assert "sort:idv" in await watched.shown()


@presses("freeze")
async def test_freeze(key: str) -> None:
    frames = list(synthetic.frames(40))
    async with watching(frames[:40]) as bed:
        await bed.press(key)
        frozen = (await bed.lines())[3:-1]
        await bed.feed(frames[40:])
        assert (await bed.lines())[3:-1] == frozen
        await bed.sees("[FROZEN ", "live 0.0s ago")
        await bed.press(key)
        assert (await bed.lines())[3:-1] != frozen
        assert "FROZEN" not in await bed.shown()


@presses("copy_id")
async def test_copy_id(key: str) -> None:
    """The id of the row under the cursor is copied in full, even if the row cuts it, and shown."""
    async with watching(10, NARROW) as bed:
        whole = "cmpl-1d36e06fa6a667f4-0-7c3a17"
        moves = (bed.status.moves[0].model_copy(update={"request_id": whole}),)
        found = bed.status.model_copy(update={"moves": moves})
        await bed.feed([StatusFrame(time_s=bed.source.clock_s + 1, status=found)])
        await bed.press("1", key)
        assert bed.app.clipboard == whole
        assert f"copied {whole}" in await bed.bottom()
        assert "1d36…3a17" in await bed.shown()
        await bed.press("question_mark", key)
        assert bed.app.clipboard == whole, "a line of the help has no id"


@presses("events_follow")
async def test_follow(key: str) -> None:
    frames = list(synthetic.frames(60))
    async with watching(frames[:200]) as bed:
        events = bed.table(Pane.EVENTS)
        await bed.press("3", "k")
        held = events.cursor_id
        assert "[F]ollow" in await bed.shown()
        await bed.feed(frames[200:])
        assert events.cursor_id == held
        await bed.press(key)
        assert events.cursor_id == events.items[-1].id
        assert "[F]ollow" not in await bed.shown()
        await bed.press(key)
        assert "[F]ollow" in await bed.shown()


@presses("events_expand")
async def test_expand(watched: Bed, key: str) -> None:
    expanded = ("CAUSE", "ttft 310ms", " finished  ")
    brief = ("dispatched/s", "Queue heads (")
    for there, gone in ((expanded, brief), (brief, expanded)):
        await watched.press(key)
        await watched.sees(*there)
        text = await watched.shown()
        assert not any(words in text for words in gone)


PANES = [
    (keys_of("pane_migrations"), Pane.MIGRATIONS),
    (keys_of("pane_queue"), Pane.QUEUE),
    (keys_of("pane_events"), Pane.EVENTS),
    (keys_of("pane_instances"), Pane.INSTANCES),
    *((keys_of("pane_next"), pane) for pane in (Pane.MIGRATIONS, Pane.QUEUE, Pane.EVENTS)),
    *((keys_of("pane_previous"), pane) for pane in (Pane.QUEUE, Pane.MIGRATIONS, Pane.INSTANCES)),
    (keys_of("pane_previous"), Pane.EVENTS),
    (keys_of("pane_next"), Pane.INSTANCES),
]


async def test_keys_lead_to_the_panes() -> None:
    async with watching(10, NARROW) as bed:
        for (key,), pane in PANES:
            await bed.press(key)
            assert bed.table(pane).has_focus, (key, pane)


async def test_enter_opens_what_the_row_of_a_move_is_about() -> None:
    async with watching(10, NARROW) as bed:
        await bed.press("1")
        assert bed.table(Pane.MIGRATIONS).cursor_id == "m-a1-9"
        await bed.press("enter")
        assert isinstance(bed.app.screen, RequestScreen)
        assert bed.app.screen.request_id == "r77c0"
        await bed.press("escape")
        assert bed.main.target() == Target("i-3", "r77c0"), "where the request still is"
        await bed.press("end")
        assert bed.main.target().instance_id == "i-1", "where it went"


@presses("command")
async def test_command(key: str) -> None:
    async with watching() as bed:
        await bed.type(key, "sort kv")
        assert "sort:kvv" in await bed.shown()
        assert bed.table().has_focus
        await bed.type(key, "theme monochrome")
        assert bed.app.theme == "monochrome"
        await bed.type(key, "filter i-15")
        assert bed.ids() == ["i-15"]
        await bed.type(key, "quit", "escape")
        await bed.press(key, *"q?12 z")
        assert bed.main.query_one(Input).value == "q?12 z", "typing presses no keys"
        await bed.wait(1)
        await bed.type("", "instance i-15")
        assert isinstance(bed.app.screen, InstanceScreen)
        await bed.press("escape", key)
        bed.app.screen.query_one(Input).value = "quit"
        await bed.pilot.press("enter")
    assert bed.source.stopped


@presses("suspend")
@presses("quit", "leave")
async def test_suspend_and_quit(key: str, leave: str, monkeypatch: pytest.MonkeyPatch) -> None:
    suspended: list[Dashboard] = []
    monkeypatch.setattr(Dashboard, "action_suspend_process", lambda app: suspended.append(app))
    async with watching() as bed:
        await bed.press(key)
        assert suspended == [bed.app]
        await bed.pilot.press(leave)
    assert bed.source.stopped


@presses("picture")
async def test_picture(key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = FakeSource()
    source.cluster = "../prod a"
    async with watching([PingFrame(time_s=synthetic.START_S + 31)], source=source) as bed:
        await bed.press(key)
        first = tmp_path / "llumctl-_prod_a-20260101-120031.svg"
        assert f"saved {first.name}" in await bed.bottom()
        before = first.read_text()
        assert before.startswith("<svg")
        assert first.stat().st_mode & 0o777 == 0o600
        await bed.press("question_mark", key)
        assert first.read_text() == before
        assert "Help" in (tmp_path / "llumctl-_prod_a-20260101-120031-2.svg").read_text()
        monkeypatch.chdir("/proc")
        await bed.press("escape", key)
        assert "no picture of the screen:" in await bed.bottom()


@presses("palette")
async def test_the_palette_acts_on_the_row_that_was_under_the_cursor(key: str) -> None:
    async with acting() as bed:
        wanted = bed.cursor
        await bed.press(key)
        assert isinstance(bed.app.screen, CommandPalette)
        await bed.tick(**{field_of(wanted): {"freeness_steps": 9000.0}})
        await bed.pilot.press(*f"restart {wanted}")
        await bed.app.workers.wait_for_complete()
        await bed.pilot.pause()
        await bed.press("down", "enter", "y")
        assert bed.control.sent == [("restart", wanted)]
    async with watching(glyphs=ASCII) as bed:
        await bed.press(key)
        assert "type : instead" in await bed.bottom()


@presses("help")
async def test_help_lists_what_works_on_the_screen(key: str) -> None:
    here = (Place.MAIN, Place.ROWS, Place.TABLE, Place.ANYWHERE)
    wanted = [each for each in ACTIONS if each.keys and each.place in here and not each.replay]
    async with watching(size=(100, 90)) as bed:
        await bed.press(key)
        await bed.sees(*(each.text for each in wanted))
        assert "half the speed" not in await bed.shown(), "this is no replay"
        await bed.press("escape", "enter", key)
        assert "back to the screen before" in await bed.shown()
        assert "to the migrations" not in await bed.shown()
    async with watching(size=(100, 90), readonly=True) as bed:
        await bed.press(key)
        assert "empty the instance of this row" not in await bed.shown()


async def test_the_mouse_sorts_chooses_and_opens(watched: Bed) -> None:
    lines = await watched.lines()
    heads = next(place for place, text in enumerate(lines) if "FREENESS" in text)
    for head, expected in (("WAIT", "v"), ("WAIT", "^"), ("TREND", "^")):
        await watched.pilot.click(offset=(lines[heads].index(head) + 1, heads))
        assert f"sort:wait{expected}" in await watched.shown()
    await watched.pilot.click("#instances", offset=(6, 5))
    assert watched.cursor == watched.ids()[3]
    await watched.pilot.click("#queue", offset=(3, 2))
    assert watched.main.view.focused is Pane.QUEUE
    wanted = watched.ids()[4]
    await watched.pilot.click("#instances", offset=(6, 6), times=2)
    await watched.pilot.pause()
    assert isinstance(watched.app.screen, InstanceScreen)
    assert watched.app.screen.instance_id == wanted


# Rebound keys: which are accepted and which are refused, and that they work and are shown


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        (" o , f5,o ", "o,f5"),
        (";", ";"),
        ("ctrl+shift+f1", "ctrl+shift+f1"),
        ("é", "é"),
        *((text, "") for text in ("slash_", "", "o,", "oo", "ctrl+", "strg+x", "\x1b")),
    ],
)
def test_names_of_keys(text: str, taken: str) -> None:
    if taken:
        assert actions.checked_keymap({"sort": text}) == {"sort": taken}
        return
    with pytest.raises(KeymapError, match="is no key: they are as in") as caught:
        actions.checked_keymap({"sort": text})
    assert caught.value.action_id == "sort"


def test_ctrl_c_and_ctrl_q_always_leave() -> None:
    for text in ("Q", "Q,ctrl+c", "ctrl+q, Q"):
        assert actions.checked_keymap({"quit": text}) == {"quit": "Q,ctrl+c,ctrl+q"}


@pytest.mark.parametrize(
    ("wanted", "blamed", "words"),
    [
        ({"srot": "o"}, "srot", "no key does 'srot'; did you mean sort?"),
        ({"zzz": "o"}, "zzz", "no key does 'zzz': row_down, "),
        ({"sort": "z"}, "sort", "z is the key of pane_zoom (this pane on the whole screen) too"),
        ({"sort": "o", "filter": "o"}, "filter", "o is the key of sort (choose the order"),
        ({"sort": "/"}, "sort", "/ is the key of filter (filter this pane) too"),
        ({"back_main": "q"}, "back_main", "q is the key of quit (leave) too"),
        ({"sort": "ctrl+c"}, "sort", "ctrl+c always leaves the dashboard"),
    ],
)
def test_what_is_refused(wanted: dict[str, str], blamed: str, words: str) -> None:
    with pytest.raises(KeymapError) as caught:
        actions.checked_keymap(wanted)
    assert str(caught.value).startswith(words)
    assert caught.value.action_id == blamed


async def test_rebound_keys_work_and_the_old_ones_do_not() -> None:
    wanted = {"sort": "z", "pane_zoom": "s", "row_down": "n,ctrl+n", "quit": "Q"}
    async with watching(keymap=actions.checked_keymap(wanted)) as bed:
        view = bed.main.view
        await bed.press("z", "n", "enter")
        assert (view.sort, view.zoomed) == ("id", None)
        await bed.press("s")
        assert (view.sort, view.zoomed) == ("id", Pane.INSTANCES)
        await bed.press("s", "j", "q")
        assert bed.cursor == bed.ids()[0]
        await bed.press("n")
        assert bed.cursor == bed.ids()[1]
        assert not bed.source.stopped
        await bed.pilot.press("ctrl+c")
    assert bed.source.stopped


async def test_the_screens_name_the_keys_in_force() -> None:
    wanted = {"sort": "o", "events_expand": "b", "events_follow": "f", "help_close": "b"}
    wanted |= {"pane_queue": "f1", "help": "h"}
    async with watching(60, (100, 60), keymap=actions.checked_keymap(wanted)) as bed:
        await bed.press("3", "k")
        await bed.sees(" o sort ", " h help ", "[b] expand", "[f]ollow", "f1 Queue heads")
        await bed.press("h")
        lines = [" ".join(line.split()) for line in await bed.lines()]
        assert any("Help on the main screen (b closes)" in line for line in lines)
        await bed.press("G")
        lines = [" ".join(line.split()) for line in await bed.lines()]
        assert any("o choose the order of this" in line for line in lines)
        await bed.press("b")
        assert isinstance(bed.app.screen, DashboardScreen)


async def test_the_bottom_line_names_what_acts_on_the_row(watched: Bed) -> None:
    async def named() -> str:
        """The first letters of the words between `Enter detail` and `/ filter`."""
        return (await watched.bottom()).partition("detail")[2].partition(" / ")[0].strip()

    await watched.press("0")
    assert await named() == "d drain  u undrain  r restart  x mark"
    await watched.press("2")
    assert await named() == "p priority  m move  a abort  x mark"
    await watched.press("x", "j", "x")
    assert await named() == "p priority  m move  a abort  x mark"
    await watched.press("escape", "0", "x", "j", "x")
    assert await named() == "d drain  u undrain  x mark", "a restart is for one instance"
    watched.app.session.toggle_read_only()
    await watched.press("escape")
    assert await named() == ""


def test_the_help_has_a_heading_for_each_subject() -> None:
    groups = {each.action_id: each.group for each in ACTIONS if each.keys}
    assert {groups[each] for each in ("drain", "undrain", "restart", "cordon")} == {Group.INSTANCE}
    assert {groups[each] for each in ("priority", "migrate", "abort")} == {Group.REQUEST}
    assert {groups[each] for each in ("undo", "tune", "scale_out", "log")} == {Group.CLUSTER}
    assert {groups[each] for each in ("filter", "mark", "row_open")} == {Group.ROWS}
    assert set(groups.values()) == set(Group)


async def test_the_help_is_about_the_screen_below(watched: Bed) -> None:
    """The cursor skips the headings."""
    await watched.press("question_mark")
    await watched.sees("Help on the main screen", " An instance, or all marked ones")
    assert watched.app.screen.query_one(TableView).cursor_id == "drain"
    await watched.press("G")
    await watched.sees(" Words and signs", " HEADROOM ")
    await watched.press("escape")
    await watched.type("colon", "requests")
    await watched.press("question_mark", "G")
    await watched.sees("Help on the list of requests", " TOK/S ")


def test_keys_as_people_call_them() -> None:
    called = {"slash": "/", "space": "Space", "f5": "f5", "ctrl+x": "Ctrl-x", "delete": "delete"}
    assert {key: actions.shown_key(key) for key in called} == called


async def test_another_cluster_is_shown_next_and_only_one_that_there_is() -> None:
    there = ("prod-a", "lab")
    async with watching(cluster="prod-a", clusters=lambda: there) as bed:
        await bed.type(":", "cluster")
        assert "this is prod-a; others: lab" in await bed.shown()
        await bed.type(":", "cluster labb")
        assert "no cluster labb runs on this machine" in await bed.shown()
        await bed.type(":", "cluster prod-a")
        assert bed.app.next is None
        bed.app.run_command("cluster lab")
        await bed.pilot.pause()
        assert bed.app.next == Next("lab")


async def test_a_recording_stays_with_its_cluster() -> None:
    async with watching(cluster="prod-a", clusters=lambda: ("lab",), recording=True) as bed:
        await bed.type(":", "cluster lab")
        assert "a recording is of one cluster" in await bed.shown()
        assert bed.app.next is None
