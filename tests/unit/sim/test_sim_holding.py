"""Late binding in a simulated cluster: requests that wait go where they fit, and room is made for
them."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.core.settings import HoldingConfig, ReschedulingConfig
from controller.sim.setup import ClusterSetup, SimPolicy
from tests.unit.sim.runs import MOVE, SMALL, STAY, column, requests, run


def held_back(**parts: object) -> SimPolicy:
    holding = HoldingConfig(room_to_grow_tokens=32, **parts)  # type: ignore[arg-type]
    return SimPolicy("test", "llumnix", MOVE if holding.making_room else STAY, holding=holding)


FEW_BLOCKS = replace(SMALL, max_model_len=960)
"""A request may fill all the 60 blocks."""
DEFAULTS = SimPolicy("test", "llumnix+", ReschedulingConfig(), holding=HoldingConfig())


@pytest.mark.parametrize("num_blocks", [55, 60])
@pytest.mark.parametrize("beside", [[32, 32], [300, 48]])
def test_room_is_made_at_once_for_a_prompt_of_nearly_all_blocks(num_blocks, beside) -> None:
    """With 320 tokens of room to grow it fits on neither, and waited 12 s until one was idle."""
    large = 1.0, 16 * num_blocks - 8, 5
    rows = [*((0.0, num_tokens, 400) for num_tokens in beside), large]
    _, outcome = run(ClusterSetup(FEW_BLOCKS, DEFAULTS, 2), requests(rows))
    assert column(outcome, "ttft_s")[column(outcome, "arrival_s").index(1.0)] < 1.0


@pytest.mark.long
@settings(max_examples=10)
@given(
    seed=st.integers(0, 999),
    num_instances=st.integers(1, 3),
    num_blocks=st.integers(38, 60),
    rate=st.floats(0.5, 4.0),
)
def test_no_stream_of_small_requests_starves_a_large_one(
    seed, num_instances, num_blocks, rate
) -> None:
    """It waits for the requests that ran before, at most 100 steps, whatever else comes and fits
    elsewhere."""
    dice = random.Random(seed)
    rows, at_s = [(3.0, 16 * num_blocks - 8, 5)], 0.0
    while at_s < 40.0:
        at_s += dice.expovariate(rate * num_instances)
        rows.append((at_s, dice.randint(16, 200), dice.randint(5, 100)))
    setup = ClusterSetup(FEW_BLOCKS, DEFAULTS, num_instances)
    _, outcome = run(setup, requests(sorted(rows)))
    assert column(outcome, "ttft_s")[column(outcome, "arrival_s").index(3.0)] < 12.0


def test_how_long_and_by_how_many_a_held_request_was_overtaken() -> None:
    """An instance is kept for the large one until those that fill it have gone; the other has
    room for the small ones."""
    large = [(0.0, 770, 60), (0.01, 770, 90), (0.5, 700, 5), (0.75, 690, 5)]
    rows = sorted([*large, (0.6, 30, 5), (0.7, 30, 5)])
    _, outcome = run(ClusterSetup(SMALL, held_back(), 2), requests(rows))
    arrivals = column(outcome, "arrival_s")
    overtaking = dict(zip(arrivals, column(outcome, "num_overtaking"), strict=True))
    overtaken_s = dict(zip(arrivals, column(outcome, "overtaken_s"), strict=True))
    assert overtaking == {0.0: 0, 0.01: 0, 0.5: 2, 0.6: 0, 0.7: 0, 0.75: 0}
    gone_s = dict(zip(arrivals, column(outcome, "e2e_latency_s"), strict=True))[0.0]
    assert overtaken_s[0.5] == pytest.approx(gone_s - 0.6, abs=0.2)
    assert overtaken_s[0.75] == 0.0
