"""How many blocks must be free for a request to start."""

from controller.core.load.snapshot import blocks_for


def demand_blocks(
    num_prompt_tokens: int, num_output_tokens: float, block_size: int, largest_blocks: int
) -> int:
    """Blocks for the prompt and so much of the output; 0 if the block size is not known (0).
    `largest_blocks` is the memory of the largest instance: room for outputs is no reason to refuse
    what would fit there while it is idle."""
    if not block_size:
        return 0
    prompt_blocks = blocks_for(num_prompt_tokens, block_size)
    with_output = blocks_for(num_prompt_tokens + int(num_output_tokens), block_size)
    return max(prompt_blocks, min(with_output, largest_blocks))
