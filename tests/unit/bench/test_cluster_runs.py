"""What `make bench-cluster` runs next, what it keeps, and how that is compared."""

from pathlib import Path
from typing import Any

from benchmarks.cluster import (
    RUNS,
    ClusterLoad,
    Collected,
    Wanted,
    ratio_lines,
)

LOAD = ClusterLoad("M-M", 6.86, 100, 16)


def _run(policy: str, seed: int, live_s: float, simulated_s: float) -> dict[str, Any]:
    return {
        "policy": policy,
        "seed": seed,
        "live": {"ttft_s": {"p99": live_s}},
        "simulated": [
            {"ttft_s": {"p99": p99_s}} for p99_s in (0.5 * simulated_s, 1.5 * simulated_s)
        ],
    }


def test_each_run_is_made_once_and_kept_by_load_policy_and_seed(tmp_path: Path) -> None:
    collected = Collected(LOAD, tmp_path)
    made = []
    while (wanted := collected.missing()) is not None:
        collected.write(wanted, {"num_moves": 1})
        made.append(wanted)
    assert tuple(made) == RUNS
    collected.write(Wanted("llumnix", 1), {"num_moves": 2})
    runs = collected.runs()
    assert len(runs) == len(RUNS)
    assert [run["num_moves"] for run in runs if run["num_moves"] != 1] == [2]
    assert not Collected(ClusterLoad("M-M", 7.0, 100, 16), tmp_path).runs()


def test_policies_are_compared_over_the_seeds_that_both_have() -> None:
    runs = [
        _run("infaas++", 1, 60.0, 50.0),
        _run("infaas++", 2, 20.0, 30.0),
        _run("llumnix", 1, 20.0, 20.0),
        _run("llumnix", 2, 20.0, 20.0),
        _run("vllm-dp", 1, 120.0, 100.0),
        _run("vllm-dp", 3, 999.0, 999.0),
    ]
    assert ratio_lines(runs) == [
        "P99 TTFT of llumnix over that of infaas++: 0.50 live, 0.50 simulated (seeds 1, 2)",
        "P99 TTFT of vllm-dp over that of infaas++: 2.00 live, 2.00 simulated (seeds 1)",
    ]
