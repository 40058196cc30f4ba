"""The moves: those under way, those that wait, then the last ones that ended."""

from collections.abc import Mapping
from dataclasses import dataclass

from controller.api.text.quantities import duration, latency, printable
from controller.api.wire.models import EndedMoveStatus, MoveStatus
from tui.actions.target import Target
from tui.drawing import format as fmt
from tui.drawing.format import Span, Tone
from tui.drawing.table import Column
from tui.feed.state import DashboardState
from tui.panes.names import SHORT, Names

_STAGES: Mapping[str, str] = {
    "pre_allocating": "pre-alloc",
    "suspending": "suspend",
    "suspended": "last copy",
    "committing": "commit",
}
"""Short forms of a source's states that are too long for their column."""

_TONES: Mapping[str, Tone] = {
    "queued": Tone.DIM,
    "committing": Tone.WARN,
    "fencing": Tone.BAD,
    "migrated": Tone.GOOD,
    "kept": Tone.BAD,
    "resumed": Tone.BAD,
}


@dataclass(frozen=True, slots=True)
class MigrationRow:
    """`now_s`: by the controller's clock."""

    move: MoveStatus | EndedMoveStatus
    now_s: float
    names: Names

    @property
    def id(self) -> str:
        return self.move.migration_id

    @property
    def target(self) -> Target:
        """The request, and the instance that has it."""
        move = self.move
        gone = isinstance(move, EndedMoveStatus) and move.outcome == "migrated"
        return Target(move.to_instance_id if gone else move.from_instance_id, move.request_id)

    @property
    def text(self) -> str:
        move = self.move
        return f"{move.request_id} {way(move)} {stage(move)} {why(move)}"


def rows(state: DashboardState, names: Names) -> list[MigrationRow]:
    """Moves under way, the oldest first; then those that wait; then those that ended, the newest
    first."""
    status = state.status
    if status is None:
        return []
    now_s = status.time_s or state.time_s
    found: list[MoveStatus | EndedMoveStatus] = [
        *status.moves,
        *status.queued_moves,
        *status.ended_moves,
    ]
    return [MigrationRow(move, now_s, names) for move in found]


def way(move: MoveStatus | EndedMoveStatus) -> str:
    return f"{move.from_instance_id}>{move.to_instance_id}"


def stage(move: MoveStatus | EndedMoveStatus) -> str:
    """What a move does, and in which stage of the copy; of an ended move its outcome."""
    if isinstance(move, EndedMoveStatus):
        return move.outcome
    if move.state == "copying" and move.stage:
        return f"copying {move.stage}"
    return _STAGES.get(move.state, move.state)


def why(move: MoveStatus | EndedMoveStatus) -> str:
    """Why a move came to nothing, else why it was wanted."""
    return (move.why if isinstance(move, EndedMoveStatus) else "") or move.reason


def _stage(row: MigrationRow, _: int) -> Span:
    move = row.move
    key = move.outcome if isinstance(move, EndedMoveStatus) else move.state
    return Span(printable(stage(move)), _TONES.get(key, Tone.PLAIN))


def _blocks(row: MigrationRow, _: int) -> Span:
    move = row.move
    if isinstance(move, EndedMoveStatus):
        return Span(fmt.number(move.num_blocks))
    return Span(f"{fmt.number(move.num_blocks_copied)}/{fmt.number(move.num_blocks)}")


def _down(row: MigrationRow, _: int) -> Span:
    move = row.move
    return Span(latency(move.downtime_s) if isinstance(move, EndedMoveStatus) else "-")


def _age(row: MigrationRow, _: int) -> Span:
    """The time since the move began or, if it is over, ended."""
    move = row.move
    if isinstance(move, EndedMoveStatus):
        return Span(duration(max(0.0, row.now_s - move.ended_s)), Tone.DIM)
    return Span(duration(move.age_s))


COLUMNS: tuple[Column[MigrationRow], ...] = (
    Column(
        "request",
        "REQ",
        SHORT,
        lambda row, width: Span(printable(row.names.of(row.move.request_id, width))),
    ),
    Column("way", "FROM>TO", 9, lambda row, _: Span(printable(way(row.move)))),
    Column("stage", "STAGE", 9, _stage),
    Column("blocks", "BLOCKS", 7, _blocks, right=True),
    Column("down", "DOWN", 5, _down, right=True),
    Column("age", "AGE", 5, _age, right=True, drop=1),
    Column("why", "REASON", 7, lambda row, _: Span(printable(why(row.move))), drop=2, max_width=60),
)
