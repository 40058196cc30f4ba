"""Rebound keys: which are accepted and which are refused, and that they work and are shown."""

import pytest

from tests.unit.tui.tui_support import FakeSource, dashboard, drawn, settle
from tools import synthetic_cluster as synthetic
from tui import actions
from tui.actions import ACTIONS, KeymapError, Place
from tui.screens.dashboard import DashboardScreen
from tui.screens.details import HelpScreen


def refusal(wanted: dict[str, str]) -> KeymapError:
    with pytest.raises(KeymapError) as caught:
        actions.checked_keymap(wanted)
    return caught.value


def test_the_usual_keys_can_be_written_out() -> None:
    usual = {key.action_id: ",".join(key.keys) for key in ACTIONS if key.keys}
    assert actions.checked_keymap(usual) == usual


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("o", "o"),
        ("O", "O"),
        (" o , f5,o ", "o,f5"),
        ("slash_", None),
        (";", ";"),
        ("semicolon", "semicolon"),
        ("ctrl+x", "ctrl+x"),
        ("ctrl+shift+f1", "ctrl+shift+f1"),
        ("alt+o", "alt+o"),
        ("é", "é"),
        ("", None),
        ("o,", None),
        ("oo", None),
        ("ctrl+", None),
        ("strg+x", None),
        ("\x1b", None),
    ],
)
def test_names_of_keys(text: str, taken: str | None) -> None:
    if taken is None:
        error = refusal({"sort": text})
        assert error.action_id == "sort"
        assert "is no key: they are as in" in str(error)
    else:
        assert actions.checked_keymap({"sort": text}) == {"sort": taken}


def test_every_usual_key_is_known_by_name() -> None:
    for key in ACTIONS:
        assert all(map(actions._is_key, key.keys)), key.action_id


@pytest.mark.parametrize(
    ("wanted", "blamed", "words"),
    [
        ({"srot": "o"}, "srot", "no key does 'srot'; did you mean sort?"),
        ({"zzz": "o"}, "zzz", "no key does 'zzz': row_down, "),
        ({"sort": "z"}, "sort", "z is the key of pane_zoom (this pane on the whole screen) too"),
        (
            {"sort": "o", "filter": "o"},
            "filter",
            "o is the key of sort (choose the order of this table) too",
        ),
        ({"sort": "/"}, "sort", "/ is the key of filter (filter this pane) too"),
        ({"sort": "ctrl+i"}, "sort", "ctrl+i is the key of pane_next"),
        ({"row_open": "backspace"}, "row_open", "backspace is the key of back_main"),
        ({"back_main": "q"}, "back_main", "q is the key of quit (leave) too"),
        ({"sort_none": "j"}, "sort_none", "j is the key of row_down"),
        ({"sort_same": "enter"}, "sort_same", "enter is the key of row_open"),
        ({"sort": "ctrl+c"}, "sort", "ctrl+c always leaves the dashboard"),
        ({"help": "ctrl+q"}, "help", "ctrl+q always leaves the dashboard"),
    ],
)
def test_what_is_refused(wanted: dict[str, str], blamed: str, words: str) -> None:
    error = refusal(wanted)
    assert str(error).startswith(words)
    assert error.action_id == blamed


def test_the_keys_of_every_place_are_checked_beside_those_in_force_there() -> None:
    assert {place for together in actions.TOGETHER for place in together} == set(Place)


def test_two_actions_can_change_places() -> None:
    assert actions.checked_keymap({"sort": "z", "pane_zoom": "s"}) == {
        "sort": "z",
        "pane_zoom": "s",
    }


@pytest.mark.parametrize("text", ["Q", "Q,ctrl+c", "ctrl+q, Q"])
def test_ctrl_c_and_ctrl_q_always_leave(text: str) -> None:
    assert actions.checked_keymap({"quit": text}) == {"quit": "Q,ctrl+c,ctrl+q"}


def main(app: object) -> DashboardScreen:
    screen = app.screen
    assert isinstance(screen, DashboardScreen)
    return screen


async def test_rebound_keys_work_and_the_old_ones_do_not() -> None:
    source = FakeSource()
    wanted = actions.checked_keymap({"sort": "z", "pane_zoom": "s", "row_down": "n", "quit": "Q"})
    async with dashboard(source, keymap=wanted) as (app, pilot):
        source.feed(synthetic.frames(10))
        await settle(app, pilot)
        await pilot.press("z", "n", "enter")
        assert main(app).view.sort == "id"
        assert main(app).view.zoomed is None
        await pilot.press("s")
        assert main(app).view.zoomed is not None
        assert main(app).view.sort == "id"
        await pilot.press("s")
        table = main(app).table(main(app).view.focused)
        first = table.cursor_id
        await pilot.press("j")
        assert table.cursor_id == first
        await pilot.press("n")
        assert table.cursor_id != first
        await pilot.press("q")
        await settle(app, pilot)
        assert app._exit is False
        await pilot.press("ctrl+c")
        await pilot.pause()
        assert app._exit


async def test_the_screens_name_the_keys_in_force() -> None:
    source = FakeSource()
    wanted = actions.checked_keymap(
        {
            "sort": "o",
            "events_expand": "b",
            "events_follow": "f",
            "pane_queue": "f1",
            "help": "h",
            "help_close": "b",
        }
    )
    async with dashboard(source, (100, 60), keymap=wanted) as (app, pilot):
        source.feed(synthetic.frames(60))
        await settle(app, pilot)
        await pilot.press("3", "k")
        text = await drawn(pilot)
        bottom = text.splitlines()[-1]
        assert " o sort " in bottom
        assert " h help " in bottom
        assert "[b] expand" in text
        assert "[f]ollow" in text
        assert "f1 Queue heads" in text
        await pilot.press("h")
        assert isinstance(app.screen, HelpScreen)
        text = await drawn(pilot)
        assert "Help  (b closes)" in text
        lines = [line.split() for line in text.splitlines()]
        assert ["o", "choose", "the", "order", "of", "this", "table"] in lines
        await pilot.press("b")
        assert isinstance(app.screen, DashboardScreen)


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        ("slash", "/"),
        ("semicolon", ";"),
        ("left_square_bracket", "["),
        ("space", "Space"),
        ("f5", "f5"),
        ("ctrl+x", "Ctrl-x"),
        ("delete", "delete"),
    ],
)
def test_keys_as_people_call_them(key: str, shown: str) -> None:
    assert actions.shown_key(key) == shown
