"""What an instance is for a round, and the pairs of a round, from one number per instance."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.core.emptying.rounds import (
    InstanceLoad,
    Role,
    is_destination,
    is_source,
    may_differ,
    pair,
    roles,
)
from controller.core.load.snapshot import DEFAULT_LEVELS, NORMAL, Level
from controller.core.settings import ReschedulingConfig
from tests.unit.rescheduling.relief_builders import instance, queued, running

CONFIG = ReschedulingConfig(source_below_steps=50, destination_above_steps=100)


def ids(loads: list[InstanceLoad], *left_out: tuple[str, str]) -> list[tuple[str, str]]:
    return [(p.source_id, p.destination_id) for p in pair(loads, CONFIG, left_out)]


@pytest.mark.parametrize(
    ("load", "sends", "receives"),
    [
        (InstanceLoad("a", 49.9), True, False),
        (InstanceLoad("a", 50), False, False),
        (InstanceLoad("a", 100), False, False),
        (InstanceLoad("a", 100.1), False, True),
        (InstanceLoad("a", 0, may_send=False), False, False),
        (InstanceLoad("a", 200, may_receive=False), False, False),
        (InstanceLoad("a", 200, draining=True), True, False),
        (InstanceLoad("a", 200, num_evicted_queued=1), True, False),
    ],
)
def test_who_is_a_source_and_who_a_destination(
    load: InstanceLoad, sends: bool, receives: bool
) -> None:
    assert (is_source(load, CONFIG), is_destination(load, CONFIG)) == (sends, receives)
    role = Role.SOURCE if sends else Role.DESTINATION if receives else Role.NEITHER
    assert roles([load], CONFIG) == {"a": role}


@pytest.mark.parametrize(
    ("changes", "levels", "differ"),
    [
        ({"interval_s": 3.0, "not_back_s": 1.0}, DEFAULT_LEVELS, False),
        ({"enabled": False}, DEFAULT_LEVELS, True),
        ({"destination_above_steps": 200.0}, DEFAULT_LEVELS, True),
        ({}, (NORMAL, Level("high", 1, 3200)), True),
    ],
)
def test_which_settings_may_give_another_role(
    changes: dict[str, object], levels: tuple[Level, ...], differ: bool
) -> None:
    after = replace(CONFIG, **changes)  # type: ignore[arg-type]
    assert may_differ((CONFIG, DEFAULT_LEVELS), (after, levels)) is differ


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


def test_whoever_may_not_have_the_freest_takes_the_next_and_leaves_it_to_another() -> None:
    loads = [
        InstanceLoad(each, steps) for each, steps in zip("abcd", (1, 2, 300, 200), strict=True)
    ]
    assert ids(loads, ("b", "c"), ("c", "a")) == [("a", "c"), ("b", "d")]
    assert ids(loads, ("a", "c")) == [("a", "d"), ("b", "c")]
    assert ids(loads, ("a", "c"), ("a", "d")) == [("b", "c")]
    assert ids(loads[:3], ("a", "c")) == [("b", "c")]


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
    assert ids(loads) == ids(list(reversed(loads))) == in_order(loads)
    by_id = {load.instance_id: load for load in loads}
    for each in pair(loads, CONFIG):
        assert each.source_freeness == by_id[each.source_id].freeness
        assert each.destination_freeness == by_id[each.destination_id].freeness


@given(clusters(), st.data())
def test_what_is_left_out_is_never_paired_and_costs_nobody_else_a_pair(
    loads: list[InstanceLoad], data: st.DataObject
) -> None:
    names = st.sampled_from([load.instance_id for load in loads] or ["-"])
    left_out = data.draw(st.sets(st.tuples(names, names), max_size=20))
    pairs = ids(loads, *left_out)
    used = [one for two in pairs for one in two]
    assert len(used) == len(set(used))
    assert not left_out & set(pairs)
    unused = {load.instance_id for load in loads} - set(used)
    alone = [one for one in loads if one.instance_id in unused]
    for source in (one for one in alone if is_source(one, CONFIG)):
        for to in (one for one in alone if is_destination(one, CONFIG)):
            assert (source.instance_id, to.instance_id) in left_out


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
