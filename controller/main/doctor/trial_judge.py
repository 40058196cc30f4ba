"""Judges what the clients of moved and of unmoved requests have read (`engine_trial.py`). Pure
functions over plain values.

An engine whose results depend on the other requests of a batch (most GPUs) may answer the same
request in two ways. So each moved request is compared with two requests that stayed where they
were. If those differ from each other, the moved one proves nothing, and the verdict says so."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from controller.api.wire.status import CheckResult, EngineTrial, KindTrial, SlowdownTrial
from controller.core.migration.refusals import reason_of
from controller.main.doctor.trial_stream import Read, are_close

MIGRATED, ENDED = "migrated", "ended"
KV_MISMATCH = "kv_mismatch"
NO_ROOM = ("no_blocks", "no_slot", "too_many_moves")
"""Codes of moves for which the destination had no room: no fault of the engine."""


@dataclass(frozen=True, slots=True)
class Move:
    """One order to move a request, and how it ended. `num_tokens`: how many tokens the client had
    read when the order was given. `verified`: whether the sides compared digests of the blocks.
    `queued`: whether the request waited for its first token."""

    outcome: str
    num_tokens: int
    verified: bool = False
    queued: bool = False
    code: str = ""
    why: str = ""
    """The reason in words, where it has no code."""
    downtime_s: float | None = None
    excess_s: float | None = None
    duration_s: float | None = None
    num_blocks: int = 0
    num_bytes: int = 0
    copy_s: float = 0.0

    @property
    def sentence(self) -> str:
        return self.why or reason_of(self.code).sentence or self.outcome


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that is known of one kind of request. `problem`: why it could not be tried, or why a
    stream broke off. `is_fault`: whether that is a fault, and not something that this engine does
    not offer."""

    kind: str
    unmoved: tuple[Read, ...] = ()
    moved: Read | None = None
    moves: tuple[Move, ...] = ()
    problem: str = ""
    is_fault: bool = False

    @property
    def num_migrated(self) -> int:
        return sum(move.outcome == MIGRATED for move in self.moves)


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two answers part: `index` is that of a token of the output."""

    index: int
    what: Literal["token", "log probability", "end", "text"]


def difference(one: Read, other: Read) -> Difference | None:
    """The first difference of two answers as far as both were read: an answer that its client left
    has no end."""
    shared = min(len(one.token_ids), len(other.token_ids))
    for index in range(shared):
        if one.token_ids[index] != other.token_ids[index]:
            return Difference(index, "token")
    for index, (mine, theirs) in enumerate(zip(one.logprobs, other.logprobs, strict=False)):
        if not are_close(mine, theirs):
            return Difference(index, "log probability")
    ended, longer = sorted((one, other), key=lambda read: len(read.token_ids))
    if ended.finish_reason is not None and len(longer.token_ids) > shared:
        return Difference(shared, "end")
    if one.finish_reason is None or other.finish_reason is None:
        return None
    if (one.finish_reason, one.stop_reason) != (other.finish_reason, other.stop_reason):
        return Difference(shared, "end")
    return None if one.text == other.text else Difference(shared, "text")


def judge(found: Evidence) -> KindTrial:
    if found.problem and not found.moves:
        result = CheckResult.FAIL if found.is_fault else CheckResult.WARN
        return KindTrial(kind=found.kind, result=result, what=found.problem)
    if all(move.outcome == ENDED for move in found.moves):
        what = "not tried: it ended each time before it could move; is the machine busy?"
        return KindTrial(kind=found.kind, result=CheckResult.WARN, what=what)
    faults, warnings = list(_faults(found)), list(_failed(found, is_fault=False))
    tokens, first, words = _compared(found)
    if tokens == "differ":
        faults.append(words)
    elif tokens == "equal" and _num_compared(found) <= _last(found):
        tokens, words = "unknown", "no token after the last move could be compared"
    if words and tokens != "differ":
        warnings.append(words)
    verified = [move for move in found.moves if move.verified]
    mismatches = sum(move.code == KV_MISMATCH for move in verified)
    compared = [move for move in verified if move.outcome == MIGRATED and move.num_blocks > 0]
    digests = len(compared) + mismatches
    moved = [move for move in found.moves if move.outcome == MIGRATED]
    downtimes_s = [m.downtime_s for m in moved if m.downtime_s is not None and not m.verified]
    steps_s = [
        move.downtime_s - move.excess_s
        for move in moved
        if move.downtime_s is not None and move.excess_s is not None
    ]
    what = "; ".join((*faults, *warnings))
    result = CheckResult.FAIL if faults else CheckResult.WARN if what else CheckResult.OK
    return KindTrial(
        kind=found.kind,
        result=result,
        num_moves=found.num_migrated,
        tokens=tokens,
        num_tokens=_num_compared(found),
        first_difference=first,
        kv_equal=mismatches == 0 if digests else None,
        num_digests=digests,
        num_equal_blocks=sum(move.num_blocks for move in compared),
        downtime_median_s=_rounded(median(downtimes_s)) if downtimes_s else None,
        downtime_worst_s=_rounded(max(downtimes_s)) if downtimes_s else None,
        step_s=_rounded(median(steps_s)) if steps_s else None,
        what=what,
    )


def _num_compared(found: Evidence) -> int:
    """How many tokens of the moved request an unmoved one has as well: one that does not differ, if
    there is one."""
    moved = found.moved
    if moved is None:
        return 0
    alike = [read for read in found.unmoved if difference(moved, read) is None]
    lengths = [len(read.token_ids) for read in alike or found.unmoved]
    return min(len(moved.token_ids), max(lengths, default=0))


def _last(found: Evidence) -> int:
    """How many tokens the moved request had at least when it moved for the last time."""
    return max((m.num_tokens for m in found.moves if m.outcome == MIGRATED), default=0)


def _faults(found: Evidence) -> Iterable[str]:
    if found.problem:
        yield found.problem
    yield from _failed(found, is_fault=True)


def _failed(found: Evidence, *, is_fault: bool) -> Iterable[str]:
    """The reasons why moves failed: those that are faults of the engine, or the others."""
    failed = Counter(
        move.sentence
        for move in found.moves
        if move.outcome not in (MIGRATED, ENDED) and (move.code not in NO_ROOM) is is_fault
    )
    for sentence, number in failed.items():
        if number == len(found.moves):
            yield f"it did not move: {sentence}"
        else:
            yield f"{number} of {len(found.moves)} moves failed: {sentence}"


def _compared(
    found: Evidence,
) -> tuple[Literal["equal", "differ", "unsteady", "unknown"], int | None, str]:
    """Whether the moved request said what an unmoved one said; the first difference; and the
    difference in words."""
    moved = found.moved
    if moved is None or not moved.token_ids or not found.unmoved or not found.num_migrated:
        return "unknown", None, ""
    parted = [difference(moved, read) for read in found.unmoved]
    known = [each for each in parted if each is not None]
    if len(known) < len(parted):
        return "equal", None, ""
    first = max(known, key=lambda each: each.index)
    words = f"{first.what} {first.index} differs from that of unmoved requests"
    among = _among(found.unmoved)
    if among is not None:
        why = f"not deterministic here: two unmoved requests differ at {among.what} {among.index}"
        return "unsteady", first.index, f"{why}, the moved one at {first.index}"
    began = next(move.num_tokens for move in found.moves if move.outcome == MIGRATED)
    if first.index < began:
        why = f"not deterministic here: {first.what} {first.index} differs, and the request had"
        return "unsteady", first.index, f"{why} {began} tokens before it moved"
    return "differ", first.index, words


def _among(reads: Sequence[Read]) -> Difference | None:
    """The first difference between any two of these answers."""
    pairs = [(a, b) for number, a in enumerate(reads) for b in reads[number + 1 :]]
    found = [each for a, b in pairs if (each := difference(a, b)) is not None]
    return min(found, key=lambda each: each.index, default=None)


def trial_of(
    evidence: Sequence[Evidence],
    slowdown: SlowdownTrial | None,
    facts: dict[str, str],
    problem: str = "",
) -> EngineTrial:
    """The whole report. `problem`: what went wrong beside the moves."""
    kinds = tuple(map(judge, evidence))
    moved = any(each.num_moves for each in kinds)
    if not problem and not moved:
        problem = f"no request can move: {_why_none(evidence)}"
    results = [CheckResult.FAIL] if problem else [each.result for each in kinds]
    worst = max(results, key=list(CheckResult).index)
    return EngineTrial(result=worst, problem=problem, kinds=kinds, slowdown=slowdown, facts=facts)


def _why_none(evidence: Sequence[Evidence]) -> str:
    sentences = [move.sentence for each in evidence for move in each.moves]
    sentences += [each.problem for each in evidence if each.problem]
    return Counter(sentences).most_common(1)[0][0] if sentences else "nothing was tried"


def _rounded(time_s: float) -> float:
    return round(time_s, 6)
