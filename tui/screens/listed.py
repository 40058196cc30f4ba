"""The requests of one answer as rows, made once: a screen is drawn several times before the next
answer, and 2,000 rows each time were a third of a core."""

from collections.abc import Sequence

from tui.panes import requests
from tui.panes.instances import matches
from tui.panes.requests import RequestRow, names
from tui.screens.detail import Choice
from tui.state import DashboardState, RequestsArrived

S_PER_REQUEST = 0.001
"""A list is asked for again after so long for each of its requests: fetching, parsing and drawing
one takes some 20 us."""


class Listed:
    def __init__(self) -> None:
        self._answer: RequestsArrived | None = None
        self._rows: list[RequestRow] = []
        self._chosen: Sequence[RequestRow] = ()
        self._chosen_by: tuple[str, bool, str] | None = None

    @property
    def every_s(self) -> float:
        """How often such a list is asked for at most."""
        return len(self._rows) * S_PER_REQUEST

    def take(self, answer: RequestsArrived, state: DashboardState, ellipsis: str) -> None:
        """`state` says which other requests the screens name."""
        if answer is not self._answer:
            self._answer, self._chosen_by = answer, None
            self._rows = requests.rows(answer.found, names(state, ellipsis, routine=False))

    def chosen(self, choice: Choice) -> Sequence[RequestRow]:
        """What passes the filter, in order; the same object until something about it changes."""
        by = (choice.sort, choice.descending, choice.wanted)
        if by != self._chosen_by:
            rows = requests.ordered(self._rows, choice.sort, descending=choice.descending)
            if choice.wanted:
                rows = [row for row in rows if matches(row.text, choice.wanted)]
            self._chosen, self._chosen_by = rows, by
        return self._chosen
