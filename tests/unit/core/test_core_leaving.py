"""Why requests leave an instance, in words to count by."""

from dataclasses import replace

import pytest

from controller.core.operations.cluster_spec import ClusterSpec, DrainOrder
from controller.core.operations.leaving import (
    BY_HAND,
    MOVE_REASONS,
    SLOW_DRAIN,
    LeaveReason,
    move_reason,
    why_emptied,
)
from controller.core.operations.rolling import RollingOrder, Turn
from controller.core.rescheduling.move_reasons import HelpReason, MoveReason

PLAIN = DrainOrder("op-1", "i-0", 1.0)
ROLLING = RollingOrder("op-2", 1.0, (), under_way=(Turn("i-0", "n-1", 1.0),))


@pytest.mark.parametrize(
    ("order", "reason"),
    [
        (PLAIN, LeaveReason.DRAIN),
        (replace(PLAIN, drain_id=f"{SLOW_DRAIN}1"), LeaveReason.SLOW),
        (replace(PLAIN, removes=True), LeaveReason.SCALE_IN),
        (replace(PLAIN, removes=True, evacuates=True), LeaveReason.EVACUATION),
        (replace(PLAIN, restarts="n-9"), LeaveReason.RESTART),
        (replace(PLAIN, restarts="n-1"), LeaveReason.ROLLING_RESTART),
    ],
)
def test_why_it_is_emptied(order: DrainOrder, reason: LeaveReason) -> None:
    spec = replace(ClusterSpec.first(2).with_drains(order), rolling=ROLLING)
    assert why_emptied(spec, "i-0") is reason
    assert why_emptied(spec, "i-1") is None
    assert move_reason(spec, "i-0", MoveReason.DRAIN) == reason


def test_reasons_of_moves_are_few() -> None:
    spec = ClusterSpec.first(2)
    assert move_reason(spec, "i-0", MoveReason.DRAIN) == "drain", "the drain is over"
    assert move_reason(spec, "i-0", MoveReason.EVACUATE) == "evacuation"
    assert move_reason(spec, "i-0", MoveReason.QUEUE_HEAD) == "queue_head"
    for word in ("by hand", "because ana said so", "slow", ""):
        assert move_reason(spec, "i-0", word) == BY_HAND
    assert {move_reason(spec, "i-0", word) for word in (*MoveReason, *HelpReason)} <= {
        *MOVE_REASONS
    }
