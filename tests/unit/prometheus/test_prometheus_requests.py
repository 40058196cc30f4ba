"""What frontends measure: values, buckets, and one answer for several processes."""

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from controller.adapters.prometheus import RequestMetrics
from controller.adapters.vllm.process_setup import share_metrics
from controller.core.record.request_record import RequestState
from tests.unit.prometheus.prometheus_support import Samples, record, samples


class Served:
    """The metrics of one frontend with two levels, and what is read from them."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.metrics = RequestMetrics(("normal", "high"), self.registry)

    @property
    def samples(self) -> Samples:
        return samples(generate_latest(self.registry).decode())

    def value(self, name: str, level: str = "normal", **labels: str) -> float | None:
        key = frozenset({"level": level, **labels}.items())
        return self.samples.get((f"llumctl_{name}", key))


@pytest.fixture
def served() -> Served:
    return Served()


def test_a_finished_request(served: Served) -> None:
    served.metrics.dispatched("normal", 0.004)
    served.metrics.first_token("normal", 0.5)
    served.metrics.ended(record())
    for name, expected in (("dispatch", 0.004), ("ttft", 0.5), ("tpot", 0.2), ("e2e_latency", 2.5)):
        assert served.value(f"request_{name}_seconds_count") == 1, name
        assert served.value(f"request_{name}_seconds_sum") == pytest.approx(expected), name
    assert served.value("requests_ended_total", outcome="finished") == 1
    assert served.value("request_prompt_tokens_total") == 40
    assert served.value("request_output_tokens_total") == 11
    assert served.value("request_evictions_total") == 2
    # A bound belongs to its bucket.
    assert served.value("request_ttft_seconds_bucket", le="0.3") == 0
    assert served.value("request_ttft_seconds_bucket", le="0.5") == 1


def test_levels_are_apart_and_start_at_zero(served: Served) -> None:
    before = set(served.samples)
    served.metrics.first_token("high", 0.2)
    served.metrics.ended(record(level="high", state=RequestState.ABORTED))
    assert set(served.samples) == before, "more requests are no more series"
    for level, number in (("high", 1), ("normal", 0)):
        assert served.value("request_ttft_seconds_count", level) == number
        assert served.value("requests_ended_total", level, outcome="aborted") == number
        assert served.value("requests_ended_total", level, outcome="finished") == 0


def test_only_finished_requests_have_latencies(served: Served) -> None:
    served.metrics.ended(record(state=RequestState.FAILED))
    assert served.value("requests_ended_total", outcome="failed") == 1
    assert served.value("request_output_tokens_total") == 11
    assert served.value("request_e2e_latency_seconds_count") == 0
    assert served.value("request_tpot_seconds_count") == 0


@pytest.mark.parametrize(("num_tokens", "first_s"), [(1, 100.5), (0, None), (11, None)])
def test_no_time_per_token_without_two_tokens(
    num_tokens: int, first_s: float | None, served: Served
) -> None:
    served.metrics.ended(record(num_output_tokens=num_tokens, first_token_time_s=first_s))
    assert served.value("request_tpot_seconds_count") == 0
    assert served.value("request_e2e_latency_seconds_count") == 1


def test_a_clock_set_back_makes_no_negative_durations(served: Served) -> None:
    served.metrics.dispatched("normal", -1.0)
    served.metrics.first_token("normal", -1.0)
    served.metrics.ended(record(end_time_s=90.0))
    assert all(number >= 0 for number in served.samples.values())


def test_a_live_request_has_not_ended(served: Served) -> None:
    before = served.samples
    with pytest.raises(ValueError, match="has not ended"):
        served.metrics.ended(record(state=RequestState.RUNNING))
    assert served.samples == before


def test_sharing_too_late_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="was imported before"):
        share_metrics(tmp_path / "metrics")
    assert not (tmp_path / "metrics").exists()
