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
from controller.core.fleet import cluster_spec

ROLLING = cluster_spec.RollingOrder(
    "op-2", 1.0, (), under_way=(cluster_spec.Turn("i-0", "n-1", 1.0),)
)


@pytest.mark.parametrize(
    ("claim", "reason"),
    [
        (Drain("op-1", 1.0), cluster_spec.ExitReason.DRAIN),
        (SlowDrain("slow-1", 1.0), cluster_spec.ExitReason.SLOW),
        (Remove("op-1", 1.0), cluster_spec.ExitReason.SCALE_IN),
        (Evacuate("op-1", 1.0, 9.0), cluster_spec.ExitReason.EVACUATION),
        (Restart("op-1", 1.0, nonce="n-9"), cluster_spec.ExitReason.RESTART),
        (Restart("op-1", 1.0, nonce="n-1"), cluster_spec.ExitReason.ROLLING_RESTART),
    ],
)
def test_why_it_is_emptied(claim: Claim, reason: cluster_spec.ExitReason) -> None:
    spec = replace(cluster_spec.ClusterSpec.first(2).with_claims({"i-0": claim}), rolling=ROLLING)
    assert cluster_spec.why_emptied(spec, "i-0") is reason
    assert cluster_spec.why_emptied(spec, "i-1") is None
    assert cluster_spec.move_reason(spec, "i-0", MoveReason.DRAIN) == reason


def test_reasons_of_moves_are_few() -> None:
    spec = cluster_spec.ClusterSpec.first(2)
    assert cluster_spec.move_reason(spec, "i-0", MoveReason.DRAIN) == "drain", "the drain is over"
    assert cluster_spec.move_reason(spec, "i-0", MoveReason.EVACUATE) == "evacuation"
    assert cluster_spec.move_reason(spec, "i-0", MoveReason.QUEUE_HEAD) == "queue_head"
    for word in ("by hand", "because ana said so", "slow", ""):
        assert cluster_spec.move_reason(spec, "i-0", word) == cluster_spec.BY_HAND
    assert {cluster_spec.move_reason(spec, "i-0", word) for word in (*MoveReason, *HelpReason)} <= {
        *cluster_spec.MOVE_REASONS
    }
