"""Ids in little room: they are cut, and different ids stay different."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.api.text.quantities import num_cells
from controller.api.text.short_ids import shortened
from controller.core.record.request_record import Match, match_names

ALPHABET = "ab01-"
wide_ids = st.lists(st.text("ab01-会話가\u0301", min_size=1, max_size=24), max_size=12)
ids = st.lists(st.text(ALPHABET, min_size=1, max_size=24), max_size=12)
widths = st.integers(0, 26)
hashes = st.lists(
    st.tuples(st.sampled_from(("cmpl-", "chatcmpl-", "")), st.binary(min_size=8, max_size=8)),
    unique_by=lambda pair: (pair[1][:2], pair[1][-2:]),
    min_size=1,
    max_size=50,
)


CUT = {
    "ids of one client differ by what they show": (
        ["cmpl-8be6e970ff0600ea-4-0-7c3a177d4", "cmpl-8be6e970ff0600ea-10-0-7c3a177da"],
        (9, ["4-0-…77d4", "10-0…77da"]),
    ),
    "two kinds lose their words each": (
        ["cmpl-8d36e06fa6a667f4", "chatcmpl-90c7dbc54b4264d5"],
        (9, ["8d36…67f4", "90c7…64d5"]),
    ),
}


@pytest.mark.parametrize(("ids", "cut"), CUT.values(), ids=CUT)
def test_a_cut_goes_where_the_difference_is_not(ids: list[str], cut: tuple[int, list[str]]) -> None:
    width, shown = cut
    assert list(shortened(ids, width).values()) == shown


@given(wide_ids, widths)
def test_wide_characters_take_two_columns(found: list[str], width: int) -> None:
    for id_, form in shortened(found, width).items():
        assert num_cells(form) <= width
        pattern = "".join(".*" if char == "…" else re.escape(char) for char in form)
        assert not width or re.search(pattern, id_, re.DOTALL)


@given(ids, widths)
def test_different_ids_stay_different_wherever_whole_cuts_can_tell_them(
    found: list[str], width: int
) -> None:
    """By trying: all ids cut at the same places, with or without a common beginning."""
    distinct = set(found)
    possible = any(
        len({id_ if len(id_) <= width else (id_[:head], id_[len(id_) - width + head + 1 :])
             for id_ in distinct}) == len(distinct)
        for head in range(width)
    )  # fmt: skip
    whole = all(len(id_) <= width for id_ in distinct)
    bare = not any(set(id_) & set("-") for id_ in distinct)
    if whole or (possible and bare):
        assert len(set(shortened(found, width).values())) == len(distinct)


@given(hashes, st.integers(9, 40))
def test_ids_as_vllm_makes_them_stay_different_and_name_the_request(
    found: list[tuple[str, bytes]], width: int
) -> None:
    names = [f"{word}{digest.hex()}" for word, digest in found]
    shown = shortened(names, width)
    assert len(set(shown.values())) == len(names)
    for id_, form in shown.items():
        assert match_names(form, id_, "client's", None) is not Match.NONE


def test_which_names_are_understood() -> None:
    for match, names in (
        (Match.SHORTENED, ["8d36…67f4", "8d36~67f4", "…67f4", "8d36e06fa6a667f4"]),
        (Match.SHORTENED, ["cmpl-8d36…f4", "…e06f…"]),
        (Match.BEGINNING, ["cmpl-8d36"]),
        (Match.NONE, ["6a667f4", "d36…67f4", "8d36…67f5", "8d36e06fa6a667f4…67f4", "…", "…e06a…"]),
    ):
        found = {name: match_names(name, "cmpl-8d36e06fa6a667f4", "c", None) for name in names}
        assert found == dict.fromkeys(names, match)
