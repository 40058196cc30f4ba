"""What `make bench-cluster` reads from a cluster's events."""

from array import array

import pytest

from benchmarks.policy_cluster import Eviction, evictions, preemption_loss_s
from controller.api.wire.requests import Event
from llumctl.lab.bench_client import Answer
from llumctl.lab.bench_load import Request
from llumctl.lab.bench_run import Result


def _result(*times_s: float) -> Result:
    request = Request(0, 0.0, 10, len(times_s))
    answer = Answer(200, array("d", times_s))
    return Result(request, 0.0, 0.0, answer, num_output_tokens=len(times_s))


def test_preemption_loss_is_from_eviction_to_the_next_new_token() -> None:
    for its_evictions, expected in (
        ([Eviction(0.2, 10)], 0.8),  # in mid-prefill: until its first token
        ([Eviction(2.5, 12), Eviction(4.0, 12), Eviction(5.5, 13)], 2.5 + 0.5),  # twice in a gap
        ([Eviction(1.999, 12)], 5.0 - 1.999),  # the second token was under way
        ([Eviction(7.0, 15)], 0.0),  # no token came any more
    ):
        result = _result(1.0, 2.0, 5.0, 6.0, 6.5)
        assert preemption_loss_s(result, its_evictions) == pytest.approx(expected)


def test_evictions_are_found_by_the_loads_own_names() -> None:
    events = [
        Event(kind=kind, time_s=at_s, cause_id="c", request_id=id_, numbers={"num_tokens": num})
        for kind, id_, at_s, num in (
            ("evicted", "cmpl-abc-1-0-9f", 1000.5, 20),
            ("evicted", "cmpl-abc-12-0-77", 1001.0, 30),
            ("evicted", "cmpl-abd-1-0-9f", 1001.5, 40),
            ("admitted", "cmpl-abc-1-0-9f", 1002.0, 20),
        )
    ]
    found = evictions(events, "abc", 1000.0)
    assert found == {1: [Eviction(0.5, 20)], 12: [Eviction(1.0, 30)]}
