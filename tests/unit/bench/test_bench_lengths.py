"""Lengths: the five statistics of each row of table 1, and the names that are understood."""

from random import Random

import pytest

from controller.api.errors import UsageError
from llumctl.bench import lengths
from llumctl.bench.lengths import TABLE_1, ZIPF, Fixed

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


def statistics_of(values: list[int]) -> list[float]:
    ordered = sorted(values)
    percentiles = [ordered[int(share * len(ordered))] for share in (0.5, 0.8, 0.95, 0.99)]
    return [sum(values) / len(values), *percentiles]


@pytest.mark.parametrize("name", PAPER)
def test_the_curve_has_the_statistics_of_table_1(name: str) -> None:
    curve = TABLE_1[name]
    values = [curve.at((i + 0.5) / NUM) for i in range(NUM)]
    assert statistics_of(values) == pytest.approx(PAPER[name], rel=0.001)
    assert values == sorted(values), "monotone"
    assert values[0] == 1
    assert values[-1] <= lengths.MAX_TABLE_TOKENS


@pytest.mark.parametrize("name", PAPER)
def test_draws_follow_the_curve(name: str) -> None:
    rng = Random(3)
    found = statistics_of([TABLE_1[name].draw(rng) for _ in range(NUM)])
    assert found == pytest.approx(PAPER[name], rel=0.05)


@pytest.mark.parametrize("name", ["S", "M", "L"])
def test_zipf_is_near_table_1(name: str) -> None:
    rng = Random(5)
    values = [ZIPF[name].draw(rng) for _ in range(NUM)]
    mean, _, _, p95, p99 = statistics_of(values)
    paper = PAPER[name]
    assert mean == pytest.approx(paper[0], rel=0.03)
    assert p95 == pytest.approx(paper[3], rel=0.05)
    assert p99 == pytest.approx(paper[4], rel=0.2)
    assert 1 <= min(values) <= max(values) <= lengths.MAX_TABLE_TOKENS


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("M-M", (TABLE_1["M"], TABLE_1["M"])),
        ("s-l", (TABLE_1["S"], TABLE_1["L"])),
        ("zipf:L-S", (ZIPF["L"], ZIPF["S"])),
        ("ShareGPT", (TABLE_1["sharegpt-in"], TABLE_1["sharegpt-out"])),
        ("128, 64", (Fixed(128), Fixed(64))),
    ],
)
def test_names(text: str, found: tuple[lengths.Lengths, lengths.Lengths]) -> None:
    assert lengths.parse(text) == found


def test_fixed_lengths_do_not_vary() -> None:
    prompts, outputs = lengths.parse("3,5")
    assert [prompts.draw(Random(0)), outputs.draw(Random(1))] == [3, 5]


@pytest.mark.parametrize(
    ("text", "guess"),
    [
        ("sharegtp", "sharegpt"),
        ("M_M", "M-M"),
        ("zipf:S-X", "zipf:S-S"),
        ("128", "M-M"),
        ("-1,4", "M-M"),
        ("zipf:sharegpt", "sharegpt"),
    ],
)
def test_unknown_names_get_the_nearest(text: str, guess: str) -> None:
    with pytest.raises(UsageError, match="--lengths") as caught:
        lengths.parse(text)
    assert caught.value.hint == f"llumctl bench --lengths {guess}"


def test_no_length_is_zero() -> None:
    with pytest.raises(UsageError, match="at least 1 token"):
        lengths.parse("0,10")
