"""The line under the header of the main screen while auto-scaling is on, or in a dry run."""

from controller.api.text import autoscale_words as words
from controller.api.text.quantities import printable
from controller.api.wire.status import ClusterStatus
from tui.drawing import Glyphs, Line, Span, Tone, fitted


def line(status: ClusterStatus | None, now_s: float, width: int, glyphs: Glyphs) -> Line:
    """Its state, how many instances it wants, its last decision and why; nothing while it is off.
    `now_s`: by the controller's clock."""
    if status is None or status.autoscale.mode == "off":
        return ()
    found = status.autoscale
    last = found.last
    is_blocked = last is not None and last.outcome == "blocked"
    text = fitted(printable(words.summary(found, now_s)), max(1, width), glyphs)
    return (Span(text, Tone.WARN if is_blocked or found.held else Tone.PLAIN),)
