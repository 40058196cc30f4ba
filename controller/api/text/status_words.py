"""Puts a status into words and short figures, which the command line and the dashboard show alike:
whether an instance gets new requests, its room, what waits at the controller, priority levels,
replays, auto-scaling, and rolling restarts with their engine arguments."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from controller.api.text import hints
from controller.api.text.quantities import counted, duration, latency, printable
from controller.api.wire.status import (
    AutoscaleCheck,
    AutoscaleStatus,
    EndedReplayStatus,
    EngineChangeStatus,
    HeldPlaceStatus,
    HeldStatus,
    InstanceStatus,
    LevelStatus,
    MirrorStatus,
    PlannedRestart,
    QueueHeadStatus,
    ReplaysStatus,
    ReplayStatus,
    RestartTurn,
    RollingReport,
    SplitStatus,
)
from controller.core.settings import BACKGROUND_LEVEL as BACKGROUND_LEVEL
from controller.core.settings import RELEASE as RELEASE

MOVES_ONLY = frozenset({"reserved", "cooling"})
"""Reasons that keep moves away from an instance, but not new requests."""
MAX_ARGUMENT_CHARS = 300
"""Engine arguments are cut to this length, because an argument of vLLM's may be a long table."""

_HELD_WHYS: Mapping[str, str] = {
    "no-instance": "no instance takes requests",
    "too-large": "no instance has enough memory for it",
    "next": "it fits, and goes next",
    "by-choice": "it fits, but elsewhere or later its first token comes sooner",
    "behind": "it fits, but requests before it go first",
    "reserved": "it fits only on an instance that is kept for another request",
    "batch-full": "all batches are full, or enough requests wait there",
    "fragmented": "no instance has enough free memory; all together have",
    "memory": "all instances together do not have enough free memory",
}
_OVERTAKEN_BY: Mapping[str, str] = {
    "any": "requests that fit elsewhere may go ahead of it",
    "its-rank": "requests that fit may go ahead of it, but none of a lower rank",
    "nobody": "no request may go ahead of it",
}
_SAVED_ORDER = ("moved", "replayed", "dispatched_again", "failed")
_AUTOSCALE_OUTCOMES = {"done": "done", "would": "not done", "blocked": "could not be done"}


def of_model(name: str, text: str) -> str:
    """The text and its commands, with the name of the model that they are about; as it is if the
    name is empty."""
    return f"{name}: {hints.aimed(text, '', model=name)}" if name else text


# -- traffic between models ----------------------------------------------------------------------


def split_words(found: Iterable[SplitStatus]) -> str:
    """`large 90 (812 requests), next 10 (93)`."""
    shares = [(each, f"{each.model} {each.weight:g}") for each in found]
    return ", ".join(
        f"{share} ({each.num_reqs}{'' if number else ' requests'})"
        for number, (each, share) in enumerate(shares)
    )


def mirror_words(found: MirrorStatus) -> str:
    """`41 copies, 38 compared: 120 tokens, copies 133; TTFT 210ms, copies 190ms; in all 3.2s,
    copies 2.9s; 1 failed, 2 left out`."""
    words = f"{found.num_copies} copies, {found.num_compared} compared"
    if found.tokens is not None and found.copy_tokens is not None:
        pairs = (
            (f"{counted(found.tokens)} tokens", counted(found.copy_tokens)),
            (f"TTFT {latency(found.ttft_s)}", latency(found.copy_ttft_s)),
            (f"in all {latency(found.latency_s)}", latency(found.copy_latency_s)),
        )
        words += ": " + "; ".join(f"{original}, copies {copy}" for original, copy in pairs)
    lost = [
        f"{number} {what}"
        for number, what in ((found.num_failed, "failed"), (found.num_left_out, "left out"))
        if number
    ]
    return f"{words}; {', '.join(lost)}" if lost else words


# -- instances -----------------------------------------------------------------------------------


def no_requests(item: InstanceStatus) -> str:
    """Why the instance gets no new requests, in a word; empty if it gets them."""
    reasons = (reason for reason in item.closed_by if reason not in MOVES_ONLY)
    return next(reasons, "")


def state_word(item: InstanceStatus) -> str:
    """The instance's state. If the instance serves but gets no new requests, the reason."""
    return no_requests(item) or str(item.state) if item.state == "active" else str(item.state)


