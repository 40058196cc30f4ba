"""Destinations that failed, for a while."""

from controller.core.cooling import Cooling


def test_one_that_failed_cools_and_the_others_do_not() -> None:
    cooling = Cooling(30.0)
    cooling.failed("i-1", 100.0)
    assert cooling.remaining_s("i-1", 100.0) == 30.0
    assert cooling.remaining_s("i-1", 129.5) == 0.5
    assert cooling.remaining_s("i-2", 100.0) == 0.0
    assert cooling.remaining_s("i-1", 130.0) == 0.0
    assert cooling.remaining_s("i-1", 101.0) == 0.0, "it is over"


def test_another_failure_begins_anew() -> None:
    cooling = Cooling(30.0)
    cooling.failed("i-1", 100.0)
    cooling.failed("i-1", 120.0)
    assert cooling.remaining_s("i-1", 140.0) == 10.0


def test_a_time_that_is_changed_counts_for_those_that_cool() -> None:
    cooling = Cooling(30.0)
    cooling.failed("i-1", 100.0)
    cooling.cooling_s = 5.0
    assert cooling.remaining_s("i-1", 104.0) == 1.0
    cooling.cooling_s = 0.0
    assert cooling.remaining_s("i-1", 104.0) == 0.0
