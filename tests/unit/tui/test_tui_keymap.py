"""Rebound keys: which are accepted and which are refused, and that they work and are shown."""

import pytest

from tests.unit.tui.tui_support import watching
from tui import actions
from tui.actions import ACTIONS, KeymapError, Place
from tui.screens.dashboard import DashboardScreen, Pane


def test_the_usual_keys_can_be_written_out_and_change_places() -> None:
    usual = {key.action_id: ",".join(key.keys) for key in ACTIONS if key.keys}
    assert actions.checked_keymap(usual) == usual
    swapped = {"sort": "z", "pane_zoom": "s"}
    assert actions.checked_keymap(swapped) == swapped
    assert {place for together in actions.TOGETHER for place in together} == set(Place)


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        (" o , f5,o ", "o,f5"),
        (";", ";"),
        ("semicolon", "semicolon"),
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
        assert any("Help (b closes)" in line for line in lines)
        assert any("o choose the order of this" in line for line in lines)
        await bed.press("b")
        assert isinstance(bed.app.screen, DashboardScreen)


def test_keys_as_people_call_them() -> None:
    called = {"slash": "/", "space": "Space", "f5": "f5", "ctrl+x": "Ctrl-x", "delete": "delete"}
    assert {key: actions.shown_key(key) for key in called} == called
