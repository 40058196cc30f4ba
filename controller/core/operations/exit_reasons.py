"""Why requests leave an instance, or were lost with it: words that metrics and screens count by."""

from enum import StrEnum

from controller.core.emptying.claims import Evacuate, Remove, Restart, SlowDrain
from controller.core.operations.cluster_spec import ClusterSpec
from controller.core.rescheduling.move_reasons import HelpReason, MoveReason

BY_HAND = "by_hand"


class ExitReason(StrEnum):
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
    reason for reason in ExitReason if reason not in (ExitReason.DEATH, ExitReason.FENCED)
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


def why_emptied(spec: ClusterSpec, instance_id: str) -> ExitReason | None:
    """Why the instance is to be empty; None if it is not."""
    claims = spec.drains.get(instance_id)
    if claims is None:
        return None
    match claims.strongest:
        case Evacuate():
            return ExitReason.EVACUATION
        case Remove():
            return ExitReason.SCALE_IN
        case Restart(nonce=nonce):
            turns = spec.rolling.under_way if spec.rolling is not None else ()
            rolling = any(turn.nonce == nonce for turn in turns)
            return ExitReason.ROLLING_RESTART if rolling else ExitReason.RESTART
        case SlowDrain():
            return ExitReason.SLOW
        case _:
            return ExitReason.DRAIN


def move_reason(spec: ClusterSpec, source_id: str, reason: str) -> str:
    """One of MOVE_REASONS for a move from `source_id` that has this reason in words."""
    if reason == MoveReason.DRAIN:
        return why_emptied(spec, source_id) or ExitReason.DRAIN
    if reason == MoveReason.EVACUATE:
        return ExitReason.EVACUATION
    known = reason.replace(" ", "_")
    return known if known in MOVE_REASONS and reason in _OTHER_MOVES else BY_HAND
