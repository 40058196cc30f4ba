"""Cached prefixes that one engine model copies from another one.

The source holds what it has of a prefix while it is sent. The destination reserves blocks for the
part that it lacks, and caches them when they have arrived. The next request that begins like this
finds them.
"""

from controller.model.engine_state import EngineState, HeldPrefix, SegmentAt, num_held


class ModelFetches:
    """`key`: any name of the fetch, of which the engine has no other one."""

    def __init__(self, state: EngineState) -> None:
        self._state = state

    def lend(self, key: str, segment_at: SegmentAt, max_blocks: int) -> int:
        """At the source: holds what is cached of the prefix, until `give_back`. Returns the number
        of blocks, together with those that follow in the host cache."""
        pool = self._state.pool
        found = pool.find(segment_at, max_blocks)
        pool.hold(found)
        self._state.held_prefixes[key] = HeldPrefix(found)
        return self.with_host(segment_at, num_held(found), max_blocks)

    def with_host(self, segment_at: SegmentAt, num_blocks: int, max_blocks: int) -> int:
        """How many blocks of the prefix there are with those from `num_blocks` on in the host
        cache."""
        host_cache = self._state.host_cache
        return (
            num_blocks
            if host_cache is None
            else host_cache.find(segment_at, num_blocks, max_blocks)
        )

    def num_cached(self, segment_at: SegmentAt, max_blocks: int) -> int:
        """How many blocks of the prefix are cached here."""
        return num_held(self._state.pool.find(segment_at, max_blocks))

    def reserve(self, key: str, segment_at: SegmentAt, num_blocks: int) -> int | None:
        """At the destination: holds what it has of the prefix, and reserves blocks for the rest.
        Returns how many blocks it has; None, and does nothing, if too few blocks are free or if it
        lacks nothing."""
        state = self._state
        found = state.pool.find(segment_at, num_blocks)
        num_cached = num_held(found)
        num_lacking = num_blocks - num_cached
        num_taken = num_lacking + state.pool.num_used_again(found)
        if num_lacking <= 0 or num_taken + state.config.watermark_blocks > state.pool.num_free:
            return None
        state.pool.hold(found)
        state.pool.take(num_lacking)
        state.held_prefixes[key] = HeldPrefix(found, num_lacking)
        return num_cached

    def commit(self, key: str, segment_at: SegmentAt, num_blocks: int) -> None:
        """At the destination: the blocks up to this number have arrived, and are cached."""
        prefix = self._state.held_prefixes[key]
        num_new = max(0, num_blocks - num_held(prefix.cached))
        self._state.pool.remember(prefix.cached, segment_at, num_blocks)
        prefix.num_blank -= num_new
        self.give_back(key)

    def give_back(self, key: str) -> None:
        """Ends the fetch, at either side."""
        prefix = self._state.held_prefixes.pop(key)
        self._state.pool.give_back(prefix.num_blank, prefix.cached)
