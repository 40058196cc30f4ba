"""What an instance is for a round, and that a preview of settings says what the round then does."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.core.emptying.rounds import InstanceLoad, Role, may_differ, pair, roles
from controller.core.load.snapshot import DEFAULT_LEVELS, NORMAL, Level
from controller.core.settings import ReschedulingConfig

CONFIG = ReschedulingConfig(source_below_steps=50, destination_above_steps=100)


def test_thresholds_say_who_is_what() -> None:
    loads = [
        InstanceLoad("low", 49),
        InstanceLoad("between", 70),
        InstanceLoad("high", 101),
        InstanceLoad("cooling", 900, may_receive=False),
        InstanceLoad("draining", 900, draining=True),
        InstanceLoad("empty", 10, may_send=False),
    ]
    assert roles(loads, CONFIG) == {
        "low": Role.SOURCE,
        "between": Role.NEITHER,
        "high": Role.DESTINATION,
        "cooling": Role.NEITHER,
        "draining": Role.SOURCE,
        "empty": Role.NEITHER,
    }
    lower = roles(loads, replace(CONFIG, source_below_steps=10, destination_above_steps=60))
    assert (lower["low"], lower["between"]) == (Role.NEITHER, Role.DESTINATION)


@given(st.lists(st.floats(-500, 5000), max_size=8))
def test_whoever_a_round_pairs_has_the_role(steps: list[float]) -> None:
    loads = [InstanceLoad(f"i-{n}", each) for n, each in enumerate(steps)]
    found = roles(loads, CONFIG)
    for each in pair(loads, CONFIG):
        assert (found[each.source_id], found[each.destination_id]) == ("source", "destination")


@pytest.mark.parametrize(
    ("changes", "levels", "differ"),
    [
        ({}, DEFAULT_LEVELS, False),
        ({"interval_s": 3.0, "not_back_s": 1.0}, DEFAULT_LEVELS, False),
        ({"enabled": False}, DEFAULT_LEVELS, True),
        ({"destination_above_steps": 200.0}, DEFAULT_LEVELS, True),
        ({}, (NORMAL, Level("high", 1, 3200)), True),
    ],
)
def test_what_may_give_another_role(
    changes: dict[str, object], levels: tuple[Level, ...], differ: bool
) -> None:
    after = replace(CONFIG, **changes)  # type: ignore[arg-type]
    assert may_differ((CONFIG, DEFAULT_LEVELS), (after, levels)) is differ
