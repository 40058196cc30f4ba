"""The KV blocks of an emulated engine, as far as moves look at them, and the keys under which its
prefix cache finds full ones.

A block's bytes are a digest of all tokens up to its end (`BlockHashes`), so a block that is
swapped, stale, half written or of another request is found. `block_bytes` is the size of the
profile's blocks, and copying takes the time that those would need.
"""

from array import array
from collections.abc import Callable, Sequence
from hashlib import blake2b

DIGEST_BYTES = 16
NOTHING = bytes(DIGEST_BYTES)
"""The content of a block that was reserved and is not yet filled."""


class BlockHashes:
    """`hashes(i)` stands for the tokens of blocks 0 to i, prompt and answer, and for the salt:
    equal for two requests exactly if all of these are.

    Hashes are computed when they are asked for, and kept: 16 bytes a block.
    """

    def __init__(
        self, token_at: Callable[[int], int], block_size: int, salt: str | None = None
    ) -> None:
        self._token_at = token_at
        self._block_size = block_size
        self._salt = b"" if salt is None else b"+" + salt.encode()
        self._digests: list[bytes] = []

    def __call__(self, index: int) -> bytes:
        digests, size = self._digests, self._block_size
        while len(digests) <= index:
            first = len(digests) * size
            before = digests[-1] if digests else self._salt
            digests.append(self._digest(before, first, first + size))
        return digests[index]

    def up_to(self, num_tokens: int) -> bytes:
        """The hash of the last block that `num_tokens` tokens touch, filled with those alone."""
        index = (num_tokens - 1) // self._block_size
        before = self(index - 1) if index else self._salt
        return self._digest(before, index * self._block_size, num_tokens)

    def _digest(self, before: bytes, first: int, end: int) -> bytes:
        tokens = array("I", map(self._token_at, range(first, end)))
        return blake2b(before + tokens.tobytes(), digest_size=DIGEST_BYTES).digest()


class EmulatedBlocks:
    """A block gets a number only for a move, and a new one for each move. The engine's thread
    makes and drops blocks; any thread reads and fills them, by single operations of a dict."""

    def __init__(self, block_bytes: int) -> None:
        self.block_bytes = block_bytes
        self._contents: dict[int, bytes] = {}
        self._num_made = 0

    def buffer(self, num_blocks: int) -> bytearray:
        return bytearray(num_blocks * DIGEST_BYTES)

    def gather(self, block_ids: Sequence[int], into: bytearray) -> memoryview:
        """Raises KeyError: a block is not pinned, suspended or reserved any more."""
        filled = self.writable(into, len(block_ids))
        filled[:] = b"".join([self._contents[block_id] for block_id in block_ids])
        return filled

    def scatter(self, block_ids: Sequence[int], buffer: bytearray) -> None:
        """Raises KeyError: a block is not reserved any more."""
        for position, block_id in enumerate(block_ids):
            if block_id not in self._contents:
                raise KeyError(block_id)
            start = position * DIGEST_BYTES
            self._contents[block_id] = bytes(buffer[start : start + DIGEST_BYTES])

    def writable(self, buffer: bytearray, num_blocks: int) -> memoryview:
        return memoryview(buffer)[: num_blocks * DIGEST_BYTES]

    def make(self, contents: Sequence[bytes]) -> tuple[int, ...]:
        first = self._num_made
        self._num_made += len(contents)
        made = range(first, self._num_made)
        self._contents.update(zip(made, contents, strict=True))
        return tuple(made)

    def contents(self, block_ids: Sequence[int]) -> list[bytes]:
        return [self._contents[block_id] for block_id in block_ids]

    def drop(self, block_ids: Sequence[int]) -> None:
        for block_id in block_ids:
            del self._contents[block_id]
