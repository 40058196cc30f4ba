"""The destination's half of a move against vLLM's own state: every touch point of
moves.py, scheduler_side.py and worker_side.py."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from conftest import BLOCK_SIZE, NUM_BLOCKS

from controller.adapters.vllm.engine import VllmEngine
from controller.adapters.vllm.moves import decode_state, encode_state
from controller.core.migration.refusals import MoveRefusal
from controller.ports.engine import ReservedBlocks, SuspendedRequest
from tests.contract.moving import Readers, message, num_free, tokenizer


@pytest.fixture
def engine(pair: tuple[VllmEngine, VllmEngine]) -> VllmEngine:
    return pair[0]


@pytest.fixture
def readers(model_path: Path, pair: tuple[VllmEngine, VllmEngine]) -> Readers:
    return Readers(model_path, *reversed(pair))


def reserve(
    engine: VllmEngine, model_path: Path, request_id: str, num_blocks: int, **more: Any
) -> Any:
    prepared = engine.prepare(message(request_id, model_path, **more), 0)
    return engine.moves.reserve(prepared, [], num_blocks)


def suspended(readers: Readers, num_outputs: int = 5, **options: Any) -> SuspendedRequest:
    """A request "r" that has left the other engine, whose books do not know it any more."""
    readers.add("r", num_prompt_tokens=40, max_tokens=60, **options)
    readers.run("r", num_outputs)
    source = readers.engines[0].moves
    found = source.suspend("r")
    assert found is not None
    source.release("r")
    return found


def expect(
    engine: VllmEngine, readers: Readers, num_blocks: int = 2, outputs: Sequence[int] = ()
) -> ReservedBlocks:
    """The engine has room for the request "r"."""
    prepared = engine.prepare(readers.messages["r"], 0)
    found = engine.moves.reserve(prepared, outputs, num_blocks)
    assert isinstance(found, ReservedBlocks)
    return found


# -- reserved -----------------------------------------------------------------------------


def test_a_reservation_counts_and_grows_and_goes(engine: VllmEngine, model_path: Path) -> None:
    found = reserve(engine, model_path, "r", 3, rank=1)
    assert isinstance(found, ReservedBlocks)
    assert (len(set(found.block_ids)), found.num_cached) == (3, 0)
    now = engine.snapshot("i-0", 1)
    assert (now.num_free_blocks, now.num_running, now.num_queued) == (NUM_BLOCKS - 3, 1, 0)
    assert (now.num_running_by_rank, now.fill_blocks) == ({1: 1}, 0)
    assert not engine.has_work()
    grown = engine.moves.extend("r", 5)
    assert grown.block_ids[:3] == found.block_ids
    assert len(set(grown.block_ids)) == 5
    assert engine.moves.extend("r", 5) == grown
    assert engine.moves.extend("r", 2) == grown
    engine.abort(["r"])  # no request of this engine's yet
    assert num_free(engine) == NUM_BLOCKS - 5
    engine.moves.cancel("r")
    engine.moves.cancel("r")
    assert num_free(engine) == NUM_BLOCKS
    assert engine.snapshot("i-0", 1).num_running == 0


def test_without_blocks_nothing_is_taken(engine: VllmEngine, model_path: Path) -> None:
    most = reserve(engine, model_path, "a", 17)
    assert isinstance(most, ReservedBlocks)
    assert len(most.block_ids) == engine.max_model_len // BLOCK_SIZE == 16, "the context's end"
    assert reserve(engine, model_path, "r", 9) == MoveRefusal.NO_BLOCKS
    assert (num_free(engine), engine.snapshot("i-0", 1).num_running) == (8, 1)
    found = reserve(engine, model_path, "r", 7)
    assert isinstance(found, ReservedBlocks)
    assert engine.moves.extend("r", 9) is None
    assert num_free(engine) == 1
    assert engine.moves.extend("r", 7) == found, "what it has stays"
    engine.moves.cancel("r")
    engine.moves.cancel("a")


@pytest.mark.parametrize("guided", [None, {"regex": "[a-z]{3}x{40}"}])
def test_a_refused_request_may_be_offered_again_with_more_outputs(
    engine: VllmEngine, model_path: Path, guided: Any
) -> None:
    """A grammar takes them only when there are blocks."""
    assert isinstance(reserve(engine, model_path, "a", 16), ReservedBlocks)
    outputs = tokenizer(model_path).encode("abc", add_special_tokens=False)
    prepared = engine.prepare(message("r", model_path, guided=guided), 0)
    if guided:
        prepared.structured_output_request._grammar.exception()  # it is compiled
    assert engine.moves.reserve(prepared, outputs[:-1], 9) == MoveRefusal.NO_BLOCKS
    engine.moves.cancel("a")
    assert isinstance(engine.moves.reserve(prepared, outputs, 9), ReservedBlocks)
    assert list(prepared.output_token_ids) == outputs
    engine.moves.cancel("r")


@pytest.mark.parametrize("guided", [None, {"regex": "[a-z]{40}"}])
def test_the_watermark_is_kept_on_arrival_and_not_when_it_grows(
    engine: VllmEngine, model_path: Path, monkeypatch: pytest.MonkeyPatch, guided: Any
) -> None:
    monkeypatch.setattr(engine._kv, "watermark_blocks", 3)
    assert isinstance(reserve(engine, model_path, "a", 12), ReservedBlocks)
    assert reserve(engine, model_path, "r", 10, guided=guided) == MoveRefusal.NO_BLOCKS
    assert isinstance(reserve(engine, model_path, "r", 9, guided=guided), ReservedBlocks)
    assert engine.moves.extend("r", 12) is not None
    assert num_free(engine) == 0
    engine.moves.cancel("a")
    engine.moves.cancel("r")
    assert isinstance(reserve(engine, model_path, "r", 16), ReservedBlocks)
    engine.moves.cancel("r")


def test_what_a_running_prefill_still_takes_is_left_free(
    engine: VllmEngine, readers: Readers
) -> None:
    """A prompt of 10 blocks is admitted as a whole, and gets its blocks chunk by chunk."""
    readers.add("long", engine, num_prompt_tokens=300, max_tokens=3)
    readers.step(engine)
    before = engine.snapshot("i-0", 1)
    fill = before.fill_blocks
    assert fill > 0, "it is in mid-prefill"
    most = before.arrivable_blocks
    assert most == before.num_free_blocks - fill
    path = readers.model_path
    assert reserve(engine, path, "r", most + 1) == MoveRefusal.NO_BLOCKS
    assert isinstance(reserve(engine, path, "r", most - 1), ReservedBlocks)
    assert engine.moves.extend("r", most + 1) is None
    assert engine.moves.extend("r", most) is not None
    while readers.told["long"].finish_reason is None:
        readers.step(engine)
    assert engine.snapshot("i-0", 1).num_evictions == before.num_evictions
    engine.moves.cancel("r")


def test_a_place_in_the_batch_is_kept(engine: VllmEngine, readers: Readers) -> None:
    """A reserved place is still there at the commit."""
    cut = suspended(readers)
    size = engine.max_num_running
    for n in range(size - 1):
        readers.add(f"o{n}", engine, num_prompt_tokens=5, max_tokens=60)
    readers.step(engine)
    expect(engine, readers, outputs=readers.told["r"].tokens)
    free = num_free(engine)
    assert reserve(engine, readers.model_path, "no", 1) == MoveRefusal.NO_SLOT
    assert num_free(engine) == free
    assert reserve(engine, readers.model_path, "queued", 0) == ReservedBlocks((), 0)
    assert engine.moves.extend("queued", 1) is None
    assert engine.snapshot("i-0", 1).num_queued == 0
    engine.moves.cancel("queued")
    readers.add("late", engine, num_prompt_tokens=5, max_tokens=3)
    readers.step(engine)
    assert len(engine._scheduler.running) == size - 1
    now = engine.snapshot("i-0", 1)
    assert (now.num_running, now.num_queued, now.max_num_running) == (size, 1, size)
    assert not engine.moves.take_entered()
    engine.moves.commit("r", cut.state)
    assert engine.moves.take_entered()
    assert "r" in readers.step(engine)
    assert len(engine._scheduler.running) == size
    readers.finish()


def test_what_is_not_taken(engine: VllmEngine, model_path: Path, readers: Readers) -> None:
    from vllm.lora.request import LoRARequest

    adapter = LoRARequest("adapter", 1, "somewhere")
    assert reserve(engine, model_path, "r", 1, lora_request=adapter) == MoveRefusal.NO_ADAPTER
    readers.add("here", engine)
    assert reserve(engine, model_path, "here", 1) == MoveRefusal.NOT_TAKEN
    assert isinstance(reserve(engine, model_path, "r", 1), ReservedBlocks)
    assert reserve(engine, model_path, "r", 1) == MoveRefusal.NOT_TAKEN
    engine.moves.cancel("r")
    assert reserve(engine, model_path, "r", 1, num_prompt_tokens=512) == MoveRefusal.NOT_TAKEN
    prepared = engine.prepare(message("r", model_path), 0)
    prepared.resumable = True
    assert engine.moves.reserve(prepared, [], 1) == MoveRefusal.STREAMED_PROMPT


def test_reserved_blocks_are_neither_wiped_nor_offered_to_the_prefix_cache(
    engine: VllmEngine, readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the commit the full ones are offered, and those that were not copied are wiped (in caches
    of mixed precision)."""
    manager = engine._kv.coordinator.single_type_managers[0]
    monkeypatch.setattr(manager, "_record_new_block_ids", True)
    cut = suspended(readers, 30)  # 69 tokens computed
    expect(engine, readers, 3, readers.told["r"].tokens)
    found = engine.moves.extend("r", 4)
    assert isinstance(found, ReservedBlocks)
    held = [engine._pool.blocks[block_id] for block_id in found.block_ids]
    assert manager.new_block_ids == []
    assert [block.block_hash for block in held] == [None] * 4
    engine.moves.commit("r", cut.state)
    assert manager.new_block_ids == list(found.block_ids[3:])
    assert [block.block_hash is not None for block in held] == [True, True, False, False]
    readers.finish()


