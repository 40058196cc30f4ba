"""Expected outputs in the simulator: requests of a session teach what its next ones need."""

from dataclasses import replace

import pytest

from controller.core.holding.config import HoldingConfig
from controller.sim.setup import ClusterSetup
from controller.sim.workload.request import Trace, TraceRequest
from tests.unit.sim.runs import SMALL, STAY, column, policy, run


@pytest.mark.parametrize(("share", "waits"), [(0.0, False), (1.0, True)])
def test_a_request_waits_for_the_room_that_its_session_used_before(
    share: float, waits: bool
) -> None:
    """Of 60 blocks another has 40 and more; those of the session need 20 each in the end."""
    before = [TraceRequest(20.0 * each, 16, 300, 0, "s") for each in range(4)]
    other, late = TraceRequest(100.0, 640, 100), TraceRequest(101.0, 16, 300, 0, "s")
    holding = HoldingConfig(room_to_grow_tokens=0, expected_output_share=share)
    late_binding = replace(policy(STAY, "llumnix+"), holding=holding)
    _, outcome = run(ClusterSetup(SMALL, late_binding, 1), Trace("test", [*before, other, late]))
    assert outcome.num_failed == 0
    ttft_s = dict(zip(column(outcome, "arrival_s"), column(outcome, "ttft_s"), strict=True))
    assert (ttft_s[101.0] > 2.0) is waits
