"""What `llumctl profile` needs of a real engine: its sizes, its requests, and steps that do what
the measurement assumes.
"""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import BLOCK_BYTES, BLOCK_SIZE, NUM_BLOCKS, STEP_TOKENS

from controller.adapters.vllm.engine import MAX_TRIAL_TOKEN_ID, TrialRequests, VllmEngine
from controller.main.profile.engine_process import (
    DrivenEngine,
    Grid,
    chunks_of,
    measure,
    measure_link,
    sizes_of,
)
from controller.main.profile.points import EngineSizes, fit


def test_sizes(engine: VllmEngine, model_path: Path) -> None:
    assert sizes_of(engine) == EngineSizes(
        block_size=BLOCK_SIZE,
        num_total_blocks=NUM_BLOCKS,
        watermark_blocks=0,
        max_num_running=8,
        max_num_batched_tokens=STEP_TOKENS,
        max_chunk_tokens=STEP_TOKENS,
        max_model_len=512,
        kv_block_bytes=BLOCK_BYTES,
    )
    config = json.loads((model_path / "config.json").read_text())
    assert engine.vocab_size == config["vocab_size"]


def test_a_trial_request_runs_to_its_length(engine: VllmEngine) -> None:
    engine.add(engine.prepare(TrialRequests(engine.vocab_size)("r-1", 40, 30), 0))
    (request,) = engine._scheduler.requests.values()
    assert request.num_prompt_tokens == 40
    assert all(0 < token < MAX_TRIAL_TOKEN_ID for token in request.prompt_token_ids)
    emitted: list[Any] = []
    while engine.has_work():
        emitted += [each for output in engine.step() for each in output.emitted]
    assert sum(each.num_tokens for each in emitted) == 30
    assert [each.finish_reason for each in emitted] == [None] * 29 + ["length"]


def test_a_lone_prompt_is_cut_as_the_points_say(uncached_engine: VllmEngine) -> None:
    """vLLM's scheduler, checked at each step."""
    engine, taken = uncached_engine, []
    schedule = engine._scheduler.schedule

    def watched(*args: Any, **kwargs: Any) -> Any:
        scheduled = schedule(*args, **kwargs)
        taken.extend(scheduled.num_scheduled_tokens.values())
        return scheduled

    engine._scheduler.schedule = watched
    try:
        with driven(engine) as found:
            found.add(200, 1)
            while found.num_pending:
                found.step()
    finally:
        engine._scheduler.schedule = schedule
    assert taken == [num_new for num_new, _ in chunks_of(200, sizes_of(engine).max_chunk_tokens)]


def test_the_measurement(uncached_engine: VllmEngine) -> None:
    sizes = sizes_of(uncached_engine)
    with driven(uncached_engine) as found:
        points = measure(found, sizes, Grid((16, 64, 300), (8, 60)), 2, lambda _: None)
    assert [len(point.steps) for point in points.prefill] == [1, 1, 5]
    works = [point.steps[0] for point in points.decode]
    assert {step.num_decoding for step in works} == {1, 2, 4, 6}
    assert [step.prefill for step in (p.steps[0] for p in points.mixed)][:2] == [
        ((8, 0),),
        ((8, 0), (8, 0)),
    ]
    assert all(p.time_s > 0 for _, each in points.by_kind() for p in each)
    constants = fit(points)
    assert constants.prefill_base_s + constants.prefill_per_token_s > 0


def test_the_link(uncached_engine: VllmEngine) -> None:
    blocks = uncached_engine.moves.blocks
    found = measure_link(blocks, sizes_of(uncached_engine).num_total_blocks)
    assert found.num_bytes == (NUM_BLOCKS + 6) * BLOCK_BYTES
    assert found.stage_s > 0


def driven(engine: VllmEngine) -> DrivenEngine:
    return DrivenEngine(engine, TrialRequests(engine.vocab_size), 0.005, time.perf_counter)


@pytest.fixture(autouse=True)
def _left_clean(engine: VllmEngine, uncached_engine: VllmEngine) -> None:
    """Both engines are checked after each test: nothing is left in them."""
