"""The history of the cluster: what samples are made of, how they are merged and kept, and the
percentiles of its points."""

import math
import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.core.record.history import (
    COARSE_S,
    FINE_FOR_S,
    INSTANCE_FIGURES,
    UNKNOWN,
    History,
    LevelSeen,
    Sample,
    Seen,
    merged,
    points,
)
from controller.core.record.windows import (
    MAX_BUCKET,
    ServedInAll,
    added,
    bucket_of,
    percentile_of,
)

FIGURES = (100.0, 0.5, 0.75, 3.0, 1.0, UNKNOWN)


def seen(time_s: float, num: int = 0, *, run: float = 1.0, ttft_s: float = 0.1) -> Seen:
    """A look after `num` requests came and had their first token within `ttft_s`."""
    served = ServedInAll(num, num, 10 * num, {"normal": {bucket_of(ttft_s): num}} if num else {})
    return Seen(
        time_s,
        {"num_running_reqs": run},
        {"num_evictions": {"i-0/1": num // 2}},
        {"f-0/a": served},
        {"normal": LevelSeen(int(run), 0)},
        {"i-0": FIGURES},
    )


def filled(num_s: int, start_s: float = 1000.0) -> History:
    """One request comes in each second."""
    history = History()
    for second in range(num_s):
        history.handle(seen(start_s + second, second), 1.0)
        history.check()
    return history


# -- percentiles from counts ------------------------------------------------------------------


@given(st.lists(st.floats(0.0, 700.0), min_size=1, max_size=200), st.floats(0.01, 1.0))
def test_a_percentile_from_counts_is_in_the_bucket_of_the_sample(
    latencies_s: list[float], share: float
) -> None:
    found = percentile_of(Counter(map(bucket_of, latencies_s)), share)
    assert found is not None
    exact = sorted(latencies_s)[max(0, math.ceil(share * len(latencies_s) - 1e-9) - 1)]
    assert exact / 1.21 - 0.001 <= found <= 1.21 * exact + 0.001


def test_counts_of_several_processes_are_added_and_the_ends_are_bounded() -> None:
    both = added([{3: 1, 5: 2}, {5: 1}])
    assert both == {3: 1, 5: 3}
    assert percentile_of({}, 0.99) is None
    assert bucket_of(0.0) == 0
    assert bucket_of(1e9) == MAX_BUCKET


# -- samples --------------------------------------------------------------------------------


def test_a_sample_has_what_totals_grew_by_since_the_look_before() -> None:
    """The totals of a process that is seen for the first time say nothing: this controller does not
    know since when it counts. A process that restarts has another name."""
    history = History()
    history.handle(seen(1.0, 7), 1.0)
    assert history.latest is not None
    assert not any(history.latest.counts.values())
    history.handle(seen(2.0, 10), 1.0)
    assert history.latest.counts["num_arrived"] == 3
    assert history.latest.counts["num_output_tokens"] == 30
    assert history.latest.counts["num_evictions"] == 2
    assert history.latest.levels["normal"].ttft == {bucket_of(0.1): 3}
    other = Seen(3.0, {}, {}, {"f-0/b": ServedInAll(2)})
    history.handle(other, 1.0)
    assert history.latest.counts["num_arrived"] == 0


def test_the_figures_of_instances_are_kept_to_three_digits() -> None:
    history = History()
    wide = (2_000_000.0, 0.98765, 1.5, 33.0, 0.0, UNKNOWN)
    history.handle(Seen(1.0, {}, instances={"i-0": FIGURES, "i-1": wide}), 1.0)
    assert history.latest is not None
    found = history.latest.instances()
    assert found["i-0"][:5] == FIGURES[:5]
    assert math.isnan(found["i-0"][5])
    assert found["i-1"][0] == pytest.approx(1_040_000, rel=1e-3), "the largest that is kept"
    assert found["i-1"][1:5] == pytest.approx(wide[1:5], rel=1e-3)
    assert len(history.latest.figures) == 2 * 2 * len(INSTANCE_FIGURES)


def test_merging_takes_means_of_gauges_and_sums_of_counts() -> None:
    history = History()
    history.handle(seen(1.0), 1.0)
    history.handle(seen(2.0, 4, run=3.0), 1.0)
    both = merged(history.since(0.0))
    assert (both.time_s, both.span_s) == (2.0, 2.0)
    assert both.gauges == {"num_running_reqs": 2.0}
    assert both.counts["num_arrived"] == 4
    assert both.levels["normal"].num_running == 2.0
    assert both.instances()["i-0"][:5] == FIGURES[:5]


def test_each_ten_seconds_are_kept_and_the_next_controller_goes_on() -> None:
    history, kept = History(), list[Sample]()
    for second in range(35):
        coarse = history.handle(seen(1000.0 + second, second), 1.0)
        kept += [coarse] if coarse is not None else []
    assert [each.time_s for each in kept] == [1009.0, 1019.0, 1029.0]
    assert [each.counts["num_arrived"] for each in kept] == [9, 10, 10]
    later = History(kept)
    assert later.since(0.0) == kept
    later.handle(seen(1100.0, 80), 1.0)
    times_s = [each.time_s for each in later.since(1012.0)]
    assert times_s == [1019.0, 1029.0, 1100.0]


def test_fine_samples_replace_coarse_ones_of_the_same_time() -> None:
    num_s = int(FINE_FOR_S) + 100
    history = filled(num_s)
    found = history.since(0.0)
    spans = Counter(each.span_s for each in found)
    assert spans == {1.0: int(FINE_FOR_S), COARSE_S: 10}
    assert sum(each.span_s for each in found) == num_s, "each moment once"
    assert sum(each.counts["num_arrived"] for each in found) == num_s - 1
    for more in range(25):
        history.handle(seen(1000.0 + num_s + more, num_s + more), 1.0)
        found = history.since(0.0)
        assert sum(each.span_s for each in found) == num_s + more + 1, "each moment once"


# -- points -----------------------------------------------------------------------------------


def test_points_are_as_many_as_wanted_and_miss_nothing() -> None:
    history = filled(600)
    begin_s = 1300.0
    found = points(history.since(begin_s - 60.0), begin_s, 50)
    bare = points(history.since(begin_s - 60.0), begin_s, 50, instances=False)
    assert bare == [replace(each, instances={}) for each in found]
    assert len(found) <= 50
    assert sum(each.counts["num_arrived"] for each in found) == 299
    assert found[-1].time_s == 1599.0
    assert points([], 0.0, 50) == []


def test_the_percentiles_of_a_point_are_those_of_its_last_minute() -> None:
    """For 100 s first tokens take 0.1 s, then 2 s: a minute later no point knows the 0.1 s."""
    history, rng = History(), random.Random(1)
    num, slow = 0, 0
    for second in range(220):
        more = rng.randint(1, 5)
        num, slow = num + more, slow + (more if second >= 100 else 0)
        counts = {bucket_of(0.1): num - slow, bucket_of(2.0): slow}
        served = ServedInAll(num, num, num, {"high": counts})
        history.handle(Seen(float(second), {}, {}, {"f": served}, {"high": LevelSeen(1, 0)}), 1.0)
    found = {each.time_s: each.levels["high"] for each in points(history.since(-1), -1, 1000)}
    assert found[90.0].ttft_p99_s == pytest.approx(0.1, rel=0.2)
    assert found[110.0].ttft_p50_s == pytest.approx(0.1, rel=0.2)
    assert found[110.0].ttft_p99_s == pytest.approx(2.0, rel=0.2)
    assert found[165.0].ttft_p50_s == pytest.approx(2.0, rel=0.2)
    assert found[165.0].tpot_p99_s is None


def test_a_time_without_a_controller_has_no_point() -> None:
    history = History(filled(30).since(0.0))
    history.handle(seen(5000.0), 1.0)
    found = points(history.since(0.0), 0.0, 20)
    assert [each.time_s for each in found][-1] == 5000.0
    assert all(each.time_s <= 1030 or each.time_s == 5000 for each in found)
