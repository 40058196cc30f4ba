"""The engine model's rules one by one; tests/contract compares the chunked mode with vLLM."""

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest

from controller.core.load.step_times import StepLimit
from controller.model.engine_model import EngineModel, StepResult
from controller.model.engine_state import ModelRequest, Segment
from controller.model.profile import ModelConfig, load_profile

PROFILE = load_profile("a10-llama-7b")
PAPER = ModelConfig(
    block_size=16,
    num_total_blocks=10,
    watermark_blocks=0,
    max_num_running=4,
    max_num_batched_tokens=100,
    max_model_len=160,
    prefix_caching=False,
    mode="prefill-first",
)
CHUNKED = replace(PAPER, mode="chunked")


def engine(config: ModelConfig, *requests: ModelRequest) -> EngineModel:
    model = EngineModel(config, PROFILE)
    for request in requests:
        model.add(request)
    return model


def steps(model: EngineModel) -> list[StepResult]:
    """All steps until nothing is left."""
    taken = []
    while model.has_work():
        taken.append(model.step())
        model.check()
    return taken


def request(
    request_id: str, num_prompt_tokens: int, max_output_tokens: int = 5, **more: object
) -> ModelRequest:
    return ModelRequest(request_id, num_prompt_tokens, max_output_tokens, **more)


def prefilled(taken: Sequence[StepResult]) -> list[dict[str, int]]:
    return [dict(step.num_prefill_tokens) for step in taken]


# -- what goes in ---------------------------------------------------------------------------


def test_what_can_never_run_is_refused() -> None:
    model = engine(PAPER, request("there", 5))
    for asked, complaint in (
        (request("a", 160), "has 160 prompt tokens, but max_model_len is 160"),
        (request("a", 0), "no prompt"),
        (request("a", 5, 0), "wants no output"),
        (request("there", 5), "already there"),
    ):
        with pytest.raises(ValueError, match=complaint):
            model.add(asked)
    assert [step.finished for step in steps(model) if step.finished] == [("there",)]


def test_what_outgrows_the_cache_is_refused() -> None:
    small = replace(CHUNKED, num_total_blocks=5)
    with pytest.raises(ValueError, match="grows to 82 tokens, but the KV cache holds 80"):
        engine(small, request("a", 60, 22))
    # The last token is given to the client and never computed.
    assert len(steps(engine(small, request("a", 60, 21)))) == 21


def test_a_config_that_is_wrong() -> None:
    bounds = {"block_size": 0, "watermark_blocks": -1, "max_num_running": 101, "max_model_len": -1}
    bounds["long_prefill_token_threshold"] = -1
    for name, wrong in (*bounds.items(), ("watermark_blocks", 10), ("mode", "fcfs")):
        with pytest.raises(ValueError, match=name):
            replace(PAPER, **{name: wrong})


# -- what a step costs ----------------------------------------------------------------------


def test_a_step_is_charged_for_what_it_computes() -> None:
    model = engine(CHUNKED, request("a", 30, 9))
    assert model.step().duration_s == PROFILE.step_time_s([(30, 0)], 0, 0)
    assert model.step().duration_s == PROFILE.step_time_s([], 1, 31)
    model.add(request("b", 110))
    assert model.step().duration_s == PROFILE.step_time_s([(99, 0)], 1, 32)
    assert model.step().duration_s == PROFILE.step_time_s([(11, 99)], 1, 33)
    assert model.step().duration_s == PROFILE.step_time_s([], 2, 34 + 111)


LONG = ModelConfig.of(PROFILE, prefix_caching=False)
"""An A10's: up to 2,048 tokens in a step, which take 0.42 s."""


def test_beside_a_stream_a_step_takes_no_longer_than_it_may() -> None:
    model = engine(LONG, request("stream", 30, 200))
    model.step()
    model.limit_steps(StepLimit(0.1))
    model.add(request("long", 2000, 2))
    taken = steps(model)
    chunks = [step.num_prefill_tokens["long"] for step in taken if step.num_prefill_tokens]
    assert sum(chunks) == 2000
    assert all("stream" in step.emitted for step in taken[: len(chunks)])
    assert all(0.099 < step.duration_s <= 0.1 for step in taken[: len(chunks) - 1])
    assert chunks[:-1] == sorted(chunks[:-1], reverse=True), "later ones compare with more tokens"


def test_without_a_stream_a_step_takes_as_long_as_it_wants() -> None:
    model = engine(LONG, request("a", 1000), request("b", 1000))
    model.limit_steps(StepLimit(0.1))
    assert prefilled([model.step()]) == [{"a": 1000, "b": 1000}]


def test_a_step_has_time_for_some_tokens_however_many_decode() -> None:
    model = engine(LONG, *(request(f"r{number}", 8, 200) for number in range(200)))
    model.step()
    model.limit_steps(StepLimit(0.05))
    model.add(request("long", 200, 2))
    taken = [model.step() for _ in range(4)]
    assert [step.num_prefill_tokens.get("long", 0) for step in taken] == [64, 64, 64, 8]
    assert all(len(step.emitted) >= 200 for step in taken)


def test_by_default_a_step_takes_seven_times_as_long_as_one_that_decodes_one_request() -> None:
    model = engine(LONG)
    assert model.snapshot("i-0", 1).step_limit_s == 0.0
    model.limit_steps(StepLimit(0.0))
    one_s = PROFILE.step_time_s([], 1, 1)
    assert model.snapshot("i-0", 1).step_limit_s == pytest.approx(7 * one_s)


