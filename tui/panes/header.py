"""The lines above the panes: the header, the bar of a replay, the worst alarm, and auto-scaling.

The header says in one or two lines which cluster this is, how old its data are, and how well the
cluster does.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import tzinfo

from controller.api.figures import gauges_of
from controller.api.text import status_words, verdict_words
from controller.api.text.alarms import Alarm
from controller.api.text.quantities import duration, latency, percent, printable, time_of_day
from controller.api.text.status_words import (
    cached_percent,
    is_shown,
    ranked,
    restart_turn,
    state_word,
)
from controller.api.text.verdict_words import Severity
from controller.api.wire.status import ClusterState, ClusterStatus, InstanceState
from tui import drawing
from tui.drawing import (
    ASCII,
    GAP,
    Glyphs,
    Line,
    Span,
    Tone,
    fitted,
    fitting,
    fullness,
    num_cells,
    severity,
    width_of,
)
from tui.panes.instances import kv_percent, repeating
from tui.replay import Progress
from tui.state import DashboardState

MIN_TRACK = 12
"""If the bar of a replay is narrower than this, it shows no track."""
_VERDICT_TONES: Mapping[Severity, Tone] = {
    Severity.QUIET: Tone.GOOD,
    Severity.WARN: Tone.WARN,
    Severity.BAD: Tone.BAD,
}
_CLAUSE_END = re.compile(r"[,;] ")
_LEAST_WHY = 12
"""If there is less room for the cause, the order is left out."""
_REPEATS = 100
"""Is added to the `drop` of figures that say no more than others do."""
_TONES: Mapping[ClusterState, Tone] = {
    ClusterState.READY: Tone.GOOD,
    ClusterState.STARTING: Tone.WARN,
    ClusterState.DEGRADED: Tone.WARN,
    ClusterState.STOPPING: Tone.WARN,
    ClusterState.FAILED: Tone.BAD,
}


@dataclass(frozen=True, slots=True)
class _Piece:
    """A piece of the header. If the header is too narrow, the pieces with the highest `drop` are
    left out first."""

    spans: Line
    drop: int = 0


@dataclass(frozen=True, slots=True)
class Liveness:
    """What the header says about the stream. This stays up to date while the screen is frozen."""

    state: DashboardState
    now_s: float
    status_every_s: float
    cluster: str
    badges: tuple[str, ...]
    zone: tzinfo | None
    replay: Progress | None = None
    """Where a replay is; None if the data are live."""
    aimed: Callable[[str], str] = str
    """Makes the commands in a text mean this cluster, as `Options.aimed`."""

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
    """The header. `count`: the number of lines, 1 or 2. `shown`: the state on the screen, which may
    be older than the stream if the screen is frozen. During an alarm nothing in the header is shown
    as good. The cluster's state is left out if there is a verdict, which says more."""
    status = shown.status
    clock = _clock(live)
    if count == 1:
        middle = (
            _name(live),
            _age(live, glyphs, brief=True, alarm=alarm),
            _badges(live),
            *_vitals(status, live, brief=True),
        )
        return [_between(middle, clock, width)]
    middle = (
        _Piece((Span("llumctl", Tone.STRONG),), drop=8),
        _name(live),
        *_identity(status, alarm=alarm),
        _age(live, glyphs, brief=False, alarm=alarm),
        _badges(live),
        *_setup(status),
    )
    return [
        _between(middle, clock, width),
        vitals(status, live, width),
    ]


def vitals(status: ClusterStatus | None, live: Liveness, width: int) -> Line:
    return _between(tuple(_vitals(status, live, brief=False)), None, width)


def _clock(live: Liveness) -> _Piece:
    return _Piece((Span(time_of_day(live.state.controller_time_s(live.now_s), live.zone)),))


def _name(live: Liveness) -> _Piece:
    return _Piece((Span(printable(live.cluster), Tone.STRONG),))


def _age(live: Liveness, glyphs: Glyphs, *, brief: bool, alarm: bool) -> _Piece:
    """`* live 0.4s ago`, `! STALE 12s` or `! STOPPED 12s`."""
    age_s = live.state.age_s(live.now_s)
    if live.state.stopped is not None:
        since = duration(live.now_s - live.state.stopped.at_s)
        return _Piece((Span(f"! STOPPED {since}", Tone.BAD),))
    if live.is_stale:
        return _stale(live)
    if age_s is None:
        return _Piece((Span("+ connecting", Tone.WARN),))
    ago = "" if brief else " ago"
    tone = Tone.PLAIN if alarm else Tone.GOOD
    return _Piece((Span(f"{glyphs.bullet} live {duration(age_s)}{ago}", tone),))


def _stale(live: Liveness) -> _Piece:
    age_s = live.state.age_s(live.now_s)
    since = "no data" if age_s is None else duration(age_s)
    return _Piece((Span(f"! STALE {since}", Tone.BAD),))


