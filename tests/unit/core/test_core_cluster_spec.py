"""What operators want, as a value: each change is one step, and nothing else changes."""

from dataclasses import replace
from typing import Any

import pytest

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
from controller.core.fleet.attached import AttachedServer
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
    restart_refusal,
    scale_refusal,
    undrain_refusal,
)
from controller.core.load.closed import Closed

FIRST = ClusterSpec.first(2)


DRAIN, REMOVE = Drain("d", 1.0), Remove("e", 2.0)
RESTART = Restart("r", 3.0, nonce="old")


def test_instances_are_numbered_and_a_number_is_used_once() -> None:
    assert ClusterSpec(0, ("i-0", "i-1"), 2, {}, {}) == FIRST
    fewer = FIRST.without_instance("i-1")
    more = fewer.with_instances_added(2)
    assert (fewer.instance_ids, more.instance_ids) == (("i-0",), ("i-0", "i-2", "i-3"))
    assert (FIRST.revision, fewer.revision, more.revision) == (0, 1, 2)
    more.check()
    both = FIRST.with_settings({"a.x": 1, "a.y": 2.5}).with_settings({"a.x": None})
    assert (both.settings, both.revision) == ({"a.x": None, "a.y": 2.5}, 2)


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


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (replace(FIRST, instance_ids=("i-0", "i-0")), "named twice"),
        (replace(FIRST, next_instance=1), "used already"),
        (replace(FIRST, revision=-1), "negative"),
        (replace(FIRST, instance_ids=("x",)), "invalid literal"),
        (replace(FIRST, drains={"i-7": Claims.first(DRAIN)}), "i-7, which is no instance"),
        (replace(FIRST, drains={"i-0": Claims("d", 1.0)}), "nobody claims"),
        (replace(FIRST, engines={"i-7": EngineChange(2, {"a": 1})}), "arguments"),
        (replace(FIRST, engines={"i-0": AS_STARTED}), "arguments"),
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
    dismissed = after.dismissed(ended)
    assert (dismissed.rolling.dismissed, dismissed.revision) == (True, after.revision + 1)


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


def test_a_drain_or_cordon_that_stands_may_be_ordered_again_whoever_serves() -> None:
    cordoned = SPEC.with_mark(Closed.CORDONED, "i-1", Mark("c", 0.0))

    def drain(spec: ClusterSpec, ids: list[str], serving: set[str], *, force: bool = False):
        return emptying_refusal(spec, ids, serving, force=force)

    def cordon(spec: ClusterSpec, ids: list[str], serving: set[str], *, force: bool = False):
        return mark_refusal(spec, Closed.CORDONED, ids, serving, force=force)

    for refusal, already in ((drain, DRAINED), (cordon, cordoned)):
        assert refusal(SPEC, ["i-0"], {"i-0"}) is LAST
        assert refusal(SPEC, ["i-0"], {"i-0"}, force=True) is None
        assert refusal(SPEC, ["i-0", "i-1", "i-2"], ALL) is LAST
        assert refusal(already, ["i-1"], set()) is None
        assert refusal(already, ["i-1", "i-0"], {"i-0"}) is LAST
    assert undrain_refusal(DRAINED, "i-1") is None
    assert undrain_refusal(DRAINED, "i-0") is OrderRefusal.NOT_DRAINING
    for by, refusal in (("operator", None), ("machine", OrderRefusal.NOTICED)):
        leaves = SPEC.with_claims({"i-0": Evacuate("v", 4.0, deadline_s=34.0, by=by)})
        assert undrain_refusal(leaves, "i-0") is refusal


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


# -- which instances are added and which are removed ---------------------------------------


def spec(num: int, *removing: str) -> ClusterSpec:
    first = ClusterSpec.first(num)
    return first.with_claims(dict.fromkeys(removing, Remove("d", 0.0)))


RUNNING = {"i-0": 5, "i-1": 2, "i-2": 2, "i-3": 9}
LEAVING = spec(4, "i-1", "i-3")
DRAINS_I2 = spec(3).with_claims({"i-2": Drain("d", 0.0)})
RESTARTS_I2 = spec(3).with_claims({"i-2": Restart("d", 0.0, nonce="n")})
CORDONED_I2 = spec(3).with_mark(Closed.CORDONED, "i-2", Mark("c", 0.0))
BUSY_I2 = {"i-0": 0, "i-1": 1, "i-2": 9}
CHANGED = OrderRefusal.PLAN_CHANGED


