"""When the first token of a request would come, and what is copied for it."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from controller.core.admission.first_token import copies, copy_for, first_token_s
from controller.core.admission.policies import FetchSource, Prompt
from controller.core.load.freeness import Room
from controller.core.load.snapshot import PrefillSpeed
from controller.core.settings import HoldingConfig

NOW_S = 100.0
NUM_TOKENS = 60_000


def room(**more: Any) -> Room:
    speed = PrefillSpeed(33e-6, 0.3e-9)
    return Room("i-0", 1000, 4, 0, 1000, 0, 0, speed=speed, decode_step_s=0.01, **more)


times_s = st.sampled_from([0.0, 99.0, 100.5, 103.0])
token_times_s = st.sampled_from([0.0, 6e-6, 13e-6, 60e-6])
numbers = st.sampled_from([0, 20_000, 40_000, 59_999])


@given(times_s, times_s, times_s, times_s, token_times_s, token_times_s, numbers, numbers, numbers)
def test_a_prompt_is_computed_or_copied_whichever_is_sooner(
    ready_s: float,
    fetched_s: float,
    loaded_s: float,
    free_s: float,
    copy_token_s: float,
    load_token_s: float,
    num_cached: int,
    num_in_host: int,
    num_source: int,
) -> None:
    there = room(
        ready_s=ready_s,
        fetched_s=fetched_s,
        loaded_s=loaded_s,
        copy_token_s=copy_token_s,
        load_token_s=load_token_s,
    )
    source = FetchSource("i-1", num_source, free_s) if num_source else None
    prompt = Prompt(NUM_TOKENS, {"i-0": num_cached}, {"i-0": num_in_host}, source)
    backlog_s = max(0.0, ready_s - NOW_S)
    times = [backlog_s + there.speed.time_s(num_cached, NUM_TOKENS) + 0.01]
    for copy in copies(there, prompt, NOW_S):
        assert copy.num_tokens > num_cached
        rest_s = there.speed.time_s(copy.num_tokens, NUM_TOKENS)
        times.append(max(backlog_s, copy.arrives_s) + rest_s + 0.01)
    (found_s,) = first_token_s([there], prompt, NOW_S)
    assert abs(found_s - min(times)) < 1e-9
    gain_s = times[0] - min(times)
    config = HoldingConfig()
    is_copied = copy_for(there, prompt, config, NOW_S) is not None
    assert is_copied == (gain_s > config.slack_tokens * there.speed.token_s)


def test_the_own_host_cache_is_preferred_to_a_slower_link() -> None:
    there = room(copy_token_s=13e-6, load_token_s=6e-6)
    both = Prompt(NUM_TOKENS, {}, {"i-0": 40_000}, FetchSource("i-1", 40_000, 0.0))
    found = copy_for(there, both, HoldingConfig(), NOW_S)
    assert found is not None
    assert found.instance_id == "i-0"
    busy = room(copy_token_s=13e-6, load_token_s=6e-6, loaded_s=NOW_S + 5)
    found = copy_for(busy, both, HoldingConfig(), NOW_S)
    assert found is not None
    assert found.instance_id == "i-1"
