"""Moves between engines with vLLM's second model runner: in short, the tests of moves that run on
both runners in `make test-full`, and what is special about the second one."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import BLOCK_BYTES, NUM_BLOCKS, ON_GPU, UNCACHED, empty
from test_vllm_moves import KINDS, THINKING, moved_all_the_way, unmoved

from controller.adapters.vllm.engine import VllmEngine
from controller.core.migration.refusals import MoveRefusal, refusal_between
from controller.ports.engine import ReservedBlocks
from tests.contract import second_runner
from tests.contract.moving import Readers, evict
from tests.contract.second_runner import Runner

pytestmark = pytest.mark.skipif(second_runner.MISSING, reason="Triton is not installed")


@pytest.fixture
def runner() -> Runner:
    return "V2"


@pytest.mark.parametrize("kind", ["greedy", "seeded"])
def test_the_reader_cannot_tell(readers: Readers, kind: str) -> None:
    assert moved_all_the_way(readers, {"max_tokens": 22} | KINDS[kind]) > 4


@pytest.mark.full
def test_the_budget_of_a_thought_travels(readers: Readers) -> None:
    """On the first runner such a request cannot move."""
    options = {"max_tokens": 40} | THINKING
    assert moved_all_the_way(readers, options) > 4
    alone = unmoved(readers, "r", **options)
    readers.add("r", **options)
    for num_tokens, to in ((6, readers.engines[1]), (18, readers.engines[0])):
        readers.run("r", num_tokens)
        readers.replay("r", to)
    assert readers.finish()["r"] == alone.tokens


@pytest.mark.skipif(ON_GPU, reason="with 16-bit floats the two runners may round differently")
def test_greedy_tokens_are_those_of_the_first_runner(readers: Readers, engine: VllmEngine) -> None:
    first = Readers(readers.model_path, engine)
    of_first, of_second = (unmoved(each, "r", max_tokens=12) for each in (first, readers))
    assert of_first.tokens == of_second.tokens


def test_no_request_moves_between_two_runners(readers: Readers, engine: VllmEngine) -> None:
    """They draw different tokens from one seed."""
    here, there = readers.engines
    assert refusal_between(here.moves.fingerprint, there.moves.fingerprint) is None
    refusal = refusal_between(engine.moves.fingerprint, here.moves.fingerprint)
    assert refusal == MoveRefusal.MODEL_RUNNER


# -- steps that are scheduled ahead -------------------------------------------------------


@pytest.fixture(scope="module")
def engines_ahead(
    session_v2_engines: Any, engine_args: dict[str, Any]
) -> Iterator[tuple[VllmEngine, VllmEngine]]:
    del session_v2_engines  # made before these
    with second_runner.chosen("V2"), second_runner.scheduled_ahead():
        engines = (
            VllmEngine(engine_args | {"async_scheduling": True}, lambda _: None),
            VllmEngine(engine_args | UNCACHED | {"async_scheduling": True}, lambda _: None),
        )
    yield engines
    for engine in engines:
        engine._core.model_executor.shutdown()


@pytest.fixture
def readers_ahead(
    model_path: Path, engines_ahead: tuple[VllmEngine, VllmEngine]
) -> Iterator[Readers]:
    yield Readers(model_path, *engines_ahead)
    for engine in engines_ahead:
        empty(engine)


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_each_step_is_scheduled_while_the_one_before_it_runs(
    readers_ahead: Readers, kind: str
) -> None:
    assert readers_ahead.engines[0]._core.batch_queue is not None
    assert moved_all_the_way(readers_ahead, {"max_tokens": 60} | KINDS[kind]) > 1


@pytest.mark.full
@pytest.mark.parametrize("kind", ["greedy", "penalties", "JSON schema"])
def test_evicted_and_replayed_with_a_step_under_way(readers_ahead: Readers, kind: str) -> None:
    here, there = readers_ahead.engines
    options = {"max_tokens": 40} | KINDS[kind]
    alone = unmoved(readers_ahead, "r", **options)
    readers_ahead.add("r", **options)
    readers_ahead.run("r", 5)
    evict(here, "r")
    assert readers_ahead.move("r", there) == ReservedBlocks((), 0)
    readers_ahead.run("r", 9)
    readers_ahead.replay("r", here)
    readers_ahead.run("r", 13)
    assert isinstance(readers_ahead.move("r", there, num_stages=1), ReservedBlocks)
    readers_ahead.finish()
    assert readers_ahead.told["r"].tokens == alone.tokens


# -- several ranks ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def engines_of_ranks(
    session_v2_engines: Any, engine_args: dict[str, Any]
) -> Iterator[tuple[VllmEngine, VllmEngine]]:
    del session_v2_engines  # made before these
    ranks = {
        "tensor_parallel_size": 2,
        "kv_cache_memory_bytes": (NUM_BLOCKS + 1) * BLOCK_BYTES // 2,
    }
    with second_runner.chosen("V2"):
        engines = (
            VllmEngine(engine_args | ranks, lambda _: None),
            VllmEngine(engine_args | ranks | {"enable_prefix_caching": False}, lambda _: None),
        )
    yield engines
    for engine in engines:
        engine.moves.close()
        engine._core.model_executor.shutdown()


@pytest.mark.full
@pytest.mark.skipif(ON_GPU, reason="two ranks need two GPUs")
@pytest.mark.parametrize("kind", ["greedy", "seeded", "penalties", "JSON schema"])
def test_between_engines_of_two_ranks(
    model_path: Path, engines_of_ranks: tuple[VllmEngine, VllmEngine], kind: str
) -> None:
    readers = Readers(model_path, *engines_of_ranks)
    assert moved_all_the_way(readers, {"max_tokens": 40} | KINDS[kind]) > 1
    for engine in engines_of_ranks:
        empty(engine)


# -- what a client may send ---------------------------------------------------------------

TOO_LONG: dict[str, Any] = {
    "allowed_token_ids": {"allowed_token_ids": list(range(300, 1325))},
    "logit_bias": {"logit_bias": dict.fromkeys(range(300, 1325), 1.0)},
    "stop_token_ids": {"min_tokens": 2, "stop_token_ids": list(range(300, 428))},
    "bad_words": {"bad_words": ["x" + " word" * 60 + str(n) for n in range(17)]},
}


@pytest.mark.parametrize("name", TOO_LONG)
def test_a_list_that_is_too_long_does_not_end_the_engine(readers: Readers, name: str) -> None:
    """Without the check vLLM's worker raises ValueError in the middle of a step."""
    with pytest.raises(ValueError, match=name):
        readers.add("r", **TOO_LONG[name])
    longest = dict(TOO_LONG[name])
    value = longest[name]
    longest[name] = dict(list(value.items())[1:]) if isinstance(value, dict) else value[1:]
    readers.add("r", max_tokens=2, **longest)
    assert len(readers.finish()["r"]) == 2
