"""Why requests leave an instance, in the words by which metrics count."""

from dataclasses import replace

import pytest

from controller.core.emptying.claims import (
    Claim,
    Drain,
    Evacuate,
    Remove,
    Restart,
    SlowDrain,
)
from controller.core.emptying.relief import HelpReason, MoveReason
from controller.core.fleet.cluster_spec import (
    BY_HAND,
    MOVE_REASONS,
    ClusterSpec,
    ExitReason,
    RollingOrder,
    Turn,
    move_reason,
    why_emptied,
)

ROLLING = RollingOrder("op-2", 1.0, (), under_way=(Turn("i-0", "n-1", 1.0),))


@pytest.mark.parametrize(
    ("claim", "reason"),
    [
        (Drain("op-1", 1.0), ExitReason.DRAIN),
        (SlowDrain("slow-1", 1.0), ExitReason.SLOW),
        (Remove("op-1", 1.0), ExitReason.SCALE_IN),
        (Evacuate("op-1", 1.0, 9.0), ExitReason.EVACUATION),
        (Restart("op-1", 1.0, nonce="n-9"), ExitReason.RESTART),
        (Restart("op-1", 1.0, nonce="n-1"), ExitReason.ROLLING_RESTART),
    ],
)
def test_why_it_is_emptied(claim: Claim, reason: ExitReason) -> None:
    spec = replace(ClusterSpec.first(2).with_claims({"i-0": claim}), rolling=ROLLING)
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
