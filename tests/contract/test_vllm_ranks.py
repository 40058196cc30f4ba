"""Engines with two ranks: their blocks, what their workers are told, and a worker that dies."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from conftest import BLOCK_BYTES, BLOCK_SIZE, ON_GPU, empty

from controller.adapters.vllm.engine import VllmEngine
from controller.adapters.vllm.moves import decode_state, encode_state
from controller.adapters.vllm.rank_copies import RankBlocks
from controller.core.migration.refusals import MoveRefusal, differing_parts, refusal_between
from controller.ports.engine import ReservedBlocks
from tests.contract import ranks
from tests.contract.moving import Readers, evict
from tests.contract.test_vllm_moves import KINDS, moved_all_the_way, unmoved

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(ON_GPU, reason="two ranks need two GPUs"),
]
Engines = tuple[VllmEngine, VllmEngine]


@pytest.fixture
def engines(session_rank_engines: Engines) -> Iterator[Engines]:
    yield session_rank_engines
    for engine in session_rank_engines:
        empty(engine)


@pytest.fixture
def readers(model_path: Path, engines: Engines) -> Readers:
    return Readers(model_path, *engines)


@pytest.mark.parametrize("kind", KINDS)
def test_the_reader_cannot_tell(readers: Readers, kind: str) -> None:
    assert moved_all_the_way(readers, {"max_tokens": 60} | KINDS[kind]) > 1


@pytest.mark.parametrize("kind", ["seeded", "JSON schema"])
def test_the_reader_cannot_tell_a_replay(readers: Readers, kind: str) -> None:
    """One rank draws the generator anew, beside the steps, and all ranks get it."""
    here, there = readers.engines
    alone = unmoved(readers, "r", **KINDS[kind])
    readers.add("r", **KINDS[kind])
    readers.run("r", 9)
    readers.replay("r", there)
    readers.run("r", 14)
    evict(there, "r")
    assert readers.move("r", here) == ReservedBlocks((), 0)
    assert readers.finish()["r"] == alone.tokens


def test_a_state_that_does_not_fit_is_refused_by_all_ranks(readers: Readers) -> None:
    """The commit fails, and the reservation stays. The ranks stay in step."""
    here, there = readers.engines
    readers.add("r", **KINDS["seeded"])
    readers.run("r", 9)
    suspended = here.moves.suspend("r")
    assert suspended is not None
    prepared = there.prepare(readers.messages["r"], 0)
    assert isinstance(there.moves.reserve(prepared, (), 2), ReservedBlocks)
    state = decode_state(suspended.state)
    for generator, says in ((b"short", "not the state of a cpu generator"), (None, "belongs to")):
        wrong = encode_state(msgspec.structs.replace(state, generator=generator))
        with pytest.raises(ValueError, match=says):
            there.moves.commit("r", wrong)
    assert ranks.remembered(there) == [[], []]
    there.moves.commit("r", suspended.state)
    here.moves.release("r")
    assert ranks.remembered(there) == [["r"], ["r"]]


# -- blocks -------------------------------------------------------------------------------


def test_a_block_is_that_of_one_rank(
    readers: Readers, engine: VllmEngine, engines: Engines
) -> None:
    """Of each head each byte is where one rank has it; the values differ by rounding."""
    prompt = list(range(700, 700 + 3 * BLOCK_SIZE + 5))
    content = []
    for each in (engine, *engines):
        blocks = each.moves.blocks
        assert isinstance(blocks, RankBlocks) == (each is not engine)
        assert blocks.block_bytes == BLOCK_BYTES
        alone = Readers(readers.model_path, each)
        alone.add("r", prompt=prompt, max_tokens=5)
        alone.run("r", 2)
        pinned = each.moves.pin("r", 0)
        assert pinned is not None
        sent = blocks.gather(pinned.block_ids, blocks.buffer(3))
        content.append(np.frombuffer(bytes(sent), dtype=np.float32))
        each.moves.unpin("r")
    one, two, other = content
    assert two.tobytes() == other.tobytes()
    assert np.abs(one).max() > 1
    assert np.allclose(one, two, rtol=0, atol=1e-4)


def test_fingerprints(engine: VllmEngine, engines: Engines) -> None:
    here, there = (each.moves.fingerprint for each in engines)
    assert here == there
    one = engine.moves.fingerprint
    assert differing_parts(one, here) == {"ranks", "weights"}
    assert refusal_between(one, here) == MoveRefusal.RANKS


# -- another parallel size ----------------------------------------------------------------

CLEAR_MARGIN = 0.01
"""Between the log probabilities of the two best tokens. Two ranks add up their parts of a sum in
another order than one rank does, which is far less."""


def test_requests_move_between_engines_of_one_rank_and_of_two(
    model_path: Path, uncached_engine: VllmEngine, engines: Engines
) -> None:
    """60 moves to and fro. After each the tokens are those of a request that begins with all tokens
    so far, wherever the best token is clearly the best. Neither engine has a prefix cache, so that
    each move copies all blocks and nothing that was copied is used again."""
    alternating = (engines[1], uncached_engine)
    fingerprints = [each.moves.fingerprint for each in alternating]
    assert refusal_between(*fingerprints, allow_inexact=True) is None
    readers = Readers(model_path, uncached_engine, engines[1])
    num_clear = num_unclear = 0
    for number in range(6):
        prompt = list(range(400 + 37 * number, 440 + 53 * number))
        request_id = f"r-{number}"
        readers.add(request_id, prompt=prompt, max_tokens=66, logprobs=2)
        told = readers.told[request_id]
        ends: list[tuple[int, VllmEngine]] = []
        for move in range(10):
            readers.run(request_id, 6 * (move + 1))
            ends.append((len(told.tokens), readers.at[request_id]))
            found = readers.move(request_id, alternating[move % 2], num_stages=move % 3)
            assert isinstance(found, ReservedBlocks), found
            assert found.num_cached == 0
        readers.finish()
        ends.append((len(told.tokens), readers.at[request_id]))
        start = 0
        for end, served in ends:
            anew = Readers(model_path, served)
            prefix = [*prompt, *told.tokens[:start]]
            anew.add("anew", prompt=prefix, max_tokens=end - start, logprobs=2)
            anew.finish()
            for token, expected, (_, (_, best, second), _) in zip(
                told.tokens[start:end],
                anew.told["anew"].tokens,
                anew.told["anew"].logprobs,
                strict=True,
            ):
                if best - second < CLEAR_MARGIN:
                    num_unclear += 1
                    break
                assert token == expected
                num_clear += 1
            start = end
    assert num_clear > 350, f"{num_unclear} unclear"


# -- worker processes ---------------------------------------------------------------------


def test_nobody_can_connect_to_a_worker(engines: Engines) -> None:
    assert [ranks.num_listeners(engine) for engine in engines] == [[0, 0], [0, 0]]


def test_nothing_stays_behind_if_its_processes_are_killed(engines: Engines) -> None:
    assert [ranks.shared_names(engine) for engine in engines] == [set(), set()]


@pytest.mark.last
def test_a_worker_that_dies_ends_an_idle_engine(session_rank_engines: Engines) -> None:
    engine = session_rank_engines[1]
    blocks = engine.moves.blocks
    buffer = blocks.buffer(1)
    assert not engine.has_work()
    os.kill(engine._core.model_executor.workers[1].proc.pid, signal.SIGKILL)
    assert engine._lost_worker.wait(60)
    with pytest.raises(RuntimeError, match="a worker process of the engine died"):
        engine.has_work()
    with pytest.raises(RuntimeError, match="the process of rank 0 is gone"):
        blocks.gather([1], buffer)  # the executor has ended the other worker
