"""Commands typed after `:`: forms, completion, history, and the resulting calls."""

import re
from pathlib import Path

import pytest
from textual.events import Key
from textual.widgets import Input

import tui
from controller.api.errors import LlumctlError, NotFoundError, UsageError
from controller.api.operations.on_instances import DrainRequest, EvacuateRequest
from controller.api.operations.on_requests import AbortRequest
from tests.unit.tui.tui_support import Bed, acting, replaying, watching
from tools import synthetic_cluster as synthetic
from tui import typed_commands
from tui.own_commands import Program
from tui.screens.dashboard import Pane
from tui.screens.details import InstanceScreen, MemberLogScreen, RequestScreen, RequestsScreen
from tui.screens.dialogs import ChooseScreen
from tui.screens.tuning import TuningScreen
from tui.typed_commands import Command, Known, Tabbing, complete, parse

KNOWN = Known(
    columns=("freeness", "wait"),
    themes=("default", "light"),
    instances=("i-1", "i-10", "i-2"),
    members=("i-1", "f-0", "controller"),
    requests=("cmpl-8d36", "chat-77d4"),
    levels=("high", "normal"),
    settings=("migration.max_moves", "scheduler.policy"),
)


@pytest.mark.parametrize(
    ("text", "name", "arguments"),
    [
        ("drain i-1 i-2 i-1", "drain", ("i-1", "i-2")),
        ("llumctl  drain   i-1 ", "drain", ("i-1",)),
        ("migrate r1 --to i-2", "migrate", ("r1", "i-2")),
        ("migrate -- -r1 i-2", "migrate", ("-r1", "i-2")),
        ("scale -1", "scale", ("-1",)),
        ("filter a  b !c", "filter", ("a  b !c",)),
        ("get scheduler.policy", "set", ("scheduler.policy",)),
        ("undrain i-1", "uncordon", ("i-1",)),
        ("drain --remove i-1", "evacuate", ("i-1",)),
        ("scale auto on", "autoscale", ("on",)),
        ("status --wait ready", "wait", ("ready",)),
    ],
)
def test_what_is_understood(text: str, name: str, arguments: tuple[str, ...]) -> None:
    assert parse(text, KNOWN) == Command(name, arguments)


@pytest.mark.parametrize(
    ("text", "words", "kind"),
    [
        ("bench --rate 3", "no bench here: it loads an endpoint", UsageError),
        ("status --wait", "status --wait what?  status --wait CONDITION", UsageError),
        ("drian i-1", "no command 'drian': did you mean drain?", UsageError),
        ("drain", "drain what?  drain ID...", UsageError),
        ("drain i-1 i-9", "no instance 'i-9': did you mean i-2?", NotFoundError),
        ("theme blue", "no theme 'blue': default, light", UsageError),
        ("restart i-1 i-2", "'i-2' is too much:  restart ID", UsageError),
        ("undo i-1", "undo takes no argument", UsageError),
        ("scale many", "scale N, +N or -N: 'many' is no number", UsageError),
        ("set migration.max_move", "did you mean migration.max_moves?", UsageError),
    ],
)
def test_what_is_not(text: str, words: str, kind: type[LlumctlError]) -> None:
    """The error names the nearest word; the command is never run with it."""
    with pytest.raises(kind) as caught:
        parse(text, KNOWN)
    assert words in caught.value.message


@pytest.mark.parametrize(
    ("text", "words", "wanted"),
    [
        ("dr", ("drain",), "command"),
        ("drain i-1", ("i-1", "i-10"), "ID"),
        ("drain i-1 ", ("i-10", "i-2"), "ID"),
        ("abort 77", ("chat-77d4",), "REQUEST"),
        ("migrate r1 --to i-2", ("i-2",), "ID"),
        ("scale a", ("auto",), "command"),
        ("scale auto d", ("dry-run",), "MODE"),
        ("status --wait drained=i-1", ("drained=i-1", "drained=i-10"), "CONDITION"),
        ("restart i-1 ", (), ""),
    ],
)
def test_what_may_come_next(text: str, words: tuple[str, ...], wanted: str) -> None:
    found = complete(text, KNOWN)
    assert (found.words, found.wanted) == (words, wanted)


