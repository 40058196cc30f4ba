"""What a benchmark measures lives long enough, however fast the machine is."""

import pytest

from benchmarks.migration import LIMITS_BYTES_PER_S, MOVING_TOKENS, needed_s
from benchmarks.token_stream import CONTEXT_TOKENS, prompt_that_lives, time_left_s

MOVING_BYTES = 4096 * MOVING_TOKENS  # of the embedded model
STEPS_S = (0.0015, 0.002, 0.0035, 0.007, 0.012, 0.03)


@pytest.mark.parametrize("step_s", STEPS_S)
@pytest.mark.parametrize("limit", LIMITS_BYTES_PER_S)
def test_the_moving_request_outlives_its_round(limit: float | None, step_s: float) -> None:
    prompt = prompt_that_lives(MOVING_TOKENS, needed_s(limit, MOVING_BYTES), step_s)
    assert time_left_s(CONTEXT_TOKENS - prompt, 0, step_s) >= needed_s(limit, MOVING_BYTES)
    assert prompt <= MOVING_TOKENS


def test_what_cannot_live_is_said() -> None:
    with pytest.raises(ValueError, match=r"no stream lives 60\.0 s"):
        prompt_that_lives(7500, 60.0, 0.001)


def test_no_time_is_left_after_the_last_token() -> None:
    assert time_left_s(100, 90, 0.01) == pytest.approx(0.1)
    assert time_left_s(100, 120, 0.01) == 0.0
