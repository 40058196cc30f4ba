"""Moves, from the controller's state to the wire models."""

import time

from controller.api.wire.models import EndedMoveStatus, MoveStatus
from controller.api.wire.moves import MoveAttempt, MoveStage
from controller.core.emptying.by_hand import Attempt
from controller.core.migration.move_records import EndedMove
from controller.core.migration.refusals import why
from controller.runtime.controller.cluster import ControllerProcess


def moves_under_way(controller: ControllerProcess) -> tuple[MoveStatus, ...]:
    """Moves under way by the sources' last reports, the oldest first."""
    found = [
        MoveStatus(
            migration_id=move.migration_id,
            request_id=move.request_id,
            from_instance_id=member.member_id,
            to_instance_id=move.destination_id,
            state=move.state,
            stage=move.stage,
            num_blocks_copied=move.num_blocks_copied,
            num_blocks=move.num_blocks,
            reason=move.reason,
            age_s=round(move.age_s, 3),
        )
        for member in controller.roster.instances()
        if member.serving and member.member_id in controller.statuses
        for move in controller.statuses[member.member_id].moves
        if controller.statuses[member.member_id].snapshot.incarnation == member.incarnation
    ]
    return tuple(sorted(found, key=lambda move: (-move.age_s, move.migration_id)))


def queued_moves(controller: ControllerProcess) -> tuple[MoveStatus, ...]:
    """Moves that wait for their turn, in their order."""
    now_s = controller.now_s()
    return tuple(
        MoveStatus(
            migration_id=move.migration_id,
            request_id=move.wanted.request_id,
            from_instance_id=move.wanted.source_id,
            to_instance_id=move.destination_id,
            state="queued",
            stage=0,
            num_blocks_copied=0,
            num_blocks=move.wanted.num_blocks,
            reason=move.wanted.reason,
            age_s=round(now_s - move.since_s, 3),
        )
        for move in controller.operator_moves.machine.waiting
    )


def ended_moves(controller: ControllerProcess) -> tuple[EndedMoveStatus, ...]:
    """The last moves that ended, the newest first."""
    since_s = time.time() - controller.now_s()
    return tuple(
        _ended(move, since_s + move.ended_s)
        for move in reversed(controller.operator_moves.log.recent)
    )


def _ended(move: EndedMove, ended_s: float) -> EndedMoveStatus:
    record = move.record
    return EndedMoveStatus(
        migration_id=record.migration_id,
        request_id=record.request_id,
        from_instance_id=record.source_id,
        to_instance_id=record.destination_id,
        outcome=record.outcome,
        why=why(record.code),
        reason=record.reason,
        ended_s=round(ended_s, 3),
        num_blocks=record.num_blocks,
        num_bytes=record.num_bytes,
        downtime_s=None if move.downtime_s is None else round(move.downtime_s, 6),
    )


def attempt_model(attempt: Attempt) -> MoveAttempt:
    record = attempt.record
    return MoveAttempt(
        migration_id=attempt.migration_id,
        to_instance_id=attempt.destination_id,
        outcome=attempt.outcome,
        code=attempt.code,
        why=why(attempt.code),
        duration_s=round(record.duration_s, 6) if record else None,
        num_tokens=record.num_tokens if record else None,
        num_cached_blocks=record.num_cached_blocks if record else None,
        stages=tuple(
            MoveStage(
                num_blocks=stage.num_blocks,
                num_bytes=stage.num_bytes,
                copy_time_s=round(stage.copy_time_s, 6),
            )
            for stage in (record.stages if record else ())
        ),
    )
