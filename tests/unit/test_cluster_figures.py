"""The figures of a whole cluster."""

import pytest

from controller.api.figures import gauges_of, loads_by_level
from controller.api.wire.status import InstanceState
from controller.core.record.history import GAUGES
from tools import synthetic_cluster as synthetic


def test_only_instances_that_serve_count_and_headroom_is_not_wanted() -> None:
    one = synthetic.instance(
        "i-0", num_free_blocks=505, virtual_usage_blocks=995, headroom_blocks=400, backlog_s=2.0
    )
    other = synthetic.instance("i-1", num_free_blocks=1000, virtual_usage_blocks=0, backlog_s=0.0)
    lost = synthetic.instance("i-2", InstanceState.STALLED, num_waiting_reqs=9)
    found = gauges_of(synthetic.cluster((one, other, lost)))
    assert found.keys() <= set(GAUGES)
    assert (found["num_instances"], found["num_serving"]) == (3.0, 2.0)
    assert found["num_waiting_reqs"] == 0.0
    assert found["kv_held_share"] == pytest.approx(495 / 1980)
    assert found["kv_wanted_share"] == pytest.approx(595 / 1980)
    assert found["backlog_s"] == 1.0
    assert "kv_held_share" not in gauges_of(synthetic.cluster(()))


def test_requests_at_the_controller_wait_too() -> None:
    (frame,) = synthetic.late_binding(1)
    found = gauges_of(frame.status)
    assert found["num_waiting_reqs"] == 61.0
    assert found["longest_wait_s"] == 40.5
    assert found["kv_wanted_share"] > found["kv_held_share"]
    assert loads_by_level(frame.status)["high"][1] == frame.status.levels[1].num_waiting_reqs + 3
