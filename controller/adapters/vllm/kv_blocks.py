"""Copies of KV blocks between an engine's caches and buffers: on a CPU (`HostBlocks`) and on a GPU
(`CudaBlocks`), for an engine that runs in this process; and the columns of a row that each rank of
an engine with several processes fills (`columns_of`; `rank_copies.py` copies them).

vLLM is not imported here, so that copies of blocks can be measured without it.

A buffer holds one block after the other, and within a block one layer after the other, so that the
source and the destination may divide a stage differently. Within a layer it holds one KV head after
the other. So the bytes of a block do not depend on how many ranks share the heads. To gather 235
blocks of the embedded model (30 MB, one core) takes 2.3 ms this way, no more than layer by layer;
to scatter them takes 3.4 ms. Both release the GIL while they copy.

Touch points of vLLM: v1/worker/gpu_model_runner.py `kv_caches`, `kv_cache_config`;
v1/kv_cache_interface.py `kv_cache_groups`, `kv_cache_tensors`, `block_stride`, `layer_stride`,
`offset`, `layers`; v1/kv_cache_layout.py
`KVCacheLayout`: a layer's cache is a view with the axes block, head, token and content, whatever
their order in memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch

_WORD = 8


# -- which columns of a row belong to which rank ---------------------------------------------------
# A layer of a block has parts, as a rule its KV heads. Each rank holds one part or several parts
# that follow each other. If an engine has more ranks than KV heads, several ranks hold the same
# head. If a cache has no heads, as with latent attention, each rank holds the whole layer, which is
# one part. If the heads of a cache are not its outermost axis, the part is all that a rank holds.
# In that case a row depends on the number of ranks.


@dataclass(frozen=True, slots=True)
class LayerShard:
    """What one rank holds of each block of one layer: `num_held` of the `num_parts` parts, from
    `first` on."""

    layer: int
    """The index of the layer in the whole model; with pipeline parallelism a rank has only some
    of the layers."""
    num_parts: int
    first: int
    num_held: int
    part_bytes: int


@dataclass(frozen=True, slots=True)
class Columns:
    """The bytes of a row that one rank reads and writes."""

    row_bytes: int
    starts: tuple[int, ...]
    """For each of the rank's layers, where its bytes begin."""
    gathered: tuple[bool, ...]
    """For each of the rank's layers, whether this rank gathers it. Of ranks that hold the same
    part only one does; each of them scatters it."""


def columns_of(ranks: Sequence[Sequence[LayerShard]]) -> list[Columns]:
    """The columns of each rank. Raises ValueError if the ranks do not hold whole layers."""
    holders: dict[LayerShard, int] = {}  # the first rank that holds each shard
    for rank, held in enumerate(ranks):
        if len({shard.layer for shard in held}) < len(held):
            raise ValueError("two caches of one layer")
        for shard in held:
            holders.setdefault(shard, rank)
    starts: dict[int, int] = {}
    row_bytes = 0
    in_order = sorted(holders, key=lambda shard: (shard.layer, shard.first))
    for layer, grouped in groupby(in_order, key=lambda shard: shard.layer):
        shards = list(grouped)
        ends = [shard.first + shard.num_held for shard in shards]
        kinds = {(shard.num_parts, shard.part_bytes) for shard in shards}
        num_parts, part_bytes = next(iter(kinds))
        if len(kinds) > 1 or [*(s.first for s in shards), num_parts] != [0, *ends]:
            raise ValueError(f"the ranks do not hold layer {layer} whole: {shards}")
        starts[layer] = row_bytes
        row_bytes += num_parts * part_bytes
    return [
        Columns(
            row_bytes,
            starts=tuple(starts[shard.layer] + shard.first * shard.part_bytes for shard in held),
            gathered=tuple(holders[shard] == rank for shard in held),
        )
        for rank, held in enumerate(ranks)
    ]


