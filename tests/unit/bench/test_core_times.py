"""`make bench-scheduler` measures what it says: its scenes still make the core decide."""

import pytest

from benchmarks.scheduler import core_times, relief_times


@pytest.mark.parametrize("num_running", [10, 1000])
def test_every_kind_of_decision_and_round_is_timed(num_running: int) -> None:
    times = core_times(num_instances=16, num_running=num_running, repeats=3)
    for kind in (times.warm_s, times.as_it_runs_s, times.cold_s, times.round_s):
        assert len(kind) == 3
    assert len(times.statuses_s) == 6  # as it runs, and cold


def test_one_choice_finds_a_request_and_the_other_tries_all() -> None:
    times = relief_times(num_candidates=40, repeats=2)
    assert len(times.chosen_s) == len(times.refused_s) == 2
