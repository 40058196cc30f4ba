"""One trace, live and simulated: the same requests at the same times, the same policy and settings,
and the same figures of both, in seconds of the profile's time."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from controller.api.wire.models import ClusterStatus
from controller.core.rescheduling.config import ReschedulingConfig
from controller.sim.cluster import SimCluster
from controller.sim.outcome import Sampled
from controller.sim.setup import ClusterSetup, SimPolicy
from controller.sim.steady import is_steady
from controller.sim.summary import Spread, spread, summarize
from controller.sim.workload.formats.recording import header_line, request_line
from controller.sim.workload.request import Trace
from llumctl.bench.runner import Result
from llumctl.bench.session import Measured

STATUS_INTERVAL_S = 0.005
LIMIT_FACTOR = 1.0
"""The load's client asks for exactly the tokens that it gets."""
# Settings that are times, or a number per time: a cluster that is faster has less of them.
_TIMES = ("interval_s", "not_back_s")
_PER_TIME = ("max_moves_per_minute",)
Figures = dict[str, Any]


def write_trace(trace: Trace, path: Path) -> Path:
    """As a recording, which `llumctl bench` replays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [header_line(trace.prefix_hash_tokens), *map(request_line, trace.requests)]
    path.write_text("".join(lines), encoding="utf-8")
    return path


def live_settings(policy: SimPolicy, speed: float) -> dict[str, Any]:
    """The settings of a live cluster that schedules as the simulated policy does, by their names
    in `llumctl set`; the times among them are for a cluster that is `speed` times as fast."""
    status_interval_s = max(policy.status_age_s, STATUS_INTERVAL_S)
    settings: dict[str, Any] = {
        "scheduler.policy": policy.dispatch,
        "scheduler.status_interval_s": max(0.001, status_interval_s / speed),
        "migration.max_moves": policy.max_moves,
    }
    for field in fields(ReschedulingConfig):
        value = getattr(policy.rescheduling, field.name)
        if field.name in _TIMES:
            value /= speed
        elif field.name in _PER_TIME:
            value = round(value * speed)
        settings[f"migration.{field.name}"] = value
    return settings


def simulated(setup: ClusterSetup, trace: Trace) -> Figures:
    outcome = SimCluster(setup).run(trace)
    found = summarize(outcome, [each.arrival_s for each in trace.requests])
    kinds = ("ttft_s", "tpot_s", "e2e_latency_s", "longest_pause_s")
    return {kind: _as_dict(getattr(found.all, kind)) for kind in kinds} | {
        "preemption_loss_s": found.all.preemption_loss_s,
        "num_evictions": found.all.num_evictions,
        "num_moves": found.all.num_moves,
        "steady": found.steady,
        "duration_s": found.duration_s,
        "step_s": outcome.busy_s / outcome.num_steps,
    }


def live_latencies(measured: Measured, speed: float) -> Figures:
    """Of the right answers, from when each request was due."""
    right = [result for result in measured.results.ended if result.is_right]
    streams = [result for result in right if result.num_output_tokens > 1]
    values = {
        "ttft_s": [result.answer.token_times_s[0] - result.due_s for result in right],
        "tpot_s": [tpot_s(result) for result in streams],
        "e2e_latency_s": [result.answer.token_times_s[-1] - result.due_s for result in right],
        "longest_pause_s": [longest_pause_s(result.answer.token_times_s) for result in streams],
    }
    return {
        kind: _as_dict(spread(speed * np.array(found, float))) for kind, found in values.items()
    }


def live_steady(measured: Measured) -> bool | None:
    """As the simulator judges it, by the statuses that the cluster gave during the load."""
    requests = measured.workload.requests
    sampled = _sampled(measured.statuses)
    if not sampled.times_s:
        return None
    # The first status was asked for just before the load began.
    began_s = sampled.times_s[0]
    return is_steady(sampled, began_s + requests[0].at_s, began_s + requests[-1].at_s)


def _sampled(statuses: Iterable[ClusterStatus]) -> Sampled:
    sampled = Sampled()
    for status in statuses:
        loaded = [each for each in status.instances if each.num_total_blocks]
        num_blocks = sum(each.num_total_blocks or 0 for each in loaded)
        num_free = sum(each.num_free_blocks or 0 for each in loaded)
        waiting = sum(each.num_waiting_reqs or 0 for each in loaded) + status.num_held_reqs
        sampled.times_s.append(status.time_s)
        sampled.num_waiting.append(waiting)
        sampled.num_running.append(sum(each.num_running_reqs or 0 for each in loaded))
        sampled.num_instances.append(len(loaded))
        sampled.used_share.append(1 - num_free / num_blocks if num_blocks else 0.0)
    return sampled


def tpot_s(result: Result) -> float:
    times_s = result.answer.token_times_s
    return (times_s[-1] - times_s[0]) / (result.num_output_tokens - 1)


def longest_pause_s(times_s: Sequence[float]) -> float:
    return max((later - earlier for earlier, later in pairwise(times_s)), default=0.0)


def _as_dict(found: Spread | None) -> dict[str, float] | None:
    return None if found is None else asdict(found)
