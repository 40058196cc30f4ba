"""The requests of one instance."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from controller.api.text.quantities import duration, latency, printable
from controller.api.wire.requests import RequestList, RequestState, RequestStatus
from tui import drawing
from tui.actions import Target
from tui.drawing import Column, Span, Tone
from tui.panes.names import SHORT, Names

_TONES = {RequestState.RUNNING: Tone.GOOD, RequestState.EVICTED: Tone.WARN}


@dataclass(frozen=True, slots=True)
class RequestRow:
    item: RequestStatus
    names: Names

    @property
    def id(self) -> str:
        return self.item.id

    @property
    def target(self) -> Target:
        return Target(self.item.instance_id or "", self.item.id)

    @property
    def text(self) -> str:
        held = " held" if self.item.held else ""
        return f"{self.item.id} {self.item.client_id} {self.item.state}{held} {self.item.level}"


def rows(found: RequestList | None, names: Names) -> list[RequestRow]:
    """In the controller's order."""
    return [RequestRow(item, names) for item in (found.requests if found else ())]


SORTS: Mapping[str, bool] = {
    "order": False,
    "age": True,
    "ttft": True,
    "prompt": True,
    "output": True,
    "evictions": True,
    "moves": True,
    "level": False,
    "id": False,
}
"""Orders, and whether the largest comes first. `order` is the controller's: running, evicted,
waiting ones."""

_VALUES: Mapping[str, Callable[[RequestStatus], Any]] = {
    "age": lambda item: item.age_s,
    "ttft": lambda item: item.ttft_s,
    "prompt": lambda item: item.num_prompt_tokens,
    "output": lambda item: item.num_output_tokens,
    "evictions": lambda item: item.num_evictions,
    "moves": lambda item: item.num_moves,
    "level": lambda item: item.level,
    "id": lambda item: item.id,
}


def ordered(found: list[RequestRow], sort: str, *, descending: bool) -> list[RequestRow]:
    """Ties in the controller's order; rows without a value stand last either way."""
    if sort == "order":
        return found[::-1] if descending else found
    value_of = _VALUES[sort]
    valued = [(value, row) for row in found if (value := value_of(row.item)) is not None]
    valued.sort(key=lambda pair: pair[0], reverse=descending)
    return [row for _, row in valued] + [row for row in found if value_of(row.item) is None]


def _state(row: RequestRow, _: int) -> Span:
    """What the controller holds has its place there: `held 3`."""
    if row.item.held is not None:
        return Span(f"held {row.item.held.place}", Tone.WARN)
    return Span(str(row.item.state), _TONES.get(row.item.state, Tone.PLAIN))


COLUMNS: tuple[Column[RequestRow], ...] = (
    Column(
        "id",
        "REQUEST",
        SHORT,
        lambda row, width: Span(printable(row.names.of(row.id, width))),
        max_width=40,
    ),
    Column("state", "STATE", 11, _state),
    Column("level", "PRIO", 8, lambda row, _: Span(printable(row.item.level)), drop=2),
    Column("age", "AGE", 6, lambda row, _: Span(duration(row.item.age_s)), right=True),
    Column("ttft", "TTFT", 6, lambda row, _: Span(latency(row.item.ttft_s)), right=True),
    Column(
        "prompt",
        "PROMPT",
        6,
        lambda row, _: Span(drawing.number(row.item.num_prompt_tokens)),
        right=True,
    ),
    Column(
        "output",
        "OUTPUT",
        6,
        lambda row, _: Span(drawing.number(row.item.num_output_tokens)),
        right=True,
    ),
    Column(
        "evictions",
        "EVICT",
        5,
        lambda row, _: Span(drawing.number(row.item.num_evictions)),
        right=True,
        drop=3,
    ),
    Column(
        "moves",
        "MOVES",
        5,
        lambda row, _: Span(drawing.number(row.item.num_moves)),
        right=True,
        drop=4,
    ),
    Column("frontend", "FRONTEND", 8, lambda row, _: Span(row.item.frontend_id), drop=5),
    Column(
        "client",
        "CLIENT'S ID",
        12,
        lambda row, _: Span(printable(row.item.client_id), Tone.DIM),
        drop=6,
        max_width=40,
    ),
)
