"""The measurement of an emulated engine in virtual time finds the profile that the engine keeps."""

import itertools
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

import pytest

from controller.adapters.emulated.emulated_engine import EmulatedEngine
from controller.main.profile.engine_process import DrivenEngine, UnexpectedError, grid_of, measure
from controller.main.profile.points import EngineSizes, FitError, Step, fit
from controller.model.profile import LatencyProfile, ModelConfig
from tests.unit.emulated.emulated_builders import Clock, frames
from tests.unit.profile.profile_points import A10

PROFILE = replace(A10, max_model_len=4096, max_num_running=24, max_num_batched_tokens=512)


def sizes_of(profile: LatencyProfile) -> EngineSizes:
    return EngineSizes(
        block_size=profile.block_size,
        num_total_blocks=profile.num_total_blocks,
        watermark_blocks=8,
        max_num_running=profile.max_num_running,
        max_num_batched_tokens=profile.max_num_batched_tokens,
        max_chunk_tokens=profile.max_num_batched_tokens,
        max_model_len=profile.max_model_len,
        kv_block_bytes=profile.block_size * profile.kv_bytes_per_token,
    )


def make_request(request_id: str, num_prompt_tokens: int, max_tokens: int) -> Any:
    return frames(request_id, [300] * num_prompt_tokens, max_tokens=max_tokens)


@contextmanager
def driven(
    profile: LatencyProfile = PROFILE, clock: Clock | None = None
) -> Iterator[tuple[DrivenEngine, EmulatedEngine]]:
    clock = clock or Clock()
    config = ModelConfig.of(profile, prefix_caching=False)
    engine = EmulatedEngine(profile, config, 1.0, lambda _: None, clock=clock, sleep=clock.sleep)
    with DrivenEngine(engine, make_request, 0.005, clock) as found:
        yield found, engine


def test_the_constants_come_out() -> None:
    sizes = sizes_of(PROFILE)
    with driven() as (engine, emulated):
        points = measure(engine, sizes, grid_of(sizes), 2, lambda _: None)
        assert emulated.snapshot("", 0).num_free_blocks == PROFILE.num_total_blocks
    found = asdict(fit(points))
    assert found == {key: pytest.approx(getattr(PROFILE, key), rel=1e-6) for key in found}
    assert len(points.mixed) >= 3
    assert all(p.steps[0].num_decoding and p.steps[0].prefill for p in points.mixed)
    error = FitError.of(points.mixed, PROFILE)
    assert error is not None
    assert error.largest < 1e-6, "they agree with the rule of the model"
    lengths = [sum(s.num_prefill_tokens for s in p.steps) for p in points.prefill]
    assert lengths == [64, 128, 256, 512, 1024, 2048, 4095]
    steps = [p.steps[0] for p in points.decode]
    assert {1, 2, 4, 8, 16, 24} <= {step.num_decoding for step in steps}


def test_slow_steps_among_others_are_told_and_do_not_count() -> None:
    clock, sizes = Clock(), sizes_of(PROFILE)
    with driven(clock=clock) as (engine, emulated):
        take_events, calls = emulated.take_events, itertools.count()

        def take_slowly_at_times() -> Any:
            clock.sleep(0.05 if next(calls) % 10 == 0 else 0.0)
            return take_events()

        emulated.take_events = take_slowly_at_times  # type: ignore[method-assign]
        found = measure(engine, sizes, grid_of(sizes), 4, lambda _: None)
    assert 0.05 < found.decode_excess < 0.15, "steps of 40 ms, one in ten 50 ms longer"
    error = FitError.of(found.decode, PROFILE)
    assert error is not None
    assert error.largest < 0.01


class PipelinedEngine:
    """Returns what the step before has put out: vLLM does on a GPU, where it launches ahead."""

    def __init__(self, engine: EmulatedEngine) -> None:
        self._engine = engine
        self._launched: deque[Any] = deque()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def has_work(self) -> bool:
        return self._engine.has_work() or bool(self._launched)

    def step(self) -> Any:
        if self._engine.has_work():
            self._launched.append(self._engine.step())
            if len(self._launched) == 1:
                return []
        return self._launched.popleft()


def test_of_steps_that_are_launched_ahead_the_mixed_ones_are_left_out() -> None:
    clock, sizes = Clock(), sizes_of(PROFILE)
    with driven(clock=clock) as (_, emulated):
        pipelined: Any = PipelinedEngine(emulated)
    with DrivenEngine(pipelined, make_request, 0.005, clock) as engine:
        points = measure(engine, sizes, grid_of(sizes), 1, lambda _: None)
    assert not points.mixed
    for point in points.decode:
        (step,) = point.steps
        wanted_s = PROFILE.step_time_s([], step.num_decoding, step.num_context_tokens)
        assert point.time_s == pytest.approx(wanted_s, rel=0.01), step


def test_a_step_tells_what_it_did() -> None:
    with driven() as (engine, _):
        engine.add(64, 20)
        assert (engine.num_pending, engine.contexts) == (1, [])
        assert engine.step().work == Step(((64, 0),))
        engine.add(100, 20)
        assert engine.step().work == Step(((100, 0),), 1, 65)
        assert engine.step().work == Step((), 2, 66 + 101)
        assert (engine.num_pending, engine.contexts) == (0, [67, 102])
        engine.clear()
        with pytest.raises(UnexpectedError, match="has lost a request"):
            engine.step()
    small = replace(PROFILE, num_total_blocks=9, max_model_len=140)
    with driven(small) as (engine, _):
        engine.add(64, 70)
        engine.add(64, 70)
        engine.step()  # eight of nine blocks, all full
        with pytest.raises(UnexpectedError, match="evicted a request"):
            engine.step()