def test_tab_after_tab() -> None:
    """First as far as all words agree, then one word after the other, and back; a single word at
    once."""
    tabbing = Tabbing()
    text = tabbing.tab("drain ", KNOWN)
    assert text == "drain i-"
    for place in ("i-1", "i-10", "i-2", "i-1"):
        text = tabbing.tab(text, KNOWN)
        assert text == f"drain {place}"
    assert tabbing.tab(text, KNOWN, -1) == "drain i-2"
    for typed, completed in (("dra", "drain "), ("abort 77", "abort chat-77d4 ")):
        assert tabbing.tab(typed, KNOWN) == completed
    assert tabbing.tab("drain zzz", KNOWN) == "drain zzz"


@pytest.mark.parametrize(
    ("text", "width", "shown"),
    [
        ("drain ", 40, "ID: i-1 i-10 i-2"),
        ("drain ", 12, "ID: i-1 +2"),
        ("drain i-", 3, "ID"),
        ("undo ", 40, ""),
    ],
)
def test_hints(text: str, width: int, shown: str) -> None:
    hint = typed_commands.completion_hint(complete(text, KNOWN), width)
    assert hint.startswith(shown)
    assert len(hint) <= width


# On the screen


def prompt(bed: Bed) -> Input:
    return bed.app.screen.query_one(Input)


async def test_tab_hints_and_history_in_the_prompt(bed: Bed) -> None:
    await bed.press("colon", *"dra")
    assert "command: drain" in await bed.bottom()
    await bed.press("tab", *"i-1")
    assert "ID: i-1 i-10 i-11" in await bed.bottom()
    await bed.press("tab", "tab")
    assert prompt(bed).value == "drain i-10"
    await bed.press("shift+tab", "enter", "y")
    assert bed.control.calls == [("drain", "i-1", DrainRequest(if_revision=7))]
    await bed.type("colon", "drian i-2")
    assert "no command 'drian': did you mean drain?" in await bed.bottom()
    await bed.press("j")
    assert "drian" not in await bed.bottom(), "the message goes away with the next key"
    await bed.press("colon", *"und")
    ups, downs = ("drian i-2", "drain i-1", "drain i-1"), ("drian i-2", "und")
    for key, texts in (("up", ups), ("down", downs)):
        for text in texts:
            await bed.press(key)
            assert prompt(bed).value == text
    await bed.press("escape", "slash", "tab", "up")
    assert prompt(bed).value == "", "a filter is no command"
    assert len(bed.control.calls) == 1


async def test_what_is_typed_in_one_piece_is_typed_behind_the_colon(bed: Bed) -> None:
    """With tmux or on a busy machine, all keys come at once: `r` once asked to restart an instance,
    and Enter confirmed it."""
    for name in ("colon", *"requests", "enter"):
        bed.app.post_message(Key(name, {"colon": ":", "enter": "\r"}.get(name, name)))
    await bed.settle()
    await bed.settle()
    assert isinstance(bed.app.screen, RequestsScreen)
    await bed.press("escape", "r")
    bed.app.screen.set_focus(prompt(bed))
    await bed.press("enter")
    assert bed.control.calls == [], "Enter in a dialog's hidden line gives no order"


async def test_ctrl_c_copies_what_is_selected_before_it_leaves() -> None:
    async with acting() as bed:
        await bed.press("colon", *"undo", "shift+home", "ctrl+c")
        assert bed.app.clipboard == "undo"
        assert not bed.source.stopped
        await bed.press("end")
        await bed.pilot.press("ctrl+c")
    assert bed.source.stopped


