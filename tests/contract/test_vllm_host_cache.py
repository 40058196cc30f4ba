"""The host cache of a vLLM engine: what its prefix cache has lost comes back as it was."""

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from conftest import BLOCK_SIZE, NUM_BLOCKS, on_engines

from controller.adapters.vllm import scheduler_side
from controller.adapters.vllm.engine import VllmEngine
from controller.adapters.vllm.host_cache import HostCache
from controller.core.load.cached_prefixes import PREFIX_TOKENS
from controller.core.migration.refusals import MoveRefusal
from tests.contract.moving import (
    Readers,
    check_alike,
    copy_prefix,
    message,
    num_free,
    settle,
)
from tests.contract.test_vllm_moves import KINDS

DICE = random.Random(32)


def prompt(num_blocks: int) -> list[int]:
    return [DICE.randrange(300, 2000) for _ in range(num_blocks * BLOCK_SIZE + 7)]


@pytest.fixture
def engine(cached_engines: tuple[VllmEngine, VllmEngine]) -> VllmEngine:
    return cached_engines[0]


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


def load(engine: VllmEngine, request: Any, num_tokens: int) -> int:
    return copy_prefix(engine, engine, request, num_tokens)


@pytest.mark.usefixtures("host")
@on_engines(KINDS, on_all=("greedy", "seeded"))
def test_the_reader_cannot_tell(
    cached_engines: tuple[VllmEngine, VllmEngine], model_path: Path, kind: str
) -> None:
    """The prefix comes back to its engine, and to another one."""
    engine, other = cached_engines
    readers, asked = Readers(model_path, engine, other), prompt(5)
    options = {"max_tokens": 40, "prompt": asked} | KINDS[kind]
    readers.add("alone", **options)
    readers.finish()
    alone = readers.told["alone"]
    settle(engine)
    engine._core.scheduler.reset_prefix_cache()
    uses_cache = kind != "prompt logprobs"  # these are computed with the prompt
    for to in (engine, other):
        to.take_events()
        request = to.prepare(message("look", model_path, **options), 0)
        assert copy_prefix(engine, to, request, len(asked)) == 5 * uses_cache
        assert num_free(to) == NUM_BLOCKS
        readers.add("r", to, **options)
        readers.finish()
        check_alike(readers.told["r"], alone)
        (admitted,) = to.take_events()
        assert admitted.num_cached_tokens == 5 * BLOCK_SIZE * uses_cache
        settle(engine)
        engine._core.scheduler.reset_prefix_cache()
        assert num_free(engine) == num_free(other) == NUM_BLOCKS


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


def test_a_copy_that_fails_is_told_and_loses_nothing(
    readers: Readers,
    host: HostCache,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = readers.engines[0]
    with monkeypatch.context() as patched:
        patched.setattr(host._blocks, "gather", MagicMock(side_effect=RuntimeError("no rank")))
        readers.add("a", prompt=prompt(5), max_tokens=1)
        readers.finish()
        settle(engine)
    assert len(host) == 0
    assert engine.take_host_cache_changes() == {}
    told = [r.message for r in caplog.records if "not copied to the host cache" in r.message]
    assert told
    assert all(line.endswith("no rank") for line in told)
    assert num_free(engine) == NUM_BLOCKS
    readers.add("b", prompt=prompt(12), max_tokens=1)
    readers.finish()
    settle(engine)
    assert len(host) == 12


def test_no_more_is_due_than_the_engine_has_blocks(
    readers: Readers, host: HostCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, goes_on = readers.engines[0], threading.Event()
    gather = host._blocks.gather

    def slow(*args: Any) -> Any:
        goes_on.wait()
        return gather(*args)

    monkeypatch.setattr(host._blocks, "gather", slow)
    try:
        for number in range(6):
            readers.add(f"r-{number}", prompt=prompt(10), max_tokens=1)
            readers.finish()
        assert 10 < len(host._due) <= NUM_BLOCKS
    finally:
        goes_on.set()
    settle(engine)
    assert len(host) == 12
    assert num_free(engine) == NUM_BLOCKS


def test_an_engine_whose_blocks_cannot_be_copied_starts_without(
    session_engine: VllmEngine,
    engine_args: dict[str, Any],
    model_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    del session_engine  # made before this one
    monkeypatch.setattr(scheduler_side, "_refusal", lambda *_: MoveRefusal.KV_GROUPS)
    engine = VllmEngine(engine_args, lambda _: None, host_cache_bytes=1 << 30)
    assert engine.moves.blocks.block_bytes == 0
    assert engine.host_cache is None
    assert engine.take_host_cache_changes() is None
    readers = Readers(model_path, engine)
    readers.add("r", prompt=prompt(2), max_tokens=5)
    assert len(readers.finish()["r"]) == 5
    engine._core.model_executor.shutdown()
