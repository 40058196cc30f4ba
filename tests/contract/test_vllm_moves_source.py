"""The source's half of a move against vLLM's own state: every touch point of `SourceMoves` in
moves.py.
"""

from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import BLOCK_SIZE, NUM_BLOCKS, STEP_TOKENS

from controller.adapters.vllm.engine import VllmEngine
from controller.adapters.vllm.lora import EngineAdapters
from controller.core.migration.refusals import REASONS, MoveRefusal, refusal_of
from controller.ports.engine import SuspendedRequest
from tests.contract.moving import Readers, evict, num_free


@pytest.fixture
def engine(pair: tuple[VllmEngine, VllmEngine]) -> VllmEngine:
    return pair[0]


@pytest.fixture
def readers(model_path: Path, engine: VllmEngine) -> Readers:
    return Readers(model_path, engine)


def content(engine: VllmEngine, block_ids: tuple[int, ...]) -> bytes:
    blocks = engine.moves.blocks
    return bytes(blocks.gather(block_ids, blocks.buffer(len(block_ids))))


# -- pins ---------------------------------------------------------------------------------


def test_full_blocks_are_pinned_as_they_come(engine: VllmEngine, readers: Readers) -> None:
    readers.add("r", num_prompt_tokens=70, max_tokens=100)
    readers.run("r", 1)
    first = engine.moves.pin("r", 0)
    assert (list(first.block_ids), first.num_tokens) == (engine._kv.get_block_ids("r")[0][:2], 71)
    # In the end 127 and then 128 tokens are computed.
    for num_tokens, first_block, end in (1, 2, 2), (58, 2, 3), (59, 3, 4):
        readers.run("r", num_tokens)
        more = engine.moves.pin("r", first_block)
        assert list(more.block_ids) == engine._kv.get_block_ids("r")[0][first_block:end]
    assert num_free(engine) == NUM_BLOCKS - 4
    engine.moves.unpin("r")
    engine.moves.unpin("r")
    readers.finish()


@pytest.mark.parametrize("fate", ["finished", "aborted", "evicted", "released"])
def test_pinned_blocks_stay_whatever_becomes_of_the_request(
    engine: VllmEngine, readers: Readers, fate: str
) -> None:
    readers.add("r", num_prompt_tokens=100, max_tokens=10)
    readers.run("r", 2)
    pinned = engine.moves.pin("r", 0)
    before = content(engine, pinned.block_ids)
    if fate == "finished":
        readers.finish()
    elif fate == "aborted":
        engine.abort(["r"])
    elif fate == "evicted":
        evict(engine, "r")
        assert engine.moves.pin("r", 3) is None
        engine.abort(["r"])
    else:
        assert engine.moves.suspend("r") is not None
        engine.moves.release("r")
    assert engine.moves.pin("r", 3) is None
    assert num_free(engine) == NUM_BLOCKS - 3
    for n in range(6):  # all other blocks are written anew
        readers.add(f"o{n}", num_prompt_tokens=3 * BLOCK_SIZE - 5, max_tokens=5)
    readers.finish()
    assert content(engine, pinned.block_ids) == before
    engine.moves.unpin("r")
    assert num_free(engine) == NUM_BLOCKS


# -- suspended ----------------------------------------------------------------------------


def test_out_of_the_batch_and_back(engine: VllmEngine, readers: Readers) -> None:
    readers.add("r", num_prompt_tokens=60, max_tokens=20, temperature=1.0, seed=3)
    alone = readers.finish()["r"]
    readers.add("r", num_prompt_tokens=60, max_tokens=20, rank=1, temperature=1.0, seed=3)
    readers.run("r", 7)
    before = engine.snapshot("i-0", 1)
    for _ in range(2):
        suspended = engine.moves.suspend("r")
        assert isinstance(suspended, SuspendedRequest)
        assert suspended.num_tokens == 67
        assert list(suspended.block_ids) == engine._kv.get_block_ids("r")[0]
    assert engine.snapshot("i-0", 1) == before, "it counts as running, by its rank too"
    assert not engine.has_work()
    assert refusal_of(engine.moves.facts("r")) == MoveRefusal.MOVING
    assert engine.moves.pin("r", 0) is None
    assert tuple(readers.told["r"].tokens) == engine.moves.outputs("r")
    engine.moves.resume("r")
    assert refusal_of(engine.moves.facts("r")) is None
    assert readers.step() == ["r"]
    assert readers.finish()["r"] == alone
    engine.moves.resume("r")  # nothing to resume: it has finished


