"""What steps show of an engine's speed, against the profile by which they took their time."""

import math
import random
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.core.load.snapshot import Level, PrefillSpeed
from controller.core.load.step_times import (
    ANY_TIME,
    LEAST_CHUNK_TOKENS,
    StepCosts,
    StepLimit,
    StepTimes,
    default_limit_s,
    limit_of_steps,
)
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
        times.stepped([(new, before)], decoding, context, slowed * time_s)
        decoding, context = dice.randint(1, 20), dice.randint(0, 60_000)
        time_s = H100.step_time_s([], decoding, context)
        times.stepped([], decoding, context, slowed * time_s)
        times.decoded(slowed * time_s)
    return times


def speed_of(times: StepTimes) -> PrefillSpeed:
    assert times.costs is not None
    return times.costs.prefill_speed(8192)


@pytest.mark.parametrize("longest", [0, 8_000, 120_000])
def test_the_time_of_a_prompt_is_found_within_a_tenth(longest: int) -> None:
    speed = speed_of(steps(200, longest=longest))
    for num_computed, num_tokens in ((0, 8_000), (longest, longest + 4_000)):
        true_s = H100.prefill_per_token_s * (num_tokens - num_computed)
        true_s += H100.prefill_per_token_squared_s * (num_tokens**2 - num_computed**2)
        assert speed.time_s(num_computed, num_tokens) == pytest.approx(true_s, rel=0.1)


def test_the_constants_are_found() -> None:
    found = steps(200, longest=8_000).costs
    assert found is not None
    for prefill, decoding in (([(500, 3_000)], 12), ([(4_000, 0)], 2), ([], 20)):
        work = prefill, decoding, 2_500 * decoding
        assert found.time_s(*work) == pytest.approx(H100.step_time_s(*work), rel=0.1)


def test_decode_steps_have_a_time_of_their_own() -> None:
    times = StepTimes()
    assert times.decode_step_s == times.least_decode_s == 0.0
    for num_decoding in (4, 10):
        expected_s = H100.step_time_s([], num_decoding, 30_000)
        for _ in range(100):
            times.decoded(expected_s)
        assert times.decode_step_s == pytest.approx(expected_s)
    assert times.least_decode_s == pytest.approx(H100.step_time_s([], 4, 30_000))


def test_without_enough_prompts_there_is_no_estimate() -> None:
    times = StepTimes()
    for _ in range(1000):
        times.stepped([(31, 0)], 2, 100, 0.1)
    assert times.costs is None
    times.stepped([(2048, 0)], 0, 0, 0.1)
    assert speed_of(times).time_s(0, 2048) == pytest.approx(0.1)
    assert speed_of(times).pair_s == 0.0, "one size tells nothing of attention"


def test_an_engine_whose_steps_take_equally_long_computes_prompts_by_the_step() -> None:
    times = StepTimes()
    for number in range(200):
        times.stepped([(40 + number % 25, 0)], 0, 0, 0.01)
    assert times.costs is not None
    speed = times.costs.prefill_speed(64)
    assert speed.time_s(0, 640) == pytest.approx(0.1, rel=0.05)


def test_an_engine_that_becomes_slow_is_known_as_slow() -> None:
    times = steps(200, longest=8_000)
    dice = random.Random(1)
    for _ in range(150):
        new, before = dice.randint(1, 8192), dice.randint(0, 8_000)
        times.stepped([(new, before)], 0, 0, 3 * H100.step_time_s([(new, before)], 0, 0))
    found_s = speed_of(times).time_s(0, 4_000)
    assert found_s == pytest.approx(3 * H100.step_time_s([(4_000, 0)], 0, 0), rel=0.15)


@given(
    st.lists(
        st.tuples(
            st.lists(st.tuples(st.integers(1, 8192), st.integers(0, 100_000)), max_size=2),
            st.integers(0, 300),
            st.integers(0, 500_000),
            st.floats(1e-6, 10.0),
        ),
        min_size=1,
        max_size=60,
    ),
    st.floats(1e-3, 10.0),
)
def test_whatever_steps_take_there_is_a_share_and_a_chunk(steps, limit_s) -> None:
    """Also of steps that are all alike, or whose times have nothing to do with their work."""
    times = StepTimes()
    times.stepped([(4096, 0)], 0, 0, 0.5)
    for prefill, num_decoding, context, time_s in steps:
        times.stepped(prefill, num_decoding, context, time_s)
        costs = times.costs
        assert costs is not None
        assert min(asdict(costs).values()) >= 0.0
        assert costs.prompt_tokens_within(limit_s, [(100, 0), (1 << 40, 0)], 10, 1000) >= 64
        share = costs.prompt_share(limit_s, 10, 1000)
        assert speed_of(times).time_s(0, 1000) / share < math.inf


