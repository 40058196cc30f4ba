"""One trace, live and simulated, with the same requests at the same times and the same policy and
settings; and the same figures of both, in seconds of the profile's time."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields, replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from controller.api.settings.table import kinds
from controller.api.wire.status import ClusterStatus
from controller.core.settings import (
    HoldingConfig,
    HoldingSettings,
    MigrationSettings,
    ReschedulingConfig,
)
from controller.model.profile import LatencyProfile
from controller.sim.cluster import SimCluster
from controller.sim.outcome import Sampled, Spread, is_steady, spread, summarize
from controller.sim.setup import ClusterSetup, SimPolicy
from controller.sim.workload.trace import Trace, TraceRequest
from controller.sim.workload.trace_files import header_line, request_line
from llumctl.lab.bench import Measured
from llumctl.lab.bench_run import Result

STATUS_INTERVAL_S = 0.005
LIMIT_FACTOR = 1.0
"""The client asks for exactly as many tokens as it gets."""
_MOST_PER_MINUTE = 32
"""The upper bound of the setting: clusters that are more than five times as fast all have it."""
Figures = dict[str, Any]
Config = ReschedulingConfig | HoldingConfig


def write_trace(trace: Trace, path: Path) -> Path:
    """Writes the trace as a recording, which `llumctl bench` can replay."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [header_line(trace.prefix_hash_tokens), *map(request_line, trace.requests)]
    path.write_text("".join(lines), encoding="utf-8")
    return path


def live_settings(policy: SimPolicy, speed: float) -> dict[str, Any]:
    """The settings of a live cluster that schedules as the simulated policy does, by their names in
    `llumctl set`. Settings per time are for a cluster that is `speed` times as fast.

    Raises ValueError: the policy differs from its defaults where a live cluster has no setting.
    """
    status_interval_s = max(policy.status_age_s, STATUS_INTERVAL_S)
    moves = policy.rescheduling
    settings: dict[str, Any] = {
        "scheduler.policy": policy.dispatch,
        "scheduler.status_interval_s": max(0.001, status_interval_s / speed),
        **_settings_of("migration", MigrationSettings, moves, ReschedulingConfig()),
    }
    settings["migration.max_moves_per_minute"] = min(
        round(moves.max_moves_per_minute * speed), _MOST_PER_MINUTE
    )
    if policy.holding is not None:
        settings |= _settings_of("holding", HoldingSettings, policy.holding, HoldingConfig())
    return settings


def _settings_of(table: str, model: type, config: Config, default: Config) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for field in fields(config):
        value = getattr(config, field.name)
        if field.name in kinds(model):
            settings[f"{table}.{field.name}"] = value
        elif value != getattr(default, field.name):
            raise ValueError(f"a live cluster has no setting {table}.{field.name}")
    return settings


def smaller(profile: LatencyProfile, num_blocks: int | None) -> LatencyProfile:
    """The profile with the number of blocks that `emulated.num_blocks` would set."""
    if num_blocks is None:
        return profile
    max_model_len = min(profile.max_model_len, num_blocks * profile.block_size)
    return replace(profile, num_total_blocks=num_blocks, max_model_len=max_model_len)


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


def as_sent(trace: Trace, lags_s: Sequence[float]) -> Trace:
    """The trace as a live run's client sent it, with each request as late as it was sent."""
    sent = zip(trace.requests, lags_s, strict=True)
    return _in_order(trace, (each.arriving(each.arrival_s + lag_s) for each, lag_s in sent))


def delayed(trace: Trace, mean_s: float, seed: int) -> Trace:
    """The trace with each request delayed by an exponential time of this mean. Two live runs differ
    too, and how long a request waits can depend on a few milliseconds."""
    rng = Random(f"{seed}/delays")
    delays_s = iter(lambda: rng.expovariate(1 / mean_s), None)
    late = zip(trace.requests, delays_s, strict=False)
    return _in_order(trace, (each.arriving(each.arrival_s + delay_s) for each, delay_s in late))


def _in_order(trace: Trace, requests: Iterable[TraceRequest]) -> Trace:
    ordered = sorted(requests, key=lambda each: each.arrival_s)
    return Trace(trace.name, ordered, trace.prefix_hash_tokens)


def live_latencies(measured: Measured, speed: float) -> Figures:
    """The latencies of the right answers, from the time at which each request was due; the TTFT
    also from the time at which the request was sent."""
    right = [result for result in measured.results.ended if result.is_right]
    streams = [result for result in right if result.num_output_tokens > 1]
    values = {
        "ttft_s": [result.answer.token_times_s[0] - result.due_s for result in right],
        "ttft_from_sent_s": [
            result.answer.token_times_s[0] - result.due_s - result.lag_s for result in right
        ],
        "tpot_s": [tpot_s(result) for result in streams],
        "e2e_latency_s": [result.answer.token_times_s[-1] - result.due_s for result in right],
        "longest_pause_s": [longest_pause_s(result.answer.token_times_s) for result in streams],
    }
    return {
        kind: _as_dict(spread(speed * np.array(found, float))) for kind, found in values.items()
    }


def live_steady(measured: Measured) -> bool | None:
    """Whether the load was steady by the simulator's rule, judged by the cluster's statuses during
    the load."""
    requests = measured.workload.requests
    sampled = _sampled(measured.statuses)
    if not sampled.times_s:
        return None
    # The first status is from just before the load began.
    began_s = sampled.times_s[0]
    return is_steady(sampled, [began_s + each.at_s for each in requests])


def live_steps(statuses: Sequence[ClusterStatus], speed: float) -> Figures:
    """For all instances, between the first status and the last, the time of their steps with the
    gaps between consecutive steps, and the mean step. None if there were no steps, or if an
    instance restarted."""
    known: Figures = {"busy_s": None, "step_s": None}
    if not statuses:
        return known
    before = {(item.id, item.incarnation): item for item in statuses[0].instances}
    busy_s, num_steps = 0.0, 0
    for item in statuses[-1].instances:
        old = before.get((item.id, item.incarnation))
        if old is None or item.busy_s is None or old.busy_s is None:
            return known
        busy_s += speed * (item.busy_s - old.busy_s)
        num_steps += (item.num_steps or 0) - (old.num_steps or 0)
    return {"busy_s": busy_s, "step_s": busy_s / num_steps} if num_steps else known


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
