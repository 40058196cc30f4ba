"""Lengths of `bench`: a bare name means table 1, draws follow the distribution, a wrong name is
told with the nearest right one. The distributions have tests of their own (tests/unit/sim)."""

from itertools import islice
from random import Random

import pytest

from controller.api.errors import UsageError
from controller.sim.workload.lengths import TABLE_1, ZIPF, Fixed, Lengths
from llumctl.lab import bench_load

NUM = 50_000


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
def test_names(text: str, found: tuple[Lengths, Lengths]) -> None:
    assert bench_load.parse_lengths(text) == found


def test_draws_have_the_means_of_table_1() -> None:
    prompts, outputs = zip(
        *islice(bench_load.draw_lengths(*bench_load.parse_lengths("sharegpt"), Random(3)), NUM),
        strict=True,
    )
    assert sum(prompts) / NUM == pytest.approx(306, rel=0.05)
    assert sum(outputs) / NUM == pytest.approx(500, rel=0.05)


def test_fixed_lengths_do_not_vary() -> None:
    drawn = bench_load.draw_lengths(*bench_load.parse_lengths("3,5"), Random(0))
    assert set(islice(drawn, 3 * bench_load.DRAWN_AT_ONCE)) == {(3, 5)}


@pytest.mark.parametrize(
    ("text", "guess"),
    [("sharegtp", "sharegpt"), ("M_M", "M-M"), ("zipf:S-X", "zipf:S-S"), ("128", "M-M")],
)
def test_unknown_names_get_the_nearest(text: str, guess: str) -> None:
    with pytest.raises(UsageError, match="--lengths") as caught:
        bench_load.parse_lengths(text)
    assert caught.value.hint == f"llumctl bench --lengths {guess}"


def test_no_length_is_zero() -> None:
    with pytest.raises(UsageError, match="at least 1 token"):
        bench_load.parse_lengths("0,10")
