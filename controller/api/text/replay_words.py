"""Puts replays and saved requests into words, for the command line and the dashboard alike."""

from controller.api.text.quantities import printable
from controller.api.wire.replays import EndedReplayStatus, ReplaysStatus, ReplayStatus

_ORDER = ("moved", "replayed", "dispatched_again", "failed")


def lately(replays: ReplaysStatus) -> str:
    """`3 under way, 12 went on and 1 failed in the last minute`"""
    done, failed = replays.num_replayed_last_minute, replays.num_not_replayed_last_minute
    return (
        f"{replays.num_replaying} under way, {done} went on and {failed} failed in the last minute"
    )


def saved(replays: ReplaysStatus) -> str:
    """`moved 12 (drain 8, evacuation 4), replayed 3 (death 3)`; empty if there was none."""
    by_way: dict[str, list[tuple[str, int]]] = {}
    for each in replays.saved:
        by_way.setdefault(each.way, []).append((each.reason, each.num_saved))
    known = [way for way in _ORDER if way in by_way]
    return ", ".join(
        f"{_words(way)} {sum(number for _, number in by_way[way])}"
        f" ({', '.join(f'{_words(reason)} {number}' for reason, number in by_way[way])})"
        for way in (*known, *(way for way in by_way if way not in known))
    )


def way(replay: ReplayStatus | EndedReplayStatus) -> str:
    """`i-3>i-1`; `i-3>?` while no instance has the request, `i-3` if none had it again."""
    to = replay.to_instance_id
    if to is None and isinstance(replay, EndedReplayStatus):
        return replay.from_instance_id
    return f"{replay.from_instance_id}>{to or '?'}"


def stage(replay: ReplayStatus | EndedReplayStatus) -> str:
    """What is being done, or what came of it: a column's word."""
    if isinstance(replay, ReplayStatus):
        return replay.state
    return "sent anew" if replay.outcome == "dispatched_again" else replay.outcome


def why(replay: ReplayStatus | EndedReplayStatus) -> str:
    """`death`, `fenced: too often`"""
    code = replay.code if isinstance(replay, EndedReplayStatus) else ""
    return ": ".join(_words(word) for word in (replay.reason, code) if word)


def _words(name: str) -> str:
    return printable(name.replace("_", " "))
