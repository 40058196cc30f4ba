"""The KV blocks of one engine: counted, and remembered by hash where their content can be reused.

A block without a hash is like any other, so those are only counted. A full block whose request
names its content gets a hash and becomes a `CachedBlock`. While requests hold it, it counts their
references; after the last one lets go it is free and still found by its hash, until a new block is
needed: free blocks without a hash are taken first, then the cached ones, longest unused first.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence


class CachedBlock:
    """A full block with known content, held by `num_refs` requests."""

    __slots__ = ("block_hash", "num_refs")

    def __init__(self, block_hash: Hashable) -> None:
        self.block_hash = block_hash
        self.num_refs = 1


class BlockPool:
    """`num_free` blocks can be taken, those that are still cached among them."""

    def __init__(self, num_total_blocks: int) -> None:
        self.num_total_blocks = num_total_blocks
        self.num_free = num_total_blocks
        self._unused: OrderedDict[CachedBlock, None] = OrderedDict()  # longest unused first
        self._by_hash: dict[Hashable, list[CachedBlock]] = {}  # twins: oldest first

    def take(self, num_blocks: int) -> None:
        """Takes free blocks, which lose what they held.

        Raises:
            ValueError: there are not so many; nothing is taken.
        """
        if num_blocks > self.num_free:
            raise ValueError(f"{num_blocks} blocks wanted, {self.num_free} free")
        self.num_free -= num_blocks
        while len(self._unused) > self.num_free:
            block, _ = self._unused.popitem(last=False)
            twins = self._by_hash[block.block_hash]
            twins.remove(block)
            if not twins:
                del self._by_hash[block.block_hash]

    def give_back(self, num_blank_blocks: int, cached: Sequence[CachedBlock]) -> None:
        """Frees what one request held: blocks without a hash, and the cached ones in its order.

        Its last blocks count as unused for longer than its first, which more requests share.
        """
        self.num_free += num_blank_blocks
        for block in reversed(cached):
            block.num_refs -= 1
            if block.num_refs == 0:
                self._unused[block] = None
                self.num_free += 1

    def remember(self, block_hash: Hashable) -> CachedBlock:
        """Gives a hash to a block that was taken and has been filled since."""
        block = CachedBlock(block_hash)
        self._by_hash.setdefault(block_hash, []).append(block)
        return block

    def find(self, block_hash: Hashable) -> CachedBlock | None:
        twins = self._by_hash.get(block_hash)
        return twins[0] if twins else None

    def hold(self, blocks: Iterable[CachedBlock]) -> None:
        """Adds one reference to each, by the same request."""
        for block in blocks:
            if block.num_refs == 0:
                del self._unused[block]
                self.num_free -= 1
            block.num_refs += 1

    def check(self, num_blank_held: int, held: Iterable[Sequence[CachedBlock]]) -> None:
        """Compares with what the requests hold.

        Raises:
            AssertionError: a block is lost, counted twice or miscounted.
        """
        refs: dict[CachedBlock, int] = {}
        for blocks in held:
            for block in blocks:
                refs[block] = refs.get(block, 0) + 1
        known = [block for twins in self._by_hash.values() for block in twins]
        assert len(known) == len(set(known)), "a block is cached twice"
        assert set(known) == set(refs) | set(self._unused), "cached blocks are held or unused"
        assert not set(refs) & set(self._unused), "a held block is free"
        for block in known:
            assert block.num_refs == refs.get(block, 0), "a block's references are miscounted"
            assert block in self._by_hash[block.block_hash], "a block is under another hash"
        assert self.num_free == self.num_total_blocks - num_blank_held - len(refs), "blocks lost"
        assert 0 <= len(self._unused) <= self.num_free <= self.num_total_blocks