def _badges(live: Liveness) -> _Piece:
    return _Piece((Span(" ".join(f"[{badge}]" for badge in live.badges), Tone.STRONG),))


def _identity(status: ClusterStatus | None, *, alarm: bool) -> list[_Piece]:
    if status is None:
        return []
    url = _Piece((Span(printable(status.endpoint_url)),), drop=5)
    if status.verdict is not None:
        return [url]
    state = Span(f"! {status.state}", Tone.BAD)
    return [
        _Piece((state if alarm else Span(str(status.state), _TONES[status.state]),), drop=1),
        url,
    ]


def _setup(status: ClusterStatus | None) -> list[_Piece]:
    if status is None:
        return []
    return [
        _labelled("models" if status.models else "model", printable(status.model), drop=4),
        _labelled("policy", printable(status.policy), drop=6),
        _labelled("engine", printable(status.engine), drop=7),
    ]


def _vitals(status: ClusterStatus | None, live: Liveness, *, brief: bool) -> list[_Piece]:
    if status is None:
        return []
    gauges, held = gauges_of(status), status.num_held_reqs
    running, waiting = gauges["num_running_reqs"], gauges["num_waiting_reqs"] - held
    loads = f"{'' if brief else 'req '}run {running:.0f} wait {waiting:.0f}"
    if held:
        loads += f" held {held}"
    kv_held = gauges.get("kv_held_share")
    replays, limits = _replays(status, brief=brief), live.state.limits
    facts = [
        _Piece((Span("inst ", Tone.DIM), *_instances(status, brief=brief)), drop=2 if brief else 1),
        _Piece((Span(loads),), drop=3 if brief else 2),
        _labelled(
            "freeness avg", drawing.number(gauges.get("freeness_steps")), drop=7 if brief else 6
        ),
        _labelled(
            "mig",
            _moves(status, brief=brief),
            drop=_moves_drop(status, 5 if brief else 3),
            tone=Tone.PLAIN
            if brief
            else severity(status.num_failed_moves_last_minute, limits.alarm_failed_moves),
        ),
        *([] if brief else replays),
        _labelled(
            "kv",
            kv_percent(kv_held),
            drop=4,
            tone=fullness(kv_held),
        ),
        *(replays if brief else []),
        *_rolling(status, brief=brief),
    ]
    if not brief:
        evictions = sum(item.num_evictions or 0 for item in status.instances)
        facts.append(_labelled("evict", str(evictions), drop=6))
        if (cached := cached_percent(status.instances)) != "-":
            facts.append(_labelled("cached", cached, drop=7))
    ttft_s = _worst_ttft_s(status)
    tone = severity(ttft_s, limits.alarm_ttft_p99_s)
    facts.append(_labelled("p99 TTFT", latency(ttft_s), drop=6 if brief else 5, tone=tone))
    facts += _levels(status, brief=brief)
    if not brief and status.detail:
        detail = live.aimed(printable(status.detail))
        facts.append(_Piece((Span(detail, Tone.WARN),), drop=7))
    return facts


def _moves(status: ClusterStatus, *, brief: bool) -> str:
    """`3+2 (41/min, 0 fail)`: the moves under way and waiting, and how many moves of the last
    minute succeeded and failed."""
    queued = f"+{len(status.queued_moves)}" if status.queued_moves else ""
    under_way = f"{len(status.moves)}{queued}"
    if brief:
        return under_way
    migrated, failed = status.num_migrated_last_minute, status.num_failed_moves_last_minute
    return f"{under_way} ({migrated}/min, {failed} fail)"


def _replays(status: ClusterStatus, *, brief: bool) -> list[_Piece]:
    """`replay 3 (12/min, 1 fail)` if requests were lost within the last minute: the replays under
    way, and how many of that minute succeeded and failed. In brief `replay 3`, or `replay 12/min`
    if none is under way."""
    replays = status.replays
    if not replays.lately:
        return []
    failed = replays.num_not_replayed_last_minute
    done = replays.num_replayed_last_minute
    words = f"replay {replays.num_replaying} ({done}/min, {failed} fail)"
    if brief:
        words = f"replay {replays.num_replaying}" if replays.num_replaying else f"replay {done}/min"
    return [_Piece((Span(words, Tone.BAD if failed else Tone.WARN),), drop=4 if brief else 2)]


def _rolling(status: ClusterStatus, *, brief: bool) -> list[_Piece]:
    """`roll 1/3 i-1 starting`, or `roll failed i-1`."""
    found = status.rolling
    if found is None or not is_shown(found):
        return []
    count = f"{len(found.done)}/{found.num_instances}"
    if found.state == "failed":
        span = Span(f"roll {count} failed {printable(found.failed_id)}", Tone.BAD)
    else:
        turns = ", ".join(restart_turn(each) for each in found.under_way) or found.waits
        span = Span(printable(f"roll {count}{'' if brief else f' {turns}'}"), Tone.WARN)
    return [_Piece((span,), drop=1)]


