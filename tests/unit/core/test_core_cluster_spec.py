"""What operators want, as a value: each change is one step, and nothing else changes."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.core.bounds import MAX_INSTANCES
from controller.core.emptying.claims import (
    Claim,
    Claims,
    Drain,
    Evacuate,
    Remove,
    Restart,
    SlowDrain,
)
from controller.core.emptying.relief import HelpReason, MoveReason
from controller.core.fleet import cluster_spec
from controller.core.fleet.cluster_spec import (
    AS_STARTED,
    ClusterSpec,
    EngineChange,
    Mark,
    OrderRefusal,
    RollingOrder,
    ScalePlan,
    emptying_refusal,
    mark_refusal,
    none_would_serve,
    plan_scale,
    planned_instances,
    restart_refusal,
    scale_refusal,
    undrain_refusal,
)
from controller.core.load.closed import Closed

FIRST = ClusterSpec.first(2)


DRAIN, REMOVE = Drain("d", 1.0), Remove("e", 2.0)
RESTART = Restart("r", 3.0, nonce="old")


def test_a_cluster_begins_with_its_instances_numbered() -> None:
    first = ClusterSpec.first(2)
    assert first == ClusterSpec(0, ("i-0", "i-1"), 2, {}, {})
    first.check()


def test_a_number_is_used_once() -> None:
    fewer = FIRST.without_instance("i-1")
    more = fewer.with_instances_added(2)
    assert (fewer.instance_ids, more.instance_ids) == (("i-0",), ("i-0", "i-2", "i-3"))
    assert (FIRST.revision, fewer.revision, more.revision) == (0, 1, 2)
    more.check()


def test_the_drain_of_an_instance_ends_with_it() -> None:
    drained = FIRST.with_claims({"i-0": DRAIN, "i-1": DRAIN})
    both = drained.with_claims({"i-1": REMOVE})
    assert drained.without_instance("i-0").drains == {"i-1": Claims.first(DRAIN)}
    assert both.without_drain("i-1").drains == {"i-0": Claims.first(DRAIN)}
    assert both.without_claim("i-1", Remove).drains == drained.drains
    assert drained.without_claim("i-1", Drain).drains == {"i-0": Claims.first(DRAIN)}
    assert (both.revision, FIRST.drains) == (2, {})


def test_a_scale_is_one_step() -> None:
    before = ClusterSpec.first(3).with_claims({"i-0": DRAIN, "i-1": REMOVE})
    before = before.with_claims({"i-0": REMOVE})
    after = before.scaled(1, ("i-0", "i-1"), {"i-2": REMOVE})
    assert after.instance_ids == ("i-0", "i-1", "i-2", "i-3")
    assert after.drains == {"i-0": Claims.first(DRAIN), "i-2": Claims.first(REMOVE)}
    assert after.revision == before.revision + 1
    after.check()


def test_a_restart_that_is_taken_back_may_begin_anew_in_the_same_step() -> None:
    """Of another process, which a second restart beside the first would not be of."""
    new, going = Restart("s", 4.0, nonce="new"), RollingOrder("op-1", 1.0, ())
    before = FIRST.with_claims({"i-0": RESTART, "i-1": DRAIN}).with_claims({"i-1": RESTART})
    after = before.with_rolling(going, {"i-0": new, "i-1": new}, taken_back=("i-0", "i-1"))
    assert after.drains == {
        "i-0": Claims.first(new),
        "i-1": Claims("d", 1.0, operator=DRAIN, restart=new),
    }
    second = before.with_rolling(going, {"i-0": new})
    assert second.drains["i-0"].restart == Restart("s", 4.0, nonce="old")


def test_settings_add_up() -> None:
    both = FIRST.with_settings({"a.x": 1, "a.y": 2.5}).with_settings({"a.x": None})
    assert (both.settings, both.revision) == ({"a.x": None, "a.y": 2.5}, 2)


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (replace(FIRST, instance_ids=("i-0", "i-0")), "named twice"),
        (replace(FIRST, next_instance=1), "used already"),
        (replace(FIRST, revision=-1), "negative"),
        (replace(FIRST, instance_ids=("x",)), "invalid literal"),
        (replace(FIRST, drains={"i-7": Claims.first(DRAIN)}), "i-7, which is no instance"),
        (replace(FIRST, drains={"i-0": Claims("d", 1.0)}), "nobody claims"),
    ],
)
def test_what_cannot_have_come_about_is_refused(broken: ClusterSpec, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        broken.check()


NEW, OTHER = EngineChange(2, {"a": 1}), EngineChange(1, {"a": 2})
GOING = RollingOrder("op-1", 1.0, ("i-0", "i-1"), engine=NEW)


def test_arguments_are_the_clusters_when_all_were_restarted() -> None:
    spec = FIRST.with_rolling(GOING, engines={"i-0": NEW})
    spec.check()
    assert [spec.engine_of(each) for each in ("i-0", "i-1", "i-2")] == [NEW, AS_STARTED, AS_STARTED]
    ended = replace(GOING, left=(), state="done", ended_s=2.0)
    after = spec.with_rolling(ended, engines={"i-1": NEW})
    after.check()
    assert (after.engine, after.engines) == (NEW, {})
    left_out = spec.with_rolling(ended)
    assert left_out.engines == {"i-1": AS_STARTED}, "it had no turn"
    assert left_out.engine_of("i-2") == NEW
    assert left_out.without_instance("i-1").engines == {}


def test_impossible_arguments_are_found() -> None:
    for engines in ({"i-7": NEW}, {"i-0": AS_STARTED}):
        with pytest.raises(ValueError, match="arguments"):
            replace(FIRST, engines=engines).check()


def test_a_rolling_restart_is_dismissed() -> None:
    ended = replace(GOING, state="stopped", ended_s=2.0)
    spec = FIRST.with_rolling(ended).dismissed(ended)
    assert (spec.rolling.dismissed, spec.revision) == (True, 2)
    spec.check()


def test_arguments_are_changed_taken_back_and_counted() -> None:
    first = AS_STARTED.changed({"a": 1, "b": 2}, 1)
    assert first == EngineChange(1, {"a": 1, "b": 2})
    assert first.changed({"a": 1}, 2) is first
    assert first.changed({"a": None, "c": [3]}, 2) == EngineChange(2, {"b": 2, "c": [3]})
    assert first.changed({"a": None, "b": None}, 2) is AS_STARTED
    spec = FIRST.with_rolling(GOING, engines={"i-0": OTHER})
    assert (FIRST.next_generation, spec.next_generation) == (1, 3), "a number is used once"


# -- why an order about instances is refused -----------------------------------------------


SPEC = ClusterSpec.first(3)
DRAINED = SPEC.with_claims({"i-1": Drain("d", 0.0)})
ALL = {"i-0", "i-1", "i-2"}
LAST = OrderRefusal.LAST_INSTANCE


def test_one_must_be_left_that_takes_requests() -> None:
    assert not none_would_serve(SPEC, ["i-0", "i-1"], ALL)
    assert none_would_serve(SPEC, ["i-0", "i-1", "i-2"], ALL)
    assert none_would_serve(SPEC, ["i-0", "i-1"], ALL - {"i-2"})
    assert none_would_serve(DRAINED, ["i-0", "i-2"], ALL), "one that drains is no other"
    assert none_would_serve(SPEC, [], ())


def test_a_drain_that_goes_on_may_be_ordered_again_whoever_serves() -> None:
    assert emptying_refusal(SPEC, ["i-0"], {"i-0"}, force=False) is LAST
    assert emptying_refusal(SPEC, ["i-0"], {"i-0"}, force=True) is None
    assert emptying_refusal(DRAINED, ["i-1"], (), force=False) is None
    assert emptying_refusal(DRAINED, ["i-1", "i-0"], {"i-0"}, force=False) is LAST


def test_a_cordon_that_stands_may_be_ordered_again() -> None:
    assert mark_refusal(SPEC, Closed.CORDONED, ["i-0"], {"i-0"}, force=False) is LAST
    assert mark_refusal(SPEC, Closed.CORDONED, ["i-0"], {"i-0"}, force=True) is None
    cordoned = SPEC.with_mark(Closed.CORDONED, "i-0", Mark("c", 0.0))
    assert mark_refusal(cordoned, Closed.CORDONED, ["i-0"], (), force=False) is None
    assert mark_refusal(cordoned, Closed.CORDONED, ["i-0", "i-1"], {"i-1"}, force=False) is LAST
    assert mark_refusal(SPEC, Closed.CORDONED, ["i-0", "i-1", "i-2"], ALL, force=False) is LAST


@pytest.mark.parametrize(
    ("spec", "started", "serving", "force", "refusal"),
    [
        (SPEC, True, True, False, LAST),
        (SPEC, True, True, True, None),
        (SPEC, True, False, False, None),
        (SPEC, False, False, True, OrderRefusal.NOT_STARTED),
        (SPEC.with_claims({"i-0": Drain("d", 0.0)}), True, True, False, None),
        (SPEC.with_claims({"i-0": Remove("d", 0.0)}), True, True, True, OrderRefusal.LEAVING),
    ],
)
def test_restarts(spec, started, serving, force, refusal) -> None:
    facts = {"started": started, "serving": serving, "force": force}
    assert restart_refusal(spec, "i-0", {"i-0"}, **facts) is refusal


def test_only_what_drains_is_undrained() -> None:
    assert undrain_refusal(DRAINED, "i-1") is None
    assert undrain_refusal(DRAINED, "i-0") is OrderRefusal.NOT_DRAINING


# -- which instances are added and which are removed ---------------------------------------


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


# -- why requests leave an instance, in the words by which metrics count -------------------


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
