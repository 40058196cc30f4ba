"""The bottom line: a message for a while, else trouble, else what goes on and the keys."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len

from controller.api.text.quantities import printable
from tui.drawing import Glyphs, Line, Span, Tone, fitted, width_of
from tui.outbox import Call, under_way
from tui.state import DashboardState
from tui.widgets import key_line

if TYPE_CHECKING:
    from textual.timer import Timer

MESSAGE_S = 6.0


class Message:
    """What was said last, for MESSAGE_S. `set_timer` calls back after so many seconds; `redraw` is
    called when the line changes."""

    def __init__(
        self,
        set_timer: "Callable[[float, Callable[[], None]], Timer]",
        redraw: Callable[[], None],
    ) -> None:
        self._set_timer = set_timer
        self._redraw = redraw
        self._timer: Timer | None = None
        self.line: Line = ()
        self.goes_with_a_key = False
        """What answered the last key goes away with the next."""

    def show(self, text: str, tone: Tone, *, stays: bool) -> None:
        self.line = (Span(f" {text}", tone),)
        self.goes_with_a_key = tone is Tone.BAD and not stays
        if self._timer is not None:
            self._timer.stop()
        self._timer = self._set_timer(MESSAGE_S, self.clear)
        self._redraw()

    def clear(self) -> None:
        self.line, self.goes_with_a_key = (), False
        self._redraw()


def words(
    state: DashboardState,
    calls: Iterable[Call],
    keys: Sequence[tuple[str, str]],
    width: int,
    glyphs: Glyphs,
) -> Line:
    """Trouble with the stream if there is any, else the orders under way and the keys. `keys`:
    (key, word) pairs, of which the last two leave."""
    stopped = state.stopped.reason if state.stopped else ""
    trouble = state.recording_failed or stopped or state.lost
    if not trouble:
        going = under_way(calls, width, glyphs)
        return (*going, *key_line(keys, width - width_of(going)))
    leave = key_line(keys[-2:], 0)
    room = max(1, width - width_of(leave) - 5)
    told = fitted(printable(trouble), min(room, cell_len(printable(trouble))), glyphs)
    return (Span(f" ! {told}  ", Tone.BAD), *leave)