def head_wait_s(head: QueueHeadStatus) -> float | None:
    """How long a queue head has waited: since it arrived or, if it has run before, since it was
    evicted. None for a head whose eviction ended a moment ago."""
    return head.evicted_for_s if head.evicted else head.waited_s


def free_blocks(item: InstanceStatus) -> int | None:
    """How many blocks a queued request may take: the free blocks above the watermark."""
    if item.num_free_blocks is None:
        return None
    return max(0, item.num_free_blocks - (item.watermark_blocks or 0))


def cached_percent(items: Iterable[InstanceStatus]) -> str:
    """How much of the prompts of the last minute came from prefix caches, and how much of that was
    brought there before: `93%`, or `93%, 12% fetched, 5% loaded` for tokens from other instances
    and from host caches; a dash if there were no prompts."""
    found = list(items)
    num_tokens = sum(item.num_prompt_tokens_last_minute or 0 for item in found)
    if not num_tokens:
        return "-"
    cached = {
        "": sum(item.num_cached_tokens_last_minute or 0 for item in found),
        " fetched": sum(item.num_fetched_tokens_last_minute or 0 for item in found),
        " loaded": sum(item.num_loaded_tokens_last_minute or 0 for item in found),
    }
    return ", ".join(
        f"{100 * num / num_tokens:.0f}%{how}" for how, num in cached.items() if num or not how
    )


def in_need(item: InstanceStatus) -> bool:
    """Whether the instance's requests want more memory than there is, not counting the headroom
    that is kept for requests of a high priority."""
    return _is_negative(item) and not _by_headroom(item)


def is_reserved(item: InstanceStatus) -> bool:
    """Whether the instance is kept free: for a held request, or because only headroom makes its
    freeness negative."""
    return _by_headroom(item) or (item.kept_for is not None and not in_need(item))


def _by_headroom(item: InstanceStatus) -> bool:
    if not _is_negative(item) or item.virtual_usage_blocks is None or not item.num_total_blocks:
        return False
    capacity = item.num_total_blocks - (item.watermark_blocks or 0)
    return item.virtual_usage_blocks - (item.headroom_blocks or 0) <= capacity


def _is_negative(item: InstanceStatus) -> bool:
    return item.freeness_steps is not None and item.freeness_steps < 0


def ranked(levels: Iterable[LevelStatus]) -> list[LevelStatus]:
    """The levels, the highest first."""
    return sorted(levels, key=lambda level: (-level.rank, level.name))


def run_and_wait(item: InstanceStatus, level: str) -> str:
    """`6+2`: running and waiting requests of the level."""
    if item.num_running_reqs is None:
        return "-"
    waiting = item.num_waiting_by_level.get(level, 0)
    return f"{item.num_running_by_level.get(level, 0)}+{waiting}"


def blocks(number: int) -> str:
    return f"{number} block{'' if number == 1 else 's'}"


# -- requests that the controller holds ----------------------------------------------------------


def held_place(held: HeldPlaceStatus) -> str:
    """`the first at the controller`, or `11 are before it at the controller`."""
    before = held.place - 1
    if not before:
        return "the first at the controller"
    return f"{before} {'is' if before == 1 else 'are'} before it at the controller"


def held_why(held: HeldPlaceStatus) -> str:
    """`i-3 is kept for it and lacks 198 blocks`."""
    if held.why != "kept":
        return _HELD_WHYS.get(held.why, held.why)
    if not held.lacking_blocks:
        return f"{held.instance_id} is kept for it and has no place for it yet"
    return f"{held.instance_id} is kept for it and lacks {blocks(held.lacking_blocks)}"


def held_overtaking(held: HeldPlaceStatus) -> str:
    """Which requests may go ahead of this held request, and how many have done so; empty if the
    controller does not say."""
    words = _OVERTAKEN_BY.get(held.overtaken_by, "")
    if held.num_overtaken:
        has = "has" if held.num_overtaken == 1 else "have"
        words += f"{': ' if words else ''}{held.num_overtaken} {has}, while it was the first"
    return words


