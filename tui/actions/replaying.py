"""What an operator does with a replay: every key of it ends here."""

from collections.abc import Callable

from controller.api.errors import LlumctlError
from controller.api.text import events as event_words
from controller.api.text.events import Weight
from controller.api.text.quantities import duration, printable, time_of_day
from controller.api.wire.stream import GapFrame
from tui.actions import moment, registry
from tui.drawing import Tone
from tui.options import Options
from tui.replay import Progress, ReplaySource

Say = Callable[[str, Tone], None]


class Replaying:
    """`show` draws what is known at the moment that the replay went to."""

    def __init__(
        self, source: ReplaySource, options: Options, say: Say, show: Callable[[], None]
    ) -> None:
        self.source = source
        self._options = options
        self._say = say
        self._show = show

    def toggle_pause(self) -> None:
        self.source.toggle_pause()
        self._show()

    def change_speed(self, steps: int) -> None:
        self.source.change_speed(steps)
        self._show()

    def seek(self, seconds: float) -> None:
        self.source.seek(self.source.position_s() + seconds)
        self._show()

    def seek_to(self, text: str) -> None:
        """To a moment as it was typed."""
        source = self.source
        try:
            where_s = moment.position_s(
                text,
                source.position_s(),
                source.length_s,
                source.origin_s,
                self._options.zone,
            )
        except LlumctlError as error:
            self._say(printable(error.message), Tone.BAD)
            return
        source.seek(where_s)
        self._show()

    def to_edge(self, direction: int) -> None:
        self.source.seek(self.source.length_s if direction > 0 else 0.0)
        self._show()

    def step(self, frames: int) -> None:
        self.source.step(frames)
        self._show()

    def to_event(self, weight: str, direction: int) -> None:
        """To the next event that weighs so much or more, or the last, and says which it is."""
        found = self.source.seek_event(Weight(weight), direction)
        if found is None:
            way = "after" if direction > 0 else "before"
            here = duration(self.source.position_s())
            what = "trouble" if weight == Weight.TROUBLE else "notable event"
            self._say(f"no {what} {way} {here}", Tone.WARN)
            return
        tone = Tone.WARN
        if isinstance(found, GapFrame):
            words = event_words.gap(found.missed, found.reason)
        else:
            event = found.event
            words = f"{event.kind.replace('_', ' ')} {event_words.subject(event)}"
            words = "  ".join(filter(None, (words, event_words.why(event))))
            if event_words.weight(event) is not Weight.TROUBLE:
                tone = Tone.STRONG
        self._say(f"{time_of_day(found.time_s, self._options.zone)} {printable(words)}", tone)
        self._show()

    def progress(self) -> Progress:
        source = self.source
        hint = ""
        if source.ended:
            state = "ended, last line cut" if source.truncated else "ended"
            keys = (("replay_start", "start"), ("replay_back", "10 s back"), ("quit", "leave"))
            hint = "  ".join(
                f"{registry.first_of(each, self._options.keymap)} {word}" for each, word in keys
            )
        else:
            state = "paused" if source.paused else f"x{source.speed:g}"
        return Progress(source.position_s(), source.length_s, state, hint, source.troubles_s)
