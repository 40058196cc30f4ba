"""Cached prefixes that leave an engine and come into one whose cache has lost them: the reader of
the next request cannot tell. In most tests one engine is source and destination, with an empty
cache between."""

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from conftest import BLOCK_SIZE, NUM_BLOCKS, on_engines

from controller.adapters.vllm.engine import VllmEngine
from controller.core.load.cached_prefixes import PrefixNames
from tests.contract.moving import Readers, check_alike, copy_prefix, message, num_free
from tests.contract.test_vllm_moves import KINDS

NUM_PROMPT_TOKENS = 5 * BLOCK_SIZE + 7
DICE = random.Random(31)
PROMPT = [DICE.randrange(300, 2000) for _ in range(NUM_PROMPT_TOKENS)]


def forget_all(engine: VllmEngine) -> None:
    assert engine._core.scheduler.reset_prefix_cache()


def prepared(engine: VllmEngine, model_path: Path, **options: Any) -> Any:
    return engine.prepare(message("look", model_path, **({"prompt": PROMPT} | options)), 0)


def names_of(engine: VllmEngine, request: Any) -> bytes:
    """What an engine without any of the prefix asks for."""
    forget_all(engine)
    found = engine.prefixes.reserve("ask", request, NUM_PROMPT_TOKENS)
    if found.block_ids:
        engine.prefixes.store("ask", 0)
    return found.names


@pytest.fixture
def readers(model_path: Path, engine: VllmEngine) -> Readers:
    return Readers(model_path, engine)


@on_engines(KINDS, on_all=("greedy", "seeded"))
def test_a_prompt_that_is_handed_over_is_that_of_its_request(
    cached_engines: tuple[VllmEngine, VllmEngine], model_path: Path, kind: str
) -> None:
    """The frames of one request are enough to bring its prompt into another engine, whose next
    request begins with it. No grammar is compiled for that."""
    source, engine = cached_engines
    readers = Readers(model_path, engine, source)
    options = {"max_tokens": 40, "prompt": PROMPT} | KINDS[kind]
    frames = message("look", model_path, **options)
    readers.add("before", source, **options)
    readers.add("alone", engine, **options)
    readers.finish()
    alone = readers.told["alone"]
    forget_all(engine)
    engine.take_events()

    handed_over = engine.prefixes.prompt(frames)
    assert handed_over.structured_output_request is None
    names = engine.prefixes.names(handed_over)
    assert names == source.prefixes.names(source.prepare(frames, 0))
    assert len(names) == 5
    assert copy_prefix(source, engine, handed_over, len(names) * BLOCK_SIZE) == 5
    assert num_free(engine) == num_free(source) == NUM_BLOCKS
    readers.add("r", engine, **options)
    readers.finish()
    check_alike(readers.told["r"], alone)
    (admitted,) = engine.take_events()
    assert admitted.num_cached_tokens == 5 * BLOCK_SIZE * (kind != "prompt logprobs")


@on_engines(KINDS, on_all=("greedy", "seeded"))
def test_the_reader_cannot_tell(
    cached_engines: tuple[VllmEngine, VllmEngine], model_path: Path, kind: str
) -> None:
    source, engine = cached_engines
    readers = Readers(model_path, engine, source)
    options = {"max_tokens": 40, "prompt": PROMPT} | KINDS[kind]
    readers.add("alone", engine, **options)
    readers.add("before", source, **options)
    readers.finish()
    alone = readers.told["alone"]
    forget_all(engine)
    engine.take_events()

    uses_cache = kind != "prompt logprobs"  # these are computed with the prompt
    request = prepared(engine, model_path, **options)
    assert copy_prefix(source, engine, request, NUM_PROMPT_TOKENS) == 5 * uses_cache
    assert num_free(engine) == num_free(source) == NUM_BLOCKS
    readers.add("r", engine, **options)
    readers.finish()
    check_alike(readers.told["r"], alone)
    (admitted,) = engine.take_events()
    assert admitted.num_cached_tokens == 5 * BLOCK_SIZE * uses_cache


