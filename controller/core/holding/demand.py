"""How many blocks must be free for a request to start, if room is left for its expected output."""

from controller.core.load.snapshot import blocks_for


def demand_with_output(
    num_prompt_tokens: int, num_output_tokens: int, block_size: int, largest_blocks: int
) -> int:
    """`largest_blocks` is the memory of the largest instance: room for outputs is no reason to
    refuse what would fit there while it is idle."""
    with_output = blocks_for(num_prompt_tokens + num_output_tokens, block_size)
    return max(blocks_for(num_prompt_tokens, block_size), min(with_output, largest_blocks))
