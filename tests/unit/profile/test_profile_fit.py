"""The fit finds known constants again, also with noise, and refuses points that do not determine
them."""

from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.main.profile.points import (
    DegenerateError,
    Step,
    fit,
    fit_decode,
    fit_prefill,
    nonnegative_least_squares,
)
from controller.model.profile import load_profile, profile_names
from tests.unit.profile.profile_points import BATCHES, exact, points_of, prompt


@pytest.mark.parametrize("name", profile_names())
def test_known_constants_come_out(name: str) -> None:
    profile = load_profile(name)
    found = asdict(fit(points_of(profile)))
    assert found == {key: pytest.approx(getattr(profile, key), rel=1e-6) for key in found}


def test_points_that_tell_too_little() -> None:
    for batches, why in (
        (((4, 100), (4, 200), (4, 300)), "1 sizes of the batch"),
        (((1, 64), (2, 700)), "the context grows with the batch alone"),
    ):
        with pytest.raises(DegenerateError, match=why):
            fit_decode([exact(Step((), *batch)) for batch in batches])
    with pytest.raises(DegenerateError, match="prompts of 2 lengths were measured, and three"):
        fit_prefill([exact(*prompt(n)) for n in (64, 64, 128, 128)], read_s=0.0)
    points = [exact(Step((), *batch)) for batch in BATCHES]
    with pytest.raises(DegenerateError, match="decode: a measured time is zero"):
        fit_decode([*points, replace(points[0], time_s=0.0)])


@given(
    st.lists(st.lists(st.floats(0.01, 10), min_size=3, max_size=3), min_size=4, max_size=8),
    st.lists(st.floats(-5, 5), min_size=3, max_size=3),
)
def test_no_other_nonnegative_solution_is_better(
    rows: list[list[float]], other: list[float]
) -> None:
    matrix, target = np.array(rows), np.ones(len(rows))
    best = nonnegative_least_squares(matrix, target)
    assert (best >= 0).all()
    rival = np.abs(np.array(other))
    for candidate in (rival, best + 0.01 * rival, np.maximum(0, best - 0.01 * rival)):
        assert np.linalg.norm(matrix @ best - target) <= (
            np.linalg.norm(matrix @ candidate - target) + 1e-9
        )
