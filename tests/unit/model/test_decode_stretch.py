"""Decode steps done at once are the same as those done one by one."""

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.model.engine_model import EngineModel
from controller.model.engine_state import NEVER, ModelRequest, Segment
from controller.model.profile import ModelConfig, load_profile

PROFILE = load_profile("a10-llama-7b")
CONFIG = ModelConfig(
    block_size=4,
    num_total_blocks=40,
    watermark_blocks=1,
    max_num_running=8,
    max_num_batched_tokens=64,
    max_model_len=120,
    prefix_caching=False,
    mode="chunked",
)


def segment(request_id: str, num_prompt_tokens: int, num_blocks: int, index: int) -> Segment:
    """Prompts are alike; outputs are the request's own."""
    num_alike = num_prompt_tokens // CONFIG.block_size
    if index >= num_alike:
        return request_id, num_alike, NEVER
    first = index // num_blocks * num_blocks
    return first, first, min(first + num_blocks, num_alike)


LENGTHS = st.tuples(st.integers(1, 60), st.integers(1, 50), st.integers(0, 1))


def engine(
    lengths: list[tuple[int, int, int]], mode: str, segment_blocks: int, num_steps: int
) -> EngineModel:
    """`segment_blocks`: the prompts begin alike and are cached, in segments of so many blocks; 0:
    nothing is cached."""
    model = EngineModel(replace(CONFIG, mode=mode, prefix_caching=segment_blocks > 0), PROFILE)
    for number, (num_prompt, num_output, rank) in enumerate(lengths):
        request_id = f"r-{number}"
        segment_at = partial(segment, request_id, num_prompt, segment_blocks)
        request = ModelRequest(request_id, num_prompt, num_output, rank, float(number), segment_at)
        model.add(request)
    for _ in range(num_steps):
        if model.has_work():
            model.step()
    return model


@given(
    lengths=st.lists(LENGTHS, min_size=1, max_size=12),
    mode=st.sampled_from(["chunked", "prefill-first"]),
    segment_blocks=st.integers(0, 4),
    num_before=st.integers(0, 30),
    share=st.floats(0, 1),
)
def test_a_stretch_is_its_steps(lengths, mode, segment_blocks, num_before, share) -> None:
    one_by_one, at_once = (engine(lengths, mode, segment_blocks, num_before) for _ in range(2))
    stretch = at_once.stretch()
    if stretch is None:
        return
    num_steps = max(1, round(share * stretch.num_steps))
    time_s, finished = 0.0, []
    for done in range(1, num_steps + 1):
        step = one_by_one.step()
        assert not any((step.admitted, step.evicted, step.num_prefill_tokens))
        assert not finished
        assert step.duration_s == pytest.approx(stretch.last_step_s(done))
        time_s += step.duration_s
        finished += step.finished
        assert stretch.time_s(done) == pytest.approx(time_s)
        num_taken = stretch.num_free_blocks - one_by_one.snapshot("i", 1).num_free_blocks
        assert finished or stretch.num_taken_blocks(done) == num_taken
        assert stretch.num_steps_within(time_s + 1e-9) == done
        assert stretch.num_steps_within(time_s - 1e-6) == done - 1
    if num_steps == stretch.num_steps and not finished:
        ends = engine(lengths, mode, segment_blocks, num_before)
        ends.decode(num_steps)
        assert ends.step().evicted, "it ended earlier than it must: no request did, and none lacks"
    assert at_once.decode(num_steps) == finished
    assert at_once.snapshot("i", 1) == one_by_one.snapshot("i", 1)
    at_once.check()
    while one_by_one.has_work():
        assert one_by_one.step() == at_once.step()
    assert not at_once.has_work()


def test_there_is_no_stretch_while_somebody_is_admitted_or_prefills() -> None:
    model = EngineModel(CONFIG, PROFILE)
    assert model.stretch() is None
    model.add(ModelRequest("a", 100, 10))
    assert model.stretch() is None
    model.step()
    assert model.stretch() is None, "64 of the 100 are computed"
    model.step()
    assert model.stretch() is not None
    model.add(ModelRequest("b", 4, 10))
    assert model.stretch() is None