def test_only_late_binding_limits_steps_unless_an_operator_does() -> None:
    levels = (Level("normal", 0), Level("high", 1, target_tpot_s=0.02))
    assert limit_of_steps(0.0, levels, late_binding=True) == StepLimit(0.0, {1: 0.02})
    assert limit_of_steps(0.0, levels, late_binding=False) == ANY_TIME
    for late_binding, by_rank_s in ((True, {1: 0.02}), (False, {})):
        found = limit_of_steps(0.05, levels, late_binding=late_binding)
        assert found == StepLimit(0.05, by_rank_s)


def test_the_tightest_of_the_targets_beside_a_prompt_counts() -> None:
    limit = StepLimit(0.0, {1: 0.02, 2: 0.01})
    assert limit.limit_s([0], 0.05) == 0.05
    assert limit.limit_s([0, 1], 0.05) == 0.02
    assert limit.limit_s([1, 2], 0.05) == 0.01
    assert StepLimit(0.015, {1: 0.02}).limit_s([1], 0.05) == 0.015, "what an operator says"
    assert limit.longer(2.0).limit_s([1], 0.05) == 0.04
    assert ANY_TIME.limit_s([0], 0.05) is None


# -- how much fits into a step -----------------------------------------------------------------

constants = st.floats(1e-9, 1e-6) | st.just(0.0)
COSTS = st.builds(
    StepCosts,
    prefill_base_s=st.floats(0.0, 0.02),
    prefill_per_token_s=st.floats(1e-6, 1e-3),
    prefill_per_token_squared_s=constants,
    decode_base_s=st.floats(0.001, 0.05),
    decode_per_context_token_s=constants,
    decode_per_request_s=st.floats(0.0, 1e-3),
)
PROMPTS = st.lists(st.tuples(st.integers(1, 20_000), st.integers(0, 100_000)), max_size=4)


def chunks(prompts: list[tuple[int, int]], num_tokens: int) -> list[tuple[int, int]]:
    """The chunks of a step that computes so many tokens of these prompts, in their order."""
    found = []
    for num_left, num_before in prompts:
        if num_tokens > 0:
            found.append((min(num_left, num_tokens), num_before))
        num_tokens -= num_left
    return found


@given(COSTS, PROMPTS, st.floats(0.001, 1.0), st.integers(0, 200), st.integers(0, 200_000))
def test_as_many_tokens_as_fit_into_a_step(costs, prompts, limit_s, num_decoding, context) -> None:
    context = context if num_decoding else 0
    num_tokens = costs.prompt_tokens_within(limit_s, prompts, num_decoding, context)

    def time_s(number: int) -> float:
        return costs.time_s(chunks(prompts, number), num_decoding, context)

    assert num_tokens >= LEAST_CHUNK_TOKENS
    if num_tokens > LEAST_CHUNK_TOKENS:
        assert time_s(num_tokens) <= limit_s * (1 + 1e-9)
    if num_tokens < sum(num_left for num_left, _ in prompts):
        assert time_s(num_tokens + 1) > limit_s * (1 - 1e-9)


@given(COSTS, st.floats(0.001, 1.0), st.integers(0, 1_000), st.integers(0, 1_000_000))
def test_prompts_always_have_a_share(costs, limit_s, num_decoding, context) -> None:
    costs = replace(costs, prefill_per_token_s=0.0)
    assert 0.01 <= costs.prompt_share(limit_s, num_decoding, context) <= 1.0


def test_a_prompt_without_end_fills_the_step() -> None:
    num_tokens = H100.costs.prompt_tokens_within(0.05, [(10, 0), (1 << 40, 0)], 10, 30_000)
    took_s = H100.step_time_s([(10, 0), (num_tokens - 10, 0)], 10, 30_000)
    assert took_s == pytest.approx(0.05, rel=0.001)


def test_the_share_of_prompts_shrinks_with_what_decodes() -> None:
    costs = H100.costs
    assert costs.prompt_share(0.05, 0, 0) == pytest.approx(1 - costs.prefill_base_s / 0.05)
    shares = [costs.prompt_share(0.05, n, 3_000 * n) for n in range(0, 400, 10)]
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] == pytest.approx(LEAST_CHUNK_TOKENS * costs.prefill_per_token_s / 0.05)


def test_by_default_most_of_a_step_is_left_for_prompts() -> None:
    assert default_limit_s(0.01, 0.012) == pytest.approx(0.07)
    assert default_limit_s(0.01, 0.03) == pytest.approx(0.12)
