"""The queue heads: what the first waiting request of each queue needs, and why it waits.

The queue at the controller stands before those of the instances."""

from collections.abc import Mapping
from dataclasses import dataclass

from controller.api.text.quantities import duration, printable
from controller.api.text.status_words import free_blocks, head_wait_s
from controller.api.wire.status import ClusterStatus, InstanceStatus, QueueHeadStatus
from tui import drawing
from tui.actions import Target
from tui.drawing import Column, Span, Tone
from tui.panes.names import SHORT, Names
from tui.state import DashboardState

AT_CONTROLLER = "held"
"""The row of the queue at the controller."""
_TONES: Mapping[str, Tone] = {
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
    """`id`: the instance, or AT_CONTROLLER. `reasons`: why it waits, the longest words first."""

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


def rows(state: DashboardState, names: Names) -> list[HeadRow]:
    """The queue at the controller, then those of instances, the longest waiting first."""
    if state.status is None:
        return []
    found = [_of_instance(item, names) for item in state.status.instances if item.queue_head]
    found.sort(key=lambda row: (-(row.waited_s or 0.0), row.id))
    return [*_at_controller(state.status, names), *found]


def why(head: QueueHeadStatus) -> str:
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
        (why(head), head.why),
        _TONES.get(head.why, Tone.PLAIN),
        names,
    )


def _at_controller(status: ClusterStatus, names: Names) -> list[HeadRow]:
    """`i-3 kept, lacks 198, 60 behind`, or as much of it as has room; with the blocks that are free
    on the kept instance."""
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
            _TONES.get(head.why, Tone.PLAIN),
            names,
        )
    ]


def _why(row: HeadRow, width: int) -> Span:
    """As much of the reason as has room."""
    words = next(
        (each for each in row.reasons if drawing.num_cells(each) <= width), row.reasons[-1]
    )
    return Span(printable(words), row.tone)


COLUMNS: tuple[Column[HeadRow], ...] = (
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
