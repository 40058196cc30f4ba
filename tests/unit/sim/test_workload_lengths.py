"""Lengths: the five statistics of each row of table 1, draws, and the names that are understood."""

import numpy as np
import pytest

from controller.sim.workload.lengths import (
    MAX_TABLE_TOKENS,
    TABLE_1,
    ZIPF,
    Fixed,
    Lengths,
    Tokens,
    UnknownLengthsError,
    lengths_named,
)

# Table 1 of the paper: mean, P50, P80, P95, P99 in tokens.
PAPER = {
    "sharegpt-in": (306, 74, 348, 1484, 3388),
    "sharegpt-out": (500, 487, 781, 988, 1234),
    "burstgpt-in": (830, 582, 1427, 2345, 3549),
    "burstgpt-out": (271, 243, 434, 669, 964),
    "S": (128, 38, 113, 413, 1464),
    "M": (256, 32, 173, 1288, 4208),
    "L": (512, 55, 582, 3113, 5166),
}
NUM = 100_000


def statistics_of(tokens: Tokens) -> list[float]:
    ordered = np.sort(tokens)
    percentiles = [float(ordered[int(share * NUM)]) for share in (0.5, 0.8, 0.95, 0.99)]
    return [float(tokens.mean()), *percentiles]


@pytest.mark.parametrize("name", PAPER)
def test_the_curve_has_the_statistics_of_table_1(name: str) -> None:
    tokens = TABLE_1[name].at((np.arange(NUM) + 0.5) / NUM)
    assert statistics_of(tokens) == pytest.approx(PAPER[name], rel=0.001)
    assert (np.diff(tokens) >= 0).all(), "monotone"
    assert tokens[0] == 1
    assert tokens[-1] <= MAX_TABLE_TOKENS


@pytest.mark.parametrize("name", ZIPF)
def test_zipf_is_near_table_1(name: str) -> None:
    tokens = ZIPF[name].at(np.random.default_rng(5).random(NUM))
    mean, _, _, p95, p99 = statistics_of(tokens)
    paper = PAPER[name]
    assert (mean, p95) == pytest.approx((paper[0], paper[3]), rel=0.05)
    assert p99 == pytest.approx(paper[4], rel=0.2)
    assert 1 <= tokens.min() <= tokens.max() <= MAX_TABLE_TOKENS


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("s-l", (ZIPF["S"], ZIPF["L"])),
        ("zipf:L-S", (ZIPF["L"], ZIPF["S"])),
        ("table1:M-S", (TABLE_1["M"], TABLE_1["S"])),
        ("ShareGPT", (TABLE_1["sharegpt-in"], TABLE_1["sharegpt-out"])),
        ("128, 64", (Fixed(128), Fixed(64))),
    ],
)
def test_names(text: str, found: tuple[Lengths, Lengths]) -> None:
    assert lengths_named(text, "zipf") == found


@pytest.mark.parametrize(
    ("text", "nearest"),
    [("sharegtp", "sharegpt"), ("tabel1:L-L", "table1:L-L"), (":M-M", "M-M"), ("0,10", "128,64")],
)
def test_unknown_names_get_the_nearest(text: str, nearest: str) -> None:
    with pytest.raises(UnknownLengthsError) as caught:
        lengths_named(text, "zipf")
    assert caught.value.nearest == nearest