def test_what_comes_is_used_as_it_is(readers: Readers, model_path: Path) -> None:
    """Otherwise the tests above would show nothing."""
    engine = readers.engines[0]
    readers.add("alone", prompt=PROMPT, max_tokens=20)
    readers.finish()
    request = prepared(engine, model_path)
    names_of(engine, request)
    forget_all(engine)
    reserved = engine.prefixes.reserve("in", request, NUM_PROMPT_TOKENS)
    blocks = engine.moves.blocks
    buffer = blocks.buffer(5)
    content = blocks.writable(buffer, 5)
    content[:] = bytes(len(content))  # freed memory may hold the very states of the prompt
    blocks.scatter(reserved.block_ids, buffer)
    engine.prefixes.store("in", 5)
    readers.add("r", prompt=PROMPT, max_tokens=20)
    readers.finish()
    assert readers.told["r"].tokens != readers.told["alone"].tokens


def test_only_what_is_lacking_is_asked_for_and_only_the_beginning_that_is_there_is_lent(
    readers: Readers, model_path: Path
) -> None:
    engine = readers.engines[0]
    request = prepared(engine, model_path)
    names = names_of(engine, request)
    readers.add("short", prompt=PROMPT[: 2 * BLOCK_SIZE + 1], max_tokens=1)
    readers.finish()
    assert len(engine.prefixes.lend("a", names)) == 2
    assert num_free(engine) == NUM_BLOCKS - 2, "lent blocks stay"
    engine.prefixes.take_back("a")
    assert engine.prefixes.lend("b", msgspec.msgpack.encode([b"other", b"names"])) == ()
    engine.prefixes.take_back("b")
    assert engine.prefixes.lend("c", b"\xff") == ()
    engine.prefixes.take_back("c")
    reserved = engine.prefixes.reserve("d", request, NUM_PROMPT_TOKENS)
    assert len(reserved.block_ids) == 3
    assert num_free(engine) == NUM_BLOCKS - 5, "what it has is held, too"
    engine.prefixes.store("d", 1)
    assert num_free(engine) == NUM_BLOCKS
    assert engine.moves.num_cached_tokens(request) == 3 * BLOCK_SIZE
    again = engine.prefixes.reserve("e", request, 3 * BLOCK_SIZE + 5)
    assert again.block_ids == (), "nothing is lacking"
    assert num_free(engine) == NUM_BLOCKS


def test_without_room_nothing_is_held(engine: VllmEngine, model_path: Path) -> None:
    request = prepared(engine, model_path)
    first = engine.prefixes.reserve("a", request, NUM_PROMPT_TOKENS)
    assert len(first.block_ids) == 5
    many = []
    while (found := engine.prefixes.reserve(f"more-{len(many)}", request, 999)) is not None:
        many.append(found)
    assert len(many) >= 2
    free = num_free(engine)
    assert free < 5 + engine._kv.watermark_blocks
    for number in range(len(many)):
        engine.prefixes.store(f"more-{number}", 5)
    engine.prefixes.store("a", 5)
    assert num_free(engine) == NUM_BLOCKS, "copies of one block are several blocks"
    assert engine.moves.num_cached_tokens(request) == 5 * BLOCK_SIZE


def test_a_prefix_that_came_is_told_by_its_name(engine: VllmEngine, model_path: Path) -> None:
    prompt = [DICE.randrange(300, 2000) for _ in range(300)]
    request = prepared(engine, model_path, prompt=prompt)
    forget_all(engine)
    engine.take_cache_changes()
    reserved = engine.prefixes.reserve("in", request, 300)
    engine.prefixes.store("in", len(reserved.block_ids))
    names = PrefixNames().within(300, lambda first, end: prompt[first:end])
    assert engine.take_cache_changes() == dict.fromkeys(names, True)
    assert len(names) == 1
