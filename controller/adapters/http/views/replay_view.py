"""Replays and saved requests, from the controller's state to the wire models."""

import time
from collections import Counter
from collections.abc import Iterable
from itertools import islice

from controller.api.wire.models import InstanceStatus
from controller.api.wire.replays import (
    EndedReplayStatus,
    ReplaysStatus,
    ReplayStatus,
    SavedStatus,
)
from controller.core.operations.cluster_spec import LEAVES_BY_MOVES
from controller.core.replay.replay_log import ReplayLog, Way
from controller.runtime.controller.cluster import ControllerProcess

MAX_SHOWN = 64
"""Replays under way in a status: the oldest. An instance may have had hundreds of requests."""


def replays_now(controller: ControllerProcess) -> ReplaysStatus:
    log, now_s = controller.replays, controller.now_s()
    num_done, num_failed = log.last_minute(now_s)
    return ReplaysStatus(
        under_way=tuple(_under_way(log, now_s)),
        ended=tuple(_ended(log, time.time() - now_s)),
        num_replaying=len(log.under_way),
        num_replayed_last_minute=num_done,
        num_not_replayed_last_minute=num_failed,
        saved=_saved(controller),
    )


def with_replays(
    controller: ControllerProcess, instances: Iterable[InstanceStatus]
) -> tuple[InstanceStatus, ...]:
    """The instances with the replays under way to each and from each."""
    to, lost_with = controller.replays.num_by_instance()
    if not lost_with:
        return tuple(instances)
    return tuple(
        item.model_copy(
            update={"num_replays_in": to[item.id], "num_replays_out": lost_with[item.id]}
        )
        for item in instances
    )


def _under_way(log: ReplayLog, now_s: float) -> Iterable[ReplayStatus]:
    for replay in islice(log.under_way.values(), MAX_SHOWN):
        yield ReplayStatus(
            request_id=replay.request_id,
            from_instance_id=replay.source_id,
            to_instance_id=replay.destination_id or None,
            state="computing" if replay.destination_id else "placing",
            reason=log.reason(replay.cause_id),
            num_tokens=replay.num_tokens,
            pause_s=round(max(0.0, now_s - replay.since_s), 3),
        )


def _ended(log: ReplayLog, since_s: float) -> Iterable[EndedReplayStatus]:
    """`since_s`: when the controller's clock was 0; seconds since the epoch."""
    for replay in reversed(log.recent):
        yield EndedReplayStatus(
            request_id=replay.request_id,
            from_instance_id=replay.source_id,
            to_instance_id=replay.destination_id or None,
            outcome=replay.way,
            code=replay.code,
            reason=log.reason(replay.cause_id),
            num_tokens=replay.num_tokens,
            pause_s=None if replay.pause_s is None else round(replay.pause_s, 6),
            ended_s=round(since_s + replay.ended_s, 3),
        )


def _saved(controller: ControllerProcess) -> tuple[SavedStatus, ...]:
    moved = controller.operator_moves.log.num_by_reason
    found: Counter[tuple[str, str]] = Counter(
        {(Way.MOVED, reason): moved["migrated", reason] for reason in LEAVES_BY_MOVES}
    )
    found.update(controller.replays.counts())
    return tuple(
        SavedStatus(way=way, reason=reason, num_saved=number)
        for (way, reason), number in found.items()
        if number
    )
