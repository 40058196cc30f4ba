"""What a real engine reports of its requests so that some can be chosen: every touch point of
`VllmMoves.candidates`.
"""

import random
from collections.abc import Mapping
from pathlib import Path

import pytest
from conftest import BLOCK_SIZE, NUM_BLOCKS

from controller.adapters.vllm.engine import VllmEngine
from controller.core.emptying.relief import Candidate
from tests.contract.moving import Readers, evict, num_free


@pytest.fixture
def engine(pair: tuple[VllmEngine, VllmEngine]) -> VllmEngine:
    return pair[0]


@pytest.fixture
def readers(model_path: Path, engine: VllmEngine) -> Readers:
    return Readers(model_path, engine)


def candidates(engine: VllmEngine) -> Mapping[str, Candidate]:
    found = engine.moves.candidates()
    counted = engine.snapshot("i-0", 1)
    assert sum(not c.queued for c in found) == counted.num_running
    assert sum(c.queued for c in found) == counted.num_queued
    assert sum(c.evicted for c in found) == counted.num_evicted_queued
    return {candidate.request_id: candidate for candidate in found}


def test_running_ones(engine: VllmEngine, readers: Readers) -> None:
    readers.add("r", num_prompt_tokens=70, max_tokens=100, rank=1, arrival_s=5.0)
    readers.add("long", num_prompt_tokens=400, max_tokens=300, arrival_s=6.0)
    readers.run("r", 2)
    assert engine.moves.pin("r", 0) is not None
    assert candidates(engine)["r"].facts.leaving
    assert candidates(engine)["r"].num_freed_blocks == 3, "what is pinned is its own"
    engine.moves.unpin("r")
    found = candidates(engine)
    blocks = {"num_blocks": 3, "num_freed_blocks": 3, "num_outputs": 2}
    expected = Candidate("r", 1, 72, **blocks, queued=False, arrival_time_s=5.0, num_tokens_left=98)
    assert found["r"] == expected
    assert found["long"].facts.in_prefill
    assert found["long"].num_tokens_left == 512 - 400, "the model's limit comes first"
    readers.finish()


def test_queued_and_evicted_ones(engine: VllmEngine, readers: Readers) -> None:
    readers.add("r", num_prompt_tokens=40, max_tokens=60, arrival_s=1.0)
    readers.run("r", 5)
    evict(engine, "r")
    readers.add("new", num_prompt_tokens=40, max_tokens=60, rank=1, arrival_s=2.0)
    found = candidates(engine)
    waits = {"queued": True, "evicted": True, "num_outputs": 5}
    expected = Candidate("r", 0, 45, 0, 0, **waits, arrival_time_s=1.0, num_tokens_left=55)
    assert found["r"] == expected
    assert (found["new"].queued, found["new"].evicted, found["new"].rank) == (True, False, 1)
    assert engine.moves.suspend("new") is not None
    assert candidates(engine)["new"].facts.leaving, "and it still is one"
    engine.moves.resume("new")
    assert not candidates(engine)["new"].facts.leaving
    readers.finish()


def test_what_goes_is_free_but_for_what_is_shared(engine: VllmEngine, readers: Readers) -> None:
    dice = random.Random(7)
    common = [dice.randrange(300, 2000) for _ in range(2 * BLOCK_SIZE)]
    own = {name: [300 + n] * (BLOCK_SIZE + 8) for n, name in enumerate(("a", "b"))}
    for name, tail in own.items():
        readers.add(name, prompt=[*common, *tail], max_tokens=60)
        readers.run(name, 2)
    for expected in (2, 4):
        for name, found in candidates(engine).items():
            assert (found.num_blocks, found.num_freed_blocks) == (4, expected), name
        before = num_free(engine)
        leaving = "b" if expected == 2 else "a"
        assert engine.moves.suspend(leaving) is not None
        assert candidates(engine)[leaving].facts.leaving
        engine.moves.release(leaving)
        assert num_free(engine) == before + expected
    assert num_free(engine) == NUM_BLOCKS
    again = engine.prepare(readers.messages["a"], 0)
    engine.moves.reserve(again, readers.told["a"].tokens, 4)
    assert engine.moves.candidates() == [], "one that arrives is none yet"
    engine.moves.cancel("a")
