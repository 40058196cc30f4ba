"""Priority levels on the screen: the columns of an instance, the figures of the whole cluster."""

from typing import TYPE_CHECKING

from controller.api.text.quantities import latency, printable
from controller.api.text.status_words import ranked, run_and_wait
from controller.api.wire.status import ClusterStatus, InstanceStatus
from tui import drawing
from tui.drawing import Column, Line, Span, Tone

if TYPE_CHECKING:
    from tui.panes.instances import InstanceRow

LEVEL_DROP = 5
"""At which turn a table that is too wide leaves out its levels."""
_HEADS = "RUN+WAIT TTFT99   KEPT"
_TAIL_WIDTH = 14
"""Of the latency and the blocks behind the requests."""


def level_names(status: ClusterStatus) -> tuple[str, ...]:
    """The highest level first."""
    return tuple(level.name for level in ranked(status.levels))


def level_column(name: str) -> "Column[InstanceRow]":
    title = f"{printable(name.upper())[:8]} {_HEADS}"
    return Column(
        f"level.{name}",
        title,
        drawing.num_cells(title),
        lambda row, width: _cell(row.item, name, width),
        drop=LEVEL_DROP,
    )


def _cell(item: InstanceStatus, name: str, width: int) -> Line:
    waits = item.num_waiting_by_level.get(name, 0)
    requests = f"{run_and_wait(item, name):>{max(0, width - _TAIL_WIDTH)}}"
    ttft = latency(item.ttft_p99_by_level_s.get(name))
    return (
        Span(requests, Tone.WARN if waits else Tone.PLAIN),
        Span(f" {ttft:>6} {_kept(item, name):>6}"),
    )


def level_of_instance(item: InstanceStatus, name: str) -> str:
    """`6+2 wait 1.9s kept 743`."""
    words = [f"{run_and_wait(item, name)} wait"]
    if (ttft_s := item.ttft_p99_by_level_s.get(name)) is not None:
        words.append(latency(ttft_s))
    if (kept := _kept(item, name)) != "-":
        words.append(f"kept {kept}")
    return " ".join(words)


def levels_of_cluster(status: ClusterStatus) -> list[tuple[str, str]]:
    """(level, `6+2 1.9s`): running and waiting requests, and P99 TTFT; none where there is one
    level only."""
    levels = ranked(status.levels)
    if len(levels) < 2:
        return []
    return [
        (
            printable(level.name),
            f"{level.num_running_reqs}+{level.num_waiting_reqs} {latency(level.ttft_p99_s)}",
        )
        for level in levels
    ]


def _kept(item: InstanceStatus, name: str) -> str:
    return drawing.number(item.headroom_by_level_blocks.get(name))
