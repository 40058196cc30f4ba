"""Ids as the screen shows them: whole where there is room, else everywhere the same short form."""

from collections.abc import Iterable

from controller.api.text.short_ids import shortened
from tui.drawing import num_cells
from tui.state import DashboardState

SHORT = 9
"""The width of a shortened vLLM id: eight of its characters and the cut between them; of wide
characters half as many."""


class Names:
    """Names of requests; of those that are shown together no two are the same."""

    def __init__(self, ids: Iterable[str], ellipsis: str) -> None:
        self._short = shortened(ids, SHORT, ellipsis, num_cells)

    def of(self, id_: str, width: int = SHORT) -> str:
        return id_ if num_cells(id_) <= width else self._short.get(id_, id_)


def names(state: DashboardState, ellipsis: str, *, routine: bool = True) -> Names:
    """The names of all requests on a screen, so that each has one name in all panes. `routine`:
    routine events are lines there too; there may be a thousand, with as many requests."""
    found: list[str] = []
    if (status := state.status) is not None:
        found += [move.request_id for move in (*status.moves, *status.queued_moves)]
        found += [move.request_id for move in status.ended_moves]
        found += [replay.request_id for replay in status.replays.under_way]
        found += [replay.request_id for replay in status.replays.ended]
        found += [i.queue_head.request_id for i in status.instances if i.queue_head]
        found += [i.kept_for.request_id for i in status.instances if i.kept_for]
        found += [status.held.head.request_id] if status.held else []
    found += [
        entry.event.request_id
        for entry in (state.entries if routine else state.rare)
        if entry.event is not None and entry.event.request_id
    ]
    if state.requests is not None and state.requests.found is not None:
        found += [item.id for item in state.requests.found.requests]
    return Names(found, ellipsis)
