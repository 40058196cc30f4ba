"""Which points are measured: lengths of prompts, and batches that decode at some context."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, repeat, takewhile

from controller.core.load.snapshot import blocks_for
from controller.main.profile.points import EngineSizes

SHORTEST = 64
"""Tokens of the shortest prompt, unless the engine takes no long ones."""
CONTEXT_FACTOR = 8
STEPS_PER_RUNG = 7
"""Decode steps that are timed at one size of the batch; odd, so that the median is one of them."""


@dataclass(frozen=True, slots=True)
class Grid:
    lengths: tuple[int, ...]
    """Of single prompts."""
    contexts: tuple[int, ...]
    """Prompts of the batches that grow and decode."""


def grid_of(sizes: EngineSizes) -> Grid:
    """Lengths double from SHORTEST to the longest that fits; a batch's contexts grow eightfold, up
    to half of the longest."""
    longest = min(sizes.max_model_len - 1, _room_blocks(sizes) * sizes.block_size - 1)
    shortest = SHORTEST
    while shortest > 1 and shortest * 2 * CONTEXT_FACTOR > longest:
        shortest //= 2
    lengths = _grown(shortest, 2, longest)
    if not lengths or longest > lengths[-1]:
        lengths = (*lengths, longest)
    return Grid(lengths, _grown(shortest, CONTEXT_FACTOR, (longest + 1) // 2 + 1))


def next_batch(sizes: EngineSizes, contexts: Sequence[int], prompt: int, wanted: int) -> int | None:
    """How large the batch becomes: `wanted`, or as many as fit, with all that they will have
    decoded when their steps are timed; None if no request more fits. `contexts`: tokens of those
    that decode now."""
    for size in range(min(wanted, sizes.max_num_running), len(contexts), -1):
        num_new = size - len(contexts)
        budget = max(1, sizes.max_num_batched_tokens - len(contexts))
        num_steps = -(-num_new * prompt // budget) + STEPS_PER_RUNG + 2
        tokens = [*(n + num_steps for n in contexts), *repeat(prompt + num_steps, num_new)]
        blocks = sum(blocks_for(n, sizes.block_size) for n in tokens)
        if max(tokens) < sizes.max_model_len and blocks <= _room_blocks(sizes):
            return size
    return None


def chunks_of(num_tokens: int, max_chunk_tokens: int) -> tuple[tuple[int, int], ...]:
    """How a prompt that is alone is cut: tokens of each step, and those before."""
    return tuple(
        (min(max_chunk_tokens, num_tokens - before), before)
        for before in range(0, num_tokens, max_chunk_tokens)
    )


def _grown(first: int, factor: int, below: int) -> tuple[int, ...]:
    powers = accumulate(repeat(factor, 64), lambda n, by: n * by, initial=first)
    return tuple(takewhile(lambda n: n < below, powers))


def _room_blocks(sizes: EngineSizes) -> int:
    return sizes.num_total_blocks - sizes.watermark_blocks
