"""The search for events in the whole log of the controller. A dashboard itself keeps only the last
ones that it heard."""

from collections.abc import Callable, Sequence
from typing import Any

from controller.api.wire.requests import Event, EventPage
from tui.session import Session

AGAIN_S = 5.0
"""So long an answer is taken for the present. Newer events come by themselves; but a storm may push
them out here before the controller forgets them."""


class EventSearch:
    """Asks one question at a time, so that each word that is typed costs one at most."""

    def __init__(self) -> None:
        self._wanted = ""
        """What was asked for last."""
        self._asks = False
        self._asked_at_s = 0.0
        self._found: EventPage | None = None
        """The answer; None before it, and if there was none."""

    def events(self, wanted: str, session: Session, redraw: Callable[[], None]) -> Sequence[Event]:
        """The controller's events with these words, the oldest first, as far as they have come.
        Asks for them if it is time to, and calls `redraw` when they come."""
        if not wanted or session.replay is not None:
            return ()
        now_s = session.source.now_s()
        if not self._asks and (wanted != self._wanted or now_s - self._asked_at_s >= AGAIN_S):
            if wanted != self._wanted:
                self._found = None
            self._wanted, self._asks, self._asked_at_s = wanted, True, now_s

            def answered(answer: Any, _: Exception | None) -> None:
                self._asks, self._found = False, answer
                redraw()

            session.ask(lambda client: client.find_events(wanted), answered)
        return self._found.events if self._found is not None and wanted == self._wanted else ()

    def num_searched(self, wanted: str) -> int:
        """In how many events the controller looked for these words; 0 if it did not."""
        found = self._found if wanted == self._wanted else None
        return 0 if found is None else found.num_searched

    def no_match(self, wanted: str, num_here: int) -> str:
        """What an empty list says. `num_here`: how many events the dashboard knows itself."""
        if self._asks:
            return "asking the controller ..."
        return f"no match in the last {self.num_searched(wanted) or num_here:,}"