def caches_of(runner: Any) -> list[torch.Tensor]:
    """What a model runner's blocks consist of: tensors whose first axis is the block. With one
    group these are the caches of its layers. Several groups share the same bytes: in place of their
    layers each lane of pages is a tensor, whichever group has a page."""
    config = runner.kv_cache_config
    if len(config.kv_cache_groups) == 1:
        return distinct_caches(runner.kv_caches)
    found: torch.Tensor = next(each for each in runner.kv_caches if isinstance(each, torch.Tensor))
    memory = torch.empty(0, dtype=torch.uint8, device=found.device).set_(found.untyped_storage())
    lanes = {}
    for tensor in config.kv_cache_tensors:
        if tensor.block_stride > tensor.layer_stride:  # the pages of a block follow each other
            lanes[0] = tensor.block_stride
        else:
            starts = (tensor.offset + i * tensor.layer_stride for i in range(len(tensor.layers)))
            lanes.update(dict.fromkeys(starts, tensor.block_stride))
    num_blocks = config.num_blocks
    return [
        memory[start : start + num_blocks * stride].view(num_blocks, stride)
        for start, stride in sorted(lanes.items())
    ]


def distinct_caches(caches: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The caches without those of layers that use another layer's cache."""
    return list({cache.data_ptr(): cache for cache in caches}.values())


class BlockRows:
    """Copies between the layers' caches and the rows of a table, in which each row is a block. With
    `columns` the caches are those of one rank, and only this rank's part of the rows is copied."""

    def __init__(
        self, caches: Sequence[torch.Tensor], num_blocks: int, columns: Columns | None = None
    ) -> None:
        blocks = [cache.unflatten(0, (num_blocks, -1)) for cache in distinct_caches(caches)]
        columns = columns or _one_after_the_other(blocks)
        # Copying whole words takes half as long as copying floats if a block is not contiguous in
        # memory, and torch cannot copy some 8-bit floats at all.
        in_words = all(map(_in_words, blocks)) and not any(
            each % _WORD for each in (columns.row_bytes, *columns.starts)
        )
        self.dtype = torch.int64 if in_words else torch.uint8
        self.width = columns.row_bytes // self.dtype.itemsize
        """The number of elements in a row."""
        self._scattered: list[tuple[torch.Tensor, slice]] = []
        self._gathered: list[tuple[torch.Tensor, slice]] = []
        layers = zip(blocks, columns.starts, columns.gathered, strict=True)
        for block, start_byte, gathered in layers:
            layer, start = block.view(self.dtype), start_byte // self.dtype.itemsize
            part = (layer, slice(start, start + layer[0].numel()))
            self._scattered.append(part)
            if gathered:
                self._gathered.append(part)

    def gather(self, block_ids: torch.Tensor, rows: torch.Tensor) -> None:
        with torch.inference_mode():
            for layer, columns in self._gathered:
                out = rows[:, columns].unflatten(1, layer.shape[1:])
                torch.index_select(layer, 0, block_ids, out=out)

    def scatter(self, block_ids: torch.Tensor, rows: torch.Tensor) -> None:
        with torch.inference_mode():
            for layer, columns in self._scattered:
                layer.index_copy_(0, block_ids, rows[:, columns].unflatten(1, layer.shape[1:]))


def _one_after_the_other(blocks: Sequence[torch.Tensor]) -> Columns:
    """The columns of a rank that holds all layers whole."""
    starts = [0]
    for block in blocks:
        starts.append(starts[-1] + block[0].numel() * block.itemsize)
    return Columns(starts[-1], tuple(starts[:-1]), (True,) * len(blocks))


class HostBlocks:
    """The KvBlocks of caches in main memory. Buffers are tensors."""

    def __init__(self, caches: Sequence[torch.Tensor], num_blocks: int) -> None:
        self._rows = BlockRows(caches, num_blocks)
        self.block_bytes = self._rows.width * self._rows.dtype.itemsize

    def order_after_steps(self) -> None:
        """Does nothing: on a CPU no step is under way between two steps."""

    def buffer(self, num_blocks: int) -> torch.Tensor:
        return torch.empty(num_blocks, self._rows.width, dtype=self._rows.dtype)

    def gather(self, block_ids: Sequence[int], into: torch.Tensor) -> memoryview:
        rows = first_rows(into, len(block_ids))
        self._rows.gather(torch.tensor(block_ids, dtype=torch.int64), rows)
        return as_bytes(rows)

    def scatter(self, block_ids: Sequence[int], buffer: torch.Tensor) -> None:
        rows = first_rows(buffer, len(block_ids))
        self._rows.scatter(torch.tensor(block_ids, dtype=torch.int64), rows)

    def writable(self, buffer: torch.Tensor, num_blocks: int) -> memoryview:
        return as_bytes(first_rows(buffer, num_blocks))

    def close(self) -> None:
        """Does nothing: vLLM frees its caches itself."""


def first_rows(buffer: torch.Tensor, num_blocks: int) -> torch.Tensor:
    if num_blocks > len(buffer):
        raise ValueError(f"{num_blocks} blocks in a buffer for {len(buffer)}")
    return buffer[:num_blocks]


def as_bytes(rows: torch.Tensor) -> memoryview:
    return memoryview(rows.flatten().view(torch.uint8).numpy())


def _in_words(block: Any) -> bool:
    sizes = [block.storage_offset(), block.shape[-1], *block.stride()[:-1]]
    return block.stride(-1) == 1 and all(n * block.itemsize % _WORD == 0 for n in sizes)


# -- KV blocks on a GPU ----------------------------------------------------------------------------
# The KV cache in the memory of a GPU, as numbered blocks of bytes (KvBlocks).
#
# tests/gpu tests it on a GPU; other tests use streams that record the order of the calls. On an
# H100 one block of 8 MiB takes 1 ms, most of it for launches, and 64 blocks are copied at 48 GB/s,
# nine tenths of the bus.
#
# Copies run on a stream of their own while steps run. A copy waits for the steps that were launched
# when blocks were last given to a copier, and for no later ones. Those steps write what a gather
# reads. Under asynchronous scheduling they may also still write what a scatter overwrites: a
# request may end with the output of one step while the next step computes a token for it, and its
# blocks, which are free by then, may be reserved for a move. A gather goes through a buffer on the
# GPU into pinned memory, so that there is one copy over the bus and not one for each layer. Only
# the calling thread waits for a copy; it sleeps and releases the GIL.


@dataclass(frozen=True, slots=True)
class StagingBuffer:
    on_device: torch.Tensor
    pinned: torch.Tensor


class CudaBlocks:
    """The KvBlocks of caches on a GPU. `order_after_steps` must be called on the engine's thread:
    the steps run on the stream that is current on that thread. On any other thread `order_after` is
    called instead."""

    def __init__(
        self, caches: Sequence[torch.Tensor], num_blocks: int, device: torch.device
    ) -> None:
        self._rows = BlockRows(caches, num_blocks)
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._launched = torch.cuda.Event()
        self.block_bytes = self._rows.width * self._rows.dtype.itemsize

    def order_after_steps(self) -> None:
        self._launched.record()

    def order_after(self, launched: torch.cuda.Event) -> None:
        """Makes later copies wait for an event, which was recorded after the last step that may
        touch their blocks."""
        self._launched = launched

    def buffer(self, num_blocks: int) -> StagingBuffer:
        shape, dtype = (num_blocks, self._rows.width), self._rows.dtype
        return StagingBuffer(
            on_device=torch.empty(shape, dtype=dtype, device=self._device),
            pinned=torch.empty(shape, dtype=dtype, pin_memory=torch.cuda.is_available()),
        )

    def gather(self, block_ids: Sequence[int], into: StagingBuffer) -> memoryview:
        rows, staged = self._first(into, len(block_ids))
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(self._launched)
            self._rows.gather(self._index(block_ids), rows)
            staged.copy_(rows, non_blocking=True)
            copied = self._stream.record_event(torch.cuda.Event(blocking=True))
        copied.synchronize()
        return as_bytes(staged)

    def scatter(self, block_ids: Sequence[int], buffer: StagingBuffer) -> None:
        rows, staged = self._first(buffer, len(block_ids))
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(self._launched)
            rows.copy_(staged, non_blocking=True)
            self._rows.scatter(self._index(block_ids), rows)
            copied = self._stream.record_event(torch.cuda.Event(blocking=True))
        copied.synchronize()

    def writable(self, buffer: StagingBuffer, num_blocks: int) -> memoryview:
        return as_bytes(first_rows(buffer.pinned, num_blocks))

    def close(self) -> None:
        """Does nothing: vLLM frees its caches itself."""

    def _first(self, buffer: StagingBuffer, num_blocks: int) -> tuple[Any, Any]:
        return first_rows(buffer.on_device, num_blocks), first_rows(buffer.pinned, num_blocks)

    def _index(self, block_ids: Sequence[int]) -> torch.Tensor:
        return torch.tensor(block_ids, dtype=torch.int64).to(self._device)


def spare_blocks(block_bytes: int, num_blocks: int) -> HostBlocks:
    """Blocks in main memory. They are written once, because the first write to a page takes
    longer."""
    return HostBlocks([torch.ones((num_blocks, block_bytes), dtype=torch.uint8)], num_blocks)
