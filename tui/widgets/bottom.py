"""The bottom line: what is being typed, else a message, else the keys."""

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Input

from controller.api.text.quantities import printable
from tui.drawing import format as fmt
from tui.drawing.format import Line, Span, Tone
from tui.input.completion import Typing
from tui.widgets.lines import Lines


class Prompt(Input):
    """One line of input; Esc gives up. Where a command is typed, Tab and Shift-Tab complete it, and
    Up and Down bring back what was typed before."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "give_up", show=False),
        Binding("tab", "complete(1)", show=False),
        Binding("shift+tab", "complete(-1)", show=False),
        Binding("up", "history(1)", show=False),
        Binding("down", "history(-1)", show=False),
    ]
    typing: Typing | None = None
    """None: what is typed is no command."""

    class GivenUp(Message):
        pass

    def action_give_up(self) -> None:
        self.post_message(self.GivenUp())

    def action_complete(self, step: int) -> None:
        if self.typing is not None:
            self.put(self.typing.tab(self.value, step))

    def action_history(self, steps: int) -> None:
        if self.typing is not None:
            self.put(self.typing.history.go(steps, self.value))

    def put(self, text: str) -> None:
        self.value = text
        self.cursor_position = len(text)


class Bottom(Horizontal):
    """`purpose` is `:` or `/` while something is typed, else empty."""

    class Typed(Message):
        """Sent with each change; `done` with Enter, `given_up` with Esc."""

        def __init__(self, purpose: str, text: str, *, done: bool, given_up: bool) -> None:
            super().__init__()
            self.purpose = purpose
            self.text = text
            self.done = done
            self.given_up = given_up

    def __init__(self) -> None:
        super().__init__(id="bottom")
        self.purpose = ""
        self._typing: Typing | None = None

    def compose(self) -> ComposeResult:
        yield Lines(id="keys")
        prompt = Prompt(id="prompt", compact=True, select_on_focus=False)
        prompt.cursor_blink = False
        prompt.display = False
        yield prompt
        hints = Lines(id="hints")
        hints.display = False
        yield hints

    def say(self, line: Line) -> None:
        self.query_one("#keys", Lines).show(
            [(Span(self.purpose, Tone.STRONG),) if self.purpose else line]
        )

    def ask(self, purpose: str, text: str = "", typing: Typing | None = None) -> None:
        """`typing`: what is typed is a command, and is completed by it."""
        self.purpose = purpose
        self._typing = typing
        keys, prompt = self.query_one("#keys", Lines), self.query_one(Prompt)
        keys.styles.width = 2
        prompt.typing = typing
        prompt.put(text)
        prompt.display = True
        self.query_one("#hints").display = typing is not None
        self._hint(text)
        self.screen.set_focus(prompt, scroll_visible=False)
        self.say(())

    def take(self, character: str) -> bool:
        """Types what was typed so fast that it went to the table before this line was open;
        False: none is."""
        if self.purpose:
            self.query_one(Prompt).insert_text_at_cursor(character)
        return bool(self.purpose)

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self._hint(event.value)
        if self.purpose:
            self.post_message(self.Typed(self.purpose, event.value, done=False, given_up=False))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self._end(event.value, given_up=False)

    def on_prompt_given_up(self, event: Prompt.GivenUp) -> None:
        event.stop()
        self._end("", given_up=True)

    def _hint(self, text: str) -> None:
        """What is valid next, on the right."""
        if self._typing is not None:
            words = printable(self._typing.hint(text, self.size.width // 2 - 1))
            self.query_one("#hints", Lines).show([(Span(words, Tone.DIM),)])

    def _end(self, text: str, *, given_up: bool) -> None:
        purpose, self.purpose = self.purpose, ""
        keys, prompt = self.query_one("#keys", Lines), self.query_one(Prompt)
        prompt.display = False
        self.query_one("#hints").display = False
        keys.styles.width = "1fr"
        self.post_message(self.Typed(purpose, text, done=True, given_up=given_up))


def key_line(pairs: Sequence[tuple[str, str]], width: int) -> Line:
    """` Enter detail  / filter  ...`: as many as there is room for, the last two in any case."""
    kept = list(pairs)
    while len(kept) > 2 and fmt.width_of(_spans(kept)) > width:
        del kept[-3]
    return _spans(kept)


def _spans(pairs: Sequence[tuple[str, str]]) -> Line:
    spans: list[Span] = []
    for key, word in pairs:
        spans += [Span(f" {key}", Tone.STRONG), Span(f" {word} ", Tone.DIM)]
    return tuple(spans)
