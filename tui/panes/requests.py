"""Requests: their names on the screen, the heads of the queues, and lists of requests."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import groupby
from typing import Any

from controller.api.text.quantities import duration, latency, printable
from controller.api.text.short_ids import ShortNames
from controller.api.text.status_words import free_blocks, head_wait_s
from controller.api.wire.requests import Event, RequestList, RequestState, RequestStatus
from controller.api.wire.status import (
    ClusterStatus,
    InstanceStatus,
    QueueHeadStatus,
    VerdictStatus,
)
from tui import drawing
from tui.actions import Target
from tui.drawing import Column, Line, Span, Tone, apportion, num_cells, severity
from tui.state import DashboardState

SHORT = 9
"""The width of a shortened vLLM id: eight of its characters (or half as many wide characters), and
the ellipsis between them."""


class Names:
    """Ids of requests as the screens show them: in full where there is room, else in a short form,
    which a request keeps from the moment at which it is seen first, on all screens."""

    def __init__(self, ellipsis: str) -> None:
        self._short = ShortNames(SHORT, ellipsis, num_cells)

    def of(self, id_: str, width: int = SHORT) -> str:
        return id_ if num_cells(id_) <= width else self._short.of(id_)

    def learn(
        self, state: DashboardState, *, routine: bool = True, older: Sequence[Event] = ()
    ) -> None:
        """Names all requests of which the state tells, and those of `older` events, which the state
        does not keep. `routine`: whether routine events are shown too; a thousand of them may name
        a thousand requests."""
        self._short.learn(_ids(state, older, routine=routine))


def _ids(state: DashboardState, older: Sequence[Event], *, routine: bool) -> list[str]:
    found: list[str] = []
    if (status := state.status) is not None:
        found += [move.request_id for move in (*status.moves, *status.queued_moves)]
        found += [move.request_id for move in status.ended_moves]
        found += [replay.request_id for replay in status.replays.under_way]
        found += [replay.request_id for replay in status.replays.ended]
        found += [i.queue_head.request_id for i in status.instances if i.queue_head]
        found += [i.kept_for.request_id for i in status.instances if i.kept_for]
        found += [status.held.head.request_id] if status.held else []
    entries = state.entries if routine else state.rare
    events = (*older, *(entry.event for entry in entries if entry.event is not None))
    found += [event.request_id for event in events if event.request_id]
    if state.requests is not None and state.requests.found is not None:
        found += [item.id for item in state.requests.found.requests]
    return found


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
    limit_s: float = 0.0
    """From which wait on there is an alarm."""

    @property
    def text(self) -> str:
        return f"{self.id} {self.target.request_id} {self.level} {self.reasons[0]}"


def head_rows(state: DashboardState, names: Names) -> list[HeadRow]:
    """The row of the queue at the controller, then the rows of the instances' queues, the longest
    waiting head first."""
    if state.status is None:
        return []
    verdict = state.status.verdict
    found = [
        _of_instance(item, verdict, names) for item in state.status.instances if item.queue_head
    ]
    found.sort(key=lambda row: (-(row.waited_s or 0.0), row.id))
    limit_s = state.limits.alarm_head_waited_s
    return [
        replace(each, limit_s=limit_s) for each in (*_at_controller(state.status, names), *found)
    ]


def why_waiting(head: QueueHeadStatus, verdict: VerdictStatus | None = None) -> str:
    """Why the request waits. Where the verdict knows better, the code of the queue head would
    mislead: in a full cluster each head counts as fragmented that is small enough."""
    why = head.why or "-"
    if verdict is not None and head.why in ("fragmented", "memory"):
        order = verdict.order
        if verdict.word == "overloaded":
            why = "no room"
        elif order is not None and order.deed == "move" and order.target == head.request_id:
            why = f"{order.to} has room"
    return f"{why} (evicted)" if head.evicted else why


def _of_instance(item: InstanceStatus, verdict: VerdictStatus | None, names: Names) -> HeadRow:
    head = item.queue_head
    assert head is not None
    why = why_waiting(head, verdict)
    return HeadRow(
        item.id,
        Target(item.id, head.request_id),
        head.level,
        head_wait_s(head),
        head.demand_blocks,
        free_blocks(item),
        (why, why.removesuffix(" (evicted)")),
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
    Column(
        "waited",
        "WAITED",
        6,
        lambda row, _: Span(duration(row.waited_s), severity(row.waited_s, row.limit_s)),
        right=True,
    ),
    Column("needs", "NEEDS", 5, lambda row, _: Span(drawing.number(row.needs)), right=True, drop=1),
    Column("free", "FREE", 5, lambda row, _: Span(drawing.number(row.free)), right=True),
    Column("why", "WHY", 10, _why, max_width=34),
)


# The requests of one instance, or of all


class Phase(StrEnum):
    """What happens to a live request. `held`: no instance has it (any more). `moving`: in a life,
    the pause of a move; in a list, a move under way, during which the request decodes."""

    HELD = "held"
    QUEUED = "queued"
    PREFILL = "prefill"
    DECODE = "decode"
    MOVING = "moving"
    EVICTED = "evicted"

    @property
    def letter(self) -> str:
        return self[0].upper()


PHASE_TONES: Mapping[Phase, Tone] = {
    Phase.HELD: Tone.BAD,
    Phase.QUEUED: Tone.WARN,
    Phase.PREFILL: Tone.STRONG,
    Phase.DECODE: Tone.GOOD,
    Phase.MOVING: Tone.PLAIN,
    Phase.EVICTED: Tone.BAD,
}
_PHASES: Mapping[RequestState, Phase] = {
    RequestState.DISPATCHING: Phase.HELD,
    RequestState.WAITING: Phase.QUEUED,
    RequestState.EVICTED: Phase.EVICTED,
}


@dataclass(frozen=True, slots=True)
class RequestRow:
    """`moves_to`: the destination of the request's move, if it moves now."""

    item: RequestStatus
    names: Names
    moves_to: str = ""

    @property
    def id(self) -> str:
        return self.item.id

    @property
    def target(self) -> Target:
        return Target(self.item.instance_id or "", self.item.id)

    @property
    def phase(self) -> Phase | None:
        """None for a request that has ended."""
        item = self.item
        if item.held is not None:
            return Phase.HELD
        if item.state is not RequestState.RUNNING:
            return _PHASES.get(item.state)
        if self.moves_to:
            return Phase.MOVING
        return Phase.DECODE if item.num_output_tokens else Phase.PREFILL

    @property
    def tokens_per_s(self) -> float | None:
        """The mean rate from the first token to the newest one; None with fewer than two tokens."""
        item = self.item
        if item.ttft_s is None or item.num_output_tokens < 2:
            return None
        decoding_s = item.age_s - (item.last_token_age_s or 0.0) - item.ttft_s
        return (item.num_output_tokens - 1) / decoding_s if decoding_s > 0 else None

    @property
    def text(self) -> str:
        item = self.item
        where = item.instance_id or ""
        words = f"{item.id} {item.client_id} {item.state} {_phase(self, 0).text} {item.level}"
        return f"{words} {where}"


