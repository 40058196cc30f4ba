"""Requests as columns of text, and one with its history. A dash: not known, or not yet."""

from collections.abc import Callable, Sequence

from controller.api.models import RequestDetail, RequestState, RequestStatus
from llumctl import output
from llumctl.event_words import clock_time, short_time, where, why
from llumctl.status_table import duration

ORDER = (
    RequestState.RUNNING,
    RequestState.EVICTED,
    RequestState.WAITING,
    RequestState.DISPATCHING,
)
"""Live ones, in the order of the table; ended ones stand behind them."""

Column = tuple[str, Callable[[RequestStatus], str]]

COLUMNS: tuple[Column, ...] = (
    ("ID", lambda item: item.id),
    ("CLIENT-ID", lambda item: item.client_id),
    ("STATE", lambda item: item.state),
    ("LEVEL", lambda item: item.level),
    ("INSTANCE", lambda item: item.instance_id or ""),
    ("AGE", lambda item: duration(item.age_s)),
    ("TTFT", lambda item: short_time(item.ttft_s)),
    ("TOK-IN", lambda item: str(item.num_prompt_tokens)),
    ("TOK-OUT", lambda item: str(item.num_output_tokens)),
    ("EVICT", lambda item: str(item.num_evictions)),
)
WIDE_COLUMNS: tuple[Column, ...] = (
    *COLUMNS,
    ("FRONTEND", lambda item: item.frontend_id),
    ("ARRIVED", lambda item: clock_time(item.arrival_time_s, millis=True)),
    ("PARENT", lambda item: item.parent_id or ""),
    ("END", lambda item: item.finish_reason or ""),
)


def in_order(requests: Sequence[RequestStatus]) -> list[RequestStatus]:
    """Running, evicted, waiting, dispatching, the longest there first; then the last ended."""

    def key(item: RequestStatus) -> tuple[int, float]:
        if item.state in ORDER:
            return ORDER.index(item.state), item.arrival_time_s
        return len(ORDER), -(item.arrival_time_s + item.age_s)

    return sorted(requests, key=key)


def render(requests: Sequence[RequestStatus], *, wide: bool, colours: bool) -> str:
    columns = WIDE_COLUMNS if wide else COLUMNS
    rows = [[cell(item) for _, cell in columns] for item in requests]
    return output.table([name for name, _ in columns], rows, colours=colours)


def render_detail(item: RequestDetail, *, colours: bool) -> str:
    """Its fields, then its history: since its arrival, what, where, why."""
    facts = [(name.lower(), cell(item) or "-") for name, cell in WIDE_COLUMNS]
    width = max(len(name) for name, _ in facts)
    lines = [f"{name:<{width}}  {output.printable(value)}" for name, value in facts]
    rows = [
        (
            f"+{short_time(max(0.0, event.time_s - item.arrival_time_s))}",
            event.kind,
            where(event),
            why(event),
        )
        for event in item.history
    ]
    history = output.table(("SINCE", "WHAT", "WHERE", "WHY"), rows, colours=colours)
    return "\n".join((*lines, "", history))
