"""What ends an answer, and what is refused."""

import random
from typing import Any

import pytest

from controller.adapters.emulated.emulated_engine import BlockHashes
from controller.adapters.emulated.emulated_request import Answer, answer_to, decode_request
from controller.api.token_sequence import END, FIRST, natural_length, start, token
from tests.unit.emulated.emulated_builders import EOS, frames
from tools.emulated_answers import first_wrong

PROMPT = [300, 301, 2000, 7]
NATURAL = natural_length(PROMPT)
CONTEXT = 1024


def answer(**given: Any) -> Answer:
    return answer_to(decode_request(frames(prompt=PROMPT, **given)), CONTEXT)


def tokens(given: Answer) -> list[int]:
    return [given.token(position) for position in range(given.num_tokens)]


def word(position: int) -> int:
    return token(start(PROMPT), position)


def test_it_ends_of_its_own_accord() -> None:
    found = answer(max_tokens=600, _eos_token_id=EOS)
    assert (found.num_tokens, found.finish_reason, found.stop_reason) == (NATURAL, "stop", None)
    assert tokens(found)[-1] == END
    assert first_wrong(start(PROMPT), tokens(found)) is None
    assert answer(max_tokens=NATURAL, _eos_token_id=EOS) == found


@pytest.mark.parametrize("max_tokens", [1, 2, NATURAL - 1])
def test_max_tokens_comes_first(max_tokens: int) -> None:
    found = answer(max_tokens=max_tokens, _eos_token_id=EOS)
    assert (found.num_tokens, found.finish_reason) == (max_tokens, "length")
    assert tokens(found) == [word(position) for position in range(max_tokens)]


def test_without_an_end_it_runs_to_its_bound() -> None:
    found = answer(max_tokens=900)
    assert (found.num_tokens, found.finish_reason) == (900, "length")
    assert END not in tokens(found)


@pytest.mark.parametrize("max_tokens", [None, CONTEXT, CONTEXT - len(PROMPT)])
def test_the_context_bounds_it(max_tokens: int | None) -> None:
    found = answer(max_tokens=max_tokens)
    assert (found.num_tokens, found.finish_reason) == (CONTEXT - len(PROMPT), "length")


def test_min_tokens_puts_the_end_off() -> None:
    found = answer(max_tokens=600, min_tokens=NATURAL + 20, _eos_token_id=EOS)
    assert (found.num_tokens, found.finish_reason) == (NATURAL + 21, "stop")
    found = answer(max_tokens=NATURAL, min_tokens=NATURAL, _eos_token_id=EOS)
    assert (found.num_tokens, found.finish_reason, found.has_end) == (NATURAL, "length", False)


def test_a_stop_token_ends_it_and_is_part_of_it() -> None:
    found = answer(max_tokens=600, _eos_token_id=EOS, stop_token_ids=[word(9), word(5), 0])
    assert (found.num_tokens, found.finish_reason) == (6, "stop")
    assert found.stop_reason == tokens(found)[-1] == word(5)
    assert answer(max_tokens=6, stop_token_ids=[word(5)]) == found, "it wins over the length"


def test_a_stop_token_too_late_or_never() -> None:
    plain = answer(max_tokens=5, _eos_token_id=EOS)
    late = [word(5), word(400), FIRST - 1, END]
    assert answer(max_tokens=5, _eos_token_id=EOS, stop_token_ids=late) == plain
    ends = answer(max_tokens=600, _eos_token_id=EOS)
    hidden = [word(NATURAL - 1)]  # where END stands
    assert answer(max_tokens=600, _eos_token_id=EOS, stop_token_ids=hidden) == ends


def test_min_tokens_passes_over_a_stop_token() -> None:
    found = answer(max_tokens=60, min_tokens=6, stop_token_ids=[word(5), word(8)])
    assert (found.num_tokens, found.stop_reason) == (9, word(8))
    found = answer(max_tokens=60, min_tokens=5, stop_token_ids=[word(5)])
    assert found.num_tokens == 6


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"logprobs": 0}, "no logprobs"),
        ({"prompt_logprobs": 1}, "no prompt_logprobs"),
        ({"logprob_token_ids": [5]}, "no logprob_token_ids"),
        ({"prompt_logprob_token_ids": ["<i8", [1, 1], 1]}, "no prompt_logprob_token_ids"),
        ({"structured_outputs": {"regex": "a"}}, "no structured outputs"),
        ({"logit_bias": {5: 1.0}}, "no logit_bias"),
        ({"allowed_token_ids": [5]}, "no allowed_token_ids"),
        ({"bad_words": ["a"]}, "no bad_words"),
        ({"changed": {3: None, 4: {"task": "embed"}}}, "no embeddings or scores"),
        ({"changed": {2: [{}]}}, "prompts of tokens only"),
        ({"changed": {1: None, 9: ["float32", [1, 1], 1]}}, "prompts of tokens only"),
        ({"changed": {1: []}}, "prompts of tokens only"),
        ({"changed": {6: {"lora_name": "a"}}}, "no LoRA adapters"),
        ({"changed": {15: True}}, "no streamed prompts"),
        ({"changed": {1: [300] * CONTEXT}}, "1024 tokens leaves no room in a context of 1024"),
    ],
)
def test_what_it_cannot_do_is_refused(asked: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        answer(**asked)


def test_an_answer_of_one_token_fits_in_the_last_place() -> None:
    found = answer_to(decode_request(frames(prompt=[300] * (CONTEXT - 1))), CONTEXT)
    assert (found.num_tokens, found.finish_reason) == (1, "length")


# -- block hashes -------------------------------------------------------------------------


def hashes(tokens: list[int], salt: str | None = None, block_size: int = 4) -> list[bytes]:
    found = BlockHashes(tokens.__getitem__, block_size, salt)
    return [found(index) for index in range(len(tokens) // block_size)]


def test_hashes_tell_all_that_came_before() -> None:
    dice = random.Random(5)
    text = [dice.randrange(9000) for _ in range(16)]
    plain = hashes(text)
    assert len(set(plain)) == 4
    assert hashes(text) == plain
    for place in range(16):
        other = [*text[:place], text[place] + 1, *text[place + 1 :]]
        same = place // 4
        assert hashes(other)[:same] == plain[:same]
        assert not set(hashes(other)[same:]) & set(plain)


def test_salts_keep_requests_apart() -> None:
    salts = [None, "", "a", "b", "ab", "+"]
    found = [tuple(hashes([7] * 8, salt)) for salt in salts]
    assert len({digest for digests in found for digest in digests}) == 2 * len(salts)


def test_hashes_may_be_asked_for_in_any_order() -> None:
    found = BlockHashes(lambda index: index, 4)
    last = found(5)
    assert [found(index) for index in range(6)] == hashes(list(range(24)))
    assert found(5) == last
