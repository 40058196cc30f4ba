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


def test_ids_of_one_client_differ_by_what_they_show() -> None:
    found = shortened(
        ["cmpl-8be6e970ff0600ea-4-0-7c3a177d4", "cmpl-8be6e970ff0600ea-10-0-7c3a177da"], 9
    )
    assert list(found.values()) == ["4-0-…77d4", "10-0…77da"]


def test_ids_without_anything_in_common_lose_the_word_that_says_nothing() -> None:
    found = shortened(["cmpl-8d36e06fa6a667f4", "cmpl-90c7dbc54b4264d5"], 7)
    assert list(found.values()) == ["8d3…7f4", "90c…4d5"]


def test_one_alone_loses_its_first_word_only() -> None:
    assert shortened(["cmpl-8d36e06fa6a667f4"], 9) == {"cmpl-8d36e06fa6a667f4": "8d36…67f4"}


def test_two_kinds_lose_their_words_each() -> None:
    found = shortened(["cmpl-8d36e06fa6a667f4", "chatcmpl-90c7dbc54b4264d5"], 9)
    assert list(found.values()) == ["8d36…67f4", "90c7…64d5"]


def test_what_has_room_is_whole() -> None:
    assert shortened(["cmpl-1", "cmpl-2"], 6) == {"cmpl-1": "cmpl-1", "cmpl-2": "cmpl-2"}


def test_a_cut_goes_where_the_difference_is_not() -> None:
    found = shortened(["cmpl-aaaaaaaaaaab", "cmpl-aaaaaaaaaaac"], 5)
    assert list(found.values()) == ["aa…ab", "aa…ac"]
    found = shortened(["x-aaaaa1aaaaaaaaaaaaaaaa", "x-aaaaa2aaaaaaaaaaaaaaaa"], 8)
    assert list(found.values()) == ["aaaaa1…a", "aaaaa2…a"]


def test_a_difference_in_the_middle_is_shown_all_the_same() -> None:
    many = [f"cmpl-aaaaaaaaaa{number}bbbbbbbbbb" for number in range(5)]
    found = shortened(many, 7)
    assert len(set(found.values())) == 5
    assert all(len(form) <= 7 for form in found.values())


@given(ids, widths)
def test_what_is_shown_has_room_and_is_made_of_the_id(found: list[str], width: int) -> None:
    shown = shortened(found, width)
    assert set(shown) == set(found)
    for id_, form in shown.items():
        assert len(form) <= width
        pattern = "".join(".*" if char == "…" else re.escape(char) for char in form)
        if width:
            assert re.search(pattern, id_)


@given(wide_ids, widths)
def test_wide_characters_take_two_columns(found: list[str], width: int) -> None:
    for id_, form in shortened(found, width).items():
        assert num_cells(form) <= width
        pattern = "".join(".*" if char == "…" else re.escape(char) for char in form)
        assert not width or re.search(pattern, id_, re.DOTALL)


def test_wide_ids_keep_the_end_that_tells_them_apart() -> None:
    found = shortened(["会話-会話会話会話会話会話-7", "会話-会話会話会話会話会話-8"], 9)
    assert [form[-1] for form in found.values()] == ["7", "8"]


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
def test_ids_as_vllm_makes_them_stay_different(found: list[tuple[str, bytes]], width: int) -> None:
    names = [f"{word}{digest.hex()}" for word, digest in found]
    shown = shortened(names, width)
    assert len(set(shown.values())) == len(names)


@given(hashes, st.integers(5, 40))
def test_what_is_shown_names_the_request(found: list[tuple[str, bytes]], width: int) -> None:
    names = [f"{word}{digest.hex()}" for word, digest in found]
    for id_, form in shortened(names, width).items():
        assert match_names(form, id_, "client's", None) is not Match.NONE


@pytest.mark.parametrize(
    ("wanted", "match"),
    [
        ("8d36…67f4", Match.SHORTENED),
        ("8d36~67f4", Match.SHORTENED),
        ("…67f4", Match.SHORTENED),
        ("8d36e06fa6a667f4", Match.SHORTENED),
        ("6a667f4", Match.NONE),
        ("d36…67f4", Match.NONE),
        ("8d36…67f5", Match.NONE),
        ("8d36e06fa6a667f4…67f4", Match.NONE),
        ("…", Match.NONE),
        ("cmpl-8d36", Match.BEGINNING),
        ("cmpl-8d36…f4", Match.SHORTENED),
        ("…e06f…", Match.SHORTENED),
        ("…e06a…", Match.NONE),
    ],
)
def test_which_names_are_understood(wanted: str, match: Match) -> None:
    assert match_names(wanted, "cmpl-8d36e06fa6a667f4", "c", None) is match
