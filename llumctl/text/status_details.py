"""What `llumctl status -o wide` shows below its instances: levels, drains, what the controller
holds, queue heads, moves, replays."""

from collections.abc import Iterator, Sequence

from controller.api.text import status_words
from controller.api.text.quantities import duration, latency
from controller.api.text.status_words import free_blocks, head_wait_s, ranked
from controller.api.wire.status import (
    ClusterStatus,
    DrainStatus,
    EndedReplayStatus,
    MoveStatus,
    ReplayStatus,
)
from llumctl.text import output

MAX_ROWS = 10
"""A cluster in trouble has hundreds of moves; the dashboard lists them all."""


def tables(status: ClusterStatus, *, colours: bool) -> Iterator[str]:
    """One for each kind of thing of which there is any."""
    for header, rows in (
        (("LEVEL", "RANK", "RUN", "WAIT", "TTFT99", "KEPT"), _levels(status)),
        (("DRAIN", "LEFT", "MOVED", "DEADLINE", "THEN"), _drains(status)),
        (
            ("HELD", "PLACE", "LEVEL", "WAITED", "NEEDS", "KEPT", "LACKS", "OVERTAKEN", "WHY"),
            _held(status),
        ),
        (("KEPT-FOR", "INSTANCE", "LEVEL", "WAITED", "NEEDS", "LACKS"), _kept(status)),
        (("QUEUE-HEAD", "INSTANCE", "LEVEL", "WAITED", "NEEDS", "FREE", "WHY"), _heads(status)),
        (("MOVE", "FROM>TO", "STAGE", "BLOCKS", "AGE", "REASON"), _moves(status)),
        (("REPLAY", "FROM>TO", "STAGE", "TOKENS", "PAUSE", "AGE", "REASON"), _replays(status)),
    ):
        if rows:
            text = output.table(header, rows[:MAX_ROWS], colours=colours, ids=header[:1])
            more = len(rows) - MAX_ROWS
            yield f"{text}\n... and {more} more: llumctl top" if more > 0 else text


Rows = Sequence[tuple[str, ...]]


def _levels(status: ClusterStatus) -> Rows:
    return [
        (
            level.name,
            str(level.rank),
            str(level.num_running_reqs),
            str(level.num_waiting_reqs),
            latency(level.ttft_p99_s),
            str(level.headroom_blocks),
        )
        for level in ranked(status.levels)
    ]


def _drains(status: ClusterStatus) -> Rows:
    return [
        (
            item.id,
            "nothing" if drain.safe_to_delete else str(drain.num_requests_left),
            str(drain.num_moved),
            "-" if drain.deadline_s is None else _deadline(drain.deadline_s - status.time_s),
            _then(drain),
        )
        for item in status.instances
        if (drain := item.drain) is not None
    ]


def _then(drain: DrainStatus) -> str:
    if drain.evacuates:
        return "gone"
    return "removed" if drain.removes else "restarted" if drain.restarts else "-"


def _deadline(left_s: float) -> str:
    return f"in {duration(left_s)}" if left_s > 0 else f"{duration(-left_s)} over"


def _held(status: ClusterStatus) -> Rows:
    """The first of what the controller holds, and the one that has waited longest."""
    held = status.held
    found = [one for one in (held.head, held.oldest) if one is not None] if held else []
    return [
        (
            one.request_id,
            str(one.place),
            one.level,
            duration(one.waited_s),
            _number(one.demand_blocks),
            one.instance_id or "-",
            _number(one.lacking_blocks),
            str(one.num_overtaken),
            one.why,
        )
        for one in found
    ]


def _kept(status: ClusterStatus) -> Rows:
    """The instances that are kept for held requests."""
    return [
        (
            kept.request_id,
            item.id,
            kept.level,
            duration(kept.waited_s),
            str(kept.demand_blocks),
            str(kept.lacking_blocks),
        )
        for item in status.instances
        if (kept := item.kept_for) is not None
    ]


def _heads(status: ClusterStatus) -> Rows:
    """The longest waiting first."""
    found = [(item, item.queue_head) for item in status.instances if item.queue_head]
    found.sort(key=lambda pair: -(head_wait_s(pair[1]) or 0.0))
    return [
        (
            head.request_id,
            item.id,
            head.level,
            duration(head_wait_s(head)),
            str(head.demand_blocks),
            _number(free_blocks(item)),
            f"{head.why or '-'}{' (evicted)' if head.evicted else ''}",
        )
        for item, head in found
    ]


def _moves(status: ClusterStatus) -> Rows:
    """Those under way, then those by hand that wait for their turn."""
    return [
        *(_move(move, move.state) for move in status.moves),
        *(_move(move, "queued") for move in status.queued_moves),
    ]


def _move(move: MoveStatus, stage: str) -> tuple[str, ...]:
    return (
        move.request_id,
        f"{move.from_instance_id}>{move.to_instance_id}",
        stage,
        f"{move.num_blocks_copied}/{move.num_blocks}",
        duration(move.age_s),
        move.reason,
    )


def _replays(status: ClusterStatus) -> Rows:
    """Those under way, the longest pause first, then the last that ended."""
    return [
        *(_replay(each, each.pause_s, "-") for each in status.replays.under_way),
        *(
            _replay(each, each.pause_s, duration(max(0.0, status.time_s - each.ended_s)))
            for each in status.replays.ended
        ),
    ]


def _replay(
    replay: ReplayStatus | EndedReplayStatus, pause_s: float | None, age: str
) -> tuple[str, ...]:
    return (
        replay.request_id,
        status_words.replay_way(replay),
        status_words.replay_stage(replay),
        str(replay.num_tokens),
        latency(pause_s),
        age,
        status_words.replay_why(replay),
    )


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)
