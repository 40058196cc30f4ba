"""Help: every key, and what the columns mean."""

from collections.abc import Sequence
from dataclasses import dataclass

from textual.app import ComposeResult
from textual.screen import Screen

from tui.actions import NOTHING, Action, Place, Target, bindings, keys_of, shown_key
from tui.console import Options, console_of
from tui.drawing import Column, Span, Tone
from tui.widgets import TableView

LEGEND: tuple[tuple[str, str], ...] = (
    ("FREENESS", "decode steps until memory is full; negative: too much wanted"),
    ("TREND", "freeness in the last 60 s, on one scale for all rows"),
    ("KV held +wanted", "# blocks held, = wanted too (queue, headroom); in percent"),
    ("PRIO", "running requests by priority level, the highest first"),
    ("HEADROOM", "blocks kept free beside a high priority, of all blocks"),
    ("TTFT99", "time to first token, 99th percentile; >9s: the head waits"),
    ("NEEDS FREE", "blocks that a queue head needs, and could have here"),
    ("WHY", "why it waits; fragmented: enough in all, not in one place"),
    ("reserved", "freeness below 0, but only because of its headroom"),
    ("!  >  +", "look at it; on its way out; on its way in"),
    ("/WORDS", "shows what has all of them; !WORD: what does not have it"),
)


@dataclass(frozen=True, slots=True)
class HelpRow:
    id: str
    name: str
    text: str
    target: Target = NOTHING


COLUMNS: tuple[Column[HelpRow], ...] = (
    Column("name", "KEY", 17, lambda row, _: Span(row.name, Tone.STRONG)),
    Column("text", "WHAT", 20, lambda row, _: Span(row.text), max_width=400),
)


class HelpScreen(Screen[None]):
    """Lists the keys of `actions`, which are those that work on the screen below."""

    BINDINGS = bindings(Place.HELP)

    def __init__(self, actions: Sequence[Action]) -> None:
        super().__init__()
        self._actions = actions

    def compose(self) -> ComposeResult:
        app = console_of(self)
        yield TableView[HelpRow](COLUMNS, app.glyphs, id="help")

    def on_mount(self) -> None:
        app = console_of(self)
        table = self.query_one(TableView)
        table.styles.height = "1fr"
        table.focus()
        title = Span(f"Help  ({app.key_of('help_close')} closes)", Tone.STRONG)
        table.show(rows(self._actions, app.options), (title,))

    def action_back(self) -> None:
        self.dismiss()


def rows(actions: Sequence[Action], options: Options) -> list[HelpRow]:
    found = [
        HelpRow(
            each.action_id,
            ", ".join(shown_key(name) for name in keys_of(each, options.keymap)),
            options.aimed(_text(each)),
        )
        for each in actions
        if each.keys
    ]
    typed = ", ".join(each.typed for each in actions if each.typed)
    legend = [*LEGEND, (":", typed)] if typed else LEGEND
    return found + [HelpRow(f"legend.{name}", name, text) for name, text in legend]


def _text(action: Action) -> str:
    if action.change is not None:
        return f"{action.text} ({action.change.command})"
    return f"{action.text} (replay)" if action.replay else action.text
