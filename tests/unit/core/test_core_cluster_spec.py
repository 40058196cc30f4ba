"""What operators want, as a value: each change is one step, and nothing else changes."""

from dataclasses import replace

import pytest

from controller.core.emptying.claims import Claims, Drain, Remove, Restart
from controller.core.fleet.cluster_spec import (
    AS_STARTED,
    ClusterSpec,
    EngineChange,
    RollingOrder,
)

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
    assert spec.rolling is not None
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
