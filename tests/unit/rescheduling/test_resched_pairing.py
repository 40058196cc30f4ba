"""Pairs of a round, from one number per instance."""

import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from controller.core.emptying.rounds import InstanceLoad, is_destination, is_source, pair
from controller.core.load.snapshot import DEFAULT_LEVELS
from controller.core.settings import ReschedulingConfig
from tests.unit.rescheduling.relief_builders import instance, queued, running

CONFIG = ReschedulingConfig(source_below_steps=50, destination_above_steps=100)


def ids(loads: list[InstanceLoad], config: ReschedulingConfig = CONFIG) -> list[tuple[str, str]]:
    return [(p.source_id, p.destination_id) for p in pair(loads, config)]


def test_the_lowest_source_goes_with_the_highest_destination() -> None:
    loads = [
        InstanceLoad("a", 49),
        InstanceLoad("b", 300),
        InstanceLoad("c", -5),
        InstanceLoad("d", 101),
        InstanceLoad("e", 70),
    ]
    assert ids(loads) == [("c", "b"), ("a", "d")]
    (first, _) = pair(loads, CONFIG)
    assert (first.source_freeness, first.destination_freeness) == (-5, 300)


def test_thresholds_are_exclusive() -> None:
    assert ids([InstanceLoad("a", 50), InstanceLoad("b", 101)]) == []
    assert ids([InstanceLoad("a", 49.9), InstanceLoad("b", 100)]) == []
    assert ids([InstanceLoad("a", 49.9), InstanceLoad("b", 100.1)]) == [("a", "b")]


def test_ties_go_by_id() -> None:
    loads = [
        InstanceLoad(name, steps) for name, steps in zip("dcba", (9, 9, 200, 200), strict=True)
    ]
    assert ids(loads) == [("c", "a"), ("d", "b")]


def test_whoever_finds_no_partner_stays_alone() -> None:
    sources = [InstanceLoad(f"s{i}", i) for i in range(4)]
    assert ids([*sources, InstanceLoad("d", 200)]) == [("s0", "d")]


def test_a_draining_instance_comes_first_and_receives_nothing() -> None:
    loads = [
        InstanceLoad("a", -900),
        InstanceLoad("b", -math.inf, draining=True),
        InstanceLoad("c", 400),
    ]
    assert ids(loads) == [("b", "c")]
    assert not is_destination(InstanceLoad("b", 400, draining=True), CONFIG)


def test_one_with_an_evicted_request_is_a_source_however_free() -> None:
    evicted = InstanceLoad("a", 500, num_evicted_queued=1)
    assert is_source(evicted, CONFIG)
    assert not is_destination(evicted, CONFIG)
    assert ids([evicted, InstanceLoad("b", 200)]) == [("a", "b")]


def test_who_may_not_send_or_receive_does_not() -> None:
    low, high = InstanceLoad("a", 0), InstanceLoad("b", 200)
    assert ids([low, high]) == [("a", "b")]
    assert ids([InstanceLoad("a", 0, may_send=False), high]) == []
    assert ids([low, InstanceLoad("b", 200, may_receive=False)]) == [], "it cools"


def test_an_empty_draining_instance_takes_nobodys_destination() -> None:
    empty = InstanceLoad.of(
        instance(instance_id="a", draining=True), DEFAULT_LEVELS, may_send=True, may_receive=True
    )
    assert not empty.may_send
    assert ids([empty, InstanceLoad("b", 200), InstanceLoad("c", 0)]) == [("c", "b")]


def test_a_load_is_counted_from_a_snapshot() -> None:
    snapshot = instance(running("x", 30), running("y", 10), queued("q", 20, evicted=True))
    load = InstanceLoad.of(snapshot, DEFAULT_LEVELS, may_send=True, may_receive=True)
    assert load == InstanceLoad("a", 16 * 40 / 3, num_evicted_queued=1)


# -- pairs that are left out ------------------------------------------------------------------


def without(loads: list[InstanceLoad], *left_out: tuple[str, str]) -> list[tuple[str, str]]:
    return [(p.source_id, p.destination_id) for p in pair(loads, CONFIG, left_out)]


def test_whoever_may_not_have_the_freest_takes_the_next_and_leaves_it_to_another() -> None:
    loads = [
        InstanceLoad("a", 1),
        InstanceLoad("b", 2),
        InstanceLoad("c", 300),
        InstanceLoad("d", 200),
    ]
    assert without(loads, ("b", "c"), ("c", "a")) == [("a", "c"), ("b", "d")]
    assert without(loads, ("a", "c")) == [("a", "d"), ("b", "c")]
    assert without(loads, ("a", "c"), ("a", "d")) == [("b", "c")]
    assert without(loads[:3], ("a", "c")) == [("b", "c")]