def held_summary(held: HeldStatus, num_held: int) -> str:
    """`61 held (high 3, normal 58), 4321 blocks, longest 1m02s`."""
    levels = ", ".join(f"{name} {number}" for name, number in held.num_by_level.items())
    by_level = f" ({levels})" if len(held.num_by_level) > 1 else ""
    wanted = f", {blocks(held.demand_blocks)}" if held.demand_blocks else ""
    return f"{num_held} held{by_level}{wanted}, longest {duration(held.oldest_wait_s)}"


# -- replays -------------------------------------------------------------------------------------


def replays_lately(replays: ReplaysStatus) -> str:
    """`3 under way, 12 went on and 1 failed in the last minute`"""
    done, failed = replays.num_replayed_last_minute, replays.num_not_replayed_last_minute
    return (
        f"{replays.num_replaying} under way, {done} went on and {failed} failed in the last minute"
    )


def replays_saved(replays: ReplaysStatus) -> str:
    """`moved 12 (drain 8, evacuation 4), replayed 3 (death 3)`; empty if no request was saved."""
    by_way: dict[str, list[tuple[str, int]]] = {}
    for item in replays.saved:
        by_way.setdefault(item.way, []).append((item.reason, item.num_saved))
    known = [each for each in _SAVED_ORDER if each in by_way]
    return ", ".join(
        f"{_words(each)} {sum(number for _, number in by_way[each])}"
        f" ({', '.join(f'{_words(reason)} {number}' for reason, number in by_way[each])})"
        for each in (*known, *(each for each in by_way if each not in known))
    )


def replay_way(replay: ReplayStatus | EndedReplayStatus) -> str:
    """`i-3>i-1`; `i-3>?` while no instance has the request; `i-3` if the replay ended and no
    instance ever got the request again."""
    to = replay.to_instance_id
    if to is None and isinstance(replay, EndedReplayStatus):
        return replay.from_instance_id
    return f"{replay.from_instance_id}>{to or '?'}"


def replay_stage(replay: ReplayStatus | EndedReplayStatus) -> str:
    """One word for a table's column: what the replay is doing, or how it ended."""
    if isinstance(replay, ReplayStatus):
        return replay.state
    return "sent anew" if replay.outcome == "dispatched_again" else replay.outcome


def replay_why(replay: ReplayStatus | EndedReplayStatus) -> str:
    """`death`, `fenced: too often`"""
    code = replay.code if isinstance(replay, EndedReplayStatus) else ""
    return ": ".join(_words(word) for word in (replay.reason, code) if word)


def _words(name: str) -> str:
    return printable(name.replace("_", " "))


# -- auto-scaling --------------------------------------------------------------------------------


def autoscale_state(status: AutoscaleStatus) -> str:
    """`on`, `dry-run, held at 3`."""
    held = status.held
    return status.mode if held is None else f"{status.mode}, held at {held.num_instances}"


def autoscale_summary(status: AutoscaleStatus, now_s: float) -> str:
    """`autoscale on  3 of 1..8, wanted 4  last add 1, done 12s ago: the cluster has ...`. The last
    decision shown is the last one that wanted more or fewer instances."""
    wanted = "" if status.num_wanted is None else f", wanted {status.num_wanted}"
    facts = [f"autoscale {autoscale_state(status)}", f"{autoscale_range(status)}{wanted}"]
    if goals := autoscale_targets(status):
        facts.append(goals)
    if (last := status.last_change or status.last) is not None:
        facts.append(f"last {autoscale_decision(last, now_s)}")
    return "  ".join(facts)


def autoscale_range(status: AutoscaleStatus) -> str:
    """`3 of 1..8`: how many instances there are, and the fewest and the most that there may be."""
    return f"{status.num_instances} of {status.min_instances}..{status.max_instances}"


def autoscale_targets(status: AutoscaleStatus) -> str:
    """`ttft 2.0s tpot 80ms`; empty without targets."""
    known = (("ttft", status.target_ttft_s), ("tpot", status.target_tpot_s))
    return " ".join(f"{name} {latency(at_s)}" for name, at_s in known if at_s is not None)


