"""What operators want, as a value: each change is one step, and nothing else changes."""

from dataclasses import replace

import pytest

from controller.core.operations.cluster_spec import ClusterSpec, DrainOrder
from controller.core.operations.engine_change import AS_STARTED, EngineChange
from controller.core.operations.rolling import RollingOrder

FIRST = ClusterSpec.first(2)


def order(instance_id: str, drain_id: str = "d") -> DrainOrder:
    return DrainOrder(drain_id, instance_id, began_s=1.0)


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
    drained = FIRST.with_drains(order("i-0"), order("i-1"))
    assert drained.without_instance("i-0").drains == {"i-1": order("i-1")}
    assert drained.without_drain("i-1").drains == {"i-0": order("i-0")}
    assert drained.with_drains(order("i-0", "again")).drains["i-0"].drain_id == "again"
    assert FIRST.drains == {}


def test_a_drain_that_goes_on_keeps_its_name_and_goes_on_to_remove() -> None:
    removing = replace(order("i-0"), removes=True)
    later = DrainOrder("e", "i-0", began_s=9.0, deadline_s=20.0)
    assert later.following(None) is later
    same = replace(later, drain_id="d", began_s=1.0)
    assert later.following(order("i-0")) == same
    assert replace(later, removes=True).following(order("i-0")) == replace(
        same, removes=True, plain=order("i-0")
    )
    both = later.following(removing)
    assert both == replace(same, removes=True, plain=same)
    again = replace(later, removes=True).following(both)
    assert again == replace(same, removes=True, plain=same)


def test_what_was_ordered_before_a_restart_goes_on_after_it() -> None:
    restart = DrainOrder("r", "i-0", began_s=9.0, restarts="nonce")
    drained = restart.following(order("i-0"))
    assert drained == replace(restart, drain_id="d", began_s=1.0, plain=order("i-0"))
    assert FIRST.with_drains(drained).falling_back("i-0").drains == {"i-0": order("i-0")}
    removing = replace(order("i-0"), removes=True)
    assert FIRST.with_drains(restart.following(removing)).falling_back("i-0").drains == {
        "i-0": removing
    }
    assert FIRST.with_drains(restart).falling_back("i-0").drains == {}


def test_a_drain_or_a_removal_that_comes_during_a_restart() -> None:
    restart = DrainOrder("r", "i-0", began_s=9.0, restarts="nonce", at_once=True)
    same = replace(order("i-0"), drain_id="r", began_s=9.0)
    drained = order("i-0").following(restart)
    assert drained == replace(same, restarts="nonce", at_once=True, plain=same)
    removing = replace(order("i-0"), removes=True).following(restart)
    assert removing == replace(same, removes=True, plain=restart)


def test_a_second_restart_is_of_the_same_process_and_may_come_at_once() -> None:
    """The process that it would replace may be the new one already."""
    first = DrainOrder("r", "i-0", began_s=9.0, restarts="old")
    second = DrainOrder("s", "i-0", began_s=10.0, restarts="new", at_once=True)
    assert second.following(first) == replace(first, at_once=True)


def test_a_scale_is_one_step() -> None:
    plain, gone = order("i-0"), replace(order("i-1"), removes=True)
    both = replace(plain, removes=True, plain=plain)
    before = ClusterSpec.first(3).with_drains(both, gone)
    after = before.scaled(1, ("i-0", "i-1"), [order("i-2")])
    assert after.instance_ids == ("i-0", "i-1", "i-2", "i-3")
    assert after.drains == {"i-0": plain, "i-2": order("i-2")}
    assert after.revision == before.revision + 1
    after.check()


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
        (replace(FIRST, drains={"i-7": order("i-7")}), "i-7, which is no instance"),
        (replace(FIRST, drains={"i-0": order("i-1")}), "under the name of another"),
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


def test_a_generation_is_used_once() -> None:
    spec = FIRST.with_rolling(GOING, engines={"i-0": OTHER})
    assert (FIRST.next_generation, spec.next_generation) == (1, 3)


def test_impossible_arguments_are_found() -> None:
    for engines in ({"i-7": NEW}, {"i-0": AS_STARTED}):
        with pytest.raises(ValueError, match="arguments"):
            replace(FIRST, engines=engines).check()


def test_a_rolling_restart_is_dismissed() -> None:
    ended = replace(GOING, state="stopped", ended_s=2.0)
    spec = FIRST.with_rolling(ended).dismissed(ended)
    assert spec.rolling is not None
    assert (spec.rolling.dismissed, spec.revision) == (True, 2)
    spec.check()
