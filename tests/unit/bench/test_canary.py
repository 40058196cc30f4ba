"""The canary tells a stall of the endpoint from one of the machine."""

import time

import httpx
import pytest

from tests.unit.bench.bench_server import MODEL, Behaviour, FakeServer
from tools.canary import NO_GAP, Canary, Gap, Span, longest_gap

FREEZE_S = 0.5
ATTEMPTS = 20
"""A machine that stands still during a freeze hides it: the canary takes its share from the gap."""


def freezing(number: int) -> Behaviour:
    """The first request is the canary's; a later one keeps the server's event loop."""
    if number:
        time.sleep(FREEZE_S)
    return Behaviour(step_s=0.005)


def test_a_frozen_endpoint_is_a_stall() -> None:
    with FakeServer(freezing).in_thread() as server, Canary(server.url) as canary:
        canary.wait_singing()
        for _ in range(ATTEMPTS):
            found = _freeze(server, canary)
            if found.stall_s >= 0.8 * FREEZE_S:
                break
    assert found.stall_s >= 0.8 * FREEZE_S
    assert found.duration_s >= FREEZE_S
    assert canary.breaks == []


def _freeze(server: FakeServer, canary: Canary) -> Gap:
    began_s = time.monotonic()
    body = {"model": MODEL, "prompt": [1], "max_tokens": 1}
    httpx.post(f"{server.url}/v1/completions", json=body)
    canary.wait_singing()
    return canary.longest(began_s)


def test_the_machine_s_share_of_a_gap() -> None:
    gaps, late = [Span(1.0, 2.0), Span(5.0, 5.5)], [Span(1.2, 1.9), Span(5.4, 9.0)]
    assert longest_gap(gaps, late, 0.0, 10.0) == Gap(5.0, 5.5, pytest.approx(0.1))
    assert longest_gap(gaps, [], 0.0, 10.0) == Gap(1.0, 2.0)
    assert longest_gap(gaps, [], 1.9, 10.0) == Gap(5.0, 5.5)
    assert longest_gap(gaps, [], 1.9, 5.25) == Gap(5.0, 5.25, 0)
    assert longest_gap(gaps, [], 2.0, 5.0) == NO_GAP
