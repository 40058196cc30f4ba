"""When pre-copying ends: the rule of the last stage.

Each stage copies what became full while the one before it was copied, so stages shrink. The
last one stops the request, so it begins when little is left; a block more costs less than
another round trip. `max_stages` bounds a copy that never catches up (a tight bandwidth limit).
"""

LAST_STAGE_BLOCKS = 2
MAX_STAGES = 12


def is_last(num_full_blocks_left: int, stage: int, max_stages: int = MAX_STAGES) -> bool:
    """With `max_stages` 1 a move is a stop-and-copy."""
    return num_full_blocks_left <= LAST_STAGE_BLOCKS or stage >= max_stages - 1


def blocks_to_reserve(num_tokens: int, block_size: int, *, last: bool) -> int:
    """Blocks in all: the full ones so far; before the last stage room for `block_size` tokens more
    than there are, because the request decodes on until the answer has come."""
    return -(-(num_tokens + block_size) // block_size) if last else num_tokens // block_size
