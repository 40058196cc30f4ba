"""What a status says, in words and in small figures that the command line and the dashboard show
alike: room at an instance, what waits at the controller, priority levels, replays.

Whether an instance gets new requests, as the status says it.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from controller.api.text.quantities import duration, printable
from controller.api.wire.status import EndedReplayStatus, ReplaysStatus, ReplayStatus

if TYPE_CHECKING:
    from controller.api.wire.status import (
        HeldPlaceStatus,
        HeldStatus,
        InstanceStatus,
        LevelStatus,
        QueueHeadStatus,
    )

# ==== controller/api/text/status_words.py

_HELD_WHYS: Mapping[str, str] = {
    "no-instance": "no instance takes requests",
    "too-large": "no instance has so much memory",
    "next": "it fits, and goes next",
    "behind": "it fits, and those before it go first",
    "reserved": "it fits only where an instance is kept for another",
    "batch-full": "all places of the batches are taken, or enough wait there",
    "fragmented": "no instance has so much free; all together have",
    "memory": "all instances together have not so much free",
}
_OVERTAKEN_BY: Mapping[str, str] = {
    "any": "what fits elsewhere may go ahead of it",
    "its-rank": "what fits may go ahead of it, but no lower rank",
    "nobody": "nothing may go ahead of it",
}
_SAVED_ORDER = ("moved", "replayed", "dispatched_again", "failed")


def head_wait_s(head: "QueueHeadStatus") -> float | None:
    """How long a queue head has waited: since it arrived or, if it has run before, since it was
    evicted; None for an evicted one that ended a moment ago."""
    return head.evicted_for_s if head.evicted else head.waited_s


def free_blocks(item: "InstanceStatus") -> int | None:
    """Blocks that a queued request may take: free ones above the watermark."""
    if item.num_free_blocks is None:
        return None
    return max(0, item.num_free_blocks - (item.watermark_blocks or 0))


def in_need(item: "InstanceStatus") -> bool:
    """Whether more memory is wanted than there is, beyond the headroom that is kept beside
    requests of a high priority."""
    return _is_negative(item) and not _by_headroom(item)


def is_reserved(item: "InstanceStatus") -> bool:
    """Whether the instance is kept free: for a held request, or its freeness is negative only
    because of headroom."""
    return _by_headroom(item) or (item.kept_for is not None and not in_need(item))


def _by_headroom(item: "InstanceStatus") -> bool:
    if not _is_negative(item) or item.virtual_usage_blocks is None or not item.num_total_blocks:
        return False
    capacity = item.num_total_blocks - (item.watermark_blocks or 0)
    return item.virtual_usage_blocks - (item.headroom_blocks or 0) <= capacity


def _is_negative(item: "InstanceStatus") -> bool:
    return item.freeness_steps is not None and item.freeness_steps < 0


def ranked(levels: "Iterable[LevelStatus]") -> "list[LevelStatus]":
    """The highest first."""
    return sorted(levels, key=lambda level: (-level.rank, level.name))


def run_and_wait(item: "InstanceStatus", level: str) -> str:
    """`6+2`: running and waiting requests of the level."""
    if item.num_running_reqs is None:
        return "-"
    waiting = item.num_waiting_by_level.get(level, 0)
    return f"{item.num_running_by_level.get(level, 0)}+{waiting}"


def held_place(held: "HeldPlaceStatus") -> str:
    """`the first at the controller`, or `11 are before it at the controller`."""
    before = held.place - 1
    if not before:
        return "the first at the controller"
    return f"{before} {'is' if before == 1 else 'are'} before it at the controller"


def held_why(held: "HeldPlaceStatus") -> str:
    """`i-3 is kept for it and lacks 198 blocks`."""
    if held.why != "kept":
        return _HELD_WHYS.get(held.why, held.why)
    if not held.lacking_blocks:
        return f"{held.instance_id} is kept for it and has no place for it yet"
    return f"{held.instance_id} is kept for it and lacks {blocks(held.lacking_blocks)}"


def held_overtaking(held: "HeldPlaceStatus") -> str:
    """Who may go ahead of it, and how many have; empty if the controller does not say."""
    words = _OVERTAKEN_BY.get(held.overtaken_by, "")
    if held.num_overtaken:
        has = "has" if held.num_overtaken == 1 else "have"
        words += f"{': ' if words else ''}{held.num_overtaken} {has}, while it was the first"
    return words


def held_summary(held: "HeldStatus", num_held: int) -> str:
    """`61 held (high 3, normal 58), 4321 blocks, longest 1m02s`."""
    levels = ", ".join(f"{name} {number}" for name, number in held.num_by_level.items())
    by_level = f" ({levels})" if len(held.num_by_level) > 1 else ""
    wanted = f", {blocks(held.demand_blocks)}" if held.demand_blocks else ""
    return f"{num_held} held{by_level}{wanted}, longest {duration(held.oldest_wait_s)}"


def blocks(number: int) -> str:
    return f"{number} block{'' if number == 1 else 's'}"


def replays_lately(replays: ReplaysStatus) -> str:
    """`3 under way, 12 went on and 1 failed in the last minute`"""
    done, failed = replays.num_replayed_last_minute, replays.num_not_replayed_last_minute
    return (
        f"{replays.num_replaying} under way, {done} went on and {failed} failed in the last minute"
    )


def replays_saved(replays: ReplaysStatus) -> str:
    """`moved 12 (drain 8, evacuation 4), replayed 3 (death 3)`; empty if there was none."""
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
    """`i-3>i-1`; `i-3>?` while no instance has the request, `i-3` if none had it again."""
    to = replay.to_instance_id
    if to is None and isinstance(replay, EndedReplayStatus):
        return replay.from_instance_id
    return f"{replay.from_instance_id}>{to or '?'}"


def replay_stage(replay: ReplayStatus | EndedReplayStatus) -> str:
    """What is being done, or what came of it: a column's word."""
    if isinstance(replay, ReplayStatus):
        return replay.state
    return "sent anew" if replay.outcome == "dispatched_again" else replay.outcome


def replay_why(replay: ReplayStatus | EndedReplayStatus) -> str:
    """`death`, `fenced: too often`"""
    code = replay.code if isinstance(replay, EndedReplayStatus) else ""
    return ": ".join(_words(word) for word in (replay.reason, code) if word)


def _words(name: str) -> str:
    return printable(name.replace("_", " "))


# ==== controller/api/text/status_words.py

MOVES_ONLY = frozenset({"reserved", "cooling"})
"""Reasons against moves to an instance that nevertheless gets new requests."""


def no_requests(item: "InstanceStatus") -> str:
    """Why the instance gets no new requests, in a word; empty if it does."""
    reasons = (reason for reason in item.closed_by if reason not in MOVES_ONLY)
    return next(reasons, "")


def state_word(item: "InstanceStatus") -> str:
    """Its state; of an instance that serves and gets no new requests, why."""
    return no_requests(item) or str(item.state) if item.state == "active" else str(item.state)
