"""Requests that go elsewhere: evacuations, replays and moves that wait, are under way or have just
ended; and the matrix of moves between instances."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from controller.api.text import status_words
from controller.api.text.quantities import duration, latency, printable
from controller.api.wire.status import (
    ClusterStatus,
    DrainStatus,
    EndedMoveStatus,
    EndedReplayStatus,
    InstanceStatus,
    MoveStatus,
    ReplayStatus,
)
from tui import drawing
from tui.actions import Target
from tui.drawing import Column, Glyphs, Line, Span, Tone, fitted, severity
from tui.panes.instances import natural
from tui.panes.requests import SHORT, Names
from tui.state import DashboardState

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
    "evacuate": Tone.WARN,
    "placing": Tone.BAD,
    "computing": Tone.WARN,
    "replayed": Tone.GOOD,
    "sent anew": Tone.GOOD,
    "failed": Tone.BAD,
}


@dataclass(frozen=True, slots=True)
class MigrationRow:
    """A row about a move, a replay or an evacuation. `stage`: its state or outcome; `age`: the time
    since it began or, if dim, since it ended."""

    id: str
    target: Target
    request_id: str
    """Empty for an evacuation."""
    names: Names
    way: str
    stage: Span
    blocks: str
    down: str
    age: Span
    why: str
    what: str = ""
    """`replay`; for an evacuation, the number of requests that are left, which stands in place of
    the request."""

    @property
    def text(self) -> str:
        return f"{self.request_id} {self.what} {self.way} {self.stage.text} {self.why}"


def rows(state: DashboardState, names: Names) -> list[MigrationRow]:
    """Evacuations, the next one first; then replays and moves under way, the oldest first; then
    waiting moves; then what has ended, the newest first."""
    status = state.status
    if status is None:
        return []
    now_s = status.time_s or state.time_s
    ended: list[EndedMoveStatus | EndedReplayStatus] = [
        *status.ended_moves,
        *status.replays.ended,
    ]
    ended.sort(key=lambda each: -each.ended_s)
    found = [
        *_evacuations(status, now_s, names),
        # For a replay under way, DOWN shows how long its client has waited already.
        *(_replay(each, Span("-"), names) for each in status.replays.under_way),
        *(
            _moving(each, names, state.limits.alarm_move_s)
            for each in (*status.moves, *status.queued_moves)
        ),
        *(_ended(each, now_s, names) for each in ended),
    ]
    seen: dict[str, int] = {}
    for place, row in enumerate(found):
        seen[row.id] = nth = seen.get(row.id, 0) + 1
        if nth > 1:  # a request that was replayed more than once
            found[place] = replace(row, id=f"{row.id} {nth}")
    return found


def way(move: MoveStatus | EndedMoveStatus) -> str:
    return f"{move.from_instance_id}>{move.to_instance_id}"


def stage(move: MoveStatus) -> str:
    """What a move does now and, while it copies, which stage of the copy that is."""
    if move.state == "copying" and move.stage:
        return f"copying {move.stage}"
    return _STAGES.get(move.state, move.state)


def _evacuations(status: ClusterStatus, now_s: float, names: Names) -> list[MigrationRow]:
    found = [
        (drain.deadline_s or now_s, item, drain)
        for item in status.instances
        if (drain := item.drain) is not None and drain.evacuates
    ]
    found.sort(key=lambda each: each[0])
    return [_evacuation(item, drain, at_s - now_s, names) for at_s, item, drain in found]


def _evacuation(
    item: InstanceStatus, drain: DrainStatus, left_s: float, names: Names
) -> MigrationRow:
    """The row's age is the time until the instance goes, with a minus."""
    left = duration(max(0.0, left_s))
    return MigrationRow(
        id=f"evacuation {item.id}",
        target=Target(item.id),
        request_id="",
        names=names,
        way=f"{item.id}>",
        stage=_toned("evacuate"),
        blocks="-",
        down="-",
        age=Span(f"-{left}", Tone.WARN),
        why=printable(f"goes in {left}, {drain.num_moved} moved{drain.why and f'; {drain.why}'}"),
        what=f"{drain.num_requests_left} left",
    )


def _moving(move: MoveStatus, names: Names, limit_s: float) -> MigrationRow:
    return MigrationRow(
        id=move.migration_id,
        target=Target(move.from_instance_id, move.request_id),
        request_id=move.request_id,
        names=names,
        way=way(move),
        stage=Span(printable(stage(move)), _TONES.get(move.state, Tone.PLAIN)),
        blocks=f"{drawing.number(move.num_blocks_copied)}/{drawing.number(move.num_blocks)}",
        down="-",
        age=Span(duration(move.age_s), severity(move.age_s, limit_s)),
        why=move.reason,
    )


