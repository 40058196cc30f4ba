"""The requests of `bench`: arrivals, lengths (their distributions: tests/unit/sim), levels, trace
files, prompts that share prefixes. A seed draws the same ones again."""

import json
import statistics
from collections import Counter
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from random import Random

import pytest

from controller.api.errors import UsageError
from controller.sim.workload.lengths import TABLE_1, ZIPF, Fixed
from controller.sim.workload.trace import TraceRequest
from llumctl.lab import bench_load
from llumctl.lab.bench_load import Level, Load, Request, Workload
from llumctl.lab.option_values import Arrivals

NUM = 40_000
NORMAL, HIGH = Level("normal", 0), Level("high", -1)


def planned(load: Load, *priorities: str, context: int | None = 8192) -> Workload:
    shares = bench_load.parse_shares(priorities, [NORMAL, HIGH])
    return bench_load.plan(load, bench_load.rows(load), shares, context)


# -- arrivals and lengths ---------------------------------------------------------------------


def test_arrivals_have_the_mean_rate_and_the_variation() -> None:
    for kind, cv, found_cv in (
        (Arrivals.POISSON, None, 1.0),
        (Arrivals.GAMMA, 4.0, 4.0),
        (Arrivals.CONSTANT, None, 0.0),
    ):
        times_s = list(islice(bench_load.arrival_times_s(kind, 7.5, cv, Random(7)), NUM))
        gaps = [later - earlier for earlier, later in pairwise([0.0, *times_s])]
        mean = statistics.fmean(gaps)
        # Four standard errors of the mean.
        assert mean == pytest.approx(1 / 7.5, rel=4 * found_cv / NUM**0.5 + 1e-9)
        assert statistics.pstdev(gaps) / mean == pytest.approx(found_cv, rel=0.08, abs=1e-6)


def test_arrivals_that_cannot_be() -> None:
    for kind, rate, cv, why in (
        (Arrivals.POISSON, 0.0, None, "--rate"),
        (Arrivals.POISSON, float("nan"), None, "--rate"),
        (Arrivals.GAMMA, 1.0, 0.0, "--cv: must be"),
        (Arrivals.POISSON, 1.0, 4.0, "poisson arrivals have no"),
    ):
        with pytest.raises(UsageError, match=why):
            bench_load.check_arrivals(kind, rate, cv)


def test_a_bare_name_of_lengths_means_table_1_and_what_cannot_be_gets_the_nearest() -> None:
    assert bench_load.parse_lengths("M-S") == (TABLE_1["M"], TABLE_1["S"])
    assert bench_load.parse_lengths("zipf:L-S") == (ZIPF["L"], ZIPF["S"])
    assert bench_load.parse_lengths("128, 64") == (Fixed(128), Fixed(64))
    for text, why, guess in (("zipf:S-X", "--lengths", "zipf:S-S"), ("0,10", "1 token", "128,64")):
        with pytest.raises(UsageError, match=why) as caught:
            bench_load.parse_lengths(text)
        assert caught.value.hint == f"llumctl bench --lengths {guess}"


# -- the plan ---------------------------------------------------------------------------------


def test_a_plan_is_bounded_by_time_and_number_and_the_context() -> None:
    load = Load(rate=20, duration_s=10, lengths="L-L")
    plan = planned(load, "high=0.1", context=2000)
    requests = plan.requests
    assert 150 < len(requests) < 250
    assert requests[-1].at_s < 10
    assert [request.index for request in requests] == list(range(len(requests)))
    assert planned(replace(load, num_requests=7), "high=0.1", context=2000).requests == requests[:7]
    assert len(planned(Load(num_requests=50, duration_s=None)).requests) == 50
    lengths = [each.num_prompt_tokens + each.num_output_tokens for each in requests]
    assert max(lengths) == 2000
    assert 0 < lengths.count(2000) == plan.num_shortened < len(lengths)
    counts = Counter((request.level, request.priority) for request in requests)
    assert set(counts) == {("normal", 0), ("high", -1)}
    assert counts["high", -1] / len(requests) == pytest.approx(0.1, abs=0.06)