# -- whatever the loads -----------------------------------------------------------------------


@st.composite
def clusters(draw: st.DrawFn) -> list[InstanceLoad]:
    loads = []
    for index in range(draw(st.integers(0, 12))):
        draining = draw(st.integers(0, 5)) == 0
        steps = draw(st.one_of(st.floats(-500, 1600), st.sampled_from([48.0, 49.0, 100.0])))
        loads.append(
            InstanceLoad(
                f"i-{index}",
                -math.inf if draining else steps,
                draining,
                draw(st.sampled_from([0, 0, 0, 1])),
                draw(st.booleans()) or draw(st.booleans()),
                draw(st.booleans()) or draw(st.booleans()),
            )
        )
    return loads


def in_order(loads: list[InstanceLoad]) -> list[tuple[str, str]]:
    """docs/scheduling.md to the letter: sources ascending, destinations descending, i-th with
    i-th."""
    sources = [each for each in loads if is_source(each, CONFIG)]
    takers = [each for each in loads if is_destination(each, CONFIG)]
    sources.sort(key=lambda each: (each.freeness, each.instance_id))
    takers.sort(key=lambda each: (-each.freeness, each.instance_id))
    pairs = zip(sources, takers, strict=False)
    return [(source.instance_id, to.instance_id) for source, to in pairs]


@given(clusters())
def test_with_nothing_left_out_the_ith_goes_with_the_ith(loads: list[InstanceLoad]) -> None:
    assert ids(loads) == in_order(loads)


@given(clusters(), st.data())
def test_what_is_left_out_is_never_paired_and_costs_nobody_else_a_pair(
    loads: list[InstanceLoad], data: st.DataObject
) -> None:
    names = st.sampled_from([load.instance_id for load in loads] or ["-"])
    left_out = data.draw(st.sets(st.tuples(names, names), max_size=20))
    pairs = [(p.source_id, p.destination_id) for p in pair(loads, CONFIG, left_out)]
    used = [one for two in pairs for one in two]
    assert len(used) == len(set(used))
    assert not left_out & set(pairs)
    unused = {load.instance_id for load in loads} - set(used)
    alone = [one for one in loads if one.instance_id in unused]
    for source in (one for one in alone if is_source(one, CONFIG)):
        for to in (one for one in alone if is_destination(one, CONFIG)):
            assert (source.instance_id, to.instance_id) in left_out


@given(clusters(), st.floats(0, 200), st.floats(0, 200))
def test_each_instance_is_in_one_pair_at_most(
    loads: list[InstanceLoad], low: float, more: float
) -> None:
    config = ReschedulingConfig(source_below_steps=low, destination_above_steps=low + more)
    by_id = {load.instance_id: load for load in loads}
    pairs = pair(loads, config)
    used = [one for p in pairs for one in (p.source_id, p.destination_id)]
    assert len(used) == len(set(used))
    for p in pairs:
        source, destination = by_id[p.source_id], by_id[p.destination_id]
        assert source.may_send
        assert destination.may_receive, "it cools, or may not be used"
        assert not destination.draining
        assert not destination.num_evicted_queued
        assert (
            source.draining or source.num_evicted_queued or source.freeness < destination.freeness
        )
    assert pair(list(reversed(loads)), config) == pairs, "in whatever order they come"


@given(clusters())
def test_nobody_is_left_over_on_both_sides(loads: list[InstanceLoad]) -> None:
    pairs = pair(loads, CONFIG)
    num_sources = sum(is_source(load, CONFIG) for load in loads)
    num_destinations = sum(is_destination(load, CONFIG) for load in loads)
    assert len(pairs) == min(num_sources, num_destinations)
    steps = [p.source_freeness for p in pairs]
    assert steps == sorted(steps)


def test_one_that_must_go_takes_any_that_is_open() -> None:
    """The others are below the threshold, or have evicted requests."""
    must = InstanceLoad("a", -math.inf, draining=True, must_go=True)
    drains = InstanceLoad("b", -math.inf, draining=True)
    full = InstanceLoad("c", 60)
    evicts = InstanceLoad("d", 90, num_evicted_queued=1)
    assert ids([drains, full, evicts]) == []
    assert ids([must, drains, full, evicts]) == [("a", "c")]
    free = InstanceLoad("e", 300)
    assert ids([must, full, free]) == [("a", "e")]
    assert ids([replace(must, may_send=False), full]) == []
