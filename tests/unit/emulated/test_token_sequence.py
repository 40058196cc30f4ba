"""The sequence that every emulated answer follows, and what its check finds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.adapters.embedded_model.model_folder import (
    EOS_ID,
    SPECIAL_TOKENS,
    vocabulary,
    words,
)
from controller.api import token_sequence
from controller.api.token_sequence import (
    COUNT,
    END,
    FIRST,
    STRIDE,
    first_position,
    natural_length,
    token,
)
from tools.emulated_answers import first_wrong

PROMPT = [300, 301, 2000, 7]


def answer(prompt: list[int], num_tokens: int) -> list[int]:
    start = token_sequence.start(prompt)
    return [token(start, position) for position in range(num_tokens)]


def test_the_ids_are_whole_words_of_the_embedded_model() -> None:
    known = {word.lower() for entries in words().values() for word in entries}
    tokens = vocabulary()
    assert len(SPECIAL_TOKENS) + 256 < FIRST
    assert len(tokens) >= FIRST + COUNT
    for entry in tokens[FIRST : FIRST + COUNT]:
        assert entry.data.decode().removeprefix(" ").lower() in known
    assert END == EOS_ID


def test_the_numbers_are_fixed() -> None:
    """Other programs may check answers too, so the numbers never change."""
    assert token_sequence.start([]) == 0
    assert token_sequence.start(PROMPT) == 3894
    assert natural_length(PROMPT) == 50
    assert answer(PROMPT, 3) == [4164, 7735, 3115]


def test_prompts_differ_and_natural_lengths_fill_their_range() -> None:
    starts = {token_sequence.start([a, b]) for a in range(40) for b in range(40)}
    assert len(starts) > 1400, "about as many as chance gives: 1,453"
    lengths = [natural_length([number]) for number in range(20_000)]
    assert (min(lengths), max(lengths)) == (16, 512)
    assert sum(lengths) / len(lengths) == pytest.approx(264, rel=0.02)


def test_the_words_go_round() -> None:
    assert token(COUNT - 1, 0) == FIRST + COUNT - 1
    assert token(COUNT - 1, 1) == FIRST + STRIDE - 1
    assert token(5, COUNT) == token(5, 0)
    assert len({token(7, i) for i in range(COUNT)}) == COUNT, "a prime: all words take turns"
    assert first_wrong(COUNT - 2, [token(COUNT - 2, i) for i in range(COUNT + 5)]) is None


@pytest.mark.parametrize(
    ("change", "position"),
    [
        (lambda a: [*a, END], None),
        (lambda a: a[:5] + a[6:], 5),  # lost
        (lambda a: a[:5] + a[4:], 5),  # doubled
        (lambda a: [*a[:5], a[6], a[5], *a[7:]], 5),  # swapped
        (lambda a: [*a[:5], 0, *a[6:]], 5),  # not a word
        (lambda a: [*a[:5], END, *a[5:]], 5),  # an end that is none
        (lambda a: [*a, END, END], 20),
        (lambda a: a[:19] + answer([1, 2, 3], 1), 19),  # of another request
    ],
)
@pytest.mark.parametrize("known", [True, False])
def test_the_first_wrong_token_is_found(known: bool, change, position: int | None) -> None:
    start = token_sequence.start(PROMPT) if known else None
    assert first_wrong(start, change(answer(PROMPT, 20))) == position


def test_a_lost_first_token_shows_to_who_knows_the_prompt() -> None:
    lost = answer(PROMPT, 20)[1:]
    assert first_wrong(token_sequence.start(PROMPT), lost) == 0
    assert first_wrong(None, lost) is None


@given(st.integers(0, COUNT - 1), st.integers(0, 3 * COUNT), st.integers(0, 3 * COUNT))
def test_where_a_token_first_comes_up(start: int, position: int, begin: int) -> None:
    found = first_position(start, token(start, position), begin)
    assert found is not None
    assert begin <= found < begin + COUNT
    assert token(start, found) == token(start, position)
    assert first_position(start, FIRST - 1) is first_position(start, FIRST + COUNT) is None