def rows(
    found: RequestList | None, names: Names, status: ClusterStatus | None = None
) -> list[RequestRow]:
    """The requests in the controller's order. `status`: says which of them move."""
    moves = status.moves if status is not None else ()
    to = {(move.request_id, move.from_instance_id): move.to_instance_id for move in moves}
    return [
        RequestRow(item, names, to.get((item.id, item.instance_id or ""), ""))
        for item in (found.requests if found else ())
    ]


SORTS: Mapping[str, bool] = {
    "order": False,
    "age": True,
    "ttft": True,
    "prompt": True,
    "output": True,
    "blocks": True,
    "rate": False,
    "last": True,
    "evictions": True,
    "moves": True,
    "level": False,
    "instance": False,
    "id": False,
}
"""The orders in which requests can be listed, each with whether the largest value comes first.
`order` is the controller's order: running requests, evicted ones, waiting ones."""

_VALUES: Mapping[str, Callable[[RequestRow], Any]] = {
    "age": lambda row: row.item.age_s,
    "ttft": lambda row: row.item.ttft_s,
    "prompt": lambda row: row.item.num_prompt_tokens,
    "output": lambda row: row.item.num_output_tokens,
    "blocks": lambda row: row.item.num_blocks,
    "rate": lambda row: row.tokens_per_s,
    "last": lambda row: row.item.last_token_age_s,
    "evictions": lambda row: row.item.num_evictions,
    "moves": lambda row: row.item.num_moves,
    "level": lambda row: row.item.level,
    "instance": lambda row: row.item.instance_id,
    "id": lambda row: row.item.id,
}


def ordered(found: list[RequestRow], sort: str, *, descending: bool) -> list[RequestRow]:
    """Sorts the rows, with ties in the controller's order. Rows without a value come last in both
    directions."""
    if sort == "order":
        return found[::-1] if descending else found
    value_of = _VALUES[sort]
    valued = [(value, row) for row in found if (value := value_of(row)) is not None]
    valued.sort(key=lambda pair: pair[0], reverse=descending)
    return [row for _, row in valued] + [row for row in found if value_of(row) is None]


