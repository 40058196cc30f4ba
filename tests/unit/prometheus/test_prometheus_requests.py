"""What frontends measure: values, buckets, and one answer for several processes."""

import itertools
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from controller.adapters import prometheus
from controller.adapters.prometheus import RequestMetrics
from controller.adapters.vllm.process_setup import share_metrics
from controller.core.record.request_record import RequestState
from tests.unit.prometheus.prometheus_support import record, samples, value


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def metrics(registry: CollectorRegistry) -> RequestMetrics:
    return RequestMetrics(("normal", "high"), registry)


def served(registry: CollectorRegistry) -> str:
    return generate_latest(registry).decode()


def test_a_finished_request(registry: CollectorRegistry, metrics: RequestMetrics) -> None:
    metrics.dispatched("normal", 0.004)
    metrics.first_token("normal", 0.5)
    metrics.ended(record())
    text = served(registry)
    for name, expected in (
        ("llumctl_request_dispatch_seconds", 0.004),
        ("llumctl_request_ttft_seconds", 0.5),
        ("llumctl_request_tpot_seconds", 0.2),
        ("llumctl_request_e2e_latency_seconds", 2.5),
    ):
        assert value(text, f"{name}_count", level="normal") == 1, name
        assert value(text, f"{name}_sum", level="normal") == pytest.approx(expected), name
    assert value(text, "llumctl_requests_ended_total", level="normal", outcome="finished") == 1
    assert value(text, "llumctl_request_prompt_tokens_total", level="normal") == 40
    assert value(text, "llumctl_request_output_tokens_total", level="normal") == 11
    assert value(text, "llumctl_request_evictions_total", level="normal") == 2
    # A bound belongs to its bucket.
    ttft = "llumctl_request_ttft_seconds_bucket"
    assert value(text, ttft, level="normal", le="0.3") == 0
    assert value(text, ttft, level="normal", le="0.5") == 1


def test_levels_are_apart_and_start_at_zero(
    registry: CollectorRegistry, metrics: RequestMetrics
) -> None:
    before = set(samples(served(registry)))
    metrics.first_token("high", 0.2)
    metrics.ended(record(level="high", state=RequestState.ABORTED))
    text = served(registry)
    assert set(samples(text)) == before, "more requests are no more series"
    for level, number in (("high", 1), ("normal", 0)):
        assert value(text, "llumctl_request_ttft_seconds_count", level=level) == number
        ended = "llumctl_requests_ended_total"
        assert value(text, ended, level=level, outcome="aborted") == number
        assert value(text, ended, level=level, outcome="finished") == 0


@pytest.mark.parametrize("state", [RequestState.ABORTED, RequestState.FAILED])
def test_only_finished_requests_have_latencies(
    state: RequestState, registry: CollectorRegistry, metrics: RequestMetrics
) -> None:
    metrics.ended(record(state=state))
    text = served(registry)
    assert value(text, "llumctl_requests_ended_total", level="normal", outcome=state) == 1
    assert value(text, "llumctl_request_output_tokens_total", level="normal") == 11
    assert value(text, "llumctl_request_e2e_latency_seconds_count", level="normal") == 0
    assert value(text, "llumctl_request_tpot_seconds_count", level="normal") == 0


@pytest.mark.parametrize(("num_tokens", "first_s"), [(1, 100.5), (0, None), (11, None)])
def test_no_time_per_token_without_two_tokens(
    num_tokens: int, first_s: float | None, registry: CollectorRegistry, metrics: RequestMetrics
) -> None:
    metrics.ended(record(num_output_tokens=num_tokens, first_token_time_s=first_s))
    text = served(registry)
    assert value(text, "llumctl_request_tpot_seconds_count", level="normal") == 0
    assert value(text, "llumctl_request_e2e_latency_seconds_count", level="normal") == 1


def test_a_clock_set_back_makes_no_negative_durations(
    registry: CollectorRegistry, metrics: RequestMetrics
) -> None:
    metrics.dispatched("normal", -1.0)
    metrics.first_token("normal", -1.0)
    metrics.ended(record(end_time_s=90.0))
    assert all(number >= 0 for number in samples(served(registry)).values())


@pytest.mark.parametrize("state", [RequestState.RUNNING, RequestState.EVICTED])
def test_a_live_request_has_not_ended(
    state: RequestState, registry: CollectorRegistry, metrics: RequestMetrics
) -> None:
    before = samples(served(registry))
    with pytest.raises(ValueError, match="has not ended"):
        metrics.ended(record(state=state))
    assert samples(served(registry)) == before


@pytest.mark.parametrize(
    ("buckets", "bounds"),
    [
        (prometheus.DISPATCH_BUCKETS_S, (0.0005, 30)),
        (prometheus.TTFT_BUCKETS_S, (0.01, 150)),
        (prometheus.TPOT_BUCKETS_S, (0.001, 2)),
        (prometheus.E2E_BUCKETS_S, (0.1, 1500)),
    ],
)
def test_buckets_begin_and_end_as_documented_in_small_steps(
    buckets: tuple[float, ...], bounds: tuple[float, float]
) -> None:
    assert (buckets[0], buckets[-1]) == bounds
    assert all(1 < upper / lower <= 5 / 3 + 1e-9 for lower, upper in itertools.pairwise(buckets))


FRONTEND = """
import sys
from pathlib import Path
from controller.adapters.vllm.process_setup import share_metrics
share_metrics(Path(sys.argv[1]))
from controller.adapters.prometheus import RequestMetrics
RequestMetrics(("normal",)).first_token("normal", float(sys.argv[2]))
"""


@pytest.mark.process
def test_frontends_that_share_a_folder_count_together(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "metrics"
    for ttft_s in (0.25, 0.5, 4.0):  # each process ends before the next: the dead count too
        subprocess.run(
            [sys.executable, "-c", FRONTEND, str(folder), str(ttft_s)], check=True, timeout=60
        )
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(folder))
    text = served(registry)
    ttft = "llumctl_request_ttft_seconds"
    assert value(text, f"{ttft}_count", level="normal") == 3
    assert value(text, f"{ttft}_sum", level="normal") == 4.75
    assert value(text, f"{ttft}_bucket", level="normal", le="0.5") == 2
    assert folder.stat().st_mode & 0o077 == 0


def test_sharing_too_late_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="was imported before"):
        share_metrics(tmp_path / "metrics")
    assert not (tmp_path / "metrics").exists()
