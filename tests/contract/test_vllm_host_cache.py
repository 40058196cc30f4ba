"""The host cache of a vLLM engine: what its prefix cache has lost comes back as it was."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import BLOCK_SIZE, NUM_BLOCKS

from controller.adapters.vllm.engine import VllmEngine
from controller.adapters.vllm.host_cache import HostCache
from controller.core.load.cached_prefixes import PREFIX_TOKENS
from tests.contract.moving import Readers, message, num_free
from tests.contract.test_vllm_moves import KINDS

DICE = random.Random(32)


def prompt(num_blocks: int) -> list[int]:
    return [DICE.randrange(300, 2000) for _ in range(num_blocks * BLOCK_SIZE + 7)]


@pytest.fixture
def host(engine: VllmEngine) -> Iterator[HostCache]:
    """Room for 12 blocks."""
    blocks, contents = engine.moves.blocks, engine._contents
    assert contents is not None
    assert engine.prefixes is not None
    engine._core.scheduler.reset_prefix_cache()
    before = contents.on_cached
    engine.keep_in_host(12 * blocks.block_bytes)
    assert engine.host_cache is not None
    yield engine.host_cache
    settle(engine)
    engine.host_cache.close()
    engine.host_cache = engine.prefixes.host_cache = None
    contents.on_cached, engine.moves.blocks = before, blocks


@pytest.fixture
def readers(model_path: Path, engine: VllmEngine) -> Readers:
    return Readers(model_path, engine)


def settle(engine: VllmEngine) -> None:
    """Ends all copies to the host cache."""
    assert engine.host_cache is not None
    engine.host_cache.turn(lambda: (), wait=True)
    engine.host_cache.check()


def load(engine: VllmEngine, request: Any, num_tokens: int) -> int:
    """Loads what the host cache has; returns the number of blocks."""
    assert engine.prefixes is not None
    reserved = engine.prefixes.reserve("in", request, num_tokens)
    assert reserved is not None
    if not reserved.block_ids:
        return 0
    lent = engine.prefixes.lend("out", reserved.names)
    buffer = engine.moves.blocks.buffer(len(reserved.block_ids))
    engine.moves.blocks.gather(lent, buffer)
    engine.moves.blocks.scatter(reserved.block_ids[: len(lent)], buffer)
    engine.prefixes.take_back("out")
    engine.prefixes.store("in", len(lent))
    return len(lent)


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize("kind", KINDS)
def test_the_reader_cannot_tell(readers: Readers, model_path: Path, kind: str) -> None:
    engine, asked = readers.engines[0], prompt(5)
    options = {"max_tokens": 40, "prompt": asked} | KINDS[kind]
    readers.add("alone", **options)
    readers.finish()
    alone = readers.told.pop("alone")
    settle(engine)
    engine._core.scheduler.reset_prefix_cache()
    engine.take_events()

    request = engine.prepare(message("look", model_path, **options), 0)
    uses_cache = kind != "prompt logprobs"  # these are computed with the prompt
    assert load(engine, request, len(asked)) == 5 * uses_cache
    assert num_free(engine) == NUM_BLOCKS
    readers.add("r", **options)
    readers.finish()
    told = readers.told["r"]
    assert (told.tokens, told.finish_reason) == (alone.tokens, alone.finish_reason)
    assert told.logprobs == alone.logprobs
    assert told.prompt_logprobs == alone.prompt_logprobs
    (admitted,) = engine.take_events()
    assert admitted.num_cached_tokens == 5 * BLOCK_SIZE * uses_cache
    settle(engine)
    assert num_free(engine) == NUM_BLOCKS


def test_it_holds_what_was_used_last_and_says_what_it_has(
    readers: Readers, host: HostCache, model_path: Path
) -> None:
    engine = readers.engines[0]
    num_blocks = PREFIX_TOKENS // BLOCK_SIZE + 1
    first, second = prompt(num_blocks), prompt(12)
    readers.add("a", prompt=first, max_tokens=1)
    readers.finish()
    settle(engine)
    fits = num_blocks <= 12
    assert len(host) == min(num_blocks, 12)
    gained = engine.take_host_cache_changes()
    assert gained is not None
    assert list(gained.values()) == [True] * fits
    readers.add("b", prompt=second, max_tokens=1)
    readers.finish()
    settle(engine)
    assert len(host) == 12
    lost = engine.take_host_cache_changes()
    assert lost is not None
    assert all(lost[name] is False for name in gained)
    engine._core.scheduler.reset_prefix_cache()
    for asked, number in ((first, 0), (second, 12)):
        request = engine.prepare(message("look", model_path, prompt=asked), 0)
        assert load(engine, request, len(asked)) == number


def test_a_block_that_is_read_is_not_dropped(
    readers: Readers, host: HostCache, model_path: Path
) -> None:
    engine, asked = readers.engines[0], prompt(12)
    assert engine.prefixes is not None
    readers.add("a", prompt=asked, max_tokens=1)
    readers.finish()
    settle(engine)
    engine._core.scheduler.reset_prefix_cache()
    request = engine.prepare(message("look", model_path, prompt=asked), 0)
    reserved = engine.prefixes.reserve("in", request, len(asked))
    assert reserved is not None
    lent = engine.prefixes.lend("out", reserved.names)
    assert len(lent) == 12
    engine.prefixes.store("in", 0)
    readers.add("b", prompt=prompt(6), max_tokens=1)
    readers.finish()
    settle(engine)
    assert len(host) == 12, "there was no room for the others"
    assert len(engine.prefixes.lend("again", reserved.names)) == 12
    engine.prefixes.take_back("out")
    engine.prefixes.take_back("again")
    settle(engine)
    assert num_free(engine) == NUM_BLOCKS
