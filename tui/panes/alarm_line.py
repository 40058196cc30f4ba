"""The line under the header: the worst trouble with its cause, and where else there is some."""

from collections.abc import Sequence

from controller.api.text.alarms import Alarm
from tui.drawing import Glyphs, Line, Span, Tone, fitted, width_of


def line(found: Sequence[Alarm], width: int, glyphs: Glyphs) -> Line:
    """The others are named as far as there is room, else counted; the worst is cut last."""
    worst, *others = found
    head = Span(f" ! {worst.text}", Tone.BAD)
    words = ""
    for place, other in enumerate(others):
        more = words + (", " if words else "  also ") + other.subject
        left = len(others) - place - 1
        if width_of((head, Span(more + (f" and {left} more" if left else "")))) > width:
            rest = len(others) - place
            words += f" and {rest} more" if words else f"  +{rest}"
            break
        words = more
    if width_of((head, Span(words))) > width:
        count = f" +{len(others)}" if others else ""
        head = Span(fitted(head.text, max(1, width - len(count)), glyphs), Tone.BAD)
        words = count
    return (head, Span(words, Tone.WARN))