def test_another_rate_sends_the_same_requests() -> None:
    load = Load(rate=1, duration_s=None, num_requests=30)
    slow = planned(load, "high=0.3").requests
    fast = planned(replace(load, rate=9), "high=0.3").requests
    for one, other in zip(slow, fast, strict=True):
        assert replace(one, at_s=0) == replace(other, at_s=0)
        assert one.at_s == pytest.approx(9 * other.at_s)
    other_seed = planned(replace(load, seed=1)).requests
    assert [r.num_output_tokens for r in slow] != [r.num_output_tokens for r in other_seed]


def test_a_request_is_cut_to_the_context() -> None:
    for max_tokens, context, fitted in (
        (None, None, (100, 50)),
        (None, 150, (100, 50)),
        (None, 149, (99, 50)),
        (None, 40, (1, 39)),
        (60, 100, (50, 50)),
        (20, 8192, (20, 20)),
    ):
        row = bench_load.fit(TraceRequest(0.0, 100, 50), max_tokens, context)
        assert (row.num_prompt_tokens, row.num_output_tokens) == fitted


def test_shares_of_levels() -> None:
    found = bench_load.parse_shares(["-7=0.5", "-1=0.25", "normal=0.1"], [NORMAL, HIGH])
    assert found == pytest.approx({Level("-7", -7): 0.5, HIGH: 0.25, NORMAL: 0.25})
    for wanted, why in (
        (["hihg=0.1"], "no level 'hihg'; the levels are normal, high"),
        (["high"], "not of the form LEVEL=SHARE"),
        (["high=1.5"], "not a number from 0 to 1"),
        (["high=much"], "not a number from 0 to 1"),
        (["high=0.7", "normal=0.7"], "sum to 1.4"),
        (["high=0.1", "-1=0.1"], "high is given twice"),
        (["5000=0.1"], "beyond -100 to 100"),
    ):
        with pytest.raises(UsageError, match=why) as caught:
            bench_load.parse_shares(wanted, [NORMAL, HIGH])
        assert caught.value.hint == "llumctl bench --priority high=0.1"


def test_neither_none_nor_millions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_load, "MAX_REQUESTS", 2000)
    with pytest.raises(UsageError, match="no request falls"):
        planned(Load(rate=1e-6, duration_s=1.0))
    with pytest.raises(UsageError, match="more than 2,000"):
        planned(Load(rate=1e7, duration_s=1.0, lengths="1,1"))


# -- prompts ----------------------------------------------------------------------------------


def test_prompts_are_as_long_as_planned_and_do_not_repeat() -> None:
    requests = [Request(i, 0.0, 40, 1) for i in range(50)]
    prompts = [tuple(bench_load.prompt(0, request)) for request in requests]
    assert {len(prompt) for prompt in prompts} == {40}
    assert len({prompt[:16] for prompt in prompts}) == 50
    assert prompts == [tuple(bench_load.prompt(0, request)) for request in requests]
    assert tuple(bench_load.prompt(1, requests[0])) != prompts[0]
    assert all(token in bench_load.TOKEN_IDS for prompt in prompts for token in prompt)


def test_equal_blocks_are_equal_tokens() -> None:
    def prompt(index: int, num_tokens: int, *hashes: int) -> list[int]:
        request = Request(index, 0.0, num_tokens, 1, prefix_hashes=hashes, prefix_hash_tokens=512)
        return bench_load.prompt(0, request)

    one, other = prompt(0, 1200, 4, 5, 6), prompt(1, 1500, 4, 5, 7)
    assert one[:1024] == other[:1024]
    assert one[1024:1200] != other[1024:1200]
    assert prompt(2, 100, 4) == one[:100]
    assert (len(one), len(other)) == (1200, 1500)
    assert len(prompt(3, 600, 4)) == 600, "fewer blocks than tokens"


# -- trace files ------------------------------------------------------------------------------


def test_a_trace_is_replayed_at_another_speed(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    rows = [{"timestamp": 1000 * i, "input_length": 10, "output_length": 2} for i in range(10)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    load = Load(trace=path, speed=2.0, duration_s=None)
    assert [request.at_s for request in planned(load).requests] == [0.5 * i for i in range(10)]
    assert len(planned(replace(load, duration_s=2.0)).requests) == 4


def test_a_bad_trace_is_an_error_of_usage(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,2\n")
    with pytest.raises(UsageError) as caught:
        bench_load.read_trace_file(path)
    assert caught.value.message.startswith(f"--trace: {path}:2: 'yesterday' is no time")
    assert caught.value.hint.startswith("correct or delete line 2")
