"""Cached prefixes that are copied from the cache of one vLLM engine to that of another one
(`EnginePrefixes`).

vLLM finds a cached block by a hash of all tokens up to its end, which is the same in all processes
of one version. So the source needs only these hashes. The destination takes new blocks, and once
they are filled, gives them to its cache as if it had computed them. A request that comes then finds
them.

Only engines whose KV blocks are all of full attention do this.

Touch points of vLLM: v1/core/block_pool.py `get_cached_block`, `touch`, `free_blocks`,
`cache_full_blocks`; v1/core/kv_cache_manager.py `prefix_cache_lookup_enabled`; v1/request.py
`block_hashes`, `num_computed_tokens`, `num_in_flight_tokens`; v1/core/sched/scheduler.py `running`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from controller.adapters.vllm.host_cache import HostCache
from controller.adapters.vllm.moves import VllmMoves
from controller.adapters.vllm.scheduler_side import EngineParts
from controller.ports.engine import Frames, ReservedPrefix

_decoder = msgspec.msgpack.Decoder(list[bytes])


@dataclass(slots=True)
class _Arriving:
    request: Any
    blocks: list[Any]
    """Those that the cache had, then the new ones."""
    num_cached: int


class VllmPrefixes:
    """Used on the engine's thread. `group`: the number of the only group of blocks. `decode` and
    `preprocess`: make a vLLM request of frames, as for a request that comes."""

    def __init__(
        self,
        moves: VllmMoves,
        parts: EngineParts,
        group: int,
        decode: Callable[[Frames], Any],
        preprocess: Callable[[Any], tuple[Any, int]],
    ) -> None:
        self._decode, self._preprocess = decode, preprocess
        self.host_cache: HostCache | None = None
        self._moves = moves
        self._parts = parts
        self._group = group
        self._arriving: dict[str, _Arriving] = {}
        self._lent: dict[str, tuple[list[Any], list[int]]] = {}
        """By key, the blocks, and the numbers of those in the host cache that follow them."""

    def prompt(self, frames: Frames) -> Any | None:
        from vllm import SamplingParams

        request = self._decode(frames)
        if request.lora_request is not None or request.mm_features or request.pooling_params:
            return None
        # Nothing is sampled, so no grammar is needed, and no logprobs of the prompt.
        request.sampling_params = SamplingParams(max_tokens=1)
        prepared, _wave = self._preprocess(request)
        return prepared

    def names(self, prepared: Any) -> Sequence[bytes]:
        return [bytes(name) for name in self._hashes(prepared, prepared.num_tokens)]

    def _hashes(self, prepared: Any, num_tokens: int) -> Sequence[Any]:
        """Those of the blocks within the first `num_tokens` tokens. The last token of the prompt is
        computed in any case."""
        most = min(num_tokens, prepared.num_tokens - 1) // self._parts.block_size
        hashes: Sequence[Any] = prepared.block_hashes[:most]
        return hashes

    # -- destination ---------------------------------------------------------------------

    def reserve(self, key: str, prepared: Any, num_tokens: int) -> ReservedPrefix | None:
        if not self._parts.kv.prefix_cache_lookup_enabled(prepared):
            return ReservedPrefix((), b"")  # it computes all of its prompt
        hashes = self._hashes(prepared, num_tokens)
        cached = self._moves.cached(prepared)[: len(hashes)]
        lacking = hashes[len(cached) :]
        if not lacking:
            return ReservedPrefix((), b"")
        new = self._moves.take(len(lacking), cached)
        if new is None:
            return None
        self._moves.blocks.order_after_steps()
        self._arriving[key] = _Arriving(prepared, [*cached, *new], len(cached))
        block_ids = tuple(block.block_id for block in new)
        return ReservedPrefix(block_ids, msgspec.msgpack.encode([bytes(each) for each in lacking]))

    def store(self, key: str, num_blocks: int) -> None:
        arriving = self._arriving.pop(key)
        pool, first = self._parts.pool, arriving.num_cached
        if num_blocks:
            pool.cache_full_blocks(
                arriving.request,
                arriving.blocks,
                first,
                first + num_blocks,
                self._parts.block_size,
                self._group,
            )
        # As vLLM frees a request's blocks: the first ones, which most requests share, last.
        pool.free_blocks(reversed(arriving.blocks))

    # -- source --------------------------------------------------------------------------

    def lend(self, key: str, names: bytes) -> tuple[int, ...]:
        pool, in_flight = self._parts.pool, self.not_computed()
        blocks = []
        wanted = _decoded(names)
        for name in wanted:
            found = pool.get_cached_block(name, [self._group])
            if found is None or found[0].block_id in in_flight:
                break
            blocks += found
        pool.touch(blocks)
        in_host = [] if self.host_cache is None else self.host_cache.lend(wanted[len(blocks) :])
        self._lent[key] = blocks, in_host
        self._moves.blocks.order_after_steps()
        return (*(block.block_id for block in blocks), *in_host)

    def take_back(self, key: str) -> None:
        blocks, in_host = self._lent.pop(key)
        self._parts.pool.free_blocks(reversed(blocks))
        if self.host_cache is not None:
            self.host_cache.take_back(in_host)

    # ------------------------------------------------------------------------------------

    def not_computed(self) -> set[int]:
        """The cached blocks that a step under way computes. vLLM caches blocks when it schedules
        the step, and with asynchronous scheduling the step may not be over."""
        size, found = self._parts.block_size, set[int]()
        for request in self._parts.scheduler.running:
            if request.num_in_flight_tokens > 0:
                num_final = request.num_computed_tokens - request.num_in_flight_tokens
                blocks = self._parts.blocks(request.request_id)
                found.update(block.block_id for block in blocks[num_final // size :])
        return found


def _decoded(names: bytes) -> Sequence[bytes]:
    """No names if this is no list of them."""
    try:
        return _decoder.decode(names) if names else ()
    except msgspec.DecodeError:
        return ()
