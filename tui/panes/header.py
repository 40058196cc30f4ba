"""The header: the cluster, the age of its data, and its state, in one line or two."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import tzinfo

from controller.api.text import hints
from controller.api.text.quantities import duration, latency, printable, time_of_day
from controller.api.text.rolling_words import turn
from controller.api.text.status_words import state_word
from controller.api.wire.status import ClusterState, ClusterStatus, InstanceState
from tui import drawing
from tui.drawing import Glyphs, Line, Span, Tone
from tui.panes.levels import levels_of_cluster
from tui.replay import Progress
from tui.state import DashboardState

_TONES: Mapping[ClusterState, Tone] = {
    ClusterState.READY: Tone.GOOD,
    ClusterState.STARTING: Tone.WARN,
    ClusterState.DEGRADED: Tone.WARN,
    ClusterState.STOPPING: Tone.WARN,
    ClusterState.FAILED: Tone.BAD,
}


@dataclass(frozen=True, slots=True)
class Fact:
    """A piece of the header; where the width is short, the highest `drop` goes first."""

    spans: Line
    drop: int = 0


@dataclass(frozen=True, slots=True)
class Liveness:
    """What the header shows about the stream, whatever else is frozen."""

    state: DashboardState
    now_s: float
    status_every_s: float
    cluster: str
    badges: tuple[str, ...]
    zone: tzinfo | None
    replay: Progress | None = None
    """Where a replay is; None where the data is live."""
    of_cluster: str = ""
    """What a command that the status names needs behind it, as `Options.of_cluster`."""

    @property
    def is_stale(self) -> bool:
        return self.state.is_stale(self.now_s, self.status_every_s)


def recording_badge(state: DashboardState) -> str:
    if state.recording_failed:
        return "REC FAILED"
    return "REC ENDED" if state.recording_ended else "REC"


def lines(
    shown: DashboardState,
    live: Liveness,
    width: int,
    count: int,
    glyphs: Glyphs,
    *,
    alarm: bool = False,
) -> list[Line]:
    """`count` is 1 or 2; `shown` may be older than the stream (frozen). While there is an alarm
    nothing in the header looks well."""
    status = shown.status
    clock = clock_of(live)
    if count == 1:
        middle = (
            name_of(live),
            _age(live, glyphs, brief=True, alarm=alarm),
            _badges(live),
            *_vitals(status, live, brief=True),
        )
        return [between(middle, clock, width)]
    middle = (
        Fact((Span("llumctl", Tone.STRONG),), drop=8),
        name_of(live),
        *_identity(status, alarm=alarm),
        _age(live, glyphs, brief=False, alarm=alarm),
        _badges(live),
        *_setup(status),
    )
    return [
        between(middle, clock, width),
        vitals(status, live, width),
    ]


def vitals(status: ClusterStatus | None, live: Liveness, width: int) -> Line:
    return between(tuple(_vitals(status, live, brief=False)), None, width)


def clock_of(live: Liveness) -> Fact:
    return Fact((Span(time_of_day(live.state.controller_time_s(live.now_s), live.zone)),))


def name_of(live: Liveness) -> Fact:
    return Fact((Span(printable(live.cluster), Tone.STRONG),))


def _age(live: Liveness, glyphs: Glyphs, *, brief: bool, alarm: bool) -> Fact:
    """`* live 0.4s ago`, `! STALE 12s` or `! STOPPED 12s`."""
    age_s = live.state.age_s(live.now_s)
    if live.state.stopped is not None:
        since = duration(live.now_s - live.state.stopped.at_s)
        return Fact((Span(f"! STOPPED {since}", Tone.BAD),))
    if live.is_stale:
        since = "no data" if age_s is None else duration(age_s)
        return Fact((Span(f"! STALE {since}", Tone.BAD),))
    if age_s is None:
        return Fact((Span("+ connecting", Tone.WARN),))
    ago = "" if brief else " ago"
    tone = Tone.PLAIN if alarm else Tone.GOOD
    return Fact((Span(f"{glyphs.bullet} live {duration(age_s)}{ago}", tone),))


def _badges(live: Liveness) -> Fact:
    return Fact((Span(" ".join(f"[{badge}]" for badge in live.badges), Tone.STRONG),))


def _identity(status: ClusterStatus | None, *, alarm: bool) -> list[Fact]:
    if status is None:
        return []
    state = Span(f"! {status.state}", Tone.BAD)
    return [
        Fact((state if alarm else Span(str(status.state), _TONES[status.state]),), drop=1),
        Fact((Span(printable(status.endpoint_url)),), drop=5),
    ]


def _setup(status: ClusterStatus | None) -> list[Fact]:
    if status is None:
        return []
    return [
        _labelled("model", printable(status.model), drop=4),
        _labelled("policy", printable(status.policy), drop=6),
        _labelled("engine", printable(status.engine), drop=7),
    ]


def _vitals(status: ClusterStatus | None, live: Liveness, *, brief: bool) -> list[Fact]:
    if status is None:
        return []
    running = sum(item.num_running_reqs or 0 for item in status.instances)
    waiting = sum(item.num_waiting_reqs or 0 for item in status.instances)
    loads = f"{'' if brief else 'req '}run {running} wait {waiting}"
    if status.num_held_reqs or not brief:
        loads += f" held {status.num_held_reqs}"
    replays = _replays(status, brief=brief)
    facts = [
        Fact((Span("inst ", Tone.DIM), *_instances(status, brief=brief)), drop=2 if brief else 1),
        Fact((Span(loads),), drop=3 if brief else 2),
        _labelled("freeness avg", drawing.number(average_freeness(status)), drop=7 if brief else 3),
        _labelled("mig", _moves(status, brief=brief), drop=5 if brief else 3),
        *([] if brief else replays),
        _labelled("kv", _percent(kv_ratio(status)), drop=4),
        *(replays if brief else []),
        *_rolling(status, brief=brief),
    ]
    if not brief:
        evictions = sum(item.num_evictions or 0 for item in status.instances)
        facts.append(_labelled("evict", str(evictions), drop=6))
    facts.append(_labelled("p99 TTFT", latency(worst_ttft_s(status)), drop=6 if brief else 5))
    if not brief:
        # Beside the total the highest level says most: it goes last.
        levels = levels_of_cluster(status)
        facts += [_labelled(*each, drop=8 + place) for place, each in enumerate(levels)]
    if not brief and status.detail:
        detail = hints.aimed(printable(status.detail), live.of_cluster)
        facts.append(Fact((Span(detail, Tone.WARN),), drop=7))
    return facts


def _moves(status: ClusterStatus, *, brief: bool) -> str:
    """`3+2 (41/min, 0 fail)`: moves under way, and waiting ones if any; of the last minute, those
    that migrated and did not."""
    queued = f"+{len(status.queued_moves)}" if status.queued_moves else ""
    under_way = f"{len(status.moves)}{queued}"
    if brief:
        return under_way
    migrated, failed = status.num_migrated_last_minute, status.num_failed_moves_last_minute
    return f"{under_way} ({migrated}/min, {failed} fail)"


def _replays(status: ClusterStatus, *, brief: bool) -> list[Fact]:
    """`replay 3 (12/min, 1 fail)` while requests were lost within the last minute: replays under
    way; of that minute, those that went on and did not. In brief `replay 3`, or `replay 12/min`
    where none is under way."""
    replays = status.replays
    if not replays.lately:
        return []
    failed = replays.num_not_replayed_last_minute
    done = replays.num_replayed_last_minute
    words = f"replay {replays.num_replaying} ({done}/min, {failed} fail)"
    if brief:
        words = f"replay {replays.num_replaying}" if replays.num_replaying else f"replay {done}/min"
    return [Fact((Span(words, Tone.BAD if failed else Tone.WARN),), drop=4 if brief else 2)]


def _rolling(status: ClusterStatus, *, brief: bool) -> list[Fact]:
    """`roll 1/3 i-1 starting`, or `roll failed i-1`."""
    found = status.rolling
    if found is None or found.dismissed or found.state not in ("going", "failed"):
        return []
    count = f"{len(found.done)}/{found.num_instances}"
    if found.state == "failed":
        span = Span(f"roll {count} failed {printable(found.failed_id)}", Tone.BAD)
    else:
        turns = ", ".join(turn(each) for each in found.under_way) or found.waits
        span = Span(printable(f"roll {count}{'' if brief else f' {turns}'}"), Tone.WARN)
    return [Fact((span,), drop=1)]


def _instances(status: ClusterStatus, *, brief: bool) -> Line:
    """`7+1`: instances that get new requests and others; trouble is named, in brief `!` and how
    many."""
    active = sum(state_word(item) == InstanceState.ACTIVE for item in status.instances)
    counted = Span(f"{active}+{len(status.instances) - active}")
    states = (InstanceState.STALLED, InstanceState.FAILED, InstanceState.RESTARTING)
    counts = {
        state: count
        for state in states
        if (count := sum(item.state is state for item in status.instances))
    }
    if not counts:
        return (counted,)
    named = ", ".join(f"{count} {state}" for state, count in counts.items())
    words = f" !{sum(counts.values())}" if brief else f" ({named})"
    return counted, Span(words, Tone.BAD)


def average_freeness(status: ClusterStatus) -> float | None:
    """The mean over instances that get new requests and have reported."""
    found = [
        item.freeness_steps
        for item in status.instances
        if state_word(item) == InstanceState.ACTIVE and item.freeness_steps is not None
    ]
    return sum(found) / len(found) if found else None


def kv_ratio(status: ClusterStatus) -> float | None:
    """Blocks that requests hold over all blocks, over instances that have reported."""
    sized = [
        (item.num_total_blocks, item.num_free_blocks)
        for item in status.instances
        if item.num_total_blocks is not None and item.num_free_blocks is not None
    ]
    total = sum(blocks for blocks, _ in sized)
    return sum(blocks - free for blocks, free in sized) / total if total else None


def worst_ttft_s(status: ClusterStatus) -> float | None:
    """The highest P99 among frontends: the clients of one see it."""
    found = [item.ttft_p99_s for item in status.frontends if item.ttft_p99_s is not None]
    return max(found, default=None)


def _percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{drawing.percent(ratio)}%"


def _labelled(label: str, value: str, drop: int) -> Fact:
    return Fact((Span(f"{label} ", Tone.DIM), Span(value)), drop)


def between(facts: tuple[Fact, ...], last: Fact | None, width: int) -> Line:
    """Facts from the left, two spaces apart, and one at the right end."""
    kept = list(facts)
    room = width - (drawing.width_of(last.spans) + 2 if last else 0)
    while len(kept) > 1 and width_of_facts(kept) > room:
        most = max(kept, key=lambda fact: fact.drop)
        if not most.drop:
            break
        kept.remove(most)
    spans: list[Span] = []
    for fact in kept:
        spans += [Span("  "), *fact.spans] if spans else list(fact.spans)
    if (
        last is not None
        and (space := width - width_of_facts(kept) - drawing.width_of(last.spans)) > 1
    ):
        spans += [Span(" " * space), *last.spans]
    return tuple(spans)


def width_of_facts(facts: list[Fact]) -> int:
    return sum(drawing.width_of(fact.spans) for fact in facts) + 2 * (len(facts) - 1)
