"""Which instances are added and which are removed."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.core.bounds import MAX_INSTANCES
from controller.core.emptying.claims import Drain, Remove, Restart
from controller.core.fleet.cluster_spec import (
    ClusterSpec,
    Mark,
    OrderRefusal,
    ScalePlan,
    plan_scale,
    planned_instances,
    scale_refusal,
)
from controller.core.load.closed import Closed


def spec(num: int, *removing: str) -> ClusterSpec:
    first = ClusterSpec.first(num)
    return first.with_claims(dict.fromkeys(removing, Remove("d", 0.0)))


def planned(*facts: Any) -> ScalePlan:
    plan = plan_scale(*facts)
    assert isinstance(plan, ScalePlan)
    return plan


RUNNING = {"i-0": 5, "i-1": 2, "i-2": 2, "i-3": 9}


def test_growing_adds() -> None:
    assert planned(spec(2), 5, RUNNING) == ScalePlan(2, 5, num_added=3)


def test_shrinking_takes_the_ones_with_the_fewest_running_then_by_id() -> None:
    assert planned(spec(4), 3, RUNNING) == ScalePlan(4, 3, drained=("i-1",))
    assert planned(spec(4), 1, RUNNING) == ScalePlan(4, 1, drained=("i-1", "i-2", "i-0"))


def test_one_that_does_not_serve_goes_first() -> None:
    serving = {"i-0": 0, "i-1": 0}
    assert planned(spec(3), 2, serving).drained == ("i-2",)


def test_those_that_go_are_not_counted_and_come_back_first() -> None:
    leaving = spec(4, "i-1", "i-3")
    assert planned_instances(leaving) == ("i-0", "i-2")
    assert planned(leaving, 2, RUNNING) == ScalePlan(2, 2)
    assert not planned(leaving, 2, RUNNING).changes
    assert planned(leaving, 3, RUNNING) == ScalePlan(2, 3, undrained=("i-3",))
    assert planned(leaving, 5, RUNNING) == ScalePlan(2, 5, 1, undrained=("i-3", "i-1"))
    assert planned(leaving, 1, RUNNING) == ScalePlan(2, 1, drained=("i-2",))


def test_those_that_were_agreed_to_go_however_busy_they_are_by_now() -> None:
    assert planned(spec(4), 2, RUNNING, ("i-3", "i-0")).drained == ("i-0", "i-3")
    assert planned(spec(2), 3, RUNNING, ()) == ScalePlan(2, 3, num_added=1)
    assert not planned(spec(2), 2, RUNNING, ()).changes


@pytest.mark.parametrize("agreed", [(), ("i-0",), ("i-0", "i-9"), ("i-0", "i-0"), ("i-0", "i-1")])
def test_if_others_would_go_than_agreed_none_does(agreed: tuple[str, ...]) -> None:
    """i-1 is on its way already."""
    found = plan_scale(spec(4, "i-1"), 1, RUNNING, agreed)
    assert found is OrderRefusal.PLAN_CHANGED


def test_agreed_to_go_but_more_are_wanted() -> None:
    assert plan_scale(spec(2), 3, RUNNING, ("i-1",)) is OrderRefusal.PLAN_CHANGED


def test_one_that_is_merely_drained_counts() -> None:
    drained = ClusterSpec.first(2).with_claims({"i-1": Drain("d", 0.0)})
    assert planned_instances(drained) == ("i-0", "i-1")
    assert planned(drained, 1, {"i-0": 3, "i-1": 0}).drained == ("i-1",)


def test_one_that_is_restarted_goes_last() -> None:
    restarted = spec(3).with_claims({"i-2": Restart("d", 0.0, nonce="n")})
    busy = {"i-0": 3, "i-1": 1}
    assert planned(restarted, 2, busy).drained == ("i-1",)
    assert planned(restarted, 1, busy).drained == ("i-1", "i-0")


@pytest.mark.parametrize("left", [0, 7])
def test_one_that_is_drained_goes_before_one_that_serves(left: int) -> None:
    drained = spec(3).with_claims({"i-2": Drain("d", 0.0)})
    assert planned(drained, 2, {"i-0": 0, "i-1": 1, "i-2": left}).drained == ("i-2",)


def test_one_that_is_cordoned_goes_before_one_that_gets_requests() -> None:
    cordoned = spec(3).with_mark(Closed.CORDONED, "i-2", Mark("c", 0.0))
    assert planned(cordoned, 2, {"i-0": 0, "i-1": 1, "i-2": 9}).drained == ("i-2",)


def test_a_cluster_has_at_least_one_and_not_too_many() -> None:
    assert plan_scale(spec(2), 0, {}) is OrderRefusal.MIN_INSTANCES
    assert plan_scale(spec(2), MAX_INSTANCES + 1, {}) is OrderRefusal.MAX_INSTANCES


def test_the_last_one_that_takes_requests_stays_unless_it_is_forced() -> None:
    now, plan = spec(3), planned(spec(3), 1, {"i-0": 1, "i-1": 2, "i-2": 3})
    assert plan.drained == ("i-0", "i-1")
    assert scale_refusal(now, plan, {"i-0", "i-1", "i-2"}, force=False) is None
    assert scale_refusal(now, plan, {"i-0", "i-1"}, force=False) is OrderRefusal.LAST_INSTANCE
    assert scale_refusal(now, plan, {"i-0", "i-1"}, force=True) is None


def test_a_plan_is_over_when_others_come_or_go_by_now() -> None:
    plan, serving = planned(spec(3), 2, RUNNING), {"i-0", "i-1", "i-2"}
    assert plan.drained == ("i-1",)
    by_now = spec(3, "i-1")
    assert scale_refusal(by_now, plan, serving, force=True) is OrderRefusal.PLAN_CHANGED
    back = planned(by_now, 3, RUNNING)
    assert back.undrained == ("i-1",)
    assert scale_refusal(spec(3), back, serving, force=True) is OrderRefusal.PLAN_CHANGED


@given(
    num=st.integers(1, 8),
    removing=st.sets(st.integers(0, 7)),
    target=st.integers(1, 12),
    loads=st.lists(st.integers(0, 4), min_size=8, max_size=8),
)
def test_a_plan_carried_out_leaves_what_was_wanted(num, removing, target, loads) -> None:
    leaving = [f"i-{n}" for n in sorted(removing) if n < num]
    now = spec(num, *leaving)
    plan = planned(now, target, {f"i-{n}": load for n, load in enumerate(loads)})
    for each in plan.undrained:
        assert each in now.drains
        now = now.without_drain(each)
    for each in plan.drained:
        assert each not in now.drains
        now = now.with_claims({each: Remove("e", 0.0)})
    now = now.with_instances_added(plan.num_added)
    assert len(planned_instances(now)) == target
    now.check()
    again = planned(now, target, {})
    assert again == ScalePlan(target, target), "asked again, nothing changes"
    assert not plan.num_added or not any(each.goes for each in now.drains.values())
