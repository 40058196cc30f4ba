"""KV blocks that belong to no engine: what a move copies into, where only the copy matters."""

import torch

from controller.adapters.vllm.moves.kv_blocks import HostBlocks


def spare_blocks(block_bytes: int, num_blocks: int) -> HostBlocks:
    """In main memory, and touched once: a page that is new takes longer to write."""
    return HostBlocks([torch.ones((num_blocks, block_bytes), dtype=torch.uint8)], num_blocks)
