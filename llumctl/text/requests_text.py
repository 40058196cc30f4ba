"""Requests as columns of text, and one with its history. A dash: not known, or not yet."""

from collections.abc import Callable, Sequence

from controller.api.text.events import where, why
from controller.api.text.quantities import duration, latency, printable, time_of_day
from controller.api.wire.requests import RequestDetail, RequestStatus
from llumctl.text import output

Column = tuple[str, Callable[[RequestStatus], str]]

COLUMNS: tuple[Column, ...] = (
    ("ID", lambda item: item.id),
    ("CLIENT-ID", lambda item: item.client_id),
    ("STATE", lambda item: item.state),
    ("LEVEL", lambda item: item.level),
    ("INSTANCE", lambda item: "controller" if item.held else item.instance_id or ""),
    ("AGE", lambda item: duration(item.age_s)),
    ("TTFT", lambda item: latency(item.ttft_s)),
    ("TOK-IN", lambda item: str(item.num_prompt_tokens)),
    ("TOK-OUT", lambda item: str(item.num_output_tokens)),
    ("EVICT", lambda item: str(item.num_evictions)),
    ("MOVABLE", lambda item: _movable(item)),
)
HELD_COLUMNS: tuple[Column, ...] = (
    ("PLACE", lambda item: str(item.held.place) if item.held else ""),
    ("NEEDS", lambda item: _blocks(item.held.demand_blocks) if item.held else ""),
    ("KEPT", lambda item: (item.held and item.held.instance_id) or ""),
    ("WHY", lambda item: item.held.why if item.held else ""),
)
"""Shown while the controller holds any of the requests."""
WIDE_COLUMNS: tuple[Column, ...] = (
    *COLUMNS,
    ("MOVES", lambda item: str(item.num_moves)),
    ("REPLAYS", lambda item: str(item.num_replays)),
    ("FRONTEND", lambda item: item.frontend_id),
    ("ARRIVED", lambda item: time_of_day(item.arrival_time_s, millis=True)),
    ("PARENT", lambda item: item.parent_id or ""),
    ("END", lambda item: item.finish_reason or ""),
)


def _blocks(number: int | None) -> str:
    return "" if number is None else str(number)


def _movable(item: RequestStatus) -> str:
    """yes, or the reason code (docs/metrics.md)."""
    if item.movable is None:
        return ""
    return "yes" if item.movable else item.why_not_movable or "no"


def render(requests: Sequence[RequestStatus], *, wide: bool, colours: bool) -> str:
    """The rows stay in the controller's order."""
    columns = WIDE_COLUMNS if wide else COLUMNS
    if any(item.held for item in requests):
        columns += HELD_COLUMNS
    rows = [[cell(item) for _, cell in columns] for item in requests]
    names = [name for name, _ in columns]
    return output.table(names, rows, colours=colours, ids=("CLIENT-ID", "ID"))


def render_detail(item: RequestDetail, *, colours: bool) -> str:
    """The request's fields, then its history: since its arrival, what, where, why."""
    columns = WIDE_COLUMNS + (HELD_COLUMNS if item.held else ())
    facts = [(name.lower(), cell(item) or "-") for name, cell in columns]
    width = max(len(name) for name, _ in facts)
    lines = [f"{name:<{width}}  {printable(value)}" for name, value in facts]
    rows = [
        (
            f"+{latency(max(0.0, event.time_s - item.arrival_time_s))}",
            event.kind,
            where(event),
            why(event),
        )
        for event in item.history
    ]
    history = output.table(("SINCE", "WHAT", "WHERE", "WHY"), rows, colours=colours)
    return "\n".join((*lines, "", history))
