"""A digest of KV blocks, to compare both sides of a move with (`--verify-kv`)."""

import hashlib
from collections.abc import Sequence

from controller.ports.moves import KvBlocks

SLICE_BYTES = 4 << 20


def kv_digest(blocks: KvBlocks, block_ids: Sequence[int]) -> bytes:
    """32 bytes over all of them in order. Reads in slices; takes about 1 s per GiB."""
    num_per_slice = max(1, SLICE_BYTES // blocks.block_bytes)
    buffer = blocks.buffer(num_per_slice)
    digest = hashlib.blake2b(digest_size=32)
    for first in range(0, len(block_ids), num_per_slice):
        digest.update(blocks.gather(block_ids[first : first + num_per_slice], buffer))
    return digest.digest()
