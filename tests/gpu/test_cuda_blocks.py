"""CudaBlocks on a real GPU: what arrives, and in which order with the steps. `make test-gpu`."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from controller.adapters.vllm.kv_blocks import CudaBlocks, HostBlocks

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

NUM_BLOCKS, HEADS, TOKENS, WIDTH = 64, 8, 16, 64
DEVICE = torch.device("cuda", 0)
# About a second of an H100: so long that a copy which does not wait for it is seen.
SLOW_CYCLES = 1_500_000_000


def compact() -> list[Any]:
    return [torch.randn(NUM_BLOCKS, 2, TOKENS, HEADS, WIDTH, device=DEVICE) for _ in range(3)]


def interleaved() -> list[Any]:
    """The blocks are not outermost, and a block is no single run of memory."""
    caches = [torch.randn(2, NUM_BLOCKS, TOKENS, HEADS, WIDTH, device=DEVICE) for _ in range(3)]
    return [cache.transpose(0, 1) for cache in caches]


def eight_bits() -> list[Any]:
    """No whole words in a row."""
    caches = [torch.randn(NUM_BLOCKS, TOKENS, 5, device=DEVICE) for _ in range(2)]
    return [cache.to(torch.float8_e4m3fn) for cache in caches]


def as_rows(caches: list[Any]) -> Any:
    rows = [c.contiguous().view(torch.uint8).reshape(NUM_BLOCKS, -1) for c in caches]
    return torch.cat(rows, dim=1).cpu()


def cuda_blocks(caches: list[Any]) -> CudaBlocks:
    blocks = CudaBlocks(caches, NUM_BLOCKS, DEVICE)
    blocks.order_after_steps()
    return blocks


@pytest.mark.parametrize("layout", [compact, interleaved, eight_bits])
def test_blocks_of_a_gpu_are_those_of_main_memory(layout: Callable[[], list[Any]]) -> None:
    """A source on a GPU and a destination in main memory, and the reverse, agree on every byte."""
    caches = layout()
    before = as_rows(caches)
    on_host = HostBlocks([cache.cpu() for cache in caches], NUM_BLOCKS)
    blocks = cuda_blocks(caches)
    assert blocks.block_bytes == on_host.block_bytes
    buffer = blocks.buffer(5)
    sent = bytes(blocks.gather([9, 2, 63, 0], buffer))
    assert sent == bytes(on_host.gather([9, 2, 63, 0], on_host.buffer(4)))
    blocks.writable(buffer, 4)[:] = sent
    blocks.scatter([1, 3, 5, 7], buffer)
    torch.cuda.synchronize()
    after, wanted = as_rows(caches), before.clone()
    wanted[[1, 3, 5, 7]] = before[[9, 2, 63, 0]]
    assert torch.equal(after, wanted)


def test_a_gather_reads_what_the_step_in_flight_writes() -> None:
    caches = compact()
    blocks = CudaBlocks(caches, NUM_BLOCKS, DEVICE)
    buffer = blocks.buffer(1)
    torch.cuda._sleep(SLOW_CYCLES)
    for cache in caches:
        cache[7] = 3.0
    blocks.order_after_steps()
    sent = torch.frombuffer(bytearray(blocks.gather([7], buffer)), dtype=torch.float32)
    assert bool((sent == 3.0).all())


def test_a_scatter_comes_after_the_step_in_flight() -> None:
    """The step still writes the slot of a request that has ended; its block is another's now."""
    caches = compact()
    blocks = CudaBlocks(caches, NUM_BLOCKS, DEVICE)
    buffer = blocks.buffer(1)
    ones = torch.ones(blocks.block_bytes // 4)
    blocks.writable(buffer, 1)[:] = memoryview(ones.numpy()).cast("B")
    torch.cuda._sleep(SLOW_CYCLES)
    for cache in caches:
        cache[4] = 3.0
    blocks.order_after_steps()
    blocks.scatter([4], buffer)
    torch.cuda.synchronize()
    assert all(bool((cache[4] == 1.0).all()) for cache in caches)


def test_a_copy_does_not_wait_for_steps_launched_later() -> None:
    """Steps are launched without end; a copy that waited for them all would starve."""
    caches = compact()
    blocks = cuda_blocks(caches)
    buffer = blocks.buffer(1)
    blocks.gather([1], buffer)
    done = torch.cuda.Event()
    torch.cuda._sleep(SLOW_CYCLES)
    done.record()
    blocks.gather([1], buffer)
    assert not done.query()
    done.synchronize()
