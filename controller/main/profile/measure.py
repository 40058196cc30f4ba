"""Measures the grid's points on an engine.

Every round goes through the whole grid, so that what else the machine does meets all points alike;
a point is the median over the rounds. A batch grows from one request to as many as fit, and its
decode steps are timed at each size. The steps in which it grows, where one step takes all prompts
that are new, are the mixed ones. An engine that launches a step before the one ahead has ended
has none that can be told: a call of `step` lasts for parts of two. (On an H100 it made 2.7 ms of a
prompt of 64 tokens beside a decode that takes 6 ms alone.)
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, repeat, takewhile
from statistics import fmean, median

from controller.core.load.snapshot import blocks_for
from controller.main.profile.driver import DrivenEngine, TakenStep, UnexpectedError
from controller.main.profile.points import EngineSizes, Point, Step, StepPoints

SHORTEST = 64
"""Tokens of the shortest prompt, unless the engine takes no long ones."""
CONTEXT_FACTOR = 8
STEPS_PER_RUNG = 7
"""Decode steps that are timed at one size of the batch; odd, so that the median is one of them."""


Report = Callable[[str], None]
Rung = tuple[int, int]
"""Tokens of each prompt, and requests in the batch."""


@dataclass(frozen=True, slots=True)
class Grid:
    lengths: tuple[int, ...]
    """Of single prompts."""
    contexts: tuple[int, ...]
    """Prompts of the batches that grow and decode."""


def measure(
    engine: DrivenEngine, sizes: EngineSizes, grid: Grid, num_rounds: int, report: Report
) -> StepPoints:
    """Raises UnexpectedError."""
    prefill: dict[int, list[float]] = defaultdict(list)
    decode: dict[Rung, list[TakenStep]] = defaultdict(list)
    mixed: dict[Rung, list[TakenStep]] = defaultdict(list)
    report("warming up")
    _prefill_s(engine, grid.lengths[-1])
    launches_ahead = _launches_ahead(engine, sizes, grid.lengths[0])
    for number in range(1, num_rounds + 1):
        report(f"round {number} of {num_rounds}: prompts of up to {grid.lengths[-1]:,} tokens")
        for num_tokens in grid.lengths:
            prefill[num_tokens].append(_prefill_s(engine, num_tokens))
        for context in grid.contexts:
            report(f"round {number} of {num_rounds}: batches of prompts of {context:,} tokens")
            _grow(engine, sizes, context, decode, mixed)
    return StepPoints(
        tuple(
            Point(
                tuple(Step((chunk,)) for chunk in chunks_of(n, sizes.max_chunk_tokens)),
                median(times),
            )
            for n, times in prefill.items()
        ),
        tuple(_point(steps) for steps in decode.values()),
        () if launches_ahead else tuple(_point(steps) for steps in mixed.values()),
        round(fmean(map(_excess, decode.values())), 4) if decode else 0.0,
    )


def _launches_ahead(engine: DrivenEngine, sizes: EngineSizes, num_tokens: int) -> bool:
    """Whether a prompt's token comes with a later call than that of its last step."""
    engine.add(num_tokens, 1)
    num_steps = 0
    while engine.num_pending:
        engine.step()
        num_steps += 1
    engine.clear()
    return num_steps > len(chunks_of(num_tokens, sizes.max_chunk_tokens))


def _prefill_s(engine: DrivenEngine, num_tokens: int) -> float:
    """Seconds from a prompt's admission to its token, on an engine with nothing else to do."""
    engine.add(num_tokens, 1)
    took_s = 0.0
    while engine.num_pending:
        took_s += engine.step().time_s
    engine.clear()
    return took_s


def _grow(
    engine: DrivenEngine,
    sizes: EngineSizes,
    prompt: int,
    decode: dict[Rung, list[TakenStep]],
    mixed: dict[Rung, list[TakenStep]],
) -> None:
    """Adds what it measures. Contexts grow a little by what is decoded meanwhile."""
    wanted = 1
    while (size := next_batch(sizes, engine.contexts, prompt, wanted)) is not None:
        num_before = len(engine.contexts)
        num_new = size - num_before
        for _ in range(num_new):
            engine.add(prompt, sizes.max_model_len - prompt)
        while engine.num_pending:
            step = engine.step()
            if _is_mixed(step, num_before, num_new, prompt, sizes):
                mixed[prompt, size].append(step)
        for _ in range(STEPS_PER_RUNG):
            step = engine.step()
            if step.work.num_decoding != size:
                raise UnexpectedError(f"{step.work.num_decoding} of {size} requests decoded")
            decode[prompt, size].append(step)
        wanted = size * 2
    engine.clear()


def _is_mixed(
    step: TakenStep, num_before: int, num_new: int, prompt: int, sizes: EngineSizes
) -> bool:
    """Whether this step computed all new prompts, whole, beside the decodes."""
    in_one_step = num_new * prompt + num_before <= sizes.max_num_batched_tokens
    whole = in_one_step and prompt <= sizes.max_chunk_tokens
    work = step.work
    return whole and len(work.prefill) == num_new and 0 < work.num_decoding == num_before


def _excess(steps: list[TakenStep]) -> float:
    times_s = [step.time_s for step in steps]
    return fmean(times_s) / median(times_s) - 1


def _point(steps: list[TakenStep]) -> Point:
    """All are of one batch, whose context grows evenly: the median of one is that of the other."""
    first = steps[0].work
    context = round(median(step.work.num_context_tokens for step in steps))
    work = Step(first.prefill, first.num_decoding, context)
    return Point((work,), median(step.time_s for step in steps))


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
