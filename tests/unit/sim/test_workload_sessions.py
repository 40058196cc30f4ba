"""Sessions: what turns begin with, when they come, and what a simulated cluster makes of them."""

from itertools import islice

import numpy as np
import pytest

from controller.sim.setup import ClusterSetup, Fault
from controller.sim.workload.named import workload
from controller.sim.workload.sessions import HASH_TOKENS, KINDS, turns
from controller.sim.workload.trace import Trace, TraceRequest, with_requests
from controller.sim.workload.trace_files import header_line, read_trace, request_line
from tests.unit.sim.runs import A10, column, policy, run


@pytest.mark.parametrize("name", list(KINDS))
def test_a_turn_begins_with_the_one_before_and_its_answer(name: str) -> None:
    kind, trace = KINDS[name], workload(name, rate=4.0, num_requests=3000, seed=3)
    texts: dict[str, tuple[int, ...]] = {}
    num_begun = 0
    for turn in trace.requests:
        assert 0 < turn.num_prompt_tokens <= kind.max_prompt_tokens
        assert len(turn.prefix_hashes) == turn.num_prompt_tokens // HASH_TOKENS
        whole = turn.prefix_hashes + turn.answer_hashes
        assert len(whole) <= (turn.num_prompt_tokens + turn.num_output_tokens) // HASH_TOKENS
        before = texts.get(turn.session)
        assert (before is None) == (turn.gap_s is None), "a first turn comes at its time"
        if before is not None and turn.prefix_hashes[: len(before)] != before:
            num_begun += 1  # its client has summed the session up
        texts[turn.session] = whole
    assert num_begun < 0.05 * len(trace.requests)
    shared = kind.shared_tokens // HASH_TOKENS
    assert len({text[:shared] for text in texts.values()}) == kind.num_applications
    assert len({text[shared] for text in texts.values() if len(text) > shared}) > 50


def test_agents_send_long_prompts_that_are_mostly_known() -> None:
    trace = workload("agents", rate=1.9, num_requests=5000, seed=1)
    prompts = np.array([turn.num_prompt_tokens for turn in trace.requests])
    known, num_known = set[int](), 0
    for turn in trace.requests:
        num_known += HASH_TOKENS * sum(each in known for each in turn.prefix_hashes)
        known.update(turn.prefix_hashes, turn.answer_hashes)
    assert 50_000 < prompts.mean() < 70_000
    assert 0.93 < num_known / prompts.sum() < 0.97
    arrivals_s = np.array([turn.arrival_s for turn in trace.requests])
    late = arrivals_s > 600
    assert late.sum() / (arrivals_s[-1] - 600) == pytest.approx(1.9, rel=0.15)


def test_more_turns_begin_with_the_same_ones_and_another_rate_has_the_same_sessions() -> None:
    few, many, slow = (
        workload("chats", rate=rate, num_requests=num, seed=5).requests
        for rate, num in ((2.0, 200), (2.0, 400), (1.0, 400))
    )
    assert many[:200] == few
    lengths = lambda turns: [t.num_prompt_tokens for t in turns if t.session == "session-0"]  # noqa: E731
    assert lengths(slow)[:3] == lengths(many)[:3]
    assert len(list(turns("chats", [0.0, 1.0], 1))) > 2, "sessions end, and so do their turns"
    with pytest.raises(ValueError, match="sessions of its own"):
        workload("chats", rate=2.0, num_requests=20, num_clients=3)


def test_a_file_keeps_turns(tmp_path) -> None:
    requests = list(islice(turns("chats", [0.0, 2.0, 9.0], 1), 12))
    path = tmp_path / "sessions.jsonl"
    path.write_text(header_line(HASH_TOKENS) + "".join(map(request_line, requests)))
    assert read_trace(path) == Trace("sessions", requests, HASH_TOKENS)
    num = len(requests)
    twice = with_requests(read_trace(path), 2 * num).requests
    assert [turn.gap_s for turn in twice[num:]] == [turn.gap_s for turn in requests]
    assert not set(twice[num].prefix_hashes) & {each for t in requests for each in t.prefix_hashes}


def _turn(arrival_s: float, num_prompt: int, session: str, gap_s: float | None) -> TraceRequest:
    """Its answer has 8 tokens, and each session's texts begin with the same 256."""
    number = int(session)
    hashes = tuple(100 * number + place for place in range((num_prompt + 8) // 64))
    num_full = num_prompt // 64
    return TraceRequest(
        arrival_s, num_prompt, 8, 0, session, hashes[:num_full], hashes[num_full:], gap_s
    )


TURNS = Trace(
    "turns",
    [
        _turn(0.0, 250, "1", None),
        _turn(0.1, 600, "2", None),
        _turn(0.2, 320, "1", 2.0),
        _turn(0.3, 700, "2", 0.5),
        _turn(0.4, 400, "1", 1.0),
    ],
    64,
)


def test_a_turn_comes_when_its_client_has_the_answer_and_has_taken_its_time() -> None:
    _, outcome = run(ClusterSetup(A10, policy(), 1, prefix_caching=True), TURNS)
    rows = {
        num: (arrival, arrival + e2e, ttft)
        for num, arrival, e2e, ttft in zip(
            (250, 600, 700, 320, 400),
            *(column(outcome, name) for name in ("arrival_s", "e2e_latency_s", "ttft_s")),
            strict=True,
        )
    }
    for before, after, gap_s in ((250, 320, 2.0), (600, 700, 0.5), (320, 400, 1.0)):
        assert rows[after][0] == pytest.approx(rows[before][1] + gap_s)
    # 250 tokens and 7 of the answer are 16 blocks; the rest of the 320 is computed
    alone_s = A10.step_time_s([(320 - 256, 256)], 0, 0)
    assert rows[320][2] == pytest.approx(alone_s, abs=1e-6)


def test_turns_after_a_failed_one_never_come() -> None:
    setup = ClusterSetup(A10, policy(), 1, faults=(Fault(0.15, "kill", "i-0"),))
    _, outcome = run(setup, TURNS)
    assert (outcome.num_failed, len(outcome.rows)) == (5, 0)