# -- committed ----------------------------------------------------------------------------


def test_a_state_that_does_not_fit_changes_nothing(engine: VllmEngine, readers: Readers) -> None:
    cut = suspended(readers, temperature=1.0, seed=4)
    alone = readers.told["r"].tokens[:]
    good = decode_state(cut.state)
    reserved = expect(engine, readers, outputs=good.output_token_ids[:3])
    before = engine.snapshot("i-0", 1)

    def changed(**fields: Any) -> Any:
        return encode_state(msgspec.structs.replace(good, **fields))

    bad = [
        [],
        [b"\xc1"],
        [b"\x90"],
        [*cut.state, b""],
        changed(queued=True),
        changed(output_token_ids=[]),
        changed(output_token_ids=[1, *good.output_token_ids[1:]]),
        changed(output_token_ids=good.output_token_ids[:2]),
        changed(output_token_ids=good.output_token_ids + [500] * 24),
        changed(generator=b""),
        changed(generator=b"neither a CPU's nor a GPU's"),
        changed(output_token_ids="five"),
        changed(num_preemptions=-0.5),
    ]
    if good.generator is not None:  # the second model runner has none
        bad.append(changed(generator=None))
    for state in bad:
        with pytest.raises(ValueError, match=r".+"):
            engine.moves.commit("r", state)
        assert engine.snapshot("i-0", 1) == before
        assert engine.moves.extend("r", 2) == reserved
        assert not engine.has_work()
    engine.moves.commit("r", cut.state)
    with pytest.raises(KeyError):
        engine.moves.commit("r", cut.state)
    assert readers.told["r"].tokens == alone
    engine.abort(["r"])


