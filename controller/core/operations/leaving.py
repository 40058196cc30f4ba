"""Why requests leave an instance, or were lost with it: words that metrics and screens count by."""

from enum import StrEnum

from controller.core.operations.cluster_spec import ClusterSpec
from controller.core.rescheduling.move_reasons import HelpReason, MoveReason

SLOW_DRAIN = "slow-"
"""How the ids of drains begin that the cluster began itself, as an instance was slow."""
BY_HAND = "by_hand"


class LeaveReason(StrEnum):
    """Requests leave all but the last two by moves, as far as they can."""

    DRAIN = "drain"
    SLOW = "slow"
    EVACUATION = "evacuation"
    SCALE_IN = "scale_in"
    RESTART = "restart"
    ROLLING_RESTART = "rolling_restart"
    DEATH = "death"
    FENCED = "fenced"


LEAVES_BY_MOVES = tuple(
    reason for reason in LeaveReason if reason not in (LeaveReason.DEATH, LeaveReason.FENCED)
)
_OTHER_MOVES: tuple[StrEnum, ...] = (
    *(reason for reason in MoveReason if reason not in (MoveReason.DRAIN, MoveReason.EVACUATE)),
    *HelpReason,
)
MOVE_REASONS = (
    *(str(reason) for reason in LEAVES_BY_MOVES),
    *(reason.replace(" ", "_") for reason in _OTHER_MOVES),
    BY_HAND,
)
"""Why requests move: a small set, whatever operators write."""


def why_emptied(spec: ClusterSpec, instance_id: str) -> LeaveReason | None:
    """Why the instance is to be empty; None if it is not."""
    order = spec.drains.get(instance_id)
    if order is None:
        return None
    if order.evacuates:
        return LeaveReason.EVACUATION
    if order.restarts:
        turns = spec.rolling.under_way if spec.rolling is not None else ()
        rolling = any(turn.nonce == order.restarts for turn in turns)
        return LeaveReason.ROLLING_RESTART if rolling else LeaveReason.RESTART
    if order.removes:
        return LeaveReason.SCALE_IN
    return LeaveReason.SLOW if order.drain_id.startswith(SLOW_DRAIN) else LeaveReason.DRAIN


def move_reason(spec: ClusterSpec, source_id: str, reason: str) -> str:
    """One of MOVE_REASONS for a move from `source_id` that has this reason in words."""
    if reason == MoveReason.DRAIN:
        return why_emptied(spec, source_id) or LeaveReason.DRAIN
    if reason == MoveReason.EVACUATE:
        return LeaveReason.EVACUATION
    known = reason.replace(" ", "_")
    return known if known in MOVE_REASONS and reason in _OTHER_MOVES else BY_HAND
