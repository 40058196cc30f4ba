"""Blocks as bytes: every layout that a cache may have, the order on a GPU, and which engines
understand each other's blocks.
"""

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, call

import pytest
from conftest import BLOCK_BYTES, BLOCK_SIZE, NUM_BLOCKS, ON_GPU

from controller.adapters.vllm.engine import VllmEngine
from controller.adapters.vllm.kv_blocks import CudaBlocks, HostBlocks
from controller.adapters.vllm.scheduler_side import parts_of
from controller.adapters.vllm.workers import fingerprint

B, H, N, C = 7, 3, 4, 6


def numbered(*shape: int, dtype: Any = None) -> Any:
    import torch

    count = int(torch.tensor(shape).prod())
    return (torch.arange(count) % 251 - 125).reshape(shape).to(dtype or torch.float32)


def compact() -> list[Any]:
    return [numbered(B, H, N, C) + layer for layer in range(3)]


def interleaved() -> list[Any]:
    """The blocks are not outermost, and a block is not contiguous in memory."""
    return [cache.transpose(0, 1) for cache in [numbered(H, B, N, C), numbered(H, B, N, C) * 2]]


def kernel_blocks() -> list[Any]:
    """Two of the kernel's blocks make one of the scheduler's."""
    return [numbered(2 * B, H, N // 2, C), numbered(2 * B, H, N // 2, C) * 3]


def unlike() -> list[Any]:
    return [numbered(B, H, N, C), numbered(B, 1, N, 2 * C)]


def shared() -> list[Any]:
    """A layer that uses another's cache."""
    first, second = numbered(B, H, N, C), numbered(B, H, N, C) * 2
    return [first, second, first[:]]


def half() -> list[Any]:
    import torch

    return [numbered(B, H, N, C, dtype=torch.bfloat16) * layer for layer in (1, 2)]


def odd_bytes() -> list[Any]:
    """No whole words, and of a type that torch cannot copy by index on every device."""
    import torch

    return [numbered(B, H, N, 5, dtype=torch.float8_e4m3fn) for _ in range(2)]


@pytest.mark.parametrize(
    "layout", [compact, interleaved, kernel_blocks, unlike, shared, half, odd_bytes]
)
def test_blocks_go_from_one_cache_to_another(layout: Callable[[], list[Any]]) -> None:
    import torch

    caches = layout()
    expected = [cache.clone() for cache in caches]
    empty = layout()
    for cache in empty:
        cache.view(torch.uint8).zero_()
    source, destination = HostBlocks(caches, B), HostBlocks(empty, B)
    distinct = {cache.data_ptr(): cache for cache in caches}.values()
    assert source.block_bytes == sum(c.numel() * c.itemsize for c in distinct) // B
    places = {2: 5, 0: 1, 6: 6, 3: 0, 1: 2, 5: 4}
    outgoing, incoming = source.buffer(3), destination.buffer(5)
    for part in ([2, 0, 6], [3]):  # the last stage is short, and the buffer is used again
        sent = source.gather(part, outgoing)
        assert (sent.nbytes, sent.format, sent.contiguous) == (
            len(part) * source.block_bytes,
            "B",
            True,
        )
        destination.writable(incoming, len(part))[:] = sent
        destination.scatter([places[block] for block in part], incoming)
    sent = source.gather([1, 5], outgoing)
    for index, block in enumerate([1, 5]):  # the other side may cut a buffer elsewhere
        block_bytes = source.block_bytes
        destination.writable(incoming, 1)[:] = sent[index * block_bytes :][:block_bytes]
        destination.scatter([places[block]], incoming)
    for cache, before, arrived in zip(caches, expected, empty, strict=True):
        here, there = (c.view(torch.uint8).unflatten(0, (B, -1)) for c in (before, arrived))
        for block, place in places.items():
            assert torch.equal(there[place], here[block])
        for place in set(range(B)) - set(places.values()):
            assert not there[place].any()
        assert torch.equal(cache.view(torch.uint8), before.view(torch.uint8))


def test_more_than_a_buffer_holds_is_an_error() -> None:
    blocks = HostBlocks(compact(), B)
    buffer = blocks.buffer(2)
    for touch in (
        lambda: blocks.gather([0, 1, 2], buffer),
        lambda: blocks.scatter([0, 1, 2], buffer),
        lambda: blocks.writable(buffer, 3),
    ):
        with pytest.raises(ValueError, match="3 blocks in a buffer for 2"):
            touch()


def test_the_caches_of_an_engine(engine: VllmEngine) -> None:
    runner = engine._core.model_executor.driver_worker.worker.model_runner
    assert isinstance(runner.kv_caches, list)
    assert all(len(cache) == NUM_BLOCKS + 1 for cache in runner.kv_caches)
    assert isinstance(engine.moves.blocks, CudaBlocks if ON_GPU else HostBlocks)
    assert engine.moves.blocks.block_bytes == BLOCK_BYTES


def test_copies_on_a_gpu_are_ordered_after_the_steps_and_awaited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """torch.cuda, as far as it is used, is replaced by a recorder; copies are made at once."""
    import torch

    cuda = MagicMock()
    for name in ("Stream", "Event", "stream"):
        monkeypatch.setattr(torch.cuda, name, getattr(cuda, name))
    caches = compact()
    blocks, on_host = CudaBlocks(caches, B, torch.device("cpu")), HostBlocks(compact(), B)
    blocks.order_after_steps()
    buffer = blocks.buffer(2)
    sent = bytes(blocks.gather([2, 5], buffer))
    assert sent == bytes(on_host.gather([2, 5], on_host.buffer(2)))
    blocks.writable(buffer, 2)[:] = sent
    blocks.scatter([1, 4], buffer)
    assert all(torch.equal(cache[[1, 4]], cache[[2, 5]]) for cache in caches)
    assert call.Event(blocking=True) in cuda.mock_calls
    names = [name for name, _, _ in cuda.mock_calls]
    waits, awaited = "Stream().wait_event", "Stream().record_event().synchronize"
    assert [name for name in names if name in ("Event().record", waits, awaited)] == [
        "Event().record",
        *[waits, awaited] * 2,
    ]


# -- the fingerprint ----------------------------------------------------------------------


def test_engines_that_understand_each_other(
    engine: VllmEngine, uncached_engine: VllmEngine
) -> None:
    """Neither the number of blocks nor of places in the batch matters, nor the prefix cache."""
    assert engine.moves.fingerprint == uncached_engine.moves.fingerprint
    assert engine.moves.fingerprint.startswith("runner=v1 layout=")


def test_engines_that_do_not(engine: VllmEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    parts = parts_of(engine._core)
    runner = engine._core.model_executor.driver_worker.worker.model_runner
    seen = {fingerprint(engine._core, parts)}
    assert seen == {engine.moves.fingerprint}

    def differs() -> None:
        found = fingerprint(engine._core, parts)
        assert found not in seen
        seen.add(found)

    seen.add(fingerprint(engine._core, dataclasses.replace(parts, block_size=BLOCK_SIZE // 2)))
    assert len(seen) == 2
    config = engine._core.vllm_config
    for owner, name, value in [
        (config.model_config, "dtype", torch.float16),
        (config.model_config, "quantization", "fp8"),
        (config.cache_config, "cache_dtype", "fp8"),
        (config.model_config.hf_text_config, "rope_parameters", {"rope_theta": 500_000.0}),
        (runner, "kv_caches", [cache[:, :2] for cache in runner.kv_caches]),
    ]:
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, value)
            differs()
    norm = dict(runner.get_model().named_parameters())["model.norm.weight"]
    with torch.inference_mode():
        norm.mul_(2)
        differs()
        norm.div_(2)
    assert fingerprint(engine._core, parts) == engine.moves.fingerprint


@pytest.mark.skipif(ON_GPU, reason="on a GPU vLLM keeps the weights as they were")
def test_weights_that_vllm_packed_away_are_told_apart(
    engine: VllmEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from safetensors.numpy import load_file, save_file

    parts = parts_of(engine._core)
    runner = engine._core.model_executor.driver_worker.worker.model_runner
    parameters = dict(runner.get_model().named_parameters())
    trained = "model.layers.2.self_attn.o_proj.weight"
    assert parameters[trained].numel() == 0, "or no file need be read"
    config = engine._core.vllm_config.model_config
    original = Path(config.model)
    for name, factor in [("same", 1.0), ("tuned", 1.001)]:
        shutil.copytree(original, tmp_path / name)
        for file in (tmp_path / name).glob("*.safetensors"):
            weights = load_file(file)
            if trained in weights:
                weights[trained] *= factor
            save_file(weights, file, {"format": "pt"})
    found = {}
    for name in ("same", "tuned"):
        monkeypatch.setattr(config, "model", str(tmp_path / name))
        found[name] = fingerprint(engine._core, parts)
    assert found["same"] != found["tuned"]
    shutil.copytree(original, tmp_path / "elsewhere")
    monkeypatch.setattr(config, "model", str(tmp_path / "elsewhere"))
    assert fingerprint(engine._core, parts) == engine.moves.fingerprint
    monkeypatch.setattr(config, "model", "organisation/model")
    of_the_hub = fingerprint(engine._core, parts)
    assert of_the_hub not in {*found.values(), engine.moves.fingerprint}
    monkeypatch.setattr(config, "revision", "a tag")
    assert fingerprint(engine._core, parts) != of_the_hub