def phases(found: Sequence[RequestRow], width: int, height: int) -> list[Line]:
    """A grid with a cell for each request, in the order of the table, and above it how many
    requests are in each phase. If there are more requests than cells, each phase gets its share of
    the cells."""
    known = [row.phase for row in found if row.phase is not None]
    counts = Counter(known)
    legend = tuple(
        Span(f" {phase.letter} {counts[phase]} {phase} ", PHASE_TONES[phase])
        for phase in Phase
        if counts[phase]
    )
    room = width - 1
    if len(known) > room * height:
        present = [phase for phase in Phase if counts[phase]]
        shares = apportion([counts[phase] for phase in present], room * height)
        known = [phase for phase, share in zip(present, shares, strict=True) for _ in range(share)]
    lines = (known[begin : begin + room] for begin in range(0, len(known), room))
    return [
        legend,
        *(
            (
                Span(" "),
                *(
                    Span(phase.letter * len(list(alike)), PHASE_TONES[phase])
                    for phase, alike in groupby(line)
                ),
            )
            for line in lines
        ),
    ]


def _phase(row: RequestRow, _: int) -> Span:
    """The phase. A request that the controller holds shows its place in the queue (`held 3`), a
    request that moves shows where it goes (`moving>i-2`)."""
    item, phase = row.item, row.phase
    if item.held is not None:
        return Span(f"held {item.held.place}", Tone.WARN)
    if phase is None or item.state is RequestState.DISPATCHING:
        return Span(str(item.state))
    to = f">{printable(row.moves_to)}" if phase is Phase.MOVING else ""
    return Span(f"{phase}{to}", PHASE_TONES[phase])


def _rate(row: RequestRow, _: int) -> Span:
    rate = row.tokens_per_s
    return Span("-" if rate is None else f"{rate:.1f}" if rate < 9.95 else drawing.number(rate))


def _figure(
    name: str,
    title: str,
    width: int,
    of: Callable[[RequestRow], float | None],
    drop: int = 0,
) -> Column[RequestRow]:
    return Column(
        name, title, width, lambda row, _: Span(drawing.number(of(row))), right=True, drop=drop
    )


_INSTANCE: Column[RequestRow] = Column(
    "instance", "INST", 5, lambda row, _: Span(printable(row.item.instance_id or "-")), drop=1
)
COLUMNS: tuple[Column[RequestRow], ...] = (
    Column(
        "id",
        "REQUEST",
        SHORT,
        lambda row, width: Span(printable(row.names.of(row.id, width))),
        max_width=40,
    ),
    Column("phase", "PHASE", 11, _phase),
    _INSTANCE,
    Column("level", "PRIO", 8, lambda row, _: Span(printable(row.item.level)), drop=2),
    Column("age", "AGE", 6, lambda row, _: Span(duration(row.item.age_s)), right=True),
    Column("ttft", "TTFT", 6, lambda row, _: Span(latency(row.item.ttft_s)), right=True),
    _figure("prompt", "PROMPT", 6, lambda row: row.item.num_prompt_tokens, drop=5),
    _figure("output", "OUTPUT", 6, lambda row: row.item.num_output_tokens),
    _figure("blocks", "BLOCKS", 6, lambda row: row.item.num_blocks, drop=4),
    Column("rate", "TOK/S", 6, _rate, right=True, drop=3),
    Column(
        "last",
        "LAST",
        6,
        lambda row, _: Span(latency(row.item.last_token_age_s)),
        right=True,
        drop=3,
    ),
    _figure("evictions", "EVICT", 5, lambda row: row.item.num_evictions, drop=6),
    _figure("moves", "MOVES", 5, lambda row: row.item.num_moves, drop=7),
    Column("frontend", "FRONTEND", 8, lambda row, _: Span(row.item.frontend_id), drop=8),
    Column(
        "client",
        "CLIENT'S ID",
        12,
        lambda row, _: Span(printable(row.item.client_id), Tone.DIM),
        drop=9,
        max_width=40,
    ),
)
LEGEND: tuple[tuple[str, str], ...] = (
    ("PHASE", "prefill computes the prompt; moving: it decodes on meanwhile"),
    ("BLOCKS", "KV blocks that it holds"),
    ("TOK/S", "tokens per second, from its first to its newest token"),
    ("LAST", "the time since its newest token"),
    ("H Q P D M E", "below a long list: a letter for each request, by its phase"),
)
COLUMNS_OF_AN_INSTANCE = tuple(column for column in COLUMNS if column is not _INSTANCE)
"""The columns of a list in which all requests are on the same instance."""