@pytest.mark.parametrize(("num_outputs", "num_blocks"), [(1, 1), (2, 2), (33, 2), (34, 3)])
def test_blocks_with_computed_tokens_are_handed_over(
    engine: VllmEngine, readers: Readers, num_outputs: int, num_blocks: int
) -> None:
    """The last token is not computed yet: a block that only that token would need is left out."""
    readers.add("r", num_prompt_tokens=BLOCK_SIZE, max_tokens=50)
    readers.run("r", num_outputs)
    engine.moves.release("r")  # not suspended
    suspended = engine.moves.suspend("r")
    assert (len(suspended.block_ids), suspended.num_tokens) == (num_blocks, 32 + num_outputs)
    engine.moves.release("r")
    engine.moves.release("r")
    assert num_free(engine) == NUM_BLOCKS
    assert refusal_of(engine.moves.facts("r")) == MoveRefusal.UNKNOWN
    assert not any(out.emitted for out in engine.step()), "or its frontend would hear of it"


def test_a_suspended_request_is_neither_evicted_nor_stepped_and_its_place_is_kept(
    engine: VllmEngine, readers: Readers
) -> None:
    """It would otherwise be the first to be evicted."""
    readers.add("late", num_prompt_tokens=2 * BLOCK_SIZE, max_tokens=120, arrival_s=99.0)
    alone = readers.finish()["late"]
    readers.add("late", num_prompt_tokens=2 * BLOCK_SIZE, max_tokens=120, arrival_s=99.0)
    readers.run("late", 5)
    assert engine.moves.suspend("late") is not None
    held = engine._kv.get_block_ids("late")[0]
    before = engine.snapshot("i-0", 1).num_evictions
    size = engine.max_num_running
    for n in range(size):
        readers.add(f"r{n}", num_prompt_tokens=BLOCK_SIZE, max_tokens=120, arrival_s=n)
    most = 0
    while any(readers.told[f"r{n}"].finish_reason is None for n in range(size)):
        assert "late" not in readers.step()
        most = max(most, len(engine._scheduler.running))
    assert most == size - 1
    assert engine.snapshot("i-0", 1).num_evictions > before
    assert engine._kv.get_block_ids("late")[0] == held
    engine.moves.resume("late")
    assert readers.finish()["late"] == alone


def test_a_suspended_request_is_aborted(engine: VllmEngine, readers: Readers) -> None:
    readers.add("other", max_tokens=30)
    readers.add("r", max_tokens=30)
    readers.run("r", 3)
    pinned = engine.moves.pin("r", 0)
    assert pinned is not None
    assert engine.moves.suspend("r") is not None
    engine.abort(["r"])
    assert engine.snapshot("i-0", 1).num_running == 1
    assert refusal_of(engine.moves.facts("r")) == MoveRefusal.UNKNOWN
    with pytest.raises(KeyError):
        engine.moves.suspend("r")
    engine.moves.resume("r")
    engine.moves.release("r")
    engine.moves.unpin("r")
    assert "r" not in readers.step()
    readers.finish()


def test_a_queued_request_out_of_the_queue_and_back(engine: VllmEngine, readers: Readers) -> None:
    for n, name in enumerate(["a", "b", "c"]):
        readers.add(name, num_prompt_tokens=40, max_tokens=3, arrival_s=float(n))
    before = engine.snapshot("i-0", 1)
    suspended = engine.moves.suspend("a")
    assert (suspended.block_ids, suspended.num_tokens) == ((), 40)
    assert engine.snapshot("i-0", 1) == before, "it counts as queued, and is still the head"
    engine.moves.resume("a")
    assert engine.snapshot("i-0", 1) == before
    assert engine._scheduler.waiting.peek_request().request_id == "a"
    assert engine.moves.suspend("b") is not None
    for _ in range(10):
        assert "b" not in readers.step()
    engine.moves.resume("b")
    readers.finish()
    assert refusal_of(engine.moves.facts("b")) == MoveRefusal.UNKNOWN
    readers.add("b", num_prompt_tokens=40, max_tokens=3)
    assert engine.moves.suspend("b") is not None
    engine.moves.release("b")
    assert not engine._scheduler.requests


def test_a_request_that_waits_for_its_grammar(engine: VllmEngine, readers: Readers) -> None:
    readers.add("r", guided={"regex": "[a-z]{3}"}, max_tokens=9)
    assert engine._scheduler.deferred_waiting
    assert engine.moves.is_queued("r")
    assert refusal_of(engine.moves.facts("r")) is None
    assert engine.moves.suspend("r") is not None
    assert not engine._scheduler.deferred_waiting
    engine.moves.resume("r")
    assert engine._scheduler.deferred_waiting
    readers.finish()
    assert readers.told["r"].finish_reason is not None


# -- its rank -----------------------------------------------------------------------------