def _replay(replay: ReplayStatus | EndedReplayStatus, age: Span, names: Names) -> MigrationRow:
    return MigrationRow(
        id=f"replay {replay.request_id}",
        target=Target(replay.to_instance_id or replay.from_instance_id, replay.request_id),
        request_id=replay.request_id,
        names=names,
        way=status_words.replay_way(replay),
        stage=_toned(status_words.replay_stage(replay)),
        blocks=f"{drawing.number(replay.num_tokens)}t",
        down=latency(replay.pause_s),
        age=age,
        why=status_words.replay_why(replay),
        what="replay",
    )


def _ended(each: EndedMoveStatus | EndedReplayStatus, now_s: float, names: Names) -> MigrationRow:
    """The row's instance is the one to which the request went, or at which it stayed."""
    age = Span(duration(max(0.0, now_s - each.ended_s)), Tone.DIM)
    if isinstance(each, EndedReplayStatus):
        return _replay(each, age, names)
    at = each.to_instance_id if each.outcome == "migrated" else each.from_instance_id
    return MigrationRow(
        id=each.migration_id,
        target=Target(at, each.request_id),
        request_id=each.request_id,
        names=names,
        way=way(each),
        stage=_toned(each.outcome),
        blocks=drawing.number(each.num_blocks),
        down=latency(each.downtime_s),
        age=age,
        why=each.why or each.reason,
    )


def _toned(word: str) -> Span:
    return Span(printable(word), _TONES.get(word, Tone.PLAIN))


def _request(row: MigrationRow, width: int) -> Span:
    if not row.request_id:
        return Span(row.what, Tone.WARN)
    return Span(printable(row.names.of(row.request_id, width)))


COLUMNS: tuple[Column[MigrationRow], ...] = (
    Column("request", "REQ", SHORT, _request),
    Column("way", "FROM>TO", 9, lambda row, _: Span(printable(row.way))),
    Column("stage", "STAGE", 9, lambda row, _: row.stage),
    Column("blocks", "BLOCKS", 7, lambda row, _: Span(row.blocks), right=True),
    Column("down", "DOWN", 5, lambda row, _: Span(row.down), right=True),
    Column("age", "AGE", 5, lambda row, _: row.age, right=True, drop=1),
    Column("why", "REASON", 7, lambda row, _: Span(printable(row.why)), drop=2, max_width=60),
)


_MAX_MATRIX_ROWS = 16
_MATRIX_HEAD_LINES = 2
_CELL = 6
_FROM = 9


def num_matrix_lines(state: DashboardState) -> int:
    """How many lines the matrix takes; none if nothing has moved for a minute. The height follows
    from the number of instances, so that it does not change with each move."""
    if not state.ways:
        return 0
    return _MATRIX_HEAD_LINES + min(
        _MAX_MATRIX_ROWS, len(state.status.instances if state.status else ())
    )


def matrix_lines(state: DashboardState, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    """How many requests moved from each instance to each other instance in the last minute.

    Each source has a row, each destination a column. If not all of them fit, the matrix shows the
    instances with the most moves.
    """
    counts = Counter((way.source, way.destination) for way in state.ways)
    sources = _most({pair: pair[0] for pair in counts}, counts, height - _MATRIX_HEAD_LINES)
    destinations = _most({pair: pair[1] for pair in counts}, counts, (width - _FROM) // _CELL)
    title = f"{glyphs.rule} "
    words = f" ({counts.total()} in the last minute) "
    name = "Who moves where"
    rule = glyphs.rule * max(0, width - len(title + name + words))
    most = max(counts.values(), default=0)
    found: list[Line] = [
        (Span(title, Tone.DIM), Span(name, Tone.STRONG), Span(words), Span(rule, Tone.DIM)),
        (
            Span(fitted(" FROM", _FROM, glyphs), Tone.DIM),
            *(
                Span(fitted(f">{printable(to)}", _CELL, glyphs, right=True), Tone.DIM)
                for to in destinations
            ),
        ),
    ]
    for source in sources:
        cells = [Span(fitted(f" {printable(source)}", _FROM, glyphs))]
        for to in destinations:
            count = counts[source, to]
            text = str(count) if count else "" if source == to else "."
            tone = Tone.DIM if not count else Tone.STRONG if count == most else Tone.PLAIN
            cells.append(Span(fitted(text, _CELL, glyphs, right=True), tone))
        found.append(tuple(cells))
    return found


def _most(
    members: dict[tuple[str, str], str], counts: Counter[tuple[str, str]], room: int
) -> list[str]:
    """The members with the most moves that fit, in the order of their names."""
    totals: Counter[str] = Counter()
    for pair, member in members.items():
        totals[member] += counts[pair]
    return sorted((member for member, _ in totals.most_common(max(0, room))), key=natural)
