"""Each file and name of vLLM that we rely on is in the installed version: read, not imported, so
that all are reported where vLLM has moved some of them."""

import pytest

from tests.contract import touch_points
from tests.contract.touch_points import TouchPoint, by_touch_point

USERS = by_touch_point()


@pytest.mark.parametrize("point", USERS, ids=lambda point: f"{point.path}:{point.name}")
def test_vllm_has(point: TouchPoint) -> None:
    missing = touch_points.what_is_missing(point)
    assert not missing, f"{missing}: {', '.join(USERS[point])}"


def test_what_is_stated_and_what_is_imported_is_found() -> None:
    holding = TouchPoint("v1/core/sched/scheduler.py", "kv_holding_waiting")
    assert "controller/adapters/vllm/moves.py" in USERS[holding]
    status = TouchPoint("v1/request.py", "RequestStatus")
    assert "controller/adapters/vllm/scheduler_side.py" in USERS[status]
