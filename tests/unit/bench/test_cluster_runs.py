"""What `make bench-cluster` runs next, what it keeps, and how that is compared."""

from typing import Any

from benchmarks.cluster import (
    ratio_lines,
)


def _run(policy: str, seed: int, live_s: float, simulated_s: float) -> dict[str, Any]:
    return {
        "policy": policy,
        "seed": seed,
        "live": {"ttft_s": {"p99": live_s}},
        "simulated": [
            {"ttft_s": {"p99": p99_s}} for p99_s in (0.5 * simulated_s, 1.5 * simulated_s)
        ],
    }


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
