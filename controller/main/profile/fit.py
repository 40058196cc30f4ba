"""The constants of a profile from measured points: least squares of the relative errors, with no
constant below zero.

A prompt and a decode step are each a sum of three constants times what is known of the work, so
each is a linear problem with three unknowns. The best solution without negative constants is the
best one of some subset of them with the others at zero: there are seven subsets, and all are tried.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from controller.main.profile.points import Point, StepPoints

Matrix = NDArray[np.float64]

SMALLEST_SINGULAR_RATIO = 1e-6
"""Below it, the columns of a grid are taken for dependent."""


class DegenerateError(ValueError):
    """The points do not tell the constants apart; the message says what they lack."""


@dataclass(frozen=True, slots=True)
class StepConstants:
    """The constants of `LatencyProfile.step_time_s`, in seconds."""

    prefill_base_s: float
    prefill_per_token_s: float
    prefill_per_token_squared_s: float
    decode_base_s: float
    decode_per_context_token_s: float
    decode_per_request_s: float


def fit(points: StepPoints) -> StepConstants:
    """Raises DegenerateError."""
    return StepConstants(*fit_prefill(points.prefill), *fit_decode(points.decode))


def fit_prefill(points: Sequence[Point]) -> tuple[float, float, float]:
    """Base, per token, per token squared. Raises DegenerateError."""
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
    return _solved(rows, points, "prefill: the prompts' lengths do not tell its constants apart")


def fit_decode(points: Sequence[Point]) -> tuple[float, float, float]:
    """Base, per token of context, per request. Raises DegenerateError."""
    steps = [step for point in points for step in point.steps]
    num_batches = len({step.num_decoding for step in steps})
    if num_batches < 2:
        raise DegenerateError(
            f"decode: {num_batches} sizes of the batch were measured, and its constants need 2"
        )
    rows = [(1, step.num_context_tokens, step.num_decoding) for step in steps]
    return _solved(
        rows, points, "decode: the context grows with the batch alone, so its constants cannot be"
        " told apart"
    )  # fmt: skip


def _num_tokens(point: Point) -> int:
    return sum(step.num_prefill_tokens for step in point.steps)


def _solved(
    rows: Sequence[tuple[float, float, float]], points: Sequence[Point], why: str
) -> tuple[float, float, float]:
    times = np.array([point.time_s for point in points])
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
    """The x without a negative element that minimises |matrix x - target|. For a few columns."""
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
