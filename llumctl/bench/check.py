"""Whether an answer is right: all of its tokens, each once, and one end."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from controller.api import token_sequence

if TYPE_CHECKING:
    from llumctl.bench.response import Answer


class Verify(StrEnum):
    """`tokens`: each id is what an emulated engine must answer. `counts`: as many ids came as were
    asked for, and as the server says. `usage`: the server says as many as were asked for; ids are
    not asked for. `auto`: tokens where the cluster's engine is emulated, else counts."""

    AUTO = "auto"
    TOKENS = "tokens"
    COUNTS = "counts"
    USAGE = "usage"


@dataclass(frozen=True, slots=True)
class TokenFaults:
    """Tokens that should have come and did not, came once too often, or are others."""

    num_lost: int = 0
    num_doubled: int = 0
    num_wrong: int = 0

    def __bool__(self) -> bool:
        return bool(self.num_lost or self.num_doubled or self.num_wrong)


NO_FAULTS = TokenFaults()


@dataclass(frozen=True, slots=True)
class Verdict:
    """`kind` of the failure, empty if the answer is right. Of an answer that failed otherwise,
    `faults` speak of the tokens that did come."""

    kind: str = ""
    detail: str = ""
    faults: TokenFaults = NO_FAULTS


RIGHT = Verdict()

MAX_AHEAD = 256
"""How far `compare` looks for where two sequences agree again: answers are judged on the event
loop that sends requests, and looking to the end takes seconds for a long answer that is all
wrong."""


def judge(
    answer: "Answer", num_prompt_tokens: int, num_output_tokens: int, start: int | None
) -> Verdict:
    """Judges an answer that was read to its end, to a request that ignores end-of-sequence.

    `start` is `token_sequence.start` of the prompt; None leaves the ids themselves unchecked.
    """
    if answer.status != 200:
        body = answer.body.decode("utf-8", "replace").strip()
        return Verdict(f"http-{answer.status}", body[:300])
    if answer.errors:
        code, message = answer.errors[0]
        faults = faults_so_far(answer, num_output_tokens, start)
        return Verdict(f"stream-error-{code}" if code else "stream-error", message[:300], faults)
    if not answer.finish_reasons or not answer.num_done_marks:
        faults = faults_so_far(answer, num_output_tokens, start)
        return Verdict("no-end", "the stream ended without its last event", faults)
    faults = _faults(answer, num_output_tokens, start)
    if faults:
        kind = "wrong-tokens" if faults.num_wrong else "wrong-count"
        lost, doubled, wrong = faults.num_lost, faults.num_doubled, faults.num_wrong
        return Verdict(kind, f"{lost} tokens lost, {doubled} doubled, {wrong} wrong", faults)
    if len(answer.finish_reasons) > 1 or answer.num_done_marks > 1:
        return Verdict("two-ends", f"it ended {len(answer.finish_reasons)} times")
    if not answer.token_times_s:
        return Verdict("no-tokens", "no event carried a token")
    return _judge_usage(answer, num_prompt_tokens, num_output_tokens)


def compare(expected: Sequence[int], found: Sequence[int], *, is_whole: bool = True) -> TokenFaults:
    """What it takes to make `expected` into `found`: drops, insertions, then replacements.

    Where they part, the smallest drop or insertion after which three tokens agree again (or all
    that are left) explains it; if there is none of at most MAX_AHEAD tokens, a token is wrong. If
    `found` is not whole, what of `expected` comes after it is not lost.
    """
    lost = doubled = wrong = at = position = 0
    while at < len(found) and position < len(expected):
        if found[at] == expected[position]:
            at, position = at + 1, position + 1
            continue
        drop = _next_agreement(expected, position + 1, found[at : at + 3])
        insertion = _next_agreement(found, at + 1, expected[position : position + 3])
        if drop is not None and (insertion is None or drop - position <= insertion - at):
            lost, position = lost + drop - position, drop
        elif insertion is not None:
            doubled, at = doubled + insertion - at, insertion
        else:
            wrong, at, position = wrong + 1, at + 1, position + 1
    tail = len(expected) - position if is_whole else 0
    return TokenFaults(lost + tail, doubled + len(found) - at, wrong)


def _next_agreement(tokens: Sequence[int], begin: int, wanted: Sequence[int]) -> int | None:
    end = min(len(tokens), begin + MAX_AHEAD)
    for place in range(begin, end):
        if tokens[place] == wanted[0]:
            there = tokens[place : place + len(wanted)]
            if there == wanted[: len(there)]:
                return place
    return None


def _faults(answer: "Answer", num_output_tokens: int, start: int | None) -> TokenFaults:
    """Compares only counts without a start, and the server's own count without ids."""
    if start is not None:
        expected = [token_sequence.token(start, i) for i in range(num_output_tokens)]
        return (
            TokenFaults() if answer.token_ids == expected else compare(expected, answer.token_ids)
        )
    num_found = len(answer.token_ids) or answer.num_output_tokens or 0
    if num_found < num_output_tokens:
        return TokenFaults(num_lost=num_output_tokens - num_found)
    return TokenFaults(num_doubled=num_found - num_output_tokens)


def faults_so_far(answer: "Answer", num_output_tokens: int, start: int | None) -> TokenFaults:
    """The faults of an answer that was cut off; the tokens after its end are not lost."""
    if start is None:
        return TokenFaults(num_doubled=max(0, len(answer.token_ids) - num_output_tokens))
    expected = [token_sequence.token(start, i) for i in range(num_output_tokens)]
    return compare(expected, answer.token_ids, is_whole=False)


def _judge_usage(answer: "Answer", num_prompt_tokens: int, num_output_tokens: int) -> Verdict:
    told = (answer.num_prompt_tokens, answer.num_output_tokens)
    if told == (None, None):
        return Verdict("no-usage", "the stream says nothing about usage")
    if told != (num_prompt_tokens, num_output_tokens):
        return Verdict(
            "wrong-usage",
            f"it counts {told[0]} + {told[1]} tokens, not {num_prompt_tokens}"
            f" + {num_output_tokens}",
        )
    return RIGHT
