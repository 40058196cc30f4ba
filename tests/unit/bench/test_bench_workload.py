"""The plan: reproducible, cut to the context, split into levels, prompts that share prefixes."""

import dataclasses
import json
from collections import Counter
from pathlib import Path

import pytest

from controller.api.errors import UsageError
from controller.sim.workload.trace import TraceRequest
from llumctl.lab import bench_load
from llumctl.lab.bench_load import Level, Load, Request, Workload

NORMAL, HIGH = Level("normal", 0), Level("high", -1)
KNOWN = [NORMAL, HIGH]


def planned(load: Load, *priorities: str, context: int | None = 8192) -> Workload:
    shares = bench_load.parse_shares(priorities, KNOWN)
    return bench_load.plan(load, bench_load.rows(load), shares, context)


def test_bounded_by_time_and_number() -> None:
    load = Load(rate=20, duration_s=10, lengths="8,8")
    requests = planned(load).requests
    assert 150 < len(requests) < 250
    assert requests[-1].at_s < 10
    assert [request.index for request in requests] == list(range(len(requests)))
    assert planned(dataclasses.replace(load, num_requests=7)).requests == requests[:7]
    assert len(planned(Load(num_requests=50, duration_s=None)).requests) == 50


def test_another_rate_sends_the_same_requests() -> None:
    slow = planned(Load(rate=1, duration_s=None, num_requests=30), "high=0.3").requests
    fast = planned(Load(rate=9, duration_s=None, num_requests=30), "high=0.3").requests
    for one, other in zip(slow, fast, strict=True):
        assert dataclasses.replace(one, at_s=0) == dataclasses.replace(other, at_s=0)
        assert one.at_s == pytest.approx(9 * other.at_s)
    other_seed = planned(Load(rate=1, duration_s=None, num_requests=30, seed=1)).requests
    assert [r.num_output_tokens for r in slow] != [r.num_output_tokens for r in other_seed]


@pytest.mark.parametrize(
    ("lengths", "max_tokens", "context", "fitted"),
    [
        ((100, 50), None, None, (100, 50)),
        ((100, 50), None, 150, (100, 50)),
        ((100, 50), None, 149, (99, 50)),
        ((100, 50), None, 40, (1, 39)),
        ((100, 50), 60, 100, (50, 50)),
        ((100, 50), 20, 8192, (20, 20)),
    ],
)
def test_fit(
    lengths: tuple[int, int],
    max_tokens: int | None,
    context: int | None,
    fitted: tuple[int, int],
) -> None:
    row = bench_load.fit(TraceRequest(0.0, *lengths), max_tokens, context)
    assert (row.num_prompt_tokens, row.num_output_tokens) == fitted


def test_shortened_requests_are_counted() -> None:
    plan = planned(Load(rate=50, duration_s=20, lengths="L-L"), context=2000)
    assert all(r.num_prompt_tokens + r.num_output_tokens <= 2000 for r in plan.requests)
    at_limit = sum(r.num_prompt_tokens + r.num_output_tokens == 2000 for r in plan.requests)
    assert 0 < at_limit == plan.num_shortened < len(plan.requests)


def test_levels_have_their_shares() -> None:
    requests = planned(Load(rate=100, duration_s=100, lengths="1,1"), "high=0.1").requests
    counts = Counter((request.level, request.priority) for request in requests)
    assert set(counts) == {("normal", 0), ("high", -1)}
    assert counts["high", -1] / len(requests) == pytest.approx(0.1, abs=0.015)


@pytest.mark.parametrize(
    ("wanted", "shares"),
    [
        ([], {NORMAL: 1.0}),
        (["high=1"], {HIGH: 1.0}),
        (["high=0.25"], {HIGH: 0.25, NORMAL: 0.75}),
        (["-1=0.25"], {HIGH: 0.25, NORMAL: 0.75}),
        (["-7=0.5", "normal=0.1"], {Level("-7", -7): 0.5, NORMAL: 0.5}),
    ],
)
def test_shares(wanted: list[str], shares: dict[Level, float]) -> None:
    assert bench_load.parse_shares(wanted, KNOWN) == pytest.approx(shares)


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        (["hihg=0.1"], "no level 'hihg'; the levels are normal, high"),
        (["high"], "not of the form LEVEL=SHARE"),
        (["high=much"], "not a number from 0 to 1"),
        (["high=nan"], "not a number from 0 to 1"),
        (["high=1.5"], "not a number from 0 to 1"),
        (["high=-0.1"], "not a number from 0 to 1"),
        (["high=0.7", "normal=0.7"], "sum to 1.4"),
        (["high=0.1", "-1=0.1"], "high is given twice"),
        (["5000=0.1"], "beyond -100 to 100"),
    ],
)
def test_bad_shares(wanted: list[str], why: str) -> None:
    with pytest.raises(UsageError, match=why) as caught:
        bench_load.parse_shares(wanted, KNOWN)
    assert caught.value.hint == "llumctl bench --priority high=0.1"


def test_prompts_are_as_long_as_planned_and_do_not_repeat() -> None:
    requests = [Request(i, 0.0, 40, 1) for i in range(50)]
    prompts = [tuple(bench_load.prompt(0, request)) for request in requests]
    assert {len(prompt) for prompt in prompts} == {40}
    assert len({prompt[:16] for prompt in prompts}) == 50
    assert prompts == [tuple(bench_load.prompt(0, request)) for request in requests]
    assert tuple(bench_load.prompt(1, requests[0])) != prompts[0]
    assert all(token in bench_load.TOKEN_IDS for prompt in prompts for token in prompt)


def test_equal_blocks_are_equal_tokens() -> None:
    one = bench_load.prompt(
        0, Request(0, 0.0, 1200, 1, prefix_hashes=(4, 5, 6), prefix_hash_tokens=512)
    )
    other = bench_load.prompt(
        0, Request(1, 0.0, 1500, 1, prefix_hashes=(4, 5, 7), prefix_hash_tokens=512)
    )
    short = bench_load.prompt(
        0, Request(2, 0.0, 100, 1, prefix_hashes=(4,), prefix_hash_tokens=512)
    )
    assert one[:1024] == other[:1024]
    assert one[1024:1200] != other[1024:1200]
    assert short == one[:100]
    assert (len(one), len(other)) == (1200, 1500)
    beyond = bench_load.prompt(
        0, Request(3, 0.0, 600, 1, prefix_hashes=(4,), prefix_hash_tokens=512)
    )
    assert len(beyond) == 600, "fewer blocks than tokens"


def test_a_trace_is_replayed_at_another_speed(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    rows = [{"timestamp": 1000 * i, "input_length": 10, "output_length": 2} for i in range(10)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    load = Load(trace=path, speed=2.0, duration_s=None)
    assert [request.at_s for request in planned(load).requests] == [0.5 * i for i in range(10)]
    assert len(planned(dataclasses.replace(load, duration_s=2.0)).requests) == 4


def test_neither_none_nor_millions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_load, "MAX_REQUESTS", 2000)
    with pytest.raises(UsageError, match="no request falls"):
        planned(Load(rate=1e-6, duration_s=1.0))
    with pytest.raises(UsageError, match="more than 2,000"):
        planned(Load(rate=1e7, duration_s=1.0, lengths="1,1"))
