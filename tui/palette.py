"""What the palette lists: the actions of the screen below it, with their keys."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from textual.dom import DOMNode

from tui.actions import Action, Place, Target, keys_of, shown_key
from tui.console import Console
from tui.own_commands import OWN
from tui.screens.base import PaintedScreen
from tui.themes import THEMES

HIDDEN = ("row_", "palette", "command", "replay_")
"""Actions, by how their ids begin, that nobody looks for in a list."""

Do = Callable[[str, DOMNode], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Below:
    """The screen from which the palette was opened, with what its keys would have acted on then:
    rows move while one looks for a word."""

    screen: PaintedScreen
    targets: Sequence[Target]
    marked: bool


@dataclass(frozen=True, slots=True)
class Entry:
    title: str
    help: str
    run: Callable[[], object]


def entries(below: Below, console: Console, actions: Sequence[Action], do: Do) -> Iterator[Entry]:
    """`actions`: those of the screen. `do(action, where)` runs a screen's or a table's own."""
    for name in THEMES:
        yield _typed(console, f"theme {name}", "colours")
    for name in below.screen.orders:
        yield _typed(console, f"sort {name}", "order of this table")
    for each in actions:
        is_own = each.action_id.startswith(OWN)
        if (each.keys or is_own) and not each.action_id.startswith(HIDDEN):
            yield from _of_action(each, below, console, do)


def _of_action(each: Action, below: Below, console: Console, do: Do) -> Iterator[Entry]:
    words = [shown_key(key) for key in keys_of(each, console.options.keymap)[:1]]
    help_text = "   ".join([*words, *([f":{each.typed}"] if each.typed else [])])
    if each.change is None or not each.action.startswith("act("):
        where: DOMNode = below.screen
        if each.place is Place.TABLE and below.screen.focused is not None:
            where = below.screen.focused
        yield Entry(each.text, help_text, lambda: do(each.action, where))
        return
    ids = [found for target in below.targets if (found := target.of(each.change.target))]
    if ids:
        title = ids[0] if len(ids) == 1 else f"{len(ids)} marked {each.change.target}s"
        yield Entry(
            f"{each.action_id} {title}",
            help_text,
            lambda: console.acting.act(each.action_id, *below.targets, marked=below.marked),
        )


def _typed(console: Console, text: str, help_text: str) -> Entry:
    return Entry(text, help_text, lambda: console.run_command(text))
