"""Which prefixes the prefix cache of one engine has.

vLLM gives a full block to its cache under the hash of the tokens up to the block's end, and takes
the hash away when the block gets other content. Both are watched here. If several blocks have the
same content, vLLM keeps all of them.

With several groups of KV blocks only the group of full attention counts. The other groups may have
less of a prefix, for example only what a window needs.

Touch points of vLLM: v1/core/block_pool.py `cache_full_blocks`, `_maybe_evict_cached_block`,
`reset_prefix_cache`, `get_cached_block`; v1/core/kv_cache_utils.py `KVCacheBlock.block_hash`,
`is_null`, `get_block_hash`; v1/request.py `all_token_ids`, `cache_salt`, `lora_request`,
`mm_features`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from controller.core.load.cached_prefixes import PrefixNames


class CacheContents:
    """Used on the engine's thread. `group`: the number of the group of full attention."""

    def __init__(self, pool: Any, group: int) -> None:
        from vllm.v1.core.kv_cache_utils import get_block_hash

        self._get_block_hash = get_block_hash
        self._pool = pool
        self._group = group
        self._names_of: WeakKeyDictionary[Any, PrefixNames] = WeakKeyDictionary()
        """By request."""
        self._ending_in: dict[int, Sequence[int]] = {}
        """For each block, by number, the names of the prefixes that end in it, if it is the block
        by which these are known to be cached."""
        self._known: set[int] = set()
        self._changes: dict[int, bool] = {}
        self.on_cached: Callable[[Any, Any, Sequence[int]], None] = lambda *_: None
        """Called with the request, the block and the names that end in it, for each cached block.
        Whoever keeps copies of cached blocks may replace it."""
        self._watch()

    def take_changes(self) -> Mapping[int, bool]:
        """The prefixes that were gained (True) or lost (False) since the last call, by name."""
        changes, self._changes = self._changes, {}
        return changes

    def _watch(self) -> None:
        pool = self._pool
        cache, evict, reset = (
            pool.cache_full_blocks,
            pool._maybe_evict_cached_block,
            pool.reset_prefix_cache,
        )

        def cache_full_blocks(
            request: Any,
            blocks: Sequence[Any],
            num_cached_blocks: int,
            num_full_blocks: int,
            block_size: int,
            kv_cache_group_id: int,
            *more: Any,
            **options: Any,
        ) -> None:
            cache(
                request,
                blocks,
                num_cached_blocks,
                num_full_blocks,
                block_size,
                kv_cache_group_id,
                *more,
                **options,
            )
            if kv_cache_group_id == self._group:
                for index in range(num_cached_blocks, num_full_blocks):
                    self._gained(request, blocks[index], index, block_size)

        def maybe_evict_cached_block(block: Any) -> bool:
            names = self._ending_in.pop(block.block_id, None)
            block_hash = block.block_hash
            is_evicted: bool = evict(block)
            if names is not None and block_hash is not None:
                self._lost(block_hash, names)
            return is_evicted

        def reset_prefix_cache() -> bool:
            is_reset: bool = reset()
            if is_reset:
                self._changes.update(dict.fromkeys(self._known, False))
                self._known.clear()
                self._ending_in.clear()
            return is_reset

        pool.cache_full_blocks = cache_full_blocks
        pool._maybe_evict_cached_block = maybe_evict_cached_block
        pool.reset_prefix_cache = reset_prefix_cache

    def _gained(self, request: Any, block: Any, index: int, block_size: int) -> None:
        if block.is_null or block.block_hash is None or request.mm_features:
            return
        names = self._names_of.get(request)
        if names is None:
            lora = request.lora_request
            names = PrefixNames(request.cache_salt, None if lora is None else lora.lora_name)
            self._names_of[request] = names
        token_ids, first = request.all_token_ids, index * block_size
        gained = names.ending_in(first, first + block_size, lambda first, end: token_ids[first:end])
        self.on_cached(request, block, gained)
        if gained and not self._known.issuperset(gained):
            self._ending_in[block.block_id] = gained
            self._known.update(gained)
            self._changes.update(dict.fromkeys(gained, True))

    def _lost(self, block_hash: Any, names: Sequence[int]) -> None:
        others = self._pool.get_cached_block(self._get_block_hash(block_hash), [self._group])
        if others is not None:
            self._ending_in[others[0].block_id] = names
            return
        self._known.difference_update(names)
        self._changes.update(dict.fromkeys(names, False))