def _instances(status: ClusterStatus, *, brief: bool) -> Line:
    """`7+1`: the number of instances that get new requests, and the number of all others. Instances
    in a bad state are counted by state; in the brief form their number stands behind a `!`."""
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


def _levels(status: ClusterStatus, *, brief: bool) -> list[_Piece]:
    """For each level its name and `6+2 1.9s 98%`: running and waiting requests, P99 TTFT, and
    goodput if it has targets. Empty if there is only one level, and it has no targets. Next to the
    total the highest level says most, so it is left out last; a level that repeats the total, or
    has no requests, goes before anything else."""
    levels = ranked(status.levels)
    if len(levels) < 2 and all(level.goodput is None for level in levels):
        return []
    says_nothing = repeating(status)
    found: list[_Piece] = []
    for place, level in enumerate(levels):
        words = f"{level.num_running_reqs}+{level.num_waiting_reqs} {latency(level.ttft_p99_s)}"
        if level.goodput is not None:
            words += f" {percent(level.goodput)}"
        drop = 8 + place if place else 3 + brief
        if level.name in says_nothing and level.goodput is None:
            drop += _REPEATS
        found.append(_labelled(printable(level.name), words, drop))
    return found


def _moves_drop(status: ClusterStatus, drop: int) -> int:
    """The `drop` of the figures of moves; if all are 0 they say nothing."""
    lately = status.num_migrated_last_minute or status.num_failed_moves_last_minute
    return drop if status.moves or status.queued_moves or lately else drop + _REPEATS


def _worst_ttft_s(status: ClusterStatus) -> float | None:
    """The highest P99 TTFT among frontends, because the clients of that frontend see it."""
    found = [item.ttft_p99_s for item in status.frontends if item.ttft_p99_s is not None]
    return max(found, default=None)


def _labelled(label: str, value: str, drop: int, tone: Tone = Tone.PLAIN) -> _Piece:
    return _Piece((Span(f"{label} ", Tone.DIM), Span(value, tone)), drop)


def _between(facts: tuple[_Piece, ...], last: _Piece | None, width: int) -> Line:
    """The facts from the left, two spaces apart, and the last one at the right end."""
    room = width - (width_of(last.spans) + GAP if last else 0)
    kept = fitting(facts, room, lambda fact: width_of(fact.spans), lambda fact: fact.drop)
    spans: list[Span] = []
    for fact in kept:
        spans += [Span("  "), *fact.spans] if spans else list(fact.spans)
    if last is not None and (space := width - _width(kept) - width_of(last.spans)) > 1:
        spans += [Span(" " * space), *last.spans]
    return tuple(spans)


def _width(facts: list[_Piece]) -> int:
    return sum(width_of(fact.spans) for fact in facts) + 2 * (len(facts) - 1)


def verdict_line(
    shown: DashboardState, live: Liveness, way: str, width: int, glyphs: Glyphs
) -> Line:
    """How the cluster is, why, and what helps most: ` ! OVERLOADED  106 wait on 5 of 6, KV 91%   +
    adds an instance (serving in 25 s)`. `way`: the key, or the command, of the order; empty if it
    has none, as if it is best to wait. The line is empty if there is no verdict.

    What is expected goes first if there is too little room, then causes from the end, then what the
    order does. While the screen does not show the present, the line says so, and what the verdict
    was before."""
    verdict = shown.status.verdict if shown.status is not None else None
    if live.state.stopped is not None:
        reason = printable(live.state.stopped.reason)
        return _verdict("STOPPED", reason, (), Tone.BAD, width, glyphs)
    if verdict is None:
        return ()
    word, why = verdict_words.verdict_word(verdict), printable(verdict.why)
    if live.is_stale and live.replay is None:
        age_s = live.state.age_s(live.now_s)
        why = f"no news for {duration(age_s)}; before that {word}, {why}"
        return _verdict("STALE", why, (), Tone.BAD, width, glyphs)
    orders: list[str] = []
    order = verdict.order
    if order is not None and (way or not verdict_words.order_command(order)):
        words = (verdict_words.order_words(order), verdict_words.deed_words(order), "")
        orders = [live.aimed(f"{way} {each}".strip()) for each in words]
    tone = _VERDICT_TONES[verdict_words.severity(verdict)]
    return _verdict(word, why, orders, tone, width, glyphs)


