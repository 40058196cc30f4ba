"""The report as text, as JSON and as one line per request."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from controller.api.errors import LlumctlError
from controller.api.text.quantities import printable
from llumctl.bench import statistics as calculation
from llumctl.bench.check import Verify
from llumctl.bench.runner import Result, Results
from llumctl.bench.statistics import Figures, Latencies, Spread
from llumctl.bench.target import Target
from llumctl.text import output

SCHEMA_VERSION = 1
MAX_FAILURES_TOLD = 10
HEADER: tuple[str, ...] = ("LATENCY", "LEVEL", "COUNT", "MEAN", "P50", "P90", "P99", "MAX")
LATENCIES = ("ttft_s", "tpot_s", "itl_s", "e2e_latency_s")


def render(figures: Figures, target: Target, verify: Verify, *, colours: bool) -> str:
    """The run and its totals, then a row per latency and level."""
    parts = ["\n".join(_summary(figures, target, verify))]
    if rows := _rows(figures.latencies):
        header = HEADER
        if len(figures.latencies) == 1:
            header, *rows = [(name, *cells) for name, _, *cells in (HEADER, *rows)]
        parts.append(output.table(header, rows, colours=colours))
        parts.append("seconds; ttft_s and e2e_latency_s count from when a request was due")
    return "\n\n".join(parts)


def as_json(
    figures: Figures, target: Target, parameters: dict[str, Any], started_at: str
) -> dict[str, Any]:
    """Within one schema_version fields are only added."""
    cluster = target.cluster
    return {
        "schema_version": SCHEMA_VERSION,
        "started_at": started_at,
        "parameters": parameters,
        "target": {
            "url": target.endpoint.base_url,
            "model": target.model,
            "max_model_len": target.max_model_len,
            "cluster": cluster.cluster if cluster else None,
            "engine": cluster.engine if cluster else None,
            "policy": cluster.policy if cluster else None,
            "num_instances": len(cluster.instances) if cluster else None,
        },
        **asdict(figures),
    }


def failures(results: Results) -> list[str]:
    """The first failures, a line each, and how many more there are."""
    failed = [result for result in results.ended if not result.is_right]
    lines = [
        f"request {result.request.index}: {result.verdict.kind}: {printable(result.verdict.detail)}"
        for result in failed[:MAX_FAILURES_TOLD]
    ]
    if len(failed) > MAX_FAILURES_TOLD:
        lines.append(f"and {len(failed) - MAX_FAILURES_TOLD} more")
    return lines


def write_records(path: Path, results: Results) -> None:
    """One JSON object per request that ended, in the order in which they were due."""
    ordered = sorted(results.ended, key=lambda result: result.request.index)
    lines = [json.dumps(_record(result, results.started_s)) for result in ordered]
    write(path, "".join(f"{line}\n" for line in lines))


def write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise LlumctlError(
            f"cannot write {path}: {error.strerror}", f"ls -ld {path.parent}"
        ) from error


def _summary(figures: Figures, target: Target, verify: Verify) -> list[str]:
    cluster = target.cluster
    facts = [f"endpoint {target.endpoint.base_url}", f"model {target.model}"]
    if cluster is not None:
        facts = [
            f"cluster {cluster.cluster}",
            f"engine {cluster.engine}",
            f"{len(cluster.instances)} instances",
            f"policy {cluster.policy}",
            *facts,
        ]
    requests = [
        f"requests {figures.num_right} right of {figures.num_sent} sent",
        f"{figures.num_failed} failed",
        *([f"{figures.num_unfinished} cut off"] if figures.num_unfinished else []),
        f"{figures.duration_s:.1f} s",
        f"{figures.requests_per_s:.2f} requests/s",
    ]
    tokens = [
        f"tokens {figures.num_output_tokens}",
        f"{figures.output_tokens_per_s:.0f} tokens/s",
        f"{figures.num_lost_tokens} lost",
        f"{figures.num_doubled_tokens} doubled",
        f"{figures.num_wrong_tokens} wrong (by {verify})",
    ]
    if figures.num_evictions is not None:
        tokens.append(f"{figures.num_evictions} evictions")
    if figures.step_time_s is not None:
        mean_s, max_s = figures.step_time_s
        tokens.append(f"step {1000 * mean_s:.1f} ms (at most {1000 * max_s:.1f})")
    emulation = []
    if (kept := figures.emulation) is not None:
        emulation = [
            f"emulation {kept.time_ratio:.4f} of the profile's time",
            f"worst instance {kept.worst_time_ratio:.4f}",
            f"{100 * kept.late_steps_ratio:.2f}% of steps over 5% late",
        ]
    client = [
        f"client lag p99 {1000 * figures.send_lag_p99_s:.1f} ms",
        f"cpu {figures.client_cpu_cores:.2f} cores",
        f"{figures.client_cpu_ms_per_token:.3f} ms/token",
    ]
    kinds = [f"{kind} {count}" for kind, count in figures.failures.items()]
    failures = [f"failures {kinds[0]}", *kinds[1:]] if kinds else []
    lines = (facts, requests, failures, tokens, emulation, client)
    return ["  ".join(printable(part) for part in line) for line in lines if line]


def _rows(by_level: dict[str, Latencies]) -> list[tuple[str, ...]]:
    return [
        (name, level, *_cells(spread))
        for name in LATENCIES
        for level, latencies in by_level.items()
        if (spread := getattr(latencies, name)) is not None
    ]


def _cells(spread: Spread) -> tuple[str, ...]:
    values = (spread.mean, spread.p50, spread.p90, spread.p99, spread.max)
    return (str(spread.count), *(f"{value:.4f}" for value in values))


def _record(result: Result, started_s: float) -> dict[str, Any]:
    request, is_right = result.request, result.is_right
    return {
        "index": request.index,
        "level": request.level,
        "due_s": result.due_s - started_s,
        "send_lag_s": result.lag_s,
        "num_prompt_tokens": request.num_prompt_tokens,
        "max_tokens": request.num_output_tokens,
        "num_output_tokens": result.num_output_tokens,
        "outcome": result.verdict.kind or "right",
        "detail": result.verdict.detail,
        "ttft_s": calculation.ttft_s(result) if is_right else None,
        "tpot_s": calculation.tpot_s(result) if is_right else None,
        "e2e_latency_s": calculation.e2e_latency_s(result) if is_right else None,
    }
