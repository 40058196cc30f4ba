"""Each file and name of vLLM that we rely on is in the installed version: read, not imported, so
that all are reported where vLLM has moved some of them."""

from pathlib import Path

import pytest

from tests.contract import touch_points
from tests.contract.touch_points import OURS, TouchPoint, behind, by_touch_point

USERS = by_touch_point()
SOURCE = OURS / "adapters/vllm/moves.py"
HOLDING = TouchPoint("v1/core/sched/scheduler.py", "kv_holding_waiting")


@pytest.mark.parametrize("point", USERS, ids=lambda point: f"{point.path}:{point.name}")
def test_vllm_has(point: TouchPoint) -> None:
    missing = touch_points.what_is_missing(point)
    assert not missing, f"{missing}: {', '.join(USERS[point])}"


def test_what_is_stated_and_what_is_imported_is_found() -> None:
    assert "controller/adapters/vllm/moves.py" in USERS[HOLDING]
    status = TouchPoint("v1/request.py", "RequestStatus")
    assert "controller/adapters/vllm/scheduler_side.py" in USERS[status]


def test_what_vllm_does_not_have_is_named() -> None:
    gone = TouchPoint("v1/core/sched/scheduler.py", "kv_holding_waiting.of_yore")
    assert touch_points.what_is_missing(gone) == "vllm/v1/core/sched/scheduler.py has no `of_yore`"
    moved = TouchPoint("v1/core/schedules.py", "Scheduler")
    assert touch_points.what_is_missing(moved) == "vllm/v1/core/schedules.py does not exist"


def test_a_failure_names_what_its_statement_touched() -> None:
    here = Path(__file__)
    statement = "for request in scheduler.kv_holding_waiting:"
    outer = (OURS / "adapters/vllm/engine.py", "self.moves.suspend(request_id)")
    assert behind([(here, "engine.step()"), outer, (SOURCE, statement)], here) == [HOLDING]
    assert len(behind([outer, (SOURCE, "raise ValueError")], here)) > 10


def test_a_failure_in_the_test_itself_names_what_its_imports_touch() -> None:
    here = Path(__file__)
    assert HOLDING in behind([(here, "assert False")], here.with_name("test_vllm_moves_async.py"))
    draws = TouchPoint("v1/sample/ops/topk_topp_sampler.py", "forward_cpu")
    assert draws in behind([(here, "assert False")], here.with_name("test_vllm_sampler_draws.py"))
