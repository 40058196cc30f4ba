"""The queue heads: what the first waiting request of each instance needs, and why it waits."""

from collections.abc import Mapping
from dataclasses import dataclass

from controller.api.text.quantities import duration, printable
from controller.api.text.queue_heads import free_blocks, head_wait_s
from controller.api.wire.models import InstanceStatus, QueueHeadStatus
from tui.actions.target import Target
from tui.drawing import format as fmt
from tui.drawing.format import Span, Tone
from tui.drawing.table import Column
from tui.feed.state import DashboardState
from tui.panes.names import SHORT, Names

_TONES: Mapping[str, Tone] = {"memory": Tone.BAD, "fragmented": Tone.WARN, "batch-full": Tone.WARN}


@dataclass(frozen=True, slots=True)
class HeadRow:
    instance: InstanceStatus
    head: QueueHeadStatus
    names: Names

    @property
    def id(self) -> str:
        return self.instance.id

    @property
    def target(self) -> Target:
        return Target(self.instance.id, self.head.request_id)

    @property
    def text(self) -> str:
        head = self.head
        return f"{self.id} {head.request_id} {head.level} {why(head)}"


def rows(state: DashboardState, names: Names) -> list[HeadRow]:
    """Longest waiting first."""
    instances = state.status.instances if state.status else ()
    found = [HeadRow(item, item.queue_head, names) for item in instances if item.queue_head]
    return sorted(found, key=lambda row: (-(head_wait_s(row.head) or 0.0), row.id))


def why(head: QueueHeadStatus) -> str:
    evicted = " (evicted)" if head.evicted else ""
    return f"{head.why or '-'}{evicted}"


def _why(row: HeadRow, width: int) -> Span:
    """The reason, where the room is short without `(evicted)`."""
    words = why(row.head) if len(why(row.head)) <= width else row.head.why
    return Span(printable(words), _TONES.get(row.head.why, Tone.PLAIN))


COLUMNS: tuple[Column[HeadRow], ...] = (
    Column("id", "INST", 5, lambda row, _: Span(row.id), max_width=8),
    Column(
        "head",
        "HEAD",
        SHORT,
        lambda row, width: Span(printable(row.names.of(row.head.request_id, width))),
        drop=2,
    ),
    Column("level", "PRIO", 6, lambda row, _: Span(printable(row.head.level)), drop=3),
    Column(
        "waited",
        "WAITED",
        6,
        lambda row, _: Span(duration(head_wait_s(row.head))),
        right=True,
    ),
    Column(
        "needs",
        "NEEDS",
        5,
        lambda row, _: Span(fmt.number(row.head.demand_blocks)),
        right=True,
        drop=1,
    ),
    Column(
        "free", "FREE", 5, lambda row, _: Span(fmt.number(free_blocks(row.instance))), right=True
    ),
    Column("why", "WHY", 10, _why, max_width=22),
)
