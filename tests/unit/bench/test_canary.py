"""The canary tells a stall of the endpoint from one of the machine."""

import pytest

from tools.canary import NO_GAP, Gap, Span, longest_gap


def test_the_machine_s_share_of_a_gap() -> None:
    gaps, late = [Span(1.0, 2.0), Span(5.0, 5.5)], [Span(1.2, 1.9), Span(5.4, 9.0)]
    assert longest_gap(gaps, late, 0.0, 10.0) == Gap(5.0, 5.5, pytest.approx(0.1))
    assert longest_gap(gaps, [], 0.0, 10.0) == Gap(1.0, 2.0)
    assert longest_gap(gaps, [], 1.9, 10.0) == Gap(5.0, 5.5)
    assert longest_gap(gaps, [], 1.9, 5.25) == Gap(5.0, 5.25, 0)
    assert longest_gap(gaps, [], 2.0, 5.0) == NO_GAP
