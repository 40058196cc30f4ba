"""Computes figures from results, and shows them as text, JSON, a line per request, and pictures.

Latencies count from the time when a request was due, not from the time when it was sent: otherwise
a client that sends late would make a server look fast. Only right answers to requests that were due
after the warm-up have latencies.
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from controller.api.errors import LlumctlError
from controller.api.text.quantities import printable
from controller.api.wire.status import ClusterStatus, InstanceStatus
from llumctl import output
from llumctl.lab.bench_run import Observed, Result, Results, Target
from llumctl.lab.option_values import Verify

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Values = NDArray[np.float64]

LATE_CLIENT_S = 0.02
BUSY_CLIENT_CORES = 0.8
JUDGED_S = 5.0


@dataclass(frozen=True, slots=True)
class Spread:
    """The distribution of `count` values. Percentiles are interpolated between the two nearest
    values."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class Latencies:
    """The spread of each latency, or None if there is no value. `tpot_s` is also None if every
    answer has a single token."""

    ttft_s: Spread | None
    tpot_s: Spread | None
    itl_s: Spread | None
    e2e_latency_s: Spread | None


@dataclass(frozen=True, slots=True)
class Emulation:
    """Whether the machine kept the emulated engines' time. Steps took `time_ratio` times as long as
    in the profile; a share of `late_steps_ratio` of them ended more than 5% late.
    `worst_time_ratio`: the ratio of the worst instance. All instances that existed at any time are
    counted."""

    time_ratio: float
    worst_time_ratio: float
    late_steps_ratio: float


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one run. `num_unfinished`: requests that were sent, and cut off by Ctrl-C.

    `latencies`: by level, with `all` for all requests first. `step_time_s`: mean and maximum of the
    times that instances reported during the load.
    """

    num_requests: int
    num_sent: int
    num_right: int
    num_failed: int
    num_unfinished: int
    failures: dict[str, int]
    num_prompt_tokens: int
    num_output_tokens: int
    num_lost_tokens: int
    num_doubled_tokens: int
    num_wrong_tokens: int
    duration_s: float
    requests_per_s: float
    output_tokens_per_s: float
    latencies: dict[str, Latencies]
    num_evictions: int | None
    step_time_s: tuple[float, float] | None
    emulation: Emulation | None
    send_lag_p99_s: float
    send_lag_max_s: float
    client_cpu_s: float
    client_cpu_cores: float
    client_cpu_ms_per_token: float
    interrupted: bool


def figures_of(results: Results, observed: Observed, num_requests: int, warmup_s: float) -> Figures:
    ended = results.ended
    right = [result for result in ended if result.is_right]
    duration_s = max(results.duration_s, 1e-9)
    num_output_tokens = sum(result.num_output_tokens for result in ended)
    lags_s = np.array([result.lag_s for result in ended] or [0.0])
    statuses = observed.statuses
    return Figures(
        num_requests=num_requests,
        num_sent=results.num_sent,
        num_right=len(right),
        num_failed=len(ended) - len(right),
        num_unfinished=results.num_sent - len(ended),
        failures=dict(Counter(r.verdict.kind for r in ended if not r.is_right).most_common()),
        num_prompt_tokens=sum(result.request.num_prompt_tokens for result in right),
        num_output_tokens=num_output_tokens,
        num_lost_tokens=sum(result.verdict.faults.num_lost for result in ended),
        num_doubled_tokens=sum(result.verdict.faults.num_doubled for result in ended),
        num_wrong_tokens=sum(result.verdict.faults.num_wrong for result in ended),
        duration_s=duration_s,
        requests_per_s=len(right) / duration_s,
        output_tokens_per_s=num_output_tokens / duration_s,
        latencies=_by_level([r for r in right if r.request.at_s >= warmup_s]),
        num_evictions=_evictions(statuses),
        step_time_s=_step_time_s(statuses),
        emulation=_emulation(statuses),
        send_lag_p99_s=float(np.percentile(lags_s, 99)),
        send_lag_max_s=float(lags_s.max()),
        client_cpu_s=results.client_cpu_s,
        client_cpu_cores=results.client_cpu_s / duration_s,
        client_cpu_ms_per_token=1000 * results.client_cpu_s / max(1, num_output_tokens),
        interrupted=results.interrupted,
    )


def warnings(figures: Figures, observed: Observed) -> list[str]:
    """Reasons why the figures depend on the client as much as on the server, a line each."""
    lines = []
    if figures.send_lag_p99_s > LATE_CLIENT_S:
        lines.append(
            f"the client itself was late: 1 in 100 requests went out"
            f" {1000 * figures.send_lag_p99_s:.0f} ms or more after it was due"
        )
    if figures.client_cpu_cores > BUSY_CLIENT_CORES:
        lines.append(
            f"the client used {figures.client_cpu_cores:.2f} of one core: its times are not"
            " the server's alone"
        )
    if observed.num_unanswered:
        lines.append(f"the controller left {observed.num_unanswered} questions unanswered")
    return lines


def latencies(results: Sequence[Result]) -> Latencies:
    return Latencies(
        ttft_s=spread(np.array([ttft_s(result) for result in results])),
        tpot_s=spread(np.array([v for r in results if (v := tpot_s(r)) is not None])),
        itl_s=spread(itl_s(results)),
        e2e_latency_s=spread(np.array([e2e_latency_s(result) for result in results])),
    )


def ttft_s(result: Result) -> float:
    return result.answer.token_times_s[0] - result.due_s


def tpot_s(result: Result) -> float | None:
    """The mean time per token after the first; None if there is only one token."""
    times_s = result.answer.token_times_s
    gaps = result.num_output_tokens - 1
    return (times_s[-1] - times_s[0]) / gaps if gaps > 0 else None


def itl_s(results: Iterable[Result]) -> Values:
    """All gaps between events with tokens. An event with several tokens ends one gap."""
    gaps = [np.diff(np.array(result.answer.token_times_s)) for result in results]
    return np.concatenate(gaps) if gaps else np.array([])


def e2e_latency_s(result: Result) -> float:
    return result.answer.ended_s - result.due_s


def spread(values: Values) -> Spread | None:
    if not len(values):
        return None
    p50, p90, p99 = np.percentile(values, (50, 90, 99))
    return Spread(
        count=len(values),
        mean=float(values.mean()),
        p50=float(p50),
        p90=float(p90),
        p99=float(p99),
        max=float(values.max()),
    )


def _by_level(results: Sequence[Result]) -> dict[str, Latencies]:
    by_level: dict[str, list[Result]] = {}
    for result in sorted(results, key=lambda result: result.request.priority):
        by_level.setdefault(result.request.level, []).append(result)
    figures = {"all": latencies(results)}
    if len(by_level) > 1:
        figures |= {level: latencies(of_level) for level, of_level in by_level.items()}
    return figures


def num_evictions(before: Iterable[InstanceStatus], after: Iterable[InstanceStatus]) -> int | None:
    """The number of evictions between two statuses. An instance that has restarted counts from 0.
    None if no number is known."""
    counts = {
        (item.id, item.incarnation): item.num_evictions
        for item in before
        if item.num_evictions is not None
    }
    differences = [
        item.num_evictions - counts.get((item.id, item.incarnation), 0)
        for item in after
        if item.num_evictions is not None
    ]
    return sum(differences) if differences else None


def _evictions(statuses: Sequence[ClusterStatus]) -> int | None:
    if len(statuses) < 2:
        return None
    return num_evictions(statuses[0].instances, statuses[-1].instances)


def _step_time_s(statuses: Sequence[ClusterStatus]) -> tuple[float, float] | None:
    times_s = [
        item.step_time_s
        for status in statuses[1:-1]
        for item in status.instances
        if item.step_time_s and item.num_running_reqs
    ]
    return (sum(times_s) / len(times_s), max(times_s)) if times_s else None


def _emulation(statuses: Sequence[ClusterStatus]) -> Emulation | None:
    """The emulation from the first status to the last. If an instance came meanwhile, or its
    process was started anew, everything that it did is added. If an instance left, what it had done
    when it was last seen is added."""
    if len(statuses) < 2:
        return None
    seen = {item.id: item for item in statuses[0].instances}
    added: dict[str, Values] = {}
    for status in statuses[1:]:
        for item in status.instances:
            if item.emulation is None:
                continue
            old = seen.get(item.id)
            before = _counts(old) if old is not None and _same_process(old, item) else 0.0
            added[item.id] = added.get(item.id, 0.0) + _counts(item) - before
            seen[item.id] = item
    profile_s, wall_s, num_steps, num_late = sum(added.values(), np.zeros(4)).tolist()
    if not num_steps or not profile_s:
        return None
    return Emulation(wall_s / profile_s, _worst_time_ratio(added.values()), num_late / num_steps)


def _counts(item: InstanceStatus) -> Values:
    """How long the instance's steps should have taken and took, their number, and the number of
    late ones."""
    told = item.emulation
    if told is None:
        return np.zeros(4)
    steps = (item.num_steps or 0, told.num_late_steps)
    return np.array([told.profile_time_s, told.wall_time_s, *steps], float)


def _same_process(old: InstanceStatus, new: InstanceStatus) -> bool:
    """Whether both statuses are of the same process. A fenced process gets another incarnation, but
    its counts go on."""
    return old.incarnation == new.incarnation or (old.pid is not None and old.pid == new.pid)


def _worst_time_ratio(added: Iterable[Values]) -> float:
    """The ratio of the worst instance. In a few steps a single late one would decide the ratio, so
    an instance that worked for less than `JUDGED_S` counts only if none worked longer."""
    worked = [(each[0], each[1] / each[0]) for each in added if each[0] > 0]
    judged = [ratio for profile_s, ratio in worked if profile_s >= JUDGED_S]
    return float(max(judged or [ratio for _, ratio in worked]))


# -- the report -------------------------------------------------------------------------

SCHEMA_VERSION = 1
MAX_FAILURES_TOLD = 10
HEADER: tuple[str, ...] = ("LATENCY", "LEVEL", "COUNT", "MEAN", "P50", "P90", "P99", "MAX")
LATENCIES = ("ttft_s", "tpot_s", "itl_s", "e2e_latency_s")


def render(figures: Figures, target: Target, verify: Verify) -> str:
    """The run and its totals, then a row for each latency and level."""
    parts = ["\n".join(_summary(figures, target, verify))]
    if rows := _rows(figures.latencies):
        header = HEADER
        if len(figures.latencies) == 1:
            header, *rows = [(name, *cells) for name, _, *cells in (HEADER, *rows)]
        parts.append(output.table(header, rows))
        parts.append("seconds; ttft_s and e2e_latency_s count from when a request was due")
    return "\n\n".join(parts)


def as_json(
    figures: Figures, target: Target, parameters: dict[str, Any], started_at: str
) -> dict[str, Any]:
    """The JSON report. Within one schema_version, fields are only added."""
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
    """The first failures, a line each, and the number of others."""
    failed = [result for result in results.ended if not result.is_right]
    lines = [
        f"request {result.request.index}: {result.verdict.kind}: {printable(result.verdict.detail)}"
        for result in failed[:MAX_FAILURES_TOLD]
    ]
    if len(failed) > MAX_FAILURES_TOLD:
        lines.append(f"and {len(failed) - MAX_FAILURES_TOLD} more")
    return lines


def write_records(path: Path, results: Results) -> None:
    """Writes a line of JSON for each request that ended, in the order in which they were due."""
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
    num_later = figures.num_requests - figures.num_sent
    requests = [
        f"requests {figures.num_right} right of {figures.num_sent} sent",
        f"{figures.num_failed} failed",
        *([f"{num_later} later turns not sent"] if num_later and not figures.interrupted else []),
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
        "ttft_s": ttft_s(result) if is_right else None,
        "tpot_s": tpot_s(result) if is_right else None,
        "e2e_latency_s": e2e_latency_s(result) if is_right else None,
    }


# -- four pictures: distributions of TTFT and latency, TTFT over time, rates ------------

MAX_RATE_BINS = 60


def save_plot(path: Path, results: Results, title: str) -> None:
    """Writes a PNG. Raises LlumctlError if it cannot be written."""
    from matplotlib.figure import Figure as Picture

    picture = Picture(figsize=(11, 7.5), layout="constrained")
    (ttft, e2e), (over_time, rate) = picture.subplots(2, 2)
    by_level = _right_by_level(results)
    for level, of_level in by_level.items():
        label = f"{level} ({len(of_level)})"
        due_s = [result.due_s - results.started_s for result in of_level]
        ttfts_s = [ttft_s(result) for result in of_level]
        _cumulate(ttft, ttfts_s, label)
        _cumulate(e2e, [e2e_latency_s(result) for result in of_level], label)
        over_time.plot(due_s, ttfts_s, ".", markersize=3, label=label)
    _label(ttft, "TTFT", "s", "share of requests")
    _label(e2e, "end-to-end latency", "s", "share of requests")
    _label(over_time, "TTFT by when the request was due", "s since the start", "s")
    _draw_rates(rate, results)
    if by_level:
        for axes, place in ((ttft, "lower right"), (e2e, "lower right"), (over_time, "best")):
            axes.legend(loc=place, fontsize="small")
    for axes in (ttft, e2e):
        if by_level:
            _make_logarithmic(axes)
        axes.set_ylim(0, 1)
    picture.suptitle(title, fontsize="medium")
    try:
        picture.savefig(path, dpi=120, format="png")
    except OSError as error:
        raise LlumctlError(
            f"cannot write {path}: {error.strerror}", f"ls -ld {path.parent}"
        ) from error


def _right_by_level(results: Results) -> dict[str, list[Result]]:
    by_level: dict[str, list[Result]] = {}
    for result in sorted(results.ended, key=lambda result: result.request.priority):
        if result.is_right:
            by_level.setdefault(result.request.level, []).append(result)
    return by_level


def _cumulate(axes: "Axes", values: Sequence[float], label: str) -> None:
    shares = np.arange(1, len(values) + 1) / len(values)
    axes.step(np.sort(values), shares, "-", label=label, where="post")


def _draw_rates(axes: "Axes", results: Results) -> None:
    """Draws the requests that were due and the tokens that came, per second."""
    span_s = max(results.duration_s, 1e-3)
    num_bins = min(MAX_RATE_BINS, max(1, int(span_s)))
    edges = np.linspace(0, span_s, num_bins + 1)
    width_s = span_s / num_bins
    due_s = [result.due_s - results.started_s for result in results.ended]
    tokens_s = [
        np.array(result.answer.token_times_s) - results.started_s for result in results.ended
    ]
    due, _ = np.histogram(due_s, edges)
    tokens, _ = np.histogram(np.concatenate(tokens_s) if tokens_s else [], edges)
    axes.stairs(tokens / width_s, edges, label="output tokens/s")
    _label(axes, "rates", "s since the start", "tokens/s")
    right = axes.twinx()
    right.stairs(due / width_s, edges, color="tab:orange", alpha=0.7, label="requests/s")
    right.set_ylabel("requests due per s")
    for drawn in (axes, right):
        drawn.set_ylim(0, 1.2 * drawn.get_ylim()[1])  # room for the legends
    axes.legend(loc="upper left", fontsize="small")
    right.legend(loc="upper right", fontsize="small")


def _make_logarithmic(axes: "Axes") -> None:
    """Makes the x axis logarithmic, with seconds as plain numbers: 0.01, 0.03, 0.1."""
    from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
    axes.xaxis.set_major_formatter(FormatStrFormatter("%g"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _label(axes: "Axes", title: str, x: str, y: str) -> None:
    axes.set_title(title, fontsize="medium")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.3)