def test_a_generator_belongs_to_a_seeded_request(engine: VllmEngine, readers: Readers) -> None:
    cut = suspended(readers)
    good = decode_state(cut.state)
    assert good.generator is None
    expect(engine, readers)
    state = encode_state(msgspec.structs.replace(good, generator=bytes(5056)))
    with pytest.raises(ValueError, match="generator"):
        engine.moves.commit("r", state)
    engine.moves.cancel("r")


def test_an_id_that_comes_back_before_the_worker_forgot_it(
    engine: VllmEngine, readers: Readers
) -> None:
    """Otherwise a KeyError in the worker would end the engine, or the request would get its old
    blocks."""
    scheduler = engine._scheduler
    readers.add("r", engine)
    alone = readers.finish()["r"]
    readers.add("r", engine)
    readers.run("r", 5)
    cut = engine.moves.suspend("r")
    assert cut is not None
    blocks = engine.moves.blocks
    buffer, wrong = blocks.buffer(2), blocks.buffer(2)
    blocks.gather(cut.block_ids, buffer)
    engine.moves.release("r")
    assert "r" in scheduler.finished_req_ids
    assert scheduler.reset_prefix_cache()
    reserved = expect(engine, readers)
    assert reserved.block_ids != cut.block_ids
    blocks.writable(wrong, 2)[:] = bytes(2 * blocks.block_bytes)
    blocks.scatter(cut.block_ids, wrong)
    blocks.scatter(reserved.block_ids, buffer)
    engine.moves.commit("r", cut.state)
    assert readers.finish()["r"] == alone


