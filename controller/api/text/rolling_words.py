"""Puts a rolling restart and engine arguments into words, for the command line and the dashboard
alike.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from controller.api.text.quantities import duration, latency, printable
from controller.api.wire.status import (
    EngineChangeStatus,
    PlannedRestart,
    RestartTurn,
    RollingReport,
)

# A table of vLLM's may be long.
MAX_ARGUMENT_CHARS = 300


def progress(report: RollingReport) -> str:
    """One line: `rolling restart: 1 of 3 done, i-1 emptying (4 left), then i-2`."""
    if report.state == "none":
        return "no rolling restart"
    facts = [f"{len(report.done)} of {report.num_instances} done"]
    if report.state == "failed":
        facts.append(f"failed: {report.why}")
        if report.left:
            facts.append(f"not restarted: {' '.join(report.left)}")
    elif report.state == "stopped":
        facts.append(report.why)
        if report.left:
            facts.append(f"not restarted: {' '.join(report.left)}")
    elif report.state == "done":
        if report.began_s is not None and report.ended_s is not None:
            facts[0] += f" in {latency(report.ended_s - report.began_s)}"
    else:
        facts += [turn(each) for each in report.under_way]
        if report.waits and not report.under_way:
            facts.append(f"waits: {report.waits}")
        if report.left:
            facts.append(f"then {' '.join(report.left)}")
    if report.engine_args:
        facts.append(f"with {arguments(report.engine_args)}")
    return printable(f"rolling restart: {', '.join(facts)}")


def step(report: RollingReport) -> tuple[object, ...]:
    """What differs from one step to the next, without the requests that are left."""
    turns = tuple((each.instance_id, each.state) for each in report.under_way)
    return report.state, len(report.done), turns, report.left, report.waits


def turn(each: RestartTurn) -> str:
    """`i-1 emptying (4 left)`, or `i-1 starting`."""
    if each.state == "restarting":
        return f"{each.instance_id} starting"
    return f"{each.instance_id} emptying ({each.num_requests_left} left)"


def planned(item: PlannedRestart, cold_start_s: float | None) -> str:
    """`i-1: 4 requests move (120 blocks), about 2.1s, then a start of about 9s`."""
    count = "1 request" if item.num_requests == 1 else f"{item.num_requests} requests"
    facts = [f"{item.instance_id}: {count} ({item.num_blocks} blocks)"]
    if item.num_cannot_move:
        facts.append(f"{item.num_cannot_move} cannot move now and would be waited for")
    if item.estimate_s is not None:
        facts.append(f"empty in about {duration(item.estimate_s)}")
    start = "a start" if cold_start_s is None else f"a start of about {duration(cold_start_s)}"
    facts.append(f"then {start}")
    return ", ".join(facts)


def changed_arguments(changes: Sequence[EngineChangeStatus]) -> str:
    """`engine arguments: max_num_seqs=64 (i-0 i-1); as started (i-2, and new ones)`; empty where
    none was changed."""
    parts = list[str]()
    for each in changes:
        have = " ".join(each.instances)
        if each.is_clusters:
            have = f"{have}, and new ones" if have else "new ones"
        parts.append(f"{arguments(each.args) or 'as started'} ({have})")
    return printable(f"engine arguments: {'; '.join(parts)}") if parts else ""


def plan(report: RollingReport) -> tuple[str, ...]:
    """A line in short, then one for each instance in turn."""
    most = "as many as the others hold" if not report.at_once else str(report.at_once)
    count = len(report.plan)
    first = f"{count} instances would be restarted, {most} at a time"
    if count == 1:
        first = "1 instance would be restarted"
    if report.engine_args:
        first = f"{first}, with {arguments(report.engine_args)}"
    elif report.changes_engine:
        first = f"{first}, with the engine arguments of the cluster's start"
    return first, *(planned(each, report.cold_start_s) for each in report.plan)


def arguments(args: Mapping[str, Any]) -> str:
    """`max_num_seqs=64, enforce_eager=true`: as `--engine-arg` takes them."""
    text = ", ".join(f"{key}={_value(value)}" for key, value in args.items())
    return printable(
        text if len(text) <= MAX_ARGUMENT_CHARS else f"{text[: MAX_ARGUMENT_CHARS - 3]}..."
    )


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
