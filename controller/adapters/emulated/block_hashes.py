"""The keys under which an emulated prefix cache finds full KV blocks."""

from array import array
from collections.abc import Callable
from hashlib import blake2b

DIGEST_BYTES = 16


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