def test_an_id_that_comes_back_to_the_queue_before_the_worker_forgot_it(
    engine: VllmEngine, readers: Readers
) -> None:
    """It had a row in the second runner's worker, which has one for each place in the batch. The
    row has to be free for the request that takes the place."""
    names = [f"r{n}" for n in range(engine.max_num_running)]
    for name in names:
        readers.add(name, engine, num_prompt_tokens=20, max_tokens=9)
    alone = {name: tokens[:] for name, tokens in readers.finish().items()}
    for name in names:
        readers.add(name, engine, num_prompt_tokens=20, max_tokens=9)
    readers.run("r0", 3)
    cut = engine.moves.suspend("r0")
    assert cut is not None
    engine.moves.release("r0")
    state = encode_state(msgspec.structs.replace(decode_state(cut.state), queued=True))
    prepared = engine.prepare(readers.messages["r0"], 0)
    assert engine.moves.reserve(prepared, [], 0) == ReservedBlocks((), 0)
    engine.moves.commit("r0", state)
    readers.add("first", engine, num_prompt_tokens=20, max_tokens=2, rank=1)
    readers.step(engine)
    assert engine.moves.is_queued("r0")
    assert readers.told["first"].tokens
    assert {name: readers.finish()[name] for name in names} == alone


@pytest.mark.parametrize("gone", ["aborted", "dropped", "dropped while it leaves again"])
def test_gone_after_the_commit(engine: VllmEngine, readers: Readers, gone: str) -> None:
    cut = suspended(readers)
    for num_steps in (0, 1, 4):
        expect(engine, readers)
        engine.moves.commit("r", cut.state)
        for _ in range(num_steps):
            assert [e.request_id for out in engine.step() for e in out.emitted] == ["r"]
        if gone == "aborted":
            engine.abort(["r"])
        else:
            if gone == "dropped while it leaves again":
                assert engine.moves.suspend("r") is not None
            engine.moves.drop("r")
            engine.moves.drop("r")
        assert num_free(engine) == NUM_BLOCKS
        while engine.has_work():
            assert not any(out.emitted for out in engine.step())


def test_suspended_again_before_its_first_step(engine: VllmEngine, readers: Readers) -> None:
    """The next engine gets what this one got."""
    cut = suspended(readers, temperature=1.0, seed=3)
    expect(engine, readers)
    engine.moves.commit("r", cut.state)
    again = engine.moves.suspend("r")
    assert (again.state, again.num_tokens) == (cut.state, cut.num_tokens)
    engine.moves.release("r")
