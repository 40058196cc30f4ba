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


def test_a_busy_process_is_none() -> None:
    with FakeServer(freezing).in_thread() as server, Canary(server.url) as canary:
        canary.wait_singing()
        began_s = time.monotonic()
        canary._loop.call_soon_threadsafe(time.sleep, FREEZE_S)
        time.sleep(FREEZE_S)
        canary.wait_singing()
        found = canary.longest(began_s)
    assert found.duration_s < FREEZE_S or found.stall_s < 0.5 * FREEZE_S


def test_a_gap_that_has_not_ended_counts() -> None:
    def silent(_: int) -> Behaviour:
        return Behaviour(step_s=0.3)

    with FakeServer(silent).in_thread() as server, Canary(server.url) as canary:
        canary.wait_singing()
        time.sleep(0.15)
        since_s = time.monotonic() - 0.1
        found = canary.longest(since_s)
        assert 0.1 <= found.duration_s <= time.monotonic() - since_s


def test_a_stream_that_fails_is_told_and_tried_again() -> None:
    def behave(number: int) -> Behaviour:
        return Behaviour(error_after=3) if number == 0 else Behaviour(step_s=0.005)

    with FakeServer(behave).in_thread() as server, Canary(server.url) as canary:
        canary.wait_singing()
        while not canary.breaks:
            time.sleep(0.01)
        canary.wait_singing()
        assert [why for _, why in canary.breaks] == ["RuntimeError: the instance died"]


def test_the_machine_s_share_of_a_gap() -> None:
    gaps, late = [Span(1.0, 2.0), Span(5.0, 5.5)], [Span(1.2, 1.9), Span(5.4, 9.0)]
    assert longest_gap(gaps, late, 0.0, 10.0) == Gap(5.0, 5.5, pytest.approx(0.1))
    assert longest_gap(gaps, [], 0.0, 10.0) == Gap(1.0, 2.0)
    assert longest_gap(gaps, [], 1.9, 10.0) == Gap(5.0, 5.5)
    assert longest_gap(gaps, [], 1.9, 5.25) == Gap(5.0, 5.25, 0)
    assert longest_gap(gaps, [], 2.0, 5.0) == NO_GAP