def test_a_rank_that_changes(engine: VllmEngine, readers: Readers) -> None:
    """Of a request that waits, is suspended from the queue, runs, or is suspended from the
    batch."""
    engine.moves.set_rank("unknown", 1)
    for name, arrival_s in [("a", 1.0), ("b", 2.0), ("c", 3.0)]:
        readers.add(name, num_prompt_tokens=10, max_tokens=20, arrival_s=arrival_s)

    def head() -> str:
        found = engine.snapshot("i-0", 1).queue_head
        return found.request_id

    assert head() == "a"
    engine.moves.set_rank("b", 1)
    assert head() == "b" == engine._scheduler.waiting.peek_request().request_id
    assert engine.moves.suspend("c") is not None
    engine.moves.set_rank("c", 2)
    assert head() == "c"
    engine.moves.resume("c")
    assert head() == "c" == engine._scheduler.waiting.peek_request().request_id
    readers.step()
    assert engine.snapshot("i-0", 1).num_running_by_rank == {0: 1, 1: 1, 2: 1}
    engine.moves.set_rank("b", 0)
    assert engine.moves.suspend("a") is not None
    engine.moves.set_rank("a", 2)
    assert engine.snapshot("i-0", 1).num_running_by_rank == {0: 1, 2: 2}
    engine.moves.resume("a")
    assert engine.snapshot("i-0", 1).num_running_by_rank == {0: 1, 2: 2}
    readers.finish()


# -- why not ------------------------------------------------------------------------------


def test_why_a_request_does_not_move(engine: VllmEngine, readers: Readers) -> None:
    moves = engine.moves
    assert refusal_of(moves.facts("unknown")) == MoveRefusal.UNKNOWN
    readers.add("r", num_prompt_tokens=2 * STEP_TOKENS, max_tokens=20)
    assert refusal_of(moves.facts("r")) is None, "it waits"
    assert moves.pin("r", 0) is moves.pin("unknown", 0) is None
    readers.step()
    assert refusal_of(moves.facts("r")) == MoveRefusal.IN_PREFILL
    assert moves.suspend("r") is moves.pin("r", 0) is None
    readers.run("r", 1)
    assert refusal_of(moves.facts("r")) is None
    request = engine._scheduler.requests["r"]
    for name, value, refusal in [
        ("mm_features", ["an image"], MoveRefusal.MULTIMODAL),
        ("prompt_embeds", "a tensor", MoveRefusal.PROMPT_EMBEDS),
        ("pooling_params", "of an embedding", MoveRefusal.POOLING),
        ("resumable", True, MoveRefusal.STREAMED_PROMPT),
    ]:
        ordinary = getattr(request, name)
        setattr(request, name, value)
        assert refusal_of(moves.facts("r")) == refusal
        assert refusal in REASONS
        setattr(request, name, ordinary)
    assert moves.pin("r", 0) is not None
    assert refusal_of(moves.facts("r")) == MoveRefusal.MOVING
    moves.unpin("r")
    assert refusal_of(moves.facts("r")) is None


def test_why_an_engine_moves_nothing(engine: VllmEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.core.single_type_kv_cache_manager import MambaManager

    from controller.adapters.vllm import scheduler_side
    from controller.adapters.vllm.moves import VllmMoves

    core = engine._core
    assert scheduler_side.parts_of(core).refusal is None
    managers = core.scheduler.kv_cache_manager.coordinator
    two_groups = managers.single_type_managers * 2
    eagle = SimpleNamespace(method="eagle")

    for owner, name, value, why in [
        (core.vllm_config, "speculative_config", eagle, MoveRefusal.SPECULATIVE),
        (managers, "single_type_managers", two_groups, MoveRefusal.KV_GROUPS),
        (core, "model_executor", object(), MoveRefusal.PARALLEL),
    ]:
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, value)
            assert scheduler_side.parts_of(core).refusal == why
    states = (*managers.single_type_managers, object.__new__(MambaManager))
    ngram = SimpleNamespace(method="ngram")
    for owner, name, value, why in [
        (core.vllm_config, "speculative_config", ngram, MoveRefusal.SPECULATIVE),
        (core.vllm_config.parallel_config, "pipeline_parallel_size", 2, MoveRefusal.PARALLEL),
        (core.vllm_config.cache_config, "use_replayssm", True, MoveRefusal.KV_GROUPS),
    ]:
        with monkeypatch.context() as patch:
            patch.setattr(managers, "single_type_managers", states)
            patch.setattr(owner, name, value)
            parts = scheduler_side.parts_of(core)
            assert (parts.refusal, parts.demand(BLOCK_SIZE + 1)) == (why, 2)
    with monkeypatch.context() as patch:
        patch.setattr(managers, "single_type_managers", ())
        assert scheduler_side.parts_of(core).refusal == MoveRefusal.KV_GROUPS
    with monkeypatch.context() as patch:
        patch.setattr(core.vllm_config.parallel_config, "world_size", 2)
        assert scheduler_side.parts_of(core).refusal == MoveRefusal.PARALLEL
        moves = VllmMoves(core, EngineAdapters(core))
    assert (moves.fingerprint, moves.blocks.block_bytes) == ("", 0)
    assert refusal_of(moves.facts("r")) == MoveRefusal.UNKNOWN
