"""What the process that measures an engine tells `llumctl profile`, as plain values; and the fit of
a profile's constants to the measurements, by least squares of the relative errors, with no constant
below zero.

The time of a prompt, and the time of a decode step, are sums of three constants times known figures
of the work, so each fit is a linear problem with three unknowns. The best solution without negative
constants is the best solution for some subset of the constants, with the others at zero. There are
seven subsets, and all are tried."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from controller.core.load.step_times import StepCosts
from controller.model.profile import LatencyProfile

Matrix = NDArray[np.float64]

SMALLEST_SINGULAR_RATIO = 1e-6
"""If the ratio of singular values is smaller, the columns of a grid count as dependent."""


@dataclass(frozen=True, slots=True)
class Step:
    """The work of one step, as `LatencyProfile.step_time_s` gets it."""

    prefill: tuple[tuple[int, int], ...] = ()
    """For each prompt or chunk, the tokens computed in this step and the tokens computed before."""
    num_decoding: int = 0
    num_context_tokens: int = 0

    @property
    def num_prefill_tokens(self) -> int:
        return sum(num_new for num_new, _ in self.prefill)

    def time_s(self, profile: LatencyProfile) -> float:
        return profile.step_time_s(self.prefill, self.num_decoding, self.num_context_tokens)


@dataclass(frozen=True, slots=True)
class Point:
    """Consecutive steps, and how long they took together: the median over the repetitions."""

    steps: tuple[Step, ...]
    time_s: float

    def fitted_s(self, profile: LatencyProfile) -> float:
        return sum(step.time_s(profile) for step in self.steps)

    def error(self, profile: LatencyProfile) -> float:
        """The relative error of the profile's time; positive if that time is longer than the
        measured one."""
        return self.fitted_s(profile) / self.time_s - 1


@dataclass(frozen=True, slots=True)
class StepPoints:
    """The measured points. `prefill`: single prompts, each computed as a whole. `decode`: steps in
    which all requests decode. `mixed`: steps that prefill whole prompts and also decode; they are
    not used for the fit."""

    prefill: tuple[Point, ...] = ()
    decode: tuple[Point, ...] = ()
    mixed: tuple[Point, ...] = ()
    decode_excess: float = 0.0
    """By how much the mean time of decode steps exceeds their median, relative to it. The median is
    a point's time."""

    def by_kind(self) -> Iterator[tuple[str, tuple[Point, ...]]]:
        return iter((("prefill", self.prefill), ("decode", self.decode), ("mixed", self.mixed)))


@dataclass(frozen=True, slots=True)
class LinkFigures:
    """How long copies over the KV link take; each time is the fastest of several rounds. `stage_s`:
    a stage of `num_bytes`. `one_block_s`: a stage of a single block."""

    num_bytes: int
    stage_s: float
    one_block_s: float

    @property
    def bytes_per_s(self) -> float:
        return self.num_bytes / self.stage_s


@dataclass(frozen=True, slots=True)
class EngineSizes:
    """The sizes that the engine reports, with the names of `LatencyProfile`.

    `max_chunk_tokens`: how many tokens of one prompt a step computes at most. `kv_block_bytes` is 0
    if other processes hold the KV cache, so that nothing can be copied from it."""

    block_size: int
    num_total_blocks: int
    watermark_blocks: int
    max_num_running: int
    max_num_batched_tokens: int
    max_chunk_tokens: int
    max_model_len: int
    kv_block_bytes: int

    @property
    def watermark_ratio(self) -> float:
        """A ratio that gives `watermark_blocks` again when it is rounded as vLLM rounds it."""
        if not self.watermark_blocks:
            return 0.0
        return (self.watermark_blocks + 0.5) / (self.num_total_blocks + 1)


@dataclass(frozen=True, slots=True)
class Measured:
    sizes: EngineSizes
    points: StepPoints
    link: LinkFigures | None
    """None if both figures that follow from it were given by the user."""
    waited_ratio: float
    """The part of the time of the measured steps in which the engine's thread waited for a core
    that other processes used. These waits are in no point."""


class Task(msgspec.Struct, frozen=True):
    """What the engine's process has to do. `with_link`: whether it also measures the KV link."""

    engine_args: dict[str, Any]
    num_rounds: int
    status_interval_s: float
    with_link: bool


class Said(msgspec.Struct, frozen=True, tag=True):
    text: str


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The measurement failed. `doing`: what failed. `detail`: the exception's type and its text."""

    doing: str
    detail: str