@pytest.mark.parametrize(
    ("now", "target", "num_running", "agreed", "plan"),
    [
        (spec(2), 5, RUNNING, None, ScalePlan(2, 5, num_added=3)),
        # Those go with the fewest running, then by id, and first one that does not serve.
        (spec(4), 3, RUNNING, None, ScalePlan(4, 3, drained=("i-1",))),
        (spec(4), 1, RUNNING, None, ScalePlan(4, 1, drained=("i-1", "i-2", "i-0"))),
        (spec(3), 2, {"i-0": 0, "i-1": 0}, None, ScalePlan(3, 2, drained=("i-2",))),
        # Those that go already are not counted, and come back first.
        (LEAVING, 2, RUNNING, None, ScalePlan(2, 2)),
        (LEAVING, 3, RUNNING, None, ScalePlan(2, 3, undrained=("i-3",))),
        (LEAVING, 5, RUNNING, None, ScalePlan(2, 5, 1, undrained=("i-3", "i-1"))),
        (LEAVING, 1, RUNNING, None, ScalePlan(2, 1, drained=("i-2",))),
        # One that is merely drained or cordoned counts and goes first, one that restarts last.
        (DRAINS_I2, 3, BUSY_I2, None, ScalePlan(3, 3)),
        (DRAINS_I2, 2, BUSY_I2, None, ScalePlan(3, 2, drained=("i-2",))),
        (CORDONED_I2, 2, BUSY_I2, None, ScalePlan(3, 2, drained=("i-2",))),
        (RESTARTS_I2, 2, {"i-0": 3, "i-1": 1}, None, ScalePlan(3, 2, drained=("i-1",))),
        (RESTARTS_I2, 1, {"i-0": 3, "i-1": 1}, None, ScalePlan(3, 1, drained=("i-1", "i-0"))),
        # Those that were agreed to go do, however busy they are by now; or none does.
        (spec(4), 2, RUNNING, ("i-3", "i-0"), ScalePlan(4, 2, drained=("i-0", "i-3"))),
        (spec(2), 3, RUNNING, (), ScalePlan(2, 3, num_added=1)),
        (spec(2), 2, RUNNING, (), ScalePlan(2, 2)),
        (spec(2), 3, RUNNING, ("i-1",), CHANGED),
        (spec(4, "i-1"), 1, RUNNING, ("i-0",), CHANGED),
        (spec(4, "i-1"), 1, RUNNING, ("i-0", "i-9"), CHANGED),
        (spec(4, "i-1"), 1, RUNNING, ("i-0", "i-0"), CHANGED),
        (spec(4, "i-1"), 1, RUNNING, ("i-0", "i-1"), CHANGED),
        (spec(2), 0, {}, None, OrderRefusal.MIN_INSTANCES),
        (spec(2), MAX_INSTANCES, {}, None, ScalePlan(2, MAX_INSTANCES, MAX_INSTANCES - 2)),
        (spec(2), MAX_INSTANCES + 1, {}, None, OrderRefusal.MAX_INSTANCES),
    ],
)
def test_a_plan_or_why_there_is_none(now, target, num_running, agreed, plan) -> None:
    assert plan_scale(now, target, num_running, agreed) == plan


def test_one_whose_process_has_ended_does_not_come_back() -> None:
    plan = plan_scale(LEAVING, 4, RUNNING, gone=["i-3"])
    assert plan == ScalePlan(2, 4, num_added=1, undrained=("i-1",))


def planned(*facts: Any) -> ScalePlan:
    plan = plan_scale(*facts)
    assert isinstance(plan, ScalePlan)
    return plan


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


def server(url: str = "http://a:1") -> AttachedServer:
    return AttachedServer(url, "vllm", "m", 4096, 65536)


def test_an_attached_server_is_an_instance_that_no_scale_counts() -> None:
    spec = FIRST.with_attached(server())
    spec.check()
    assert (spec.instance_ids, spec.revision) == (("i-0", "i-1", "i-2"), 1)
    assert spec.attached == {"i-2": server()}
    assert cluster_spec.planned_instances(spec) == ("i-0", "i-1")
    assert cluster_spec.staying_instances(spec) == ("i-0", "i-1", "i-2")
    fewer = plan_scale(spec, 1, {"i-0": 5, "i-1": 5, "i-2": 0})
    assert fewer == ScalePlan(2, 1, drained=("i-0",))
    going = spec.with_claims({"i-2": REMOVE})
    assert plan_scale(going, 3, {}) == ScalePlan(2, 3, num_added=1), "it is not taken back"
    gone = going.without_instance("i-2")
    assert (gone.attached, gone.drains) == ({}, {})
    gone.check()


def test_a_server_is_attached_once() -> None:
    with pytest.raises(ValueError, match="attached twice"):
        FIRST.with_attached(server()).with_attached(server()).check()


def test_a_server_alone_would_not_serve_all_requests() -> None:
    spec = FIRST.with_attached(server())
    assert none_would_serve(spec, ["i-0", "i-1"], spec.instance_ids)
    assert not none_would_serve(spec, ["i-0", "i-2"], spec.instance_ids)


def test_a_rolling_restart_changes_no_arguments_of_a_server() -> None:
    spec = FIRST.with_attached(server())
    changed = EngineChange(1, {"x": 1})
    order = RollingOrder("o", 1.0, (), done={"i-0": 1.0}, state="done", ended_s=2.0, engine=changed)
    after = spec.with_rolling(order)
    assert set(after.engines) == {"i-0", "i-1"}
    after.check()


def test_a_model_on_attached_servers_only_has_no_scale_and_serves_by_them() -> None:
    first = ClusterSpec.first(0, from_number=4)
    assert (first.attached_only, first.instance_ids) == (True, ())
    spec = first.with_attached(server()).with_attached(server("http://b:1"))
    spec.check()
    assert spec.instance_ids == ("i-4", "i-5")
    assert plan_scale(spec, 2, {}) is OrderRefusal.ATTACHED_ONLY
    assert not none_would_serve(spec, ["i-4"], spec.instance_ids)
    assert none_would_serve(spec, ["i-4", "i-5"], spec.instance_ids)
    with pytest.raises(ValueError, match="only has attached servers"):
        spec.with_instances_added(1).check()
