"""The host cache of one vLLM engine: copies of cached KV blocks in main memory, which outlast the
prefix cache. They come back as prefixes that are copied from another engine do
(`adapters/vllm/prefixes.py`).

A block is copied when it has been cached and computed. Another thread copies it, while the pool
holds it; the step does not wait. If there is no room, the block goes that is unused for longest.
vLLM's own CPU tier runs on no CPU platform (v1/kv_offload/cpu/spec.py; decision 0064).

Touch points of vLLM: v1/core/block_pool.py `touch`, `free_blocks`; v1/core/kv_cache_utils.py
`KVCacheBlock.block_hash`, `get_block_hash`.
"""

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

log = logging.getLogger(__name__)

SLICE_BYTES = 16 << 20
"""Blocks are copied in slices of about this size, one after the other."""


@dataclass(frozen=True, slots=True)
class _Held:
    slot: int
    names: Sequence[int]
    """The names of the prefixes that end in this block."""


@dataclass(frozen=True, slots=True)
class _Due:
    block: Any
    block_hash: Any
    names: Sequence[int]


class HostCache:
    """Used on the engine's thread. `first_id`: the number of the first slot, as of a block; smaller
    numbers are the engine's own blocks. `num_slots`: for how many blocks there is room."""

    def __init__(self, blocks: Any, pool: Any, first_id: int, num_slots: int) -> None:
        from vllm.v1.core.kv_cache_utils import get_block_hash

        self._key_of: Callable[[Any], bytes] = lambda block_hash: bytes(get_block_hash(block_hash))
        self._blocks = blocks
        self._pool = pool
        self.first_id = first_id
        self.memory = torch.empty(num_slots, blocks.block_bytes, dtype=torch.uint8)
        self._num_per_slice = max(1, SLICE_BYTES // blocks.block_bytes)
        self._buffer = blocks.buffer(self._num_per_slice)
        self._free = list(reversed(range(num_slots)))
        self._held: OrderedDict[bytes, _Held] = OrderedDict()  # longest unused first
        self._lent: Counter[int] = Counter()
        """How many copies read each slot."""
        self._due: OrderedDict[int, _Due] = OrderedDict()
        """By block, what it is to be saved with, which is what it was cached with last. So there
        are never more of them than blocks, however slowly they are saved."""
        self._saving: tuple[list[tuple[_Due, int]], Future[None]] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="host-cache")
        self._changes: dict[int, bool] = {}

    def __len__(self) -> int:
        return len(self._held)

    # -- what is saved -------------------------------------------------------------------

    def cached(self, request: Any, block: Any, names: Sequence[int]) -> None:
        """Notes that the prefix cache has got a block, in which these prefixes end."""
        if request.lora_request is None:
            self._due[block.block_id] = _Due(block, block.block_hash, names)
            self._due.move_to_end(block.block_id)

    def used(self, block_hashes: Sequence[Any]) -> None:
        """Notes that a request has these blocks. Its first blocks, which most requests share, are
        dropped last."""
        for block_hash in reversed(block_hashes):
            key = bytes(block_hash)
            if key in self._held:
                self._held.move_to_end(key)

    def turn(self, computing: Callable[[], Collection[int]], *, wait: bool = False) -> None:
        """Called between two steps: ends a copy that is done, and begins the next one. `computing`:
        the numbers of the blocks that a step under way computes. `wait`: ends all copies."""
        while self._saving is not None or self._due:
            if self._saving is not None:
                if not wait and not self._saving[1].done():
                    return
                self._end()
            if self._due and not self._begin(computing()):
                return
            if not wait:
                return

    def _begin(self, computing: Collection[int]) -> bool:
        """Begins to copy a slice. Returns False if the first block that is due is not computed."""
        saved: list[tuple[_Due, int]] = []
        while self._due and len(saved) < self._num_per_slice:
            block_id = next(iter(self._due))
            if block_id in computing:
                break
            due = self._due.pop(block_id)
            is_gone = due.block.block_hash != due.block_hash
            if is_gone or self._key_of(due.block_hash) in self._held:
                continue
            slot = self._take_slot()
            if slot is None:
                continue
            saved.append((due, slot))
        if not saved:
            return not self._due
        self._pool.touch([due.block for due, _ in saved])
        block_ids = [due.block.block_id for due, _ in saved]
        self._blocks.order_after_steps()
        slots = [slot for _, slot in saved]
        self._saving = saved, self._thread.submit(self._save, block_ids, slots)
        return True

    def _save(self, block_ids: Sequence[int], slots: Sequence[int]) -> None:
        filled = self._blocks.gather(block_ids, self._buffer)
        rows = torch.frombuffer(filled, dtype=torch.uint8).view(len(slots), -1)
        self.memory.index_copy_(0, torch.tensor(slots), rows)

    def _end(self) -> None:
        assert self._saving is not None
        saved, saving = self._saving
        self._saving = None
        error = saving.exception()
        if error is not None:
            log.error("%d blocks were not copied to the host cache: %s", len(saved), error)
        for due, slot in saved:
            key = self._key_of(due.block_hash)
            if error is not None or key in self._held:
                self._free.append(slot)
                continue
            self._held[key] = _Held(slot, due.names)
            self._changes.update(dict.fromkeys(due.names, True))
        self._pool.free_blocks(reversed([due.block for due, _ in saved]))

    def _take_slot(self) -> int | None:
        """A free slot. If there is none, the block is dropped that is unused for longest and is not
        being read; None if all are."""
        if self._free:
            return self._free.pop()
        for key, held in self._held.items():
            if not self._lent[held.slot]:
                del self._held[key]
                self._changes.update(dict.fromkeys(held.names, False))
                return held.slot
        return None

    def take_changes(self) -> Mapping[int, bool]:
        """The prefixes that were gained (True) or lost (False) since the last call, by name."""
        changes, self._changes = self._changes, {}
        return changes

    # -- what is read --------------------------------------------------------------------

    def lend(self, names: Iterable[bytes]) -> list[int]:
        """Holds the first of these blocks, as far as all of them are here, until `take_back`.
        Returns their numbers."""
        block_ids = []
        for name in names:
            held = self._held.get(name)
            if held is None:
                break
            self._held.move_to_end(name)
            self._lent[held.slot] += 1
            block_ids.append(self.first_id + held.slot)
        return block_ids

    def take_back(self, block_ids: Iterable[int]) -> None:
        for block_id in block_ids:
            self._lent[block_id - self.first_id] -= 1
        self._lent += Counter()  # without those that nobody reads

    def close(self) -> None:
        self._thread.shutdown()

    def check(self) -> None:
        """Raises AssertionError if a slot is lost or has two blocks."""
        saving = [] if self._saving is None else [slot for _, slot in self._saving[0]]
        slots = [*self._free, *saving, *(held.slot for held in self._held.values())]
        assert sorted(slots) == list(range(len(self.memory)))
        assert set(self._lent) <= {held.slot for held in self._held.values()}