class NoLink(msgspec.Struct, frozen=True, tag=True):
    """Blocks of this engine's KV cache cannot be copied. Nothing was measured then, not even the
    steps."""


class Done(msgspec.Struct, frozen=True, tag=True):
    measured: Measured


Message = Said | Failed | NoLink | Done


@dataclass(frozen=True, slots=True)
class FitError:
    """The relative errors over some points, as absolute values."""

    median: float
    largest: float

    @classmethod
    def of(cls, points: tuple[Point, ...], profile: LatencyProfile) -> "FitError | None":
        """The errors of a profile over these points; None if there are no points."""
        errors = [abs(point.error(profile)) for point in points]
        return cls(median(errors), max(errors)) if errors else None


class DegenerateError(ValueError):
    """The points do not determine all constants; the message says what is missing."""


def fit(points: StepPoints) -> StepCosts:
    """Fits all constants of a step. Raises DegenerateError if the points do not determine them."""
    of_decode = fit_decode(points.decode)
    return StepCosts(*fit_prefill(points.prefill, read_s=of_decode[1]), *of_decode)


def fit_prefill(points: Sequence[Point], *, read_s: float) -> tuple[float, float, float]:
    """Returns the constants of a prefill: base, per token, per token squared. `read_s`: how long a
    chunk takes to read the KV of an earlier token. Raises DegenerateError."""
    num_lengths = len({_num_tokens(point) for point in points})
    if num_lengths < 3:
        raise DegenerateError(
            f"prefill: prompts of {num_lengths} lengths were measured, and three constants need 3"
        )
    rows = [
        (
            len(point.steps),
            _num_tokens(point),
            sum(n * (n + 2 * before) for step in point.steps for n, before in step.prefill),
        )
        for point in points
    ]
    reads = [sum(before for step in point.steps for _, before in step.prefill) for point in points]
    times = [max(0.1 * p.time_s, p.time_s - read_s * n) for p, n in zip(points, reads, strict=True)]
    return _solved(rows, times, "prefill: the prompts' lengths do not tell its constants apart")


def fit_decode(points: Sequence[Point]) -> tuple[float, float, float]:
    """Returns the constants of a decode: base, per token of context, per request. Raises
    DegenerateError."""
    steps = [step for point in points for step in point.steps]
    num_batches = len({step.num_decoding for step in steps})
    if num_batches < 2:
        raise DegenerateError(
            f"decode: {num_batches} sizes of the batch were measured, and its constants need 2"
        )
    rows = [(1, step.num_context_tokens, step.num_decoding) for step in steps]
    return _solved(
        rows,
        [point.time_s for point in points],
        "decode: the context grows with the batch alone, so its constants cannot be told apart",
    )


def _num_tokens(point: Point) -> int:
    return sum(step.num_prefill_tokens for step in point.steps)


def _solved(
    rows: Sequence[tuple[float, float, float]], times_s: Sequence[float], why: str
) -> tuple[float, float, float]:
    times = np.array(times_s)
    if not bool((times > 0).all()):
        raise DegenerateError(f"{why.partition(':')[0]}: a measured time is zero")
    weighted = np.array(rows, dtype=np.float64) / times[:, None]
    scale = np.linalg.norm(weighted, axis=0)
    if not bool(scale.all()):
        raise DegenerateError(why)
    scaled = weighted / scale
    singular = np.linalg.svd(scaled, compute_uv=False)
    if len(singular) < len(scale) or singular[-1] < SMALLEST_SINGULAR_RATIO * singular[0]:
        raise DegenerateError(why)
    best = nonnegative_least_squares(scaled, np.ones(len(times))) / scale
    first, second, third = (float(constant) for constant in best)
    return first, second, third


def nonnegative_least_squares(matrix: Matrix, target: Matrix) -> Matrix:
    """The x without negative elements that minimises |matrix x - target|. It is meant for a few
    columns."""
    return min(
        _candidates(matrix, target), key=lambda x: float(np.linalg.norm(matrix @ x - target))
    )


def _candidates(matrix: Matrix, target: Matrix) -> Iterator[Matrix]:
    num_columns = matrix.shape[1]
    yield np.zeros(num_columns)
    for size in range(1, num_columns + 1):
        for columns in map(list, combinations(range(num_columns), size)):
            solution, *_ = np.linalg.lstsq(matrix[:, columns], target)
            if bool((solution >= 0).all()):
                whole = np.zeros(num_columns)
                whole[columns] = solution
                yield whole