def autoscale_decision(check: AutoscaleCheck, now_s: float) -> str:
    """`add 2, done 12s ago: the cluster has 85 steps, fewer than 160`."""
    ago = f"{duration(max(0.0, now_s - check.time_s))} ago"
    if not check.deed:
        return f"{check.reason.replace('_', ' ')} {ago}: {check.why}"
    outcome = _AUTOSCALE_OUTCOMES.get(check.outcome, check.outcome)
    return f"{check.deed}, {outcome} {ago}: {check.why}"


def autoscale_held(status: AutoscaleStatus, now_s: float) -> str:
    """Why auto-scaling does nothing although it is on; empty if nothing holds it."""
    hold = status.held
    if hold is None:
        return ""
    ago = duration(max(0.0, now_s - hold.since_s))
    return (
        f"held at {hold.num_instances} instances since {ago} by {hold.actor}: {RELEASE} releases it"
    )


# -- rolling restarts, and engine arguments ------------------------------------------------------


def is_shown(found: RollingReport) -> bool:
    """Whether a rolling restart is shown: while it goes on, and after it failed until an operator
    dismisses the failure."""
    return found.state in ("going", "failed") and not found.dismissed


def rolling_progress(report: RollingReport) -> str:
    """One line: `rolling restart: 1 of 3 done, i-1 emptying (4 left), then i-2`."""
    if report.state == "none":
        return "no rolling restart"
    facts = [f"{len(report.done)} of {report.num_instances} done"]
    left = " ".join(report.left)
    if report.state in ("failed", "stopped"):
        facts.append(f"failed: {report.why}" if report.state == "failed" else report.why)
        if left:
            facts.append(f"not restarted: {left}")
    elif report.state == "done":
        if report.began_s is not None and report.ended_s is not None:
            facts[0] += f" in {latency(report.ended_s - report.began_s)}"
    else:
        facts += [restart_turn(each) for each in report.under_way]
        if report.waits and not report.under_way:
            facts.append(f"waits: {report.waits}")
        if left:
            facts.append(f"then {left}")
    if report.engine_args:
        facts.append(f"with {engine_arguments(report.engine_args)}")
    return printable(f"rolling restart: {', '.join(facts)}")


def rolling_step(report: RollingReport) -> tuple[object, ...]:
    """A value that changes from one step of the rolling restart to the next, but not with the
    number of requests that are left."""
    turns = tuple((each.instance_id, each.state) for each in report.under_way)
    return report.state, len(report.done), turns, report.left, report.waits


def restart_turn(each: RestartTurn) -> str:
    """`i-1 emptying (4 left)`, or `i-1 starting`."""
    if each.state == "restarting":
        return f"{each.instance_id} starting"
    return f"{each.instance_id} emptying ({each.num_requests_left} left)"


def rolling_plan(report: RollingReport) -> tuple[str, ...]:
    """A summary in one line, then a line for each instance in turn."""
    most = "as many as the others hold" if not report.at_once else str(report.at_once)
    count = len(report.plan)
    first = f"{count} instances would be restarted, {most} at a time"
    if count == 1:
        first = "1 instance would be restarted"
    if report.engine_args:
        first = f"{first}, with {engine_arguments(report.engine_args)}"
    elif report.changes_engine:
        first = f"{first}, with the engine arguments of the cluster's start"
    return first, *(planned_restart(each, report.cold_start_s) for each in report.plan)


def planned_restart(item: PlannedRestart, cold_start_s: float | None) -> str:
    """`i-1: 4 requests (120 blocks), empty in about 2.1s, then a start of about 9s`."""
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
    """`engine arguments: max_num_seqs=64 (i-0 i-1); as started (i-2, and new ones)`; empty if no
    argument was changed."""
    parts = list[str]()
    for each in changes:
        have = " ".join(each.instances)
        if each.is_clusters:
            have = f"{have}, and new ones" if have else "new ones"
        parts.append(f"{engine_arguments(each.args) or 'as started'} ({have})")
    return printable(f"engine arguments: {'; '.join(parts)}") if parts else ""


def engine_arguments(args: Mapping[str, Any]) -> str:
    """`max_num_seqs=64, enforce_eager=true`: as `--engine-arg` takes them."""
    text = ", ".join(
        f"{key}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in args.items()
    )
    if len(text) > MAX_ARGUMENT_CHARS:
        text = f"{text[: MAX_ARGUMENT_CHARS - 3]}..."
    return printable(text)
