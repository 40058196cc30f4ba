"""The judgement of an answer: lost, doubled and wrong tokens, and exactly one end."""

from random import Random

from controller.api import token_sequence
from llumctl.lab.bench_client import RIGHT, Answer, TokenFaults, compare_tokens, judge

START = token_sequence.start([1, 2, 3])
TOKENS = [token_sequence.token(START, i) for i in range(40)]


def answer(tokens: list[int] | None = None, **fields: object) -> Answer:
    found = Answer(
        status=200,
        token_ids=list(TOKENS if tokens is None else tokens),
        num_prompt_tokens=3,
        num_output_tokens=len(TOKENS if tokens is None else tokens),
        finish_reasons=["length"],
        num_done_marks=1,
    )
    found.token_times_s.extend([1.0, 2.0])
    for name, value in fields.items():
        setattr(found, name, value)
    return found


def test_without_reference_only_the_number_counts() -> None:
    assert judge(answer(TOKENS[:38]), 3, 40, None).faults == TokenFaults(num_lost=2)
    assert judge(answer([*TOKENS, 1, 2]), 3, 40, None).faults == TokenFaults(num_doubled=2)
    assert judge(answer([], num_output_tokens=40), 3, 40, None) == RIGHT, "no ids, right count"
    swapped = answer([*TOKENS[:5], TOKENS[6], TOKENS[5], *TOKENS[7:]])
    assert judge(swapped, 3, 40, None) == judge(answer(), 3, 40, START) == RIGHT
    assert judge(swapped, 3, 40, START).faults


def test_other_failures() -> None:
    fields: dict[str, object]
    for fields, kind in (
        ({"status": 503, "body": b"stop"}, "http-503"),
        ({"errors": [("503", "died")]}, "stream-error-503"),
        ({"errors": [("", "died")]}, "stream-error"),
        ({"finish_reasons": []}, "no-end"),
        ({"num_done_marks": 0}, "no-end"),
        ({"finish_reasons": ["length", "length"]}, "two-ends"),
        ({"num_done_marks": 2}, "two-ends"),
        ({"num_prompt_tokens": None, "num_output_tokens": None}, "no-usage"),
        ({"num_prompt_tokens": 4}, "wrong-usage"),
        ({"num_output_tokens": 39}, "wrong-usage"),
    ):
        assert judge(answer(**fields), 3, 40, START).kind == kind


def test_what_came_before_an_error_is_checked_too() -> None:
    for tokens, faults in (
        (TOKENS[:10], TokenFaults()),
        (TOKENS[:5] + TOKENS[4:10], TokenFaults(num_doubled=1)),
        (TOKENS[:5] + TOKENS[6:10], TokenFaults(num_lost=1)),
    ):
        assert judge(answer(tokens, errors=[("503", "died")]), 3, 40, START).faults == faults


def test_any_drop_and_insertion_is_counted_exactly() -> None:
    rng = Random(11)
    for _ in range(300):
        cut, num = rng.randrange(40), rng.randrange(1, 5)
        lost = TokenFaults(num_lost=min(num, 40 - cut))
        assert compare_tokens(TOKENS, TOKENS[:cut] + TOKENS[cut + num :]) == lost
        doubled = TokenFaults(num_doubled=min(cut, num))
        assert compare_tokens(TOKENS, TOKENS[:cut] + TOKENS[max(0, cut - num) :]) == doubled
    both = TOKENS[:10] + TOKENS[11:20] + TOKENS[19:] + TOKENS[-1:]
    assert compare_tokens(TOKENS, both) == TokenFaults(num_lost=1, num_doubled=2)
    verdict = judge(answer([*TOKENS[:20], 7, *TOKENS[21:]]), 3, 40, START)
    assert (verdict.kind, verdict.faults) == ("wrong-tokens", TokenFaults(num_wrong=1))
