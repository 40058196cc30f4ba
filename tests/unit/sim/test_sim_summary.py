"""One run in figures: from rows that are written by hand, and from small runs."""

import pytest

from controller.core.load.snapshot import Level
from controller.model.engine_state import ModelRequest
from controller.sim.outcome import (
    Outcome,
    Sampled,
    Summary,
    is_steady,
    summarize,
)
from controller.sim.request_run import RequestRun
from controller.sim.workload.trace import TraceRequest


def sampled(waiting: list[int]) -> Sampled:
    """One look per second."""
    found = Sampled()
    for time_s, num in enumerate(waiting):
        found.times_s.append(float(time_s))
        found.num_waiting.append(num)
        found.num_instances.append(4)
        found.used_share.append(0.5)
        found.fragmentation.append(0.0)
    return found


def ended(number: int, ttft_s: float, num_outputs: int, rank: int = 0) -> RequestRun:
    """Arrived at `number` s; a token each 0.5 s, the longest pause 1 s."""
    request = ModelRequest(f"r-{number}", 10, num_outputs, rank, float(number))
    found = RequestRun(number, request, TraceRequest(float(number), 10, num_outputs, rank))
    found.first_token_s = number + ttft_s
    found.finished_s = number + ttft_s + 0.5 * (num_outputs - 1)
    found.longest_pause_s = 1.0
    return found


def begun() -> Outcome:
    """As a cluster leaves it after its first look at itself."""
    outcome = Outcome()
    outcome.sampled = sampled([0])
    return outcome


def summary_of(*ended_: RequestRun, warm_up: float = 0.0) -> Summary:
    outcome = begun()
    for each in reversed(ended_):  # requests end in any order
        outcome.rows.add(each)
    return summarize(outcome, [each.request.arrival_time_s for each in ended_], warm_up)


def test_tokens_are_counted_while_requests_arrive() -> None:
    """At 4 s the first request has ended with 3 tokens, the second one has 3 of 9, the third none:
    its first token comes at 5 s."""
    found = summary_of(ended(0, 1.0, 3), ended(1, 2.0, 9), ended(4, 1.0, 3))
    assert found.tokens_per_s == pytest.approx((3 + 3) / 4)
    warm = summary_of(ended(0, 1.0, 3), ended(1, 2.0, 9), ended(4, 1.0, 3), warm_up=0.4)
    assert warm.tokens_per_s == pytest.approx((2 + 3) / 3), "from 1 s on, one token was there"
    assert summary_of(ended(0, 1.0, 3)).tokens_per_s is None


def test_figures_of_four_requests() -> None:
    evicted = ended(3, 4.0, 3)
    evicted.loss_s, evicted.num_evictions, evicted.moves = 2.0, 2, [("i-0", 1.0)]
    for time_s in (4.0, 4.5):
        evicted.overtaken(time_s)
    evicted.dispatched(5.5)
    found = summary_of(ended(0, 1.0, 3), ended(1, 2.0, 3), ended(2, 3.0, 1), evicted)
    figures = found.all
    assert figures.num_requests == 4
    assert figures.ttft_s is not None
    assert (figures.ttft_s.mean, figures.ttft_s.p50, figures.ttft_s.max) == (2.5, 2.5, 4.0)
    assert figures.ttft_s.p99 == pytest.approx(3.97)
    assert figures.e2e_latency_s is not None
    assert figures.e2e_latency_s.mean == pytest.approx((2.0 + 3.0 + 3.0 + 5.0) / 4)
    assert figures.preemption_loss_s == pytest.approx(0.5)
    assert (figures.num_evictions, figures.num_moves) == (2, 1)
    assert (figures.longest_overtaken_s, figures.most_overtaking) == (1.5, 2)
    assert found.by_rank == {}
    assert found.downtime_s is None
    assert summarize(begun(), [0.0]).all.ttft_s is None, "nothing ended"


def test_goodput_is_by_the_targets_of_each_level() -> None:
    """A request of a rank without a level belongs to the level of rank 0."""
    outcome = begun()
    for each in (ended(0, 1.0, 3), ended(1, 3.0, 3), ended(2, 3.0, 3, rank=1), ended(3, 1.0, 1, 7)):
        outcome.rows.add(each)
    outcome.num_failed_by_rank[7] = 1
    levels = [Level("normal", 0, target_ttft_s=2.0), Level("high", 1, target_tpot_s=0.4)]
    found = summarize(outcome, [0.0, 1.0, 2.0, 3.0, 4.0], levels=levels)
    assert found.all.goodput == 2 / 5
    assert [found.by_rank[rank].goodput for rank in (0, 1, 7)] == [0.5, 0.0, 0.5]
    assert summarize(outcome, [0.0], levels=[Level("normal", 0)]).all.goodput is None


def test_ranks_have_figures_of_their_own_and_the_warm_up_is_left_out_by_arrival() -> None:
    found = summary_of(ended(0, 1.0, 2), ended(1, 9.0, 2, rank=1), ended(2, 3.0, 2))
    assert {rank: each.num_requests for rank, each in found.by_rank.items()} == {0: 2, 1: 1}
    assert found.by_rank[0].ttft_s is not None
    assert found.by_rank[0].ttft_s.mean == pytest.approx(2.0)
    found = summary_of(*(ended(number, 10.0 - number, 2) for number in range(10)), warm_up=0.25)
    assert found.all.num_requests == 8
    assert found.all.ttft_s is not None
    assert found.all.ttft_s.max == pytest.approx(8.0)


# -- steady state ---------------------------------------------------------------------------


QUEUES = {
    "it comes and goes": ([40 * (n % 7 == 0) for n in range(100)], 991, True),
    "it grows until the end": (list(range(100)), 991, False),
    "it grew and stopped": ([min(n, 45) for n in range(100)], 991, True),
    "it grew early and stands": ([min(9 * n, 450) for n in range(100)], 991, False),
    "it gets shorter and never ends": ([1200 - 6 * n for n in range(100)], 991, False),
    "it grows by less than a request per instance": ([n // 25 for n in range(100)], 991, True),
    "it drains after the last arrival": ([*range(100), *range(100, 0, -1)], 991, False),
    "a short run cannot tell": ([0] * 30, 300, None),
}


@pytest.mark.parametrize(("waiting", "num_arrivals", "steady"), QUEUES.values(), ids=QUEUES)
def test_a_run_is_steady_if_nothing_waits_as_long_as_requests_come(
    waiting: list[int], num_arrivals: int, steady: bool | None
) -> None:
    """Ten requests arrive in each second."""
    assert is_steady(sampled(waiting), [n / 10 for n in range(num_arrivals)]) is steady


def test_a_single_token_has_no_tpot_and_no_pause() -> None:
    alone = summary_of(ended(0, 1.0, 1)).all
    assert alone.tpot_s is alone.longest_pause_s is None
    found = summary_of(ended(0, 1.0, 1), ended(1, 1.0, 5)).all
    assert found.tpot_s is not None
    assert found.tpot_s.mean == 0.5
