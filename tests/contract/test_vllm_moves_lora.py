"""Moves of requests with a LoRA adapter, on an engine whose steps have room for one adapter."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import empty
from safetensors.numpy import save_file

from controller.adapters.embedded_model.model_folder import (
    HEAD_DIM,
    HIDDEN,
    NUM_KV_HEADS,
    NUM_LAYERS,
)
from controller.adapters.vllm.engine import VllmEngine
from controller.core.migration.refusals import MoveRefusal
from controller.ports.engine import ReservedBlocks
from tests.contract import second_runner
from tests.contract.moving import Readers, message

RANK = 8


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    from vllm.lora.request import LoRARequest

    return [
        LoRARequest(f"adapter-{seed}", seed, str(make_adapter(tmp_path_factory.mktemp("a"), seed)))
        for seed in (1, 2)
    ]


def make_adapter(folder: Path, seed: int) -> Path:
    dice = np.random.default_rng(seed)
    weights = {}
    for layer in range(NUM_LAYERS):
        name = f"base_model.model.model.layers.{layer}.self_attn.v_proj"
        for part, shape in [("A", (RANK, HIDDEN)), ("B", (NUM_KV_HEADS * HEAD_DIM, RANK))]:
            weights[f"{name}.lora_{part}.weight"] = dice.normal(0, 0.2, shape).astype(np.float32)
    save_file(weights, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": ["v_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module", params=["V1", pytest.param("V2", marks=pytest.mark.full)])
def lora_engine(
    request: pytest.FixtureRequest, session_engine: VllmEngine, engine_args: dict[str, Any]
) -> Iterator[VllmEngine]:
    del session_engine  # made before this one, and ends after it
    lora = {"enable_lora": True, "max_loras": 1, "max_cpu_loras": 2, "max_lora_rank": RANK}
    with second_runner.chosen(request.param):
        engine = VllmEngine(engine_args | lora | {"enable_prefix_caching": False}, lambda _: None)
    yield engine
    engine._core.model_executor.shutdown()


@pytest.fixture
def readers(model_path: Path, lora_engine: VllmEngine) -> Iterator[Readers]:
    yield Readers(model_path, lora_engine)
    empty(lora_engine)


def test_a_request_with_an_adapter_moves_and_stays_if_the_adapter_is_unknown(
    readers: Readers, adapters: list[Any]
) -> None:
    from vllm.lora.request import LoRARequest

    (engine,) = readers.engines
    plain = {"prompt": list(range(700, 740)), "max_tokens": 40, "temperature": 1.0, "seed": 3}
    options = plain | {"lora_request": adapters[1]}
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
    unknown = LoRARequest("unknown", 9, adapters[0].lora_path)
    prepared = engine.prepare(message("u", readers.model_path, lora_request=unknown), 0)
    assert engine.moves.reserve(prepared, [], 2) == MoveRefusal.NO_ADAPTER


@pytest.mark.parametrize("back", ["committed", "resumed"])
def test_it_waits_for_room_for_its_adapter(
    readers: Readers, adapters: list[Any], back: str
) -> None:
    """vLLM asserts that a step has no more adapters than it has room for."""
    (engine,) = readers.engines
    options = {"max_tokens": 20, "lora_request": adapters[0]}
    readers.add("r", **options)
    alone = readers.finish()["r"]
    readers.add("r", **options)
    readers.run("r", 5)
    suspended = engine.moves.suspend("r")
    assert suspended is not None
    buffer = engine.moves.blocks.buffer(2)
    engine.moves.blocks.gather(suspended.block_ids, buffer)
    if back == "committed":
        engine.moves.release("r")
        prepared = engine.prepare(readers.messages["r"], 0)
        found = engine.moves.reserve(prepared, readers.told["r"].tokens, 2)
        assert isinstance(found, ReservedBlocks)
        engine.moves.blocks.scatter(found.block_ids, buffer)
    readers.add("other", max_tokens=8, lora_request=adapters[1], arrival_s=-1.0)
    readers.step()
    if back == "committed":
        engine.moves.commit("r", suspended.state)
    else:
        engine.moves.resume("r")
    engine.moves.set_rank("r", 1)
    assert engine.snapshot("i-0", 1).num_running_by_rank == {0: 1, 1: 1}
    while readers.told["other"].finish_reason is None:
        now = engine.snapshot("i-0", 1)
        assert (now.num_running, now.num_queued, now.num_evictions) == (2, 0, 0)
        assert readers.step() == ["other"]
    assert readers.step() == ["r"]
    assert readers.finish()["r"] == alone
