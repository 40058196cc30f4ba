"""One benchmark, from the options of the command line to the figures."""

import contextlib
import resource
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import uvloop

from controller.api.wire.status import ClusterStatus
from llumctl.bench import levels, report, target, workload
from llumctl.bench import statistics as calculation
from llumctl.bench.check import Verify
from llumctl.bench.measure import Observed, measure
from llumctl.bench.progress import ProgressBar
from llumctl.bench.runner import Results, Run, Sender
from llumctl.bench.statistics import Figures
from llumctl.bench.target import Target
from llumctl.bench.workload import Load, Workload
from llumctl.text import output


@dataclass(frozen=True, slots=True)
class Wanted:
    """One of `cluster` and `url` is set. `warmup_s`: requests due before have no latencies.
    `stream_interval`: tokens of an event; TTFT and TPOT stay what they are, the gaps do not."""

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
    """How answers were verified: not AUTO."""
    target: Target
    workload: Workload
    sender: Sender
    results: Results
    statuses: list[ClusterStatus]
    """Of the cluster: before the load, during it, and after it."""
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
        return report.as_json(self.figures, self.target, parameters, self.started_at)

    def title(self) -> str:
        load = self.wanted.load
        if load.trace is not None:
            what = f"{load.trace.name} at {load.speed:g} times its speed"
        else:
            cv = "" if load.cv is None else f" (CV {load.cv:g})"
            what = f"{load.lengths}, {load.rate:g} requests/s, {load.arrivals}{cv}"
        return f"{self.target.model}: {what}, seed {load.seed}"


def run(wanted: Wanted) -> Measured:
    """Raises UsageError before anything is sent, UnreachableError without an endpoint."""
    rows = workload.rows(wanted.load)
    aim = _find(wanted)
    try:
        shares = levels.parse(wanted.priorities, aim.levels)
        plan = workload.plan(wanted.load, rows, shares, aim.max_model_len)
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
    found = calculation.of(results, observed, len(plan.requests), wanted.warmup_s)
    warnings = calculation.warnings(found, observed)
    return Measured(
        *(wanted, verify, aim, plan, sender, results, observed.statuses),
        *(found, warnings, started_at),
    )


async def _measure(
    plan: Workload, sender: Sender, progress: ProgressBar, aim: Target
) -> tuple[Results, Observed]:
    """Makes the Run inside the event loop to which it belongs."""
    return await measure(Run(plan.requests, sender, progress), aim.control)


def _allow_many_connections() -> None:
    """Each live request has one, and the usual limit of 1,024 open files is little for that."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _find(wanted: Wanted) -> Target:
    key = "" if wanted.api_key_file is None else target.read_key(wanted.api_key_file)
    if wanted.url is not None:
        return target.of_url(wanted.url, key, wanted.model)
    return target.of_cluster(wanted.cluster or "default", key, wanted.model)


def _limit(load: Load, aim: Target) -> str:
    context = f"the model's context ({aim.max_model_len} tokens)"
    if load.max_tokens is None:
        return context
    cap = f"--max-tokens-cap {load.max_tokens}"
    return cap if aim.max_model_len is None else f"{cap} or {context}"