def test_prompts_are_computed_more_slowly_beside_streams() -> None:
    """As the status says: what a step has left for prompts."""
    model = engine(LONG, *(request(f"r{number}", 500, 300) for number in range(16)))
    model.limit_steps(StepLimit(0.2))
    while model.step().num_prefill_tokens:
        pass
    model.add(request("long", 1500, 2))
    expected_s = model.snapshot("i-0", 1).backlog_s
    took_s = 0.0
    while (step := model.step()).num_prefill_tokens:
        took_s += step.duration_s
    assert expected_s == pytest.approx(took_s, rel=0.15)


# -- prefill-first: the paper's engine ------------------------------------------------------


def test_prompts_go_whole_and_first() -> None:
    model = engine(replace(PAPER, num_total_blocks=20), request("a", 20, 9))
    taken = [model.step(), model.step()]
    for name in ("b", "c", "d"):
        model.add(request(name, 40))
    taken += [model.step() for _ in range(3)]
    assert prefilled(taken) == [{"a": 20}, {}, {"b": 40, "c": 40}, {"d": 40}, {}]
    emitted = ["".join(step.emitted) for step in taken]
    assert emitted == ["a", "a", "bc", "d", "abcd"]
    model = engine(PAPER, request("a", 150), request("b", 4))
    assert prefilled([model.step(), model.step()]) == [{"a": 150}, {}], "longer than a step: alone"


def test_first_come_first_served_whatever_the_arrival_times_say() -> None:
    model = engine(
        replace(PAPER, max_num_running=1),
        request("a", 5, 1, arrival_time_s=9.0),
        request("b", 5, 1, arrival_time_s=1.0),
        request("c", 5, 1, rank=1),
    )
    assert [step.admitted for step in steps(model)] == [("c",), ("a",), ("b",)]


def test_the_last_admitted_is_evicted_and_goes_to_the_front() -> None:
    # 3 blocks each; the 10 are gone when the first two need their fourth.
    small = replace(PAPER, max_num_running=3)
    model = engine(small, *(request(name, 40, 20) for name in ("a", "b", "c")))
    for name in ("x", "y"):
        model.add(request(name, 16, 1))
    taken = steps(model)
    assert [step.evicted for step in taken if step.evicted] == [("c",)]
    then = [name for step in taken for name in step.admitted]
    assert then == ["a", "b", "c", "c", "x", "y"]
    _, again = (step for step in taken if "c" in step.admitted)
    # Its prompt and its outputs are computed again, and the step yields its next token.
    assert again.num_prefill_tokens["c"] > 40
    assert "c" in again.emitted
    assert sum(step.emitted.count("c") for step in taken) == 20


def test_a_lower_rank_is_evicted_first() -> None:
    high = request("high", 40, 20, rank=1)
    model = engine(replace(PAPER, num_total_blocks=7), request("low", 40, 20), high)
    assert [step.evicted for step in steps(model) if step.evicted] == [("low",)]


@pytest.mark.parametrize("config", [PAPER, CHUNKED])
def test_the_watermark_is_kept_from_admissions_unless_nothing_runs(config: ModelConfig) -> None:
    careful = replace(config, watermark_blocks=2)
    model = engine(careful, request("a", 95, 50), request("b", 33, 2), request("c", 10))
    # a takes 6 of 10 blocks, b needs 3 and would leave 1, and c does not overtake it.
    assert model.step().admitted == ("a",)
    assert model.snapshot("i-0", 1).num_free_blocks == 4
    assert model.step().admitted == ()
    model.abort(["a"])
    assert model.step().admitted == ("b", "c")
    # Alone, a request may have all of it.
    assert engine(careful, request("d", 159)).step().admitted == ("d",)


def _named(name: str, num_prompt_tokens: int) -> ModelRequest:
    return request(
        name, num_prompt_tokens, segment_at=lambda index: (("same", index), index, index + 1)
    )


@pytest.mark.parametrize("config", [PAPER, CHUNKED])
def test_what_is_cached(config: ModelConfig) -> None:
    caching = replace(config, prefix_caching=True)
    both = _named("a", 70), _named("b", 70)
    assert engine(config, *both).step().num_cached_tokens["a"] == 0
    model = engine(caching, request("a", 70), request("b", 70, 1))
    steps(model)
    model.add(request("b", 70))
    assert model.step().num_cached_tokens == {"b": 0}, "they have no hash"
    first = engine(replace(PAPER, prefix_caching=True), *both).step()
    assert dict(first.num_cached_tokens) == {"a": 0, "b": 64}, "whole prompts use it too"
    assert prefilled([first]) == [{"a": 70, "b": 6}]


def test_long_segments_are_cached_as_single_blocks_are() -> None:
    """Evictions included: the cache takes blocks one by one, whatever the segments are."""
    caching = replace(CHUNKED, prefix_caching=True, num_total_blocks=24, max_model_len=384)
    engines = []
    for size in (1, 3, 4):

        def segment_at(group: int, index: int, size: int = size) -> Segment:
            first = index // size * size
            return (group, first), first, first + size

        dice, model, taken = random.Random(7), EngineModel(caching, PROFILE), []
        for number in range(120):
            group, num_prompt_tokens = dice.randrange(5), dice.randint(20, 200)
            alike = partial(segment_at, group)
            name = f"r-{number}"
            model.add(request(name, num_prompt_tokens, 3, segment_at=alike))
            taken += steps(model)
        engines.append([(step.num_cached_tokens, step.duration_s) for step in taken])
    assert engines[0] == engines[1] == engines[2]
    assert 10 < sum(sum(cached.values()) > 0 for cached, _ in engines[0]) < 110
