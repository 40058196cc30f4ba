"""`make bench-scheduler` measures what it says: its scenes still make the core decide."""

from benchmarks.scheduler import core_times, relief_times


def test_every_kind_of_decision_and_round_is_timed() -> None:
    times = core_times(num_instances=16, num_running=10, repeats=3)
    for kind in (times.warm_s, times.as_it_runs_s, times.cold_s, times.round_s):
        assert len(kind) == 3
    relief = relief_times(num_candidates=40, repeats=2)
    assert len(relief.chosen_s) == len(relief.refused_s) == 2
