"""What steps show of an engine's speed, against the profile by which they took their time."""

import random

import pytest

from controller.core.load.snapshot import NOT_MEASURED
from controller.core.load.step_times import StepTimes
from controller.model.profile import load_profile

H100 = load_profile("h100-llama-8b")


def steps(number: int, *, longest: int, most_new: int = 8192, slowed: float = 1.0) -> StepTimes:
    """Of chunks of prompts, each beside a few decodes; every other step only decodes."""
    dice, times = random.Random(number), StepTimes()
    for _ in range(number):
        new, before = dice.randint(1, most_new), dice.randint(0, longest)
        decoding = dice.randint(0, 20)
        context = 3000 * decoding
        time_s = H100.step_time_s([(new, before)], decoding, context)
        times.stepped([(new, before)], decoding, slowed * time_s)
        times.stepped([], 10, H100.step_time_s([], 10, 30_000))
    return times


@pytest.mark.parametrize("longest", [0, 8_000, 120_000])
def test_the_time_of_a_prompt_is_found_within_a_tenth(longest: int) -> None:
    speed = steps(200, longest=longest).prefill_speed
    for num_computed, num_tokens in ((0, 8_000), (longest, longest + 4_000)):
        true_s = H100.prefill_per_token_s * (num_tokens - num_computed)
        true_s += H100.prefill_per_token_squared_s * (num_tokens**2 - num_computed**2)
        assert speed.time_s(num_computed, num_tokens) == pytest.approx(true_s, rel=0.1)


def test_decode_steps_have_a_time_of_their_own() -> None:
    expected = H100.step_time_s([], 10, 30_000)
    assert steps(50, longest=0).decode_step_s == pytest.approx(expected)
    assert StepTimes().decode_step_s == 0.0


def test_without_enough_prompts_there_is_no_estimate() -> None:
    times = StepTimes()
    for _ in range(1000):
        times.stepped([(31, 0)], 2, 0.1)
    assert times.prefill_speed == NOT_MEASURED
    times.stepped([(2048, 0)], 0, 0.1)
    assert times.prefill_speed.time_s(0, 2048) == pytest.approx(0.1)
    assert times.prefill_speed.pair_s == 0.0, "one size tells nothing of attention"


def test_an_engine_that_becomes_slow_is_known_as_slow() -> None:
    times = steps(200, longest=8_000)
    dice = random.Random(1)
    for _ in range(150):
        new, before = dice.randint(1, 8192), dice.randint(0, 8_000)
        times.stepped([(new, before)], 0, 3 * H100.step_time_s([(new, before)], 0, 0))
    found_s = times.prefill_speed.time_s(0, 4_000)
    assert found_s == pytest.approx(3 * H100.step_time_s([(4_000, 0)], 0, 0), rel=0.15)