class BlocksWithHost:
    """The engine's KV blocks, followed by the slots of its host cache (`KvBlocks`). Blocks are read
    from both and written to the engine's own."""

    def __init__(self, blocks: Any, host: HostCache) -> None:
        self._blocks = blocks
        self._host = host
        self.block_bytes: int = blocks.block_bytes
        self.buffer, self.writable, self.scatter = blocks.buffer, blocks.writable, blocks.scatter
        self.order_after_steps: Callable[[], None] = blocks.order_after_steps

    def gather(self, block_ids: Sequence[int], into: Any) -> memoryview:
        first = self._host.first_id
        own = [block_id for block_id in block_ids if block_id < first]
        if len(own) == len(block_ids):
            filled: memoryview = self._blocks.gather(block_ids, into)
            return filled
        if own:
            assert own == list(block_ids[: len(own)]), "slots before blocks"
            self._blocks.gather(own, into)
        filled = self._blocks.writable(into, len(block_ids))
        rows = torch.frombuffer(filled, dtype=torch.uint8).view(len(block_ids), -1)
        slots = torch.tensor([block_id - first for block_id in block_ids[len(own) :]])
        torch.index_select(self._host.memory, 0, slots, out=rows[len(own) :])
        return filled

    def close(self) -> None:
        self._host.close()
        self._blocks.close()
