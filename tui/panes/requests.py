"""Requests: their names on the screen, the heads of the queues, and lists of requests."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from controller.api.text.quantities import duration, latency, printable
from controller.api.text.short_ids import shortened
from controller.api.text.status_words import free_blocks, head_wait_s
from controller.api.wire.requests import RequestList, RequestState, RequestStatus
from controller.api.wire.status import ClusterStatus, InstanceStatus, QueueHeadStatus
from tui import drawing
from tui.actions import Target
from tui.drawing import Column, Span, Tone, num_cells
from tui.state import DashboardState

SHORT = 9
"""The width of a shortened vLLM id: eight of its characters (or half as many wide characters), and
the ellipsis between them."""


class Names:
    """Ids of requests as the screen shows them: in full where there is room, else in a short form,
    which is the same everywhere and different for all requests that are shown together."""

    def __init__(self, ids: Iterable[str], ellipsis: str) -> None:
        self._short = shortened(ids, SHORT, ellipsis, num_cells)

    def of(self, id_: str, width: int = SHORT) -> str:
        return id_ if num_cells(id_) <= width else self._short.get(id_, id_)


def names(state: DashboardState, ellipsis: str, *, routine: bool = True) -> Names:
    """The names of all requests on a screen, so that each request has the same name in all panes.
    `routine`: whether routine events are shown too; a thousand of them may name a thousand
    requests."""
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


# The heads of the queues: what the first waiting request of each needs, and why it waits

AT_CONTROLLER = "held"
"""The id of the row for the queue at the controller."""
_HEAD_TONES: Mapping[str, Tone] = {
    "memory": Tone.BAD,
    "fragmented": Tone.WARN,
    "batch-full": Tone.WARN,
    "kept": Tone.WARN,
    "reserved": Tone.WARN,
    "too-large": Tone.BAD,
    "no-instance": Tone.BAD,
}


@dataclass(frozen=True, slots=True)
class HeadRow:
    """The head of a queue. `id`: the instance, or AT_CONTROLLER. `reasons`: why the request waits,
    the longest wording first."""

    id: str
    target: Target
    level: str
    waited_s: float | None
    needs: int | None
    free: int | None
    reasons: tuple[str, ...]
    tone: Tone
    names: Names

    @property
    def text(self) -> str:
        return f"{self.id} {self.target.request_id} {self.level} {self.reasons[0]}"


def head_rows(state: DashboardState, names: Names) -> list[HeadRow]:
    """The row of the queue at the controller, then the rows of the instances' queues, the longest
    waiting head first."""
    if state.status is None:
        return []
    found = [_of_instance(item, names) for item in state.status.instances if item.queue_head]
    found.sort(key=lambda row: (-(row.waited_s or 0.0), row.id))
    return [*_at_controller(state.status, names), *found]


def why_waiting(head: QueueHeadStatus) -> str:
    evicted = " (evicted)" if head.evicted else ""
    return f"{head.why or '-'}{evicted}"


def _of_instance(item: InstanceStatus, names: Names) -> HeadRow:
    head = item.queue_head
    assert head is not None
    return HeadRow(
        item.id,
        Target(item.id, head.request_id),
        head.level,
        head_wait_s(head),
        head.demand_blocks,
        free_blocks(item),
        (why_waiting(head), head.why),
        _HEAD_TONES.get(head.why, Tone.PLAIN),
        names,
    )


def _at_controller(status: ClusterStatus, names: Names) -> list[HeadRow]:
    """The row of the queue at the controller: `i-3 kept, lacks 198, 60 behind`, or as much of these
    words as fits; and the number of free blocks on the kept instance."""
    if status.held is None:
        return []
    head = status.held.head
    kept = next((item for item in status.instances if item.id == head.instance_id), None)
    short = f"{head.instance_id} kept" if head.why == "kept" else head.why
    lacks = f"{short}, lacks {head.lacking_blocks}" if head.lacking_blocks else short
    brief = lacks.replace(" kept,", "")
    behind = status.num_held_reqs - 1
    return [
        HeadRow(
            AT_CONTROLLER,
            Target("", head.request_id),
            head.level,
            head.waited_s,
            head.demand_blocks,
            None if kept is None else free_blocks(kept),
            (*([f"{lacks}, {behind} behind"] if behind else []), lacks, brief, short),
            _HEAD_TONES.get(head.why, Tone.PLAIN),
            names,
        )
    ]


def _why(row: HeadRow, width: int) -> Span:
    """The longest wording of the reason that fits."""
    fitting = (each for each in row.reasons if num_cells(each) <= width)
    words = next(fitting, row.reasons[-1])
    return Span(printable(words), row.tone)


HEAD_COLUMNS: tuple[Column[HeadRow], ...] = (
    Column("id", "INST", 5, lambda row, _: Span(row.id), max_width=6),
    Column(
        "head",
        "HEAD",
        SHORT,
        lambda row, width: Span(printable(row.names.of(row.target.request_id, width))),
        drop=2,
    ),
    Column("level", "PRIO", 6, lambda row, _: Span(printable(row.level)), drop=3),
    Column("waited", "WAITED", 6, lambda row, _: Span(duration(row.waited_s)), right=True),
    Column("needs", "NEEDS", 5, lambda row, _: Span(drawing.number(row.needs)), right=True, drop=1),
    Column("free", "FREE", 5, lambda row, _: Span(drawing.number(row.free)), right=True),
    Column("why", "WHY", 10, _why, max_width=34),
)


# The requests of one instance, or of all

_STATE_TONES = {RequestState.RUNNING: Tone.GOOD, RequestState.EVICTED: Tone.WARN}


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
    """The requests in the controller's order."""
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
"""The orders in which requests can be listed, each with whether the largest value comes first.
`order` is the controller's order: running requests, evicted ones, waiting ones."""

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
    """Sorts the rows, with ties in the controller's order. Rows without a value come last in both
    directions."""
    if sort == "order":
        return found[::-1] if descending else found
    value_of = _VALUES[sort]
    valued = [(value, row) for row in found if (value := value_of(row.item)) is not None]
    valued.sort(key=lambda pair: pair[0], reverse=descending)
    return [row for _, row in valued] + [row for row in found if value_of(row.item) is None]


def _state(row: RequestRow, _: int) -> Span:
    """A request that the controller holds shows its place in the queue: `held 3`."""
    if row.item.held is not None:
        return Span(f"held {row.item.held.place}", Tone.WARN)
    return Span(str(row.item.state), _STATE_TONES.get(row.item.state, Tone.PLAIN))


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