def _verdict(
    word: str, why: str, orders: Sequence[str], tone: Tone, width: int, glyphs: Glyphs
) -> Line:
    """The first wording that fits: with the longest of `orders`, with fewer causes, with a shorter
    order; and if none fits, one that is cut."""
    head = Span(f" {'!' if tone is Tone.BAD else ' '} {word}  ", tone)
    reason = Tone.BAD if tone is Tone.BAD else Tone.PLAIN
    shortest = orders[-1] if orders else ""
    fewer = [why[: found.start()] for found in reversed(list(_CLAUSE_END.finditer(why)))]
    wordings = [(why, each) for each in orders[:-1] or ("",)]
    wordings += [(each, order) for order in orders[1:] or ("",) for each in (why, *fewer)]
    for words, behind in wordings:
        line = (head, Span(words, reason), *_behind(behind))
        if width_of(line) <= width:
            return line
    room = width - width_of((head, *_behind(shortest)))
    if room < _LEAST_WHY:
        shortest, room = "", width - width_of((head,))
    cut = fitted(why, max(1, min(room, num_cells(why))), glyphs)
    return (head, Span(cut, reason), *_behind(shortest))


def _behind(order: str) -> Line:
    return (Span(f"   {order}", Tone.STRONG),) if order else ()


def alarm_lines(found: Sequence[Alarm], num_lines: int, width: int, glyphs: Glyphs) -> list[Line]:
    """The worst alarms, each on a line. The last line also says where else there are alarms."""
    if not found or num_lines <= 0:
        return []
    alone = min(num_lines, len(found)) - 1
    lines = [alarm_line([each], width, glyphs) for each in found[:alone]]
    return [*lines, alarm_line(found[alone:], width, glyphs)]


def alarm_line(found: Sequence[Alarm], width: int, glyphs: Glyphs) -> Line:
    """The worst alarm with its cause, and where else there are alarms.

    The other alarms are named as far as there is room, and the rest is counted; the worst is cut
    last.
    """
    worst, *others = found
    head = Span(f" ! {worst.text}", Tone.BAD)
    words = ""
    for place, other in enumerate(others):
        more = words + (", " if words else "  also ") + other.subject
        left = len(others) - place - 1
        if width_of((head, Span(more + (f" and {left} more" if left else "")))) > width:
            rest = len(others) - place
            words += f" and {rest} more" if words else f"  +{rest}"
            break
        words = more
    if width_of((head, Span(words))) > width:
        count = f" +{len(others)}" if others else ""
        head = Span(fitted(head.text, max(1, width - len(count)), glyphs), Tone.BAD)
        words = count
    return (head, Span(words, Tone.WARN))


def scaling_line(status: ClusterStatus | None, now_s: float, width: int, glyphs: Glyphs) -> Line:
    """Auto-scaling: its state, how many instances it wants, its last decision and the reason; empty
    while it is off. `now_s`: the present time on the controller's clock."""
    if status is None or status.autoscale.mode == "off":
        return ()
    found = status.autoscale
    last = found.last
    is_blocked = last is not None and last.outcome == "blocked"
    text = fitted(printable(status_words.autoscale_summary(found, now_s)), max(1, width), glyphs)
    return (Span(text, Tone.WARN if is_blocked or found.held else Tone.PLAIN),)


def replay_line(progress: Progress, live: Liveness, width: int, glyphs: Glyphs) -> Line:
    """The bar of a replay, with its position, its speed, and where there was trouble:
    ` REPLAY  prod-a  1m05s of 5m00s  x1  [====!=O-----!---]  12:04:31`."""
    where = f"{duration(progress.position_s)} of {duration(progress.length_s)}"
    facts = [
        _Piece((Span(" REPLAY"),)),
        _Piece(_name(live).spans, drop=3),
        _Piece((Span(where),), drop=1),
        _Piece((Span(progress.state),)),
    ]
    if live.is_stale:
        facts.append(_stale(live))
    if progress.hint:
        facts.append(_Piece((Span(progress.hint),), drop=2))
    clock = _clock(live)
    room = width - _width(facts) - _width([clock]) - 4
    if room >= MIN_TRACK:
        facts.append(_Piece((Span(_track(progress, room, glyphs)),)))
    return _between(tuple(facts), clock, width)


def _track(progress: Progress, width: int, glyphs: Glyphs) -> str:
    """The track of the replay: `=` is past, `O` is now, `!` is where something went wrong."""
    inner = width - 2
    now = _place(progress.position_s, progress, inner)
    past, present = ("=", "O") if glyphs is ASCII else ("━", glyphs.bullet)
    cells = [past] * now + [glyphs.rule] * (inner - now)
    for trouble_s in progress.troubles_s:
        cells[_place(trouble_s, progress, inner)] = "!"
    cells[now] = present
    return f"[{''.join(cells)}]"


def _place(position_s: float, progress: Progress, width: int) -> int:
    share = position_s / progress.length_s if progress.length_s else 0.0
    return max(0, min(width - 1, int(share * width)))
