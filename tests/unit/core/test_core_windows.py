from hypothesis import given
from hypothesis import strategies as st

from controller.core.record.windows import LatencyWindow, LatencyWindows, Percentiles


def test_a_percentile_is_of_the_last_minute_and_of_so_many_samples() -> None:
    window = LatencyWindow(60.0, max_samples=2)
    assert window.percentile(0.99, 0.0) is None
    for latency in (9.0, 1.0, 2.0):
        window.add(0.0, latency)
    assert window.percentile(1.0, 60.0) == 2.0
    assert window.percentile(0.99, 60.1) is None


def test_each_kind_has_a_percentile_and_the_count_knows_no_limit_of_samples() -> None:
    """200 requests a second; a percentile looks at the last 4,096 of them."""
    windows = LatencyWindows[str]()
    assert windows.percentiles(0.99, 0.0) == Percentiles(None, {})
    for number in range(200 * 90):
        windows.add(number / 200, 0.5, "normal")
    windows.add(90.0, 1.0, "high")
    assert 12_000 <= windows.count(90.0) <= 12_200
    assert windows.percentiles(1.0, 90.0) == Percentiles(1.0, {"normal": 0.5, "high": 1.0})
    assert windows.count(152.0) == 0


@given(st.lists(st.floats(0, 100), min_size=1), st.sampled_from([0.01, 0.5, 0.9, 0.99, 1.0]))
def test_so_many_samples_do_not_exceed_it(latencies: list[float], share: float) -> None:
    window = LatencyWindow()
    for latency in latencies:
        window.add(0.0, latency)
    found = window.percentile(share, 1.0)
    assert found in latencies
    assert found is not None
    below = sum(latency <= found for latency in latencies)
    assert below >= share * len(latencies) - 1e-9
    strictly = sum(latency < found for latency in latencies)
    assert strictly < share * len(latencies) or strictly == 0
