"""Runs a benchmark: finds the target, plans and sends the load, and computes the figures."""

import contextlib
import resource
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import uvloop

from controller.api.wire.status import ClusterStatus
from llumctl import output
from llumctl.lab import bench_load, bench_report, bench_run
from llumctl.lab.bench_load import Load, Workload
from llumctl.lab.bench_report import Figures
from llumctl.lab.bench_run import Observed, Results, Run, Sender, Target, measure
from llumctl.lab.option_values import Verify

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the command line asks for. Either `cluster` or `url` is set. `warmup_s`: requests that
    are due earlier have no latencies. `stream_interval`: tokens per event; it changes the gaps
    between events, but not TTFT and TPOT."""

    load: Load
    priorities: tuple[str, ...] = ()
    warmup_s: float = 0.0
    verify: Verify = Verify.AUTO
    timeout_s: float = 600.0
    model: str | None = None
    api_key_file: Path | None = None
    url: str | None = None
    cluster: str | None = None
    stream_interval: int = 1


@dataclass(frozen=True, slots=True)
class Measured:
    wanted: Wanted
    verify: Verify
    """How answers were verified; never AUTO."""
    target: Target
    workload: Workload
    sender: Sender
    results: Results
    statuses: list[ClusterStatus]
    """Statuses of the cluster before, during and after the load."""
    figures: Figures
    warnings: list[str]
    started_at: str

    def as_json(self) -> dict[str, Any]:
        load = asdict(self.wanted.load)
        load["trace"] = None if load["trace"] is None else str(load["trace"])
        parameters = {
            "command": sys.argv,
            **load,
            "priorities": list(self.wanted.priorities),
            "warmup_s": self.wanted.warmup_s,
            "verify": str(self.verify),
            "timeout_s": self.wanted.timeout_s,
            "stream_interval": self.wanted.stream_interval,
            "num_shortened": self.workload.num_shortened,
        }
        return bench_report.as_json(self.figures, self.target, parameters, self.started_at)

    def title(self) -> str:
        load = self.wanted.load
        if load.trace is not None:
            what = f"{load.trace.name} at {load.speed:g} times its speed"
        else:
            cv = "" if load.cv is None else f" (CV {load.cv:g})"
            what = f"{load.lengths}, {load.rate:g} requests/s, {load.arrivals}{cv}"
        return f"{self.target.model}: {what}, seed {load.seed}"


def run(wanted: Wanted) -> Measured:
    """Runs the benchmark. Raises UsageError before anything is sent, and UnreachableError if there
    is no endpoint."""
    rows = bench_load.rows(wanted.load)
    aim = _find(wanted)
    try:
        shares = bench_load.parse_shares(wanted.priorities, aim.levels)
        plan = bench_load.plan(wanted.load, rows, shares, aim.max_model_len)
        if plan.num_shortened:
            output.say(
                f"{plan.num_shortened} of {len(plan.requests)} requests are longer than"
                f" {_limit(wanted.load, aim)} and are shortened"
            )
        verify = wanted.verify
        if verify is Verify.AUTO:
            verify = Verify.TOKENS if aim.is_emulated else Verify.COUNTS
        sender = Sender(
            *(aim.endpoint, aim.model, wanted.load.seed, verify, wanted.timeout_s),
            stream_interval=wanted.stream_interval,
        )
        started_at = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        _allow_many_connections()
        with ProgressBar(len(plan.requests)) as progress:
            results, observed = uvloop.run(_measure(plan, sender, progress, aim))
    finally:
        if aim.control is not None:
            aim.control.close()
    found = bench_report.figures_of(results, observed, len(plan.requests), wanted.warmup_s)
    warnings = bench_report.warnings(found, observed)
    return Measured(
        *(wanted, verify, aim, plan, sender, results, observed.statuses),
        *(found, warnings, started_at),
    )


async def _measure(
    plan: Workload, sender: Sender, progress: "ProgressBar", aim: Target
) -> tuple[Results, Observed]:
    """Makes the Run inside its event loop, and carries it out."""
    return await measure(Run(plan.requests, sender, progress), aim.control)


def _allow_many_connections() -> None:
    """Raises the limit of open files: each live request has a connection, and the usual limit of
    1,024 is too low."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _find(wanted: Wanted) -> Target:
    key = "" if wanted.api_key_file is None else bench_run.read_key(wanted.api_key_file)
    if wanted.url is not None:
        return bench_run.target_of_url(wanted.url, key, wanted.model)
    return bench_run.target_of_cluster(wanted.cluster or "default", key, wanted.model)


def _limit(load: Load, aim: Target) -> str:
    context = f"the model's context ({aim.max_model_len} tokens)"
    if load.max_tokens is None:
        return context
    cap = f"--max-tokens-cap {load.max_tokens}"
    return cap if aim.max_model_len is None else f"{cap} or {context}"


class ProgressBar:
    """A progress bar on stderr, if stderr is a terminal. Call it with the results so far."""

    def __init__(self, num_requests: int) -> None:
        self._total = num_requests
        self._progress: Progress | None = None
        self._task: TaskID
        self._counted = (0, 0)  # results, and their tokens
        self._last = (time.perf_counter(), 0)

    def __enter__(self) -> Self:
        if output.can_redraw(sys.stderr):
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            self._progress = Progress(
                BarColumn(bar_width=24),
                TextColumn("{task.completed:.0f}/{task.total:.0f}"),
                TimeElapsedColumn(),
                TextColumn("{task.description}"),
                console=Console(stderr=True),
                auto_refresh=False,
                transient=True,
            )
            self._task = self._progress.add_task("", total=self._total)
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def __call__(self, results: Results) -> None:
        if self._progress is None:
            return
        now_s, num_tokens = time.perf_counter(), self._num_tokens(results)
        then_s, num_before = self._last
        rate = max(0, num_tokens - num_before) / max(now_s - then_s, 1e-3)
        self._last = (now_s, num_tokens)
        self._progress.update(
            self._task,
            completed=len(results.ended),
            description=f"sent {results.num_sent}  live {len(results.live)}"
            f"  failed {results.num_failed}  {rate:.0f} tokens/s",
            refresh=True,
        )

    def _num_tokens(self, results: Results) -> int:
        """The number of tokens so far. Each ended request is counted once, so that a call takes no
        longer in a long run."""
        num_seen, num_tokens = self._counted
        num_tokens += sum(len(result.answer.token_times_s) for result in results.ended[num_seen:])
        self._counted = (len(results.ended), num_tokens)
        return num_tokens + sum(len(answer.token_times_s) for answer in results.live.values())