async def test_what_the_command_line_can_do(bed: Bed) -> None:
    bed.control.whole_ids = {"8d36": "cmpl-8d36", "r5": "cmpl-r5"}
    await bed.type("colon", "migrate 8d36 --to i-2")
    await bed.type("colon", "abort r5 nobody")
    assert "there is no request 'nobody'" in await bed.bottom()
    await bed.type("colon", "abort r5")
    await bed.press("y")
    assert bed.control.named[-1] == ("r5", True)
    await bed.type("colon", "drain i-3 --remove")
    await bed.sees(
        "Evacuate i-3 within 30 s?",
        "after 30s at the latest it is removed, with the requests that are left",
    )
    await bed.press("y")
    assert "evacuate i-3: 2 left, 0 moving, 0 moved  (U takes it back)" in await bed.bottom()
    (migrate, *others) = bed.control.calls
    assert (migrate[:2], migrate[2].to) == (("migrate", "cmpl-8d36"), "i-2")
    assert others == [
        ("abort", "cmpl-r5", AbortRequest()),
        ("evacuate", "i-3", EvacuateRequest(if_revision=7)),
    ]
    await bed.type("colon", "drain i-4 i-5")
    assert "Drain 2 instances?" in await bed.shown()
    await bed.press("escape")
    await bed.type("colon", "migrate 8d36")
    assert isinstance(bed.app.screen, ChooseScreen)
    await bed.press("escape")
    await bed.type("colon", "set migration.max_moves")
    assert "migration.max_moves = 4" in await bed.bottom()
    await bed.type("colon", "set")
    assert isinstance(bed.app.screen, TuningScreen)


async def test_what_the_command_line_can_show() -> None:
    async with watching(20) as bed:
        bed.source.answer = synthetic.requests("")
        bed.source.log = ("decided", "went on")
        for text, kind in (
            ("requests", RequestsScreen),
            ("requests i-3", InstanceScreen),
            ("requests 8d36…77d4", RequestScreen),
            ("logs", MemberLogScreen),
        ):
            await bed.type("colon", text)
            assert isinstance(bed.app.screen, kind)
        await bed.sees("Log of controller", "went on")
        await bed.type("colon", "events evicted")
        assert {row.entry.event.kind for row in bed.table(Pane.EVENTS).items} == {"evicted"}
        await bed.type("colon", "logs f-0")
        assert "Log of f-0" in await bed.shown()


def test_no_handler_calls_that_of_a_class_below() -> None:
    """Such a handler would run twice. Only the source shows this hidden cost."""
    found = [
        f"{file.name}: {call}"
        for file in Path(tui.__file__).parent.rglob("*.py")
        for call in re.findall(r"super\(\)\._?on_(?!event\b)\w+", file.read_text())
    ]
    assert found == []


class FakeProgram(Program):
    def __init__(self, arguments: list[str], *others: object) -> None:
        super().__init__(arguments, *others)
        self.said = " ".join(arguments[4:])

    def start(self) -> None:
        self.lines.append(self.said)
        self.num_lines += 1
        self.outcome = "exit status 0"


async def test_doctor_and_wait_are_those_of_the_command_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tui.acting.Program", FakeProgram)
    async with acting(cluster="prod") as bed:
        await bed.type("colon", "status --wait drained=i-1")
        await bed.sees(
            "status --wait=drained=i-1 --cluster prod", "llumctl status --wait=drained=i-1"
        )
        await bed.press("escape")
        await bed.type("colon", "doctor")
        assert "exit status 0" in await bed.shown()
        assert "doctor --cluster" not in await bed.shown(), "it is about this machine"


async def test_a_replay_offers_what_it_can_do(tmp_path: Path) -> None:
    async with replaying(tmp_path, 3) as replay:
        offered = complete("", replay.app.command_line.known()).words
        assert {"seek", "sort", "requests"} <= set(offered)
        assert not {"drain", "set", "tune", "logs", "status --wait", "doctor"} & set(offered)
        await replay.press("d")
        assert "no drain now: this is a replay" in await replay.bottom()
        await replay.type("colon", "status --wait idle")
        assert "a replay runs no commands here" in await replay.bottom()
    async with acting(in_browser=True) as bed:
        assert "seek" not in complete("", bed.app.command_line.known()).words
        await bed.type("colon", "doctor")
        assert "a browser runs no commands here" in await bed.bottom()
