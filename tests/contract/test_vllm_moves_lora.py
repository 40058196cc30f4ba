"""Moves of requests with a LoRA adapter, on an engine whose steps have room for one adapter."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import empty

from controller.adapters.files.adapter_files import facts_of
from controller.adapters.vllm.engine import VllmEngine
from controller.adapters.vllm.lora import request_of
from controller.core.fleet.adapters import Adapter
from controller.core.load.cached_prefixes import PrefixNames
from controller.core.migration.refusals import MoveRefusal
from controller.ports.engine import ReservedBlocks
from tests.adapters import RANK, make_adapter
from tests.contract import second_runner
from tests.contract.moving import Readers, message


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> list[Adapter]:
    folder = tmp_path_factory.mktemp("adapters")
    found = []
    for number in (1, 2, 3):
        path = make_adapter(folder / str(number), number)
        found.append(Adapter(f"a{number}", number, str(path), facts_of(path).digest, RANK))
    return found


@contextmanager
def engine_with(
    engine_args: dict[str, Any], adapters: list[Adapter], max_loras: int
) -> Iterator[VllmEngine]:
    """It has loaded the first two adapters."""
    lora = {"enable_lora": True, "max_loras": max_loras, "max_lora_rank": RANK}
    engine = VllmEngine(engine_args | lora | {"max_cpu_loras": 2 * max_loras}, lambda _: None)
    for each in adapters[:2]:
        engine.load_adapter(each, each.path)
    yield engine
    engine._core.model_executor.shutdown()


@pytest.fixture(scope="module", params=["V1", pytest.param("V2", marks=pytest.mark.full)])
def lora_engine(
    request: pytest.FixtureRequest,
    session_engine: VllmEngine,
    engine_args: dict[str, Any],
    adapters: list[Adapter],
) -> Iterator[VllmEngine]:
    del session_engine  # made before this one, and ends after it
    with ExitStack() as stack:
        with second_runner.chosen(request.param):
            engine = stack.enter_context(engine_with(engine_args, adapters, max_loras=1))
        yield engine


@pytest.fixture
def roomy_engine(
    session_engine: VllmEngine, engine_args: dict[str, Any], adapters: list[Adapter]
) -> Iterator[VllmEngine]:
    """Its steps have room for two adapters."""
    del session_engine
    with engine_with(engine_args, adapters, max_loras=2) as engine:
        yield engine


@pytest.fixture
def readers(model_path: Path, lora_engine: VllmEngine) -> Iterator[Readers]:
    yield Readers(model_path, lora_engine)
    empty(lora_engine)


def test_a_request_with_an_adapter_moves_and_stays_if_the_adapter_is_unknown(
    readers: Readers, adapters: list[Adapter]
) -> None:
    (engine,) = readers.engines
    plain = {"prompt": list(range(700, 740)), "max_tokens": 40, "temperature": 1.0, "seed": 3}
    options = plain | {"lora_request": request_of(adapters[1])}
    readers.add("r", **plain)
    without = readers.finish()["r"]
    readers.add("r", **options)
    alone = readers.finish()["r"]
    assert alone != without
    readers.add("r", **options)
    for num_tokens in (1, 2, 10, 39):
        readers.run("r", num_tokens)
        assert isinstance(readers.move("r", engine), ReservedBlocks)
        assert engine.snapshot("i-0", 1).num_running == 1
        assert readers.step() == ["r"]
    assert readers.finish()["r"] == alone
    changed = replace(adapters[1], digest="0" * 64)
    for unknown, told in ((adapters[2], "is not loaded"), (changed, "has other files")):
        frames = message("u", readers.model_path, lora_request=request_of(unknown))
        prepared = engine.prepare(frames, 0)
        assert engine.moves.reserve(prepared, [], 2) == MoveRefusal.NO_ADAPTER
        with pytest.raises(ValueError, match=f"LoRA adapter {unknown.name} {told}"):
            engine.add(prepared)


def test_its_cached_prefixes_have_the_names_that_frontends_give_them(
    readers: Readers, adapters: list[Adapter]
) -> None:
    """As the frontend's `_prefix_hashes`: by the adapter's name and number."""
    (engine,) = readers.engines
    prompt = list(range(300, 600))
    engine.take_cache_changes()
    readers.add("r", prompt=prompt, max_tokens=2, lora_request=request_of(adapters[0]))
    readers.finish()
    names = PrefixNames(None, f"{adapters[0].name}#{adapters[0].number}")
    expected = names.within(len(prompt), lambda first, end: prompt[first:end])
    assert len(expected) == 1
    changes = engine.take_cache_changes()
    assert {name for name, is_cached in changes.items() if is_cached} == {*expected}


def test_one_that_comes_back_waits_for_room_for_its_adapter(
    readers: Readers, adapters: list[Adapter]
) -> None:
    """vLLM asserts that a step has no more adapters than it has room for."""
    (engine,) = readers.engines
    options = {"max_tokens": 20, "lora_request": request_of(adapters[0])}
    readers.add("r", **options)
    alone = readers.finish()["r"]
    readers.add("r", **options)
    readers.run("r", 5)
    suspended = engine.moves.suspend("r")
    assert suspended is not None
    readers.add("other", max_tokens=8, lora_request=request_of(adapters[1]), arrival_s=-1.0)
    readers.step()
    engine.moves.resume("r")
    engine.moves.set_rank("r", 1)
    assert engine.snapshot("i-0", 1).num_running_by_rank == {0: 1, 1: 1}
    while readers.told["other"].finish_reason is None:
        now = engine.snapshot("i-0", 1)
        assert (now.num_running, now.num_queued, now.num_evictions) == (2, 0, 0)
        assert readers.step() == ["other"]
    assert readers.step() == ["r"]
    assert readers.finish()["r"] == alone


def test_it_stays_where_its_adapter_would_have_to_wait(
    readers: Readers, adapters: list[Adapter]
) -> None:
    (engine,) = readers.engines
    readers.add("first", max_tokens=20, lora_request=request_of(adapters[0]))
    readers.run("first", 3)
    snapshot = engine.snapshot("i-0", 1)
    assert snapshot.adapters == (1, 2)
    assert snapshot.live_adapters == (1,)
    assert snapshot.max_live_adapters == 1
    for adapter, refusal in ((adapters[1], MoveRefusal.NO_ADAPTER_SLOT), (adapters[0], None)):
        frames = message("r", readers.model_path, lora_request=request_of(adapter))
        found = engine.moves.reserve(engine.prepare(frames, 0), [5], 2)
        assert found == refusal or (refusal is None and isinstance(found, ReservedBlocks))
    assert not engine.unload_adapter(1)
    engine.moves.cancel("r")
    readers.finish()
    assert engine.unload_adapter(1)
    assert engine.snapshot("i-0", 1).adapters == (2,)
    engine.load_adapter(adapters[0], adapters[0].path)


def test_it_is_not_taken_if_another_adapter_came_meanwhile(
    readers: Readers, adapters: list[Adapter]
) -> None:
    """Then it goes on where it was."""
    (engine,) = readers.engines
    readers.add("r", max_tokens=20, lora_request=request_of(adapters[0]))
    readers.run("r", 5)
    suspended = engine.moves.suspend("r")
    assert suspended is not None
    engine.moves.release("r")
    prepared = engine.prepare(readers.messages["r"], 0)
    found = engine.moves.reserve(prepared, readers.told["r"].tokens, 2)
    assert isinstance(found, ReservedBlocks)
    readers.add("other", max_tokens=8, lora_request=request_of(adapters[1]), arrival_s=-1.0)
    readers.step()
    with pytest.raises(ValueError, match="as many other LoRA adapters are in use there"):
        engine.moves.commit("r", suspended.state)
    engine.moves.cancel("r")
    readers.told.pop("r")
    readers.finish()


def test_an_adapter_that_the_engine_cannot_take_is_refused_in_its_words(
    lora_engine: VllmEngine, session_engine: VllmEngine, tmp_path: Path
) -> None:
    """After that the engine goes on as before."""
    loaded = lora_engine.snapshot("i-0", 1).adapters
    other_rank = make_adapter(tmp_path / "rank", 4, rank=2 * RANK)
    no_such = make_adapter(tmp_path / "module", 5, module="self_attn.nosuch")
    for path, told in ((other_rank, "16 is greater than max_lora_rank 8"), (no_such, "nosuch")):
        adapter = Adapter("bad", 9, "/models/bad", "0" * 64, RANK)
        with pytest.raises(ValueError, match=told) as caught:
            lora_engine.load_adapter(adapter, str(path))
        assert str(path) not in str(caught.value)
    with pytest.raises(ValueError, match="without enable_lora"):
        session_engine.load_adapter(adapter, str(path))
    assert lora_engine.snapshot("i-0", 1).adapters == loaded


def test_an_adapter_of_the_same_name_takes_nothing_of_the_one_before(
    readers: Readers, adapters: list[Adapter]
) -> None:
    """vLLM finds weights by the number, and cached blocks by name and path."""
    (engine,) = readers.engines
    new = replace(adapters[2], name=adapters[0].name, number=4)
    plain = {"prompt": list(range(300, 360)), "max_tokens": 20, "temperature": 0.0}
    texts = {}
    for each in (adapters[0], new):
        if each is new:
            engine.load_adapter(new, new.path)
        readers.add("r", lora_request=request_of(each), **plain)
        texts[each.number] = readers.finish()["r"]
    assert texts[1] != texts[4]
    for each in (adapters[0], new):
        readers.add("r", lora_request=request_of(each), **plain)
        assert readers.finish()["r"] == texts[each.number]
    assert engine.unload_adapter(4)


def test_two_adapters_of_one_name_run_in_one_step(
    roomy_engine: VllmEngine, model_path: Path, adapters: list[Adapter]
) -> None:
    """vLLM takes requests for adapters of one name for the same, and activates one of them."""
    old, other = adapters[:2]
    new = replace(adapters[2], name=old.name)
    readers = Readers(model_path, roomy_engine)

    def ask(request_id: str, adapter: Adapter, max_tokens: int = 12) -> None:
        options = {"prompt": list(range(500, 540)), "lora_request": request_of(adapter)}
        readers.add(request_id, max_tokens=max_tokens, **options)

    roomy_engine.load_adapter(new, new.path)
    ask("new alone", new)
    alone = readers.finish()["new alone"]
    ask("old", old, max_tokens=60)
    readers.run("old", 5)
    ask("other", other)  # takes the place of the new one
    readers.run("other", 12)
    ask("new", new)
    readers.run("new", 12)
    assert readers.told["new"].tokens == alone
    assert readers.told["old"].finish_reason is None
    readers.finish()
