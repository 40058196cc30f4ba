"""What ends an answer, and what is refused."""

import random
from typing import Any

import pytest

from controller.adapters.emulated.emulated_engine import BlockHashes
from controller.adapters.emulated.emulated_request import Answer, answer_to
from controller.adapters.vllm_wire import decode_request
from controller.api.token_sequence import END, FIRST, natural_length, start, token
from tests.unit.emulated.emulated_builders import EOS, frames
from tools.emulated_answers import first_wrong

PROMPT = [300, 301, 2000, 7]
NATURAL = natural_length(PROMPT)
CONTEXT = 1024


def answer(**given: Any) -> Answer:
    return answer_to(decode_request(frames(prompt=PROMPT, **given)), CONTEXT)


def word(position: int) -> int:
    return token(start(PROMPT), position)


ENDS = {"_eos_token_id": EOS}


@pytest.mark.parametrize(
    ("given", "num_tokens", "finish_reason", "stop_at"),
    [
        ({"max_tokens": 600, **ENDS}, NATURAL, "stop", None),
        ({"max_tokens": NATURAL, **ENDS}, NATURAL, "stop", None),
        ({"max_tokens": NATURAL - 1, **ENDS}, NATURAL - 1, "length", None),
        ({"max_tokens": 1, **ENDS}, 1, "length", None),
        ({"max_tokens": 900}, 900, "length", None),
        ({"max_tokens": None}, CONTEXT - len(PROMPT), "length", None),
        ({"max_tokens": CONTEXT}, CONTEXT - len(PROMPT), "length", None),
        ({"max_tokens": 600, "min_tokens": NATURAL + 20, **ENDS}, NATURAL + 21, "stop", None),
        ({"max_tokens": NATURAL, "min_tokens": NATURAL, **ENDS}, NATURAL, "length", None),
        # A stop token ends the answer and is part of it, and wins over the length.
        ({"max_tokens": 600, "stop_token_ids": [word(9), word(5), 0], **ENDS}, 6, "stop", 5),
        ({"max_tokens": 6, "stop_token_ids": [word(5)]}, 6, "stop", 5),
        # It comes too late or never, or END stands in its place.
        ({"max_tokens": 5, "stop_token_ids": [word(5), FIRST - 1, END]}, 5, "length", None),
        ({"max_tokens": 600, "stop_token_ids": [word(NATURAL - 1)], **ENDS}, NATURAL, "stop", None),
        ({"max_tokens": 60, "min_tokens": 6, "stop_token_ids": [word(5), word(8)]}, 9, "stop", 8),
        ({"max_tokens": 60, "min_tokens": 5, "stop_token_ids": [word(5)]}, 6, "stop", 5),
    ],
)
def test_what_ends_it(
    given: dict[str, Any], num_tokens: int, finish_reason: str, stop_at: int | None
) -> None:
    found = answer(**given)
    stop_reason = None if stop_at is None else word(stop_at)
    assert (found.num_tokens, found.finish_reason) == (num_tokens, finish_reason)
    assert found.stop_reason == stop_reason
    tokens = [found.token(position) for position in range(found.num_tokens)]
    assert first_wrong(start(PROMPT), tokens) is None
    assert (tokens[-1] == END) == found.has_end == (finish_reason == "stop" and stop_at is None)


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


def hashes(tokens: list[int], salt: str | None = None) -> list[bytes]:
    found = BlockHashes(lambda first, end: tokens[first:end], 4, salt)
    return [found(index) for index in range(len(tokens) // 4)]


def test_hashes_tell_all_that_came_before() -> None:
    dice = random.Random(5)
    text = [dice.randrange(9000) for _ in range(16)]
    plain = hashes(text)
    assert len(set(plain)) == 4
    in_any_order = BlockHashes(lambda first, end: text[first:end], 4)
    assert [in_any_order(index) for index in (3, 0, 1, 2, 3)] == [plain[3], *plain]
    for place in range(16):
        other = [*text[:place], text[place] + 1, *text[place + 1 :]]
        same = place // 4
        assert hashes(other)[:same] == plain[:same]
        assert not set(hashes(other)[same:]) & set(plain)


def test_salts_keep_requests_apart() -> None:
    salts = [None, "", "a", "b", "ab", "+"]
    found = [tuple(hashes([7] * 8, salt)) for salt in salts]
    assert len({digest for digests in found for digest in digests}) == 2 * len(salts)
