"""Instances of several machines in groups: a line for each node, its instances below it.

The groups stand in the order of their first instance, so that the worst is still on top. A node of
which all instances are gone is one line: what ran there comes back elsewhere, under its own ids. A
filter shows the instances of such a node all the same.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from controller.api.text.quantities import printable
from controller.api.text.status_words import state_word
from controller.api.wire.status import ClusterStatus, InstanceState, InstanceStatus
from tui import drawing
from tui.actions import NOTHING, Target
from tui.drawing import Span, Tone
from tui.panes import instances
from tui.panes.instances import InstanceRow

_GONE = (InstanceState.RESTARTING, InstanceState.STALLED)


@dataclass(frozen=True, slots=True)
class NodeRow:
    """The line of a node, on which the cursor never lies. `node` is empty for instances of which
    no process has been heard of."""

    node: str
    items: tuple[InstanceStatus, ...]
    lost: bool

    @property
    def id(self) -> str:
        return f"node {self.node}"

    @property
    def target(self) -> Target:
        return NOTHING

    @property
    def text(self) -> str:
        return f"{self.node} {' '.join(item.id for item in self.items)}"


Row = InstanceRow | NodeRow


def is_heading(row: Row) -> bool:
    return isinstance(row, NodeRow)


def groups(status: ClusterStatus | None) -> dict[str, NodeRow]:
    """By node; none while all instances are on one."""
    found: dict[str, list[InstanceStatus]] = {}
    for item in status.instances if status is not None else ():
        found.setdefault(item.node, []).append(item)
    if len(found.keys() - {""}) < 2:
        return {}
    return {node: NodeRow(node, tuple(items), _is_lost(items)) for node, items in found.items()}


def num_lines(status: ClusterStatus | None) -> int:
    """How many lines all instances take."""
    found = groups(status)
    num_hidden = sum(len(group.items) for group in found.values() if group.lost)
    return (len(status.instances) if status is not None else 0) + len(found) - num_hidden


def grouped(
    found: Sequence[InstanceRow], status: ClusterStatus | None, *, filtered: bool
) -> list[Row]:
    """The rows with a line before those of each node."""
    heads = groups(status)
    if not heads:
        return list(found)
    by_node: dict[str, list[Row]] = {}
    for row in found:
        head = heads[row.item.node]
        rows = by_node.setdefault(head.node, [head])
        if filtered or not head.lost:
            rows.append(row)
    return [row for rows in by_node.values() for row in rows]


def note(row: Row) -> tuple[str, Span] | None:
    if isinstance(row, InstanceRow):
        return instances.note(row)
    return "id", Span(words(row), Tone.BAD if row.lost else Tone.STRONG)


def words(row: NodeRow) -> str:
    """`10.0.0.12: 4 instances, 1 draining  freeness 1930  run 45 wait 3  kv 55%`, or `! 10.0.0.13
    lost: i-4 i-5`."""
    count = f"{len(row.items)} instance{'s' if len(row.items) > 1 else ''}"
    if row.lost:
        names = " ".join(item.id for item in row.items)
        return printable(f"! {row.node} lost with {count}: {names}")
    facts = [count, *_others(row.items)]
    name = row.node or "no machine yet"
    steps = [i.freeness_steps for i in row.items if state_word(i) == InstanceState.ACTIVE]
    known = [each for each in steps if each is not None]
    loads = (
        f"freeness {drawing.number(sum(known) if known else None)}",
        f"run {sum(item.num_running_reqs or 0 for item in row.items)}"
        f" wait {sum(item.num_waiting_reqs or 0 for item in row.items)}",
        f"kv {_kv(row.items)}",
    )
    return printable("  ".join((f"{name}: {', '.join(facts)}", *(loads if row.node else ()))))


def _others(items: Sequence[InstanceStatus]) -> list[str]:
    """`1 draining`, `2 cordoned`: for each state but active, and whatever else keeps new requests
    away."""
    counts = Counter(state_word(item) for item in items)
    order = [*InstanceState, *sorted(counts.keys() - set(InstanceState))]
    return [f"{counts[word]} {word}" for word in order if counts[word] and word != "active"]


def _kv(items: Sequence[InstanceStatus]) -> str:
    sized = [
        (item.num_total_blocks, item.num_free_blocks)
        for item in items
        if item.num_total_blocks is not None and item.num_free_blocks is not None
    ]
    total = sum(blocks for blocks, _ in sized)
    return f"{drawing.percent(sum(b - free for b, free in sized) / total)}%" if total else "-"


def _is_lost(items: Sequence[InstanceStatus]) -> bool:
    """As the controller says of a node (`node_lost`): of one with a single instance nobody
    knows."""
    gone = all(item.pid is None and item.state in _GONE for item in items)
    return len(items) > 1 and bool(items[0].node) and gone
