"""Instances: their table with its orders, its filter and its groups by model and node, and the
facts of one instance.

If the cluster serves several models, the instances stand in groups: a line that sums each model
up, and its instances below that line. If instances run on several machines, they stand in groups by
node, too. The groups of nodes are in the order of their first instance, so that the worst is still
on top. A node whose instances are all gone takes one line: the instances come back elsewhere, with
the same ids. A filter shows the instances of such a node anyway.
"""

import functools
import math
import re
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import itemgetter

from controller.api.figures import gauges_of
from controller.api.settings.settings import ConsoleTable
from controller.api.text import status_words, verdict_words
from controller.api.text.quantities import counted, duration, latency, printable
from controller.api.text.status_words import (
    cached_percent,
    free_blocks,
    head_wait_s,
    in_need,
    is_reserved,
    ranked,
    run_and_wait,
)
from controller.api.wire.status import ClusterStatus, InstanceState, InstanceStatus, ModelStatus
from tui import drawing
from tui.actions import NOTHING, Target
from tui.drawing import (
    LABEL_WIDTH,
    Column,
    Fact,
    Glyphs,
    Line,
    Span,
    Tone,
    apportion,
    fact_lines,
    fullness,
    labelled,
    severity,
)
from tui.panes.requests import SHORT, Names, why_waiting
from tui.state import DashboardState, History, Minute, Sample

BAR_WIDTH = 9
_HEADROOM_WIDTH, _LEAST_BAR = 11, 6
_LEVEL_TAIL = " TTFT99"
"""The head of the latency, which stands behind the requests of a level."""
_REPEATS = 100
"""Is added to the `drop` of a column that says no more than another column does."""

_GLYPHS: Mapping[InstanceState, str] = {
    InstanceState.STARTING: "+",
    InstanceState.RESTARTING: "+",
    InstanceState.DRAINING: ">",
    InstanceState.STOPPING: ">",
    InstanceState.STALLED: "!",
    InstanceState.FAILED: "!",
}
_TONES: Mapping[InstanceState, Tone] = {
    InstanceState.ACTIVE: Tone.GOOD,
    InstanceState.STARTING: Tone.WARN,
    InstanceState.RESTARTING: Tone.WARN,
    InstanceState.DRAINING: Tone.WARN,
    InstanceState.STOPPING: Tone.WARN,
    InstanceState.STALLED: Tone.BAD,
    InstanceState.FAILED: Tone.BAD,
}


@dataclass(frozen=True, slots=True)
class InstanceRow:
    """An instance, with what the cluster's status and the instance's last minute add to it."""

    item: InstanceStatus
    samples: tuple[Sample, ...]
    time_s: float
    """When the status was made, by the controller's clock."""
    levels: tuple[str, ...]
    """The names of levels, the highest first."""
    glyphs: Glyphs
    minutes: tuple[Minute, ...] = ()
    alarmed: bool = False
    """Whether an alarm is about the instance."""
    is_cause: bool = False
    """Whether the verdict on the cluster is about it."""
    names: Names | None = None
    limits: ConsoleTable = field(default_factory=ConsoleTable)
    """At which figures there is an alarm."""

    @property
    def id(self) -> str:
        return self.item.id

    @property
    def target(self) -> Target:
        return Target(self.item.id)

    @property
    def text(self) -> str:
        """The text to which a filter is applied."""
        item = self.item
        return f"{item.id} {state_word(item).text} {item.model} {item.node} {item.detail}"


def rows(
    state: DashboardState,
    glyphs: Glyphs,
    alarmed: Container[str] = (),
    names: Names | None = None,
) -> list[InstanceRow]:
    """A row for each instance. `alarmed`: ids of instances that an alarm is about. `names`: the
    names that the screen has for the requests for which instances are kept."""
    status = state.status
    if status is None:
        return []
    levels = level_names(status)
    cause = status.verdict.about if status.verdict is not None else ""
    return [
        InstanceRow(
            item,
            history.samples,
            status.time_s or state.time_s,
            levels,
            glyphs,
            history.minutes,
            item.id in alarmed,
            item.id == cause,
            names,
            state.limits,
        )
        for item in status.instances
        for history in (state.histories.get(item.id, History()),)
    ]


def attention(item: InstanceStatus) -> str:
    """The glyph in front of an instance: `!` needs attention, `>` is on its way out, `+` is on its
    way in, `=` is kept for a held request."""
    if item.state in _GLYPHS:
        return _GLYPHS[item.state]
    has_a_say = item.state is InstanceState.ACTIVE and item.detail
    if in_need(item) or has_a_say:
        return "!"
    return "=" if item.kept_for else " "


def state_tone(state: InstanceState) -> Tone:
    return _TONES[state]


def state_word(item: InstanceStatus) -> Span:
    """The word for an instance's state. An active instance that gets no new requests says why; an
    instance that is kept free, for requests of a high priority or for a held one, is `reserved`."""
    if (word := status_words.state_word(item)) != item.state:
        return Span(word, Tone.WARN)
    if item.state is InstanceState.ACTIVE and is_reserved(item):
        return Span("reserved", Tone.STRONG)
    return Span(str(item.state), _TONES[item.state])


def freeness(item: InstanceStatus) -> Span:
    """The freeness; minus infinity for a draining instance, whatever it reports. What a stalled
    instance reported last says nothing."""
    if item.state is InstanceState.DRAINING:
        return Span("-inf", Tone.WARN)
    if item.state is InstanceState.STALLED:
        return Span("-", Tone.DIM)
    return Span(drawing.number(item.freeness_steps), Tone.BAD if in_need(item) else Tone.PLAIN)


def virtual_ratio(item: InstanceStatus) -> float | None:
    """Virtual usage divided by the memory that requests may use; infinite while the instance is
    draining."""
    if item.state is InstanceState.DRAINING:
        return float("inf")
    if item.virtual_usage_blocks is None or not item.num_total_blocks:
        return None
    capacity = item.num_total_blocks - (item.watermark_blocks or 0)
    return item.virtual_usage_blocks / capacity if capacity > 0 else None


def running_by_level(item: InstanceStatus, levels: tuple[str, ...]) -> str:
    """`H3 N38`: the running requests of each level, the highest first."""
    if item.num_running_reqs is None or not item.num_running_by_level:
        return "-"
    names = (*levels, *sorted(set(item.num_running_by_level) - set(levels)))
    return " ".join(
        f"{short}{item.num_running_by_level.get(name, 0)}"
        for name, short in zip(names, _initials(names), strict=True)
    )


def _initials(names: tuple[str, ...]) -> list[str]:
    """For each level, as many first letters as are needed to tell it from the others."""
    found = []
    for name in names:
        others = [other for other in names if other != name]
        length = next(
            (n for n in range(1, len(name)) if not any(o.startswith(name[:n]) for o in others)),
            len(name),
        )
        found.append(printable(name[:length].capitalize()))
    return found


def moving(item: InstanceStatus) -> str:
    """`0/2`: moves under way to the instance, and from it."""
    if item.num_moves_in is None or item.num_moves_out is None:
        return "-"
    return f"{item.num_moves_in}/{item.num_moves_out}"


def replaying(item: InstanceStatus) -> Span:
    """`3/0`: how many replays are under way to the instance, and how many of requests that were
    lost with the instance."""
    to, lost_with = item.num_replays_in, item.num_replays_out
    return Span(f"{to}/{lost_with}", Tone.WARN if to or lost_with else Tone.DIM)


def ttft(item: InstanceStatus, limits: ConsoleTable) -> Span:
    """`1.9s`; or `>52s` if no request has got its first token lately and the queue head has already
    waited that long for its own."""
    head, limit_s = item.queue_head, limits.alarm_ttft_p99_s
    if item.ttft_p99_s is None and head is not None and not head.evicted:
        is_long = severity(head.waited_s, limit_s) is Tone.BAD
        return Span(f">{latency(head.waited_s)}", Tone.BAD if is_long else Tone.WARN)
    return Span(latency(item.ttft_p99_s), severity(item.ttft_p99_s, limit_s))


def _identity(row: InstanceRow, _: int) -> Span:
    glyph = attention(row.item)
    if row.is_cause or (glyph in " =" and row.alarmed):
        glyph = "!"
    tone = {"!": Tone.BAD, " ": Tone.PLAIN, "=": Tone.STRONG}.get(glyph, Tone.WARN)
    return Span(f"{glyph} {row.id}", tone)


def _state(row: InstanceRow, _: int) -> Span:
    return state_word(row.item)


def _trend(row: InstanceRow, width: int) -> Span:
    return Span(drawing.trend(row.samples, row.time_s, width, row.glyphs), Tone.DIM)


def kv(item: InstanceStatus, glyphs: Glyphs) -> Line:
    """`########=  88 +12%`, or `88%`: the blocks that are held, and the blocks that are wanted in
    addition for the queue head, prefills under way and headroom. What is held stands out if it is
    nearly everything; all does, if the instance is in need."""
    used, wanted = item.kv_cache_usage, virtual_ratio(item)
    if used is None:
        return (Span("-", Tone.DIM),)
    more = None if wanted is None else max(0.0, wanted - used)
    need = in_need(item) and item.state is not InstanceState.DRAINING
    held, beyond, rest = drawing.bar(used, wanted, BAR_WIDTH, glyphs)
    says_more = more is not None and not math.isinf(more) and drawing.percent(more) != "0"
    extra = f" +{drawing.percent(more)}" if says_more else ""
    tone = Tone.BAD if need else fullness(used)
    quiet = Tone.DIM if tone is Tone.PLAIN else tone
    return (
        Span(held, quiet),
        Span(beyond, Tone.BAD if need else Tone.DIM),
        Span(f"{rest} {drawing.percent(used):>3}{extra}%", tone),
    )


def kv_percent(share: float | None) -> str:
    return "-" if share is None else f"{drawing.percent(share)}%"


def _heat(row: InstanceRow, width: int) -> Line:
    """The KV use of each of the last minutes, the newest on the right."""
    first, trend = int(row.time_s // 60) - width + 1, row.glyphs.trend
    found: list[tuple[Tone, str]] = [(Tone.DIM, " ")] * width
    top = len(trend) - 1
    for minute, total, num in row.minutes:
        if 0 <= (place := minute - first) < width:
            share = total / num
            tone = fullness(share)
            glyph = trend[max(0, min(top, round(top * share)))]
            found[place] = Tone.DIM if tone is Tone.PLAIN else tone, glyph
    return tuple(
        Span("".join([glyph for _, glyph in alike]), tone)
        for tone, alike in groupby(found, key=itemgetter(0))
    )


def _waiting(row: InstanceRow, _: int) -> Span:
    waiting = row.item.num_waiting_reqs
    return Span(drawing.number(waiting), severity(waiting, row.limits.alarm_waiting_reqs))


def _headroom(row: InstanceRow, width: int) -> Line:
    """`743/851`: the blocks that are kept free, and all blocks. If there is room, a bar of what is
    held, kept and free stands before it."""
    kept, blocks = row.item.headroom_blocks, row.item.num_total_blocks
    words = "-" if kept is None else f"{drawing.number(kept)}/{drawing.number(blocks)}"
    room = width - _HEADROOM_WIDTH - 1
    if room < _LEAST_BAR or not blocks or row.item.num_free_blocks is None:
        return (Span(f"{words:>{width}}"),)
    glyphs = row.glyphs
    held, _, reserved, *_ = [num for _, num, _, _ in block_parts(row.item)]
    cells = apportion([held, reserved, blocks - held - reserved], room)
    parts = (glyphs.bar[-1], glyphs.beyond, glyphs.free)
    bar = [glyph * num for glyph, num in zip(parts, cells, strict=True)]
    full = fullness(held / blocks)
    tones = (Tone.DIM if full is Tone.PLAIN else full, Tone.STRONG, Tone.DIM)
    return (*map(Span, bar, tones), Span(f" {words:>{_HEADROOM_WIDTH}}"))


def _kept_for(row: InstanceRow, width: int) -> Span:
    """The request for which the instance is kept, and how many blocks are still missing:
    `r8c10 -198`."""
    kept = row.item.kept_for
    if kept is None:
        return Span("-", Tone.DIM)
    lacks = f" -{kept.lacking_blocks}" if kept.lacking_blocks else ""
    room = width - len(lacks)
    name = row.names.of(kept.request_id, room) if row.names else kept.request_id
    space = " " * max(0, room - drawing.num_cells(printable(name)))
    return Span(f"{printable(name)}{space}{lacks}", Tone.WARN)


def level_names(status: ClusterStatus) -> tuple[str, ...]:
    """The names of the levels, the highest level first."""
    return tuple(level.name for level in ranked(status.levels))


def repeating(status: ClusterStatus) -> set[str]:
    """The levels whose figures say no more than the totals: those without requests of late, and
    the only one with requests."""
    idle = {
        level.name
        for level in status.levels
        if not level.num_running_reqs and not level.num_waiting_reqs and level.ttft_p99_s is None
    }
    everything = {level.name for level in status.levels}
    return everything if len(everything - idle) < 2 else idle


def _level_column(name: str, drop: int) -> Column[InstanceRow]:
    title = f"{printable(name.upper())[:8]} R+W{_LEVEL_TAIL}"
    return Column(
        f"level.{name}",
        title,
        drawing.num_cells(title),
        lambda row, width: _level_cell(row, name, width),
        drop=drop,
    )


def _level_cell(row: InstanceRow, name: str, width: int) -> Line:
    item, limits = row.item, row.limits
    waits = item.num_waiting_by_level.get(name, 0)
    requests = f"{run_and_wait(item, name):>{max(0, width - len(_LEVEL_TAIL))}}"
    ttft_s = item.ttft_p99_by_level_s.get(name)
    return (
        Span(requests, severity(waits, limits.alarm_waiting_reqs)),
        Span(f" {latency(ttft_s):>6}", severity(ttft_s, limits.alarm_ttft_p99_s)),
    )


def _level_kept_column(name: str) -> Column[InstanceRow]:
    title = f"{printable(name.upper())[:8]} KEPT"
    return Column(
        f"kept.{name}",
        title,
        max(6, drawing.num_cells(title)),
        lambda row, _: Span(_kept_at_level(row.item, name)),
        right=True,
        drop=75,
    )


def level_of_instance(item: InstanceStatus, name: str) -> str:
    """`6+2 wait 1.9s kept 743`."""
    words = [f"{run_and_wait(item, name)} wait"]
    if (ttft_s := item.ttft_p99_by_level_s.get(name)) is not None:
        words.append(latency(ttft_s))
    if (kept := _kept_at_level(item, name)) != "-":
        words.append(f"kept {kept}")
    return " ".join(words)


def _kept_at_level(item: InstanceStatus, name: str) -> str:
    return drawing.number(item.headroom_by_level_blocks.get(name))


def _span(text: Callable[[InstanceRow], str]) -> Callable[[InstanceRow, int], Span]:
    return lambda row, _: Span(text(row))


_ID: Column[InstanceRow] = Column("id", "  ID", 8, _identity)
_STATE: Column[InstanceRow] = Column("state", "STATE", 10, _state)
_FREENESS: Column[InstanceRow] = Column(
    "freeness", "FREENESS", 8, lambda row, _: freeness(row.item), right=True
)
_TREND: Column[InstanceRow] = Column("trend", "TREND", 6, _trend, drop=30, max_width=20, curve=True)
_KV: Column[InstanceRow] = Column(
    "kv", "KV held +wanted", 19, lambda row, _: kv(row.item, row.glyphs), drop=10
)
_RUN: Column[InstanceRow] = Column(
    "run", "RUN", 4, _span(lambda row: drawing.number(row.item.num_running_reqs)), right=True
)
_WAIT: Column[InstanceRow] = Column("wait", "WAIT", 4, _waiting, right=True)
_KEPT_FOR: Column[InstanceRow] = Column("kept_for", "KEPT FOR", SHORT + 5, _kept_for, drop=40)
_PRIO: Column[InstanceRow] = Column(
    "levels",
    "PRIO",
    8,
    _span(lambda row: running_by_level(row.item, row.levels)),
    right=True,
    drop=45,
)
_MOVES: Column[InstanceRow] = Column(
    "moves", "MIG", 5, _span(lambda row: moving(row.item)), right=True, drop=45
)
_REPLAYS: Column[InstanceRow] = Column(
    "replays", "REPLAY", 6, lambda row, _: replaying(row.item), right=True, drop=40
)
_HEADROOM: Column[InstanceRow] = Column(
    "headroom",
    "HEADROOM",
    _HEADROOM_WIDTH,
    _headroom,
    right=True,
    drop=60,
    max_width=24,
    curve=True,
)
_TTFT: Column[InstanceRow] = Column(
    "ttft", "TTFT99", 6, lambda row, _: ttft(row.item, row.limits), right=True, drop=20
)
_UP: Column[InstanceRow] = Column(
    "up", "UP", 6, _span(lambda row: duration(row.item.up_s)), right=True, drop=70
)
_HEAT: Column[InstanceRow] = Column(
    "heat", "KV by minute, now >", 30, _heat, drop=80, max_width=60, curve=True
)
_HIGHEST_DROP, _LEVEL_DROP = 35, 61
"""The `drop` of the highest level's column, and of the next level's."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Which columns a status has something for. `repeating`: the columns, and the levels, that say
    no more than others. `keeping`: the levels that keep blocks, if there are several; otherwise
    HEADROOM says it."""

    levels: tuple[str, ...] = ()
    repeating: frozenset[str] = frozenset()
    keeping: tuple[str, ...] = ()
    kept: bool = False
    lost: bool = False


def columns(status: ClusterStatus | None, width: int) -> tuple[Column[InstanceRow], ...]:
    """The columns; the same object as long as the same columns are wanted. Which of them have room
    is decided when they are placed: first goes what repeats another figure, and of the levels the
    highest goes last. If there are three levels or more, and not all have room, a column counts the
    running requests of each."""
    if status is None:
        return _columns(_Wanted())
    wanted = _wanted(status)
    found = _columns(wanted)
    if len(wanted.levels) > 2:
        shown = {placed.column.name for placed in drawing.place(found, width)}
        telling = [name for name in wanted.levels if name not in wanted.repeating]
        if not shown >= {f"level.{name}" for name in telling}:
            return _columns(wanted, counted=True)
    return found


def _wanted(status: ClusterStatus) -> _Wanted:
    levels = level_names(status)
    says_nothing = repeating(status)
    if not (status.moves or status.num_migrated_last_minute or status.num_failed_moves_last_minute):
        says_nothing.add(_MOVES.name)
    if not any(item.headroom_blocks for item in status.instances):
        says_nothing.add(_HEADROOM.name)
    keeping = {name for item in status.instances for name in item.headroom_by_level_blocks}
    return _Wanted(
        levels if len(levels) > 1 else (),
        frozenset(says_nothing),
        tuple(name for name in levels if name in keeping) if len(keeping) > 1 else (),
        any(item.kept_for for item in status.instances),
        status.replays.lately,
    )


@functools.cache
def _columns(wanted: _Wanted, *, counted: bool = False) -> tuple[Column[InstanceRow], ...]:
    def told(column: Column[InstanceRow], name: str) -> Column[InstanceRow]:
        more = _REPEATS if name in wanted.repeating else 0
        return replace(column, drop=column.drop + more)

    drops = (_HIGHEST_DROP, *range(_LEVEL_DROP, _LEVEL_DROP + len(wanted.levels)))
    return (
        *(_ID, _STATE, _FREENESS, _TREND, _KV, _RUN, _WAIT),
        *([_KEPT_FOR] if wanted.kept else []),
        *([_PRIO] if counted else []),
        *(
            told(_level_column(name, drop), name)
            for name, drop in zip(wanted.levels, drops, strict=False)
        ),
        told(_MOVES, _MOVES.name),
        *([_REPLAYS] if wanted.lost else []),
        told(_HEADROOM, _HEADROOM.name),
        *(_level_kept_column(name) for name in wanted.keeping),
        *(_TTFT, _UP, _HEAT),
    )


def _note_of_instance(row: InstanceRow) -> tuple[str, Span] | None:
    """Words across the columns of figures, for an instance that has no figures (any more)."""
    item = row.item
    if item.num_running_reqs is not None:
        return None
    words = printable(item.detail) or "has not reported yet"
    return "freeness", Span(words, Tone.BAD if item.state is InstanceState.FAILED else Tone.PLAIN)


_WORST = (
    InstanceState.FAILED,
    InstanceState.STALLED,
    InstanceState.RESTARTING,
    InstanceState.DRAINING,
)
"""States that come before any freeness in the order of the table, the worst first."""

_BY_TROUBLE = (InstanceState.ACTIVE, InstanceState.STARTING, InstanceState.STOPPING, *_WORST[::-1])

Value = tuple[float, ...] | None


def _freeness(row: InstanceRow) -> Value:
    """The instance that the verdict is about comes first. Instances in need, and instances with an
    alarm, come before instances that are kept free for a high priority."""
    state, steps = row.item.state, row.item.freeness_steps
    if row.is_cause:
        return (-1,)
    if state in _WORST:
        return (0, _WORST.index(state))
    return None if steps is None else (2 - (row.alarmed or in_need(row.item)), steps)


def _figure(of: Callable[[InstanceRow], float | None]) -> Callable[[InstanceRow], Value]:
    return lambda row: None if (figure := of(row)) is None else (figure,)


SORTS: Mapping[str, Callable[[InstanceRow], Value]] = {
    "freeness": _freeness,
    "id": lambda _: (),
    "state": _figure(lambda row: _BY_TROUBLE.index(row.item.state)),
    "kv": _figure(lambda row: row.item.kv_cache_usage),
    "virtual": _figure(lambda row: virtual_ratio(row.item)),
    "run": _figure(lambda row: row.item.num_running_reqs),
    "wait": _figure(lambda row: row.item.num_waiting_reqs),
    "moves": _figure(lambda row: (row.item.num_moves_in or 0) + (row.item.num_moves_out or 0)),
    "headroom": _figure(lambda row: row.item.headroom_blocks),
    "ttft": _figure(lambda row: row.item.ttft_p99_s),
    "up": _figure(lambda row: row.item.up_s),
}
"""The orders, in the sequence of the list from which the operator chooses one."""

ORDER_WORDS: Mapping[str, str] = {"freeness": "trouble, freeness"}
"""Orders by more than their name says."""
_LARGEST_FIRST = ("state", "kv", "virtual", "run", "wait", "moves", "headroom", "ttft")
ORDERS: Mapping[str, bool] = {name: name in _LARGEST_FIRST for name in SORTS}
"""The orders, each with whether the largest value comes first. It is set so that the first row is
what an operator looks for."""


def ordered(found: list[InstanceRow], column: str, *, descending: bool) -> list[InstanceRow]:
    """Sorts by a column of SORTS; rows with equal values are sorted by id. Rows without a value
    come last in both directions."""
    value_of = SORTS[column]
    by_id = sorted(found, key=lambda row: natural(row.id), reverse=descending and column == "id")
    valued = [(value, row) for row in by_id if (value := value_of(row)) is not None]
    valued.sort(key=lambda pair: pair[0], reverse=descending)
    return [row for _, row in valued] + [row for row in by_id if value_of(row) is None]


def natural(name: str) -> tuple[tuple[str, int], ...]:
    """A key that sorts i-2 before i-10."""
    return tuple((word, int(figures or 0)) for word, figures in re.findall(r"(\D*)(\d*)", name))


# Groups by model and by node

_GONE = (InstanceState.RESTARTING, InstanceState.STALLED)


@dataclass(frozen=True, slots=True)
class NodeRow:
    """The heading of a node's group. The cursor never lies on it. `node` is empty for instances
    whose process has not been heard of. `gauges`: those of a cluster that has this node only."""

    node: str
    items: tuple[InstanceStatus, ...]
    lost: bool
    gauges: Mapping[str, float]
    model: str = ""

    @property
    def id(self) -> str:
        return f"node {self.node}" + (f" {self.model}" if self.model else "")

    @property
    def target(self) -> Target:
        return NOTHING

    @property
    def text(self) -> str:
        return f"{self.node} {' '.join(item.id for item in self.items)}"


@dataclass(frozen=True, slots=True)
class ModelRow:
    """The heading of a model's group, which sums the model up. The cursor never lies on it."""

    model: ModelStatus

    @property
    def id(self) -> str:
        return f"model {self.model.name}"

    @property
    def target(self) -> Target:
        return NOTHING

    @property
    def text(self) -> str:
        return self.model.name


Row = InstanceRow | NodeRow | ModelRow


def is_heading(row: Row) -> bool:
    return not isinstance(row, InstanceRow)


def groups(status: ClusterStatus | None) -> dict[tuple[str, str], NodeRow]:
    """The headings of the nodes, by model and node; empty while all instances are on one node."""
    if status is None or len({item.node for item in status.instances} - {""}) < 2:
        return {}
    of_nodes: dict[str, list[InstanceStatus]] = {}
    found: dict[tuple[str, str], list[InstanceStatus]] = {}
    for item in status.instances:
        of_nodes.setdefault(item.node, []).append(item)
        found.setdefault((item.model, item.node), []).append(item)
    lost = {node: _is_lost(items) for node, items in of_nodes.items()}
    return {
        (model, node): NodeRow(
            node, tuple(items), lost[node], _gauges_of_node(status, items), model
        )
        for (model, node), items in found.items()
    }


def _gauges_of_node(status: ClusterStatus, items: Sequence[InstanceStatus]) -> dict[str, float]:
    alone = {"instances": tuple(items), "held": None, "num_held_reqs": 0}
    return gauges_of(status.model_copy(update=alone))


def num_lines(status: ClusterStatus | None) -> int:
    """How many lines the instances take, including the headings of their models and nodes."""
    if status is None:
        return 0
    found = groups(status)
    num_hidden = sum(len(group.items) for group in found.values() if group.lost)
    return len(status.models) + len(found) + len(status.instances) - num_hidden


def grouped(
    found: Sequence[InstanceRow], status: ClusterStatus | None, *, filtered: bool
) -> list[Row]:
    """The rows, with the heading of each model, if there are several, and then of each node before
    the rows of its instances. Models with a bad verdict come first; otherwise they keep their
    order, because the freeness of one says nothing about another's."""
    nodes = groups(status)
    models = status.models if status is not None else ()
    if not nodes and not models:
        return list(found)
    of_models: dict[str, dict[str, list[Row]]] = {each.name: {} for each in models}
    for row in found:
        of_nodes = of_models.setdefault(row.item.model, {})
        head = nodes.get((row.item.model, row.item.node))
        rows = of_nodes.setdefault(row.item.node if head else "", [head] if head else [])
        if filtered or head is None or not head.lost:
            rows.append(row)
    heads = {each.name: ModelRow(each) for each in sorted(models, key=_severity, reverse=True)}
    names = [*heads, *(name for name in of_models if name not in heads)]
    return [
        row
        for name in names
        if of_models[name] or not filtered
        for row in (
            *([heads[name]] if name in heads else ()),
            *(row for rows in of_models[name].values() for row in rows),
        )
    ]


_SEVERITIES = tuple(verdict_words.Severity)


def _severity(model: ModelStatus) -> int:
    return 0 if model.verdict is None else _SEVERITIES.index(verdict_words.severity(model.verdict))


def note(row: Row) -> tuple[str, Span] | None:
    if isinstance(row, InstanceRow):
        return _note_of_instance(row)
    if isinstance(row, ModelRow):
        bad = _severity(row.model) == _SEVERITIES.index(verdict_words.Severity.BAD)
        return "id", Span(model_line(row.model), Tone.BAD if bad else Tone.STRONG)
    return "id", Span(node_line(row), Tone.BAD if row.lost else Tone.STRONG)


def model_line(model: ModelStatus) -> str:
    """`small: OVERLOADED  2/3 serve  run 9 wait 4 held 7  1.2k tokens/s  p99 TTFT 1.9s  auto on, 3
    wanted`: the verdict, how many instances serve of how many are planned, the load, what
    auto-scaling wants, and which other models answer or get copies of its requests. What matters
    least stands at the end, where a narrow screen cuts."""
    auto = model.autoscale
    verdict = model.verdict
    word = f" {verdict_words.verdict_word(verdict)}" if verdict is not None else ""
    held = f" held {model.num_held_reqs}" if model.num_held_reqs else ""
    facts = [
        f"{model.name}:{word}",
        f"{model.num_serving}/{auto.num_instances} serve",
        f"run {model.num_running_reqs} wait {model.num_waiting_reqs}{held}",
    ]
    if model.rolling is not None and status_words.is_shown(model.rolling):
        facts.append(f"roll {len(model.rolling.done)}/{model.rolling.num_instances}")
    if auto.mode != "off":
        wants = "" if auto.num_wanted is None else f", {auto.num_wanted} wanted"
        facts.append(f"auto {'held' if auto.held is not None else auto.mode}{wants}")
    if model.split:
        facts.append("split " + " ".join(f"{each.model} {each.weight:g}" for each in model.split))
    facts += [f"mirror {each.model} {each.percent:g}%" for each in model.mirrors]
    if model.ttft_p99_s is not None:
        facts.append(f"p99 TTFT {latency(model.ttft_p99_s)}")
    if model.tokens_per_s:
        facts.append(f"{counted(model.tokens_per_s)} tokens/s")
    return printable("  ".join(facts))


def node_line(row: NodeRow) -> str:
    """`10.0.0.12: 4 instances, 1 draining  freeness 1930  run 45 wait 3  kv 55%`, or `! 10.0.0.13
    lost: i-4 i-5`."""
    count = f"{len(row.items)} instance{'s' if len(row.items) > 1 else ''}"
    if row.lost:
        names = " ".join(item.id for item in row.items)
        return printable(f"! {row.node} lost with {count}: {names}")
    facts = [count, *_others(row.items)]
    name = row.node or "no machine yet"
    steps = [
        i.freeness_steps for i in row.items if status_words.state_word(i) == InstanceState.ACTIVE
    ]
    known = [each for each in steps if each is not None]
    gauges = row.gauges
    loads = (
        f"freeness {drawing.number(sum(known) if known else None)}",
        f"run {gauges['num_running_reqs']:.0f} wait {gauges['num_waiting_reqs']:.0f}",
        f"kv {kv_percent(gauges.get('kv_held_share'))}",
    )
    return printable("  ".join((f"{name}: {', '.join(facts)}", *(loads if row.node else ()))))


def _others(items: Sequence[InstanceStatus]) -> list[str]:
    """`1 draining`, `2 cordoned`: the number of instances in each state except active, and of the
    instances that get no new requests for another reason."""
    counts = Counter(status_words.state_word(item) for item in items)
    order = [*InstanceState, *sorted(counts.keys() - set(InstanceState))]
    return [f"{counts[word]} {word}" for word in order if counts[word] and word != "active"]


def _is_lost(items: Sequence[InstanceStatus]) -> bool:
    """Whether the node is lost in the sense of the event `node_lost`. If a node has a single
    instance, that cannot be known."""
    gone = all(item.pid is None and item.state in _GONE for item in items)
    return len(items) > 1 and bool(items[0].node) and gone


# The facts of one instance

TREND_WIDTH = 15


def facts(
    state: DashboardState, instance_id: str, width: int, glyphs: Glyphs, request_id: str = ""
) -> list[Line]:
    """Labels and figures in as many columns as fit; then the queue head and the request whose row
    was opened, with their full ids."""
    item = state.instance(instance_id)
    name = Span(f" {instance_id}", Tone.STRONG)
    if item is None:
        return [(name, Span("  is no longer part of the cluster", Tone.BAD))]
    title = [name, Span("  "), state_word(item)]
    if item.detail:
        title.append(Span(f"  {printable(item.detail)}"))
    history = state.histories.get(instance_id, History())
    time_s = state.status.time_s if state.status and state.status.time_s else state.time_s
    curve = drawing.trend(history.samples, time_s, TREND_WIDTH, glyphs)
    steps = drawing.step_trend(history.samples, time_s, TREND_WIDTH, glyphs)
    levels = level_names(state.status) if state.status else ()
    return [
        tuple(title),
        *fact_lines(_facts(item, levels, curve, steps, glyphs), width, glyphs),
        *block_map(item, width),
        _head_line(item),
        *_kept_for_lines(item),
        *([labelled("request", Span(printable(request_id)))] if request_id else []),
    ]


def _facts(
    item: InstanceStatus, levels: tuple[str, ...], curve: str, steps: str, glyphs: Glyphs
) -> list[Fact]:
    figure = drawing.number
    steps_free, held = freeness(item), kv(item, glyphs)
    return [
        ("freeness", Span(f"{steps_free.text:<7} {curve}", steps_free.tone)),
        ("kv", Span("".join(span.text for span in held), held[0].tone)),
        ("blocks", Span(_blocks(item))),
        ("virtual", Span(_virtual(item))),
        ("headroom", Span(f"{figure(item.headroom_blocks)} of {figure(item.num_total_blocks)}")),
        ("watermark", Span(f"{figure(item.watermark_blocks)} blk")),
        ("running", Span(_running(item))),
        ("waiting", Span(figure(item.num_waiting_reqs))),
        *((printable(name)[:LABEL_WIDTH], Span(level_of_instance(item, name))) for name in levels),
        ("unreported", Span(figure(item.num_unreported_reqs))),
        ("evictions", Span(figure(item.num_evictions))),
        ("cached", Span(cached_percent([item]))),
        ("backlog", Span(latency(item.backlog_s))),
        ("moves", Span(f"{figure(item.num_moves_in)} in, {figure(item.num_moves_out)} out")),
        ("step", Span(f"{latency(item.step_time_s):<7} {steps}")),
        ("step limit", Span(latency(item.step_limit_s) if item.step_limit_s else "-")),
        ("steps", Span(figure(item.num_steps))),
        ("p99 TTFT", Span(latency(item.ttft_p99_s))),
        ("status", Span(f"{duration(item.age_s)} old")),
        ("up", Span(duration(item.up_s))),
        ("incarnation", Span(f"{item.incarnation} ({item.num_restarts} restarts)")),
        ("process", Span(printable(f"{item.pid or '-'} on {item.node or '-'}"))),
    ]


def _blocks(item: InstanceStatus) -> str:
    if item.num_total_blocks is None or item.num_free_blocks is None:
        return "-"
    used = item.num_total_blocks - item.num_free_blocks
    return f"{used} of {item.num_total_blocks} ({item.block_size or '?'} tokens)"


def _running(item: InstanceStatus) -> str:
    most = f" of {item.max_running_reqs}" if item.max_running_reqs else ""
    return f"{drawing.number(item.num_running_reqs)}{most}"


def _virtual(item: InstanceStatus) -> str:
    if item.state is InstanceState.DRAINING:
        return "inf"
    return f"{drawing.number(item.virtual_usage_blocks)} blk"


def _head_line(item: InstanceStatus) -> Line:
    head = item.queue_head
    if head is None:
        return labelled("queue head", Span("nobody waits", Tone.DIM))
    free = drawing.number(free_blocks(item))
    words = (
        f"{head.request_id}  {head.level}  waited {duration(head_wait_s(head))}"
        f"  needs {head.demand_blocks} blk of {free}  {why_waiting(head)}"
    )
    return labelled("queue head", Span(printable(words), Tone.WARN))


def _kept_for_lines(item: InstanceStatus) -> list[Line]:
    """The held request that the instance is kept free for."""
    kept = item.kept_for
    if kept is None:
        return []
    lacks = f", {kept.lacking_blocks} lack" if kept.lacking_blocks else ""
    words = (
        f"{kept.request_id}  {kept.level}  waited {duration(kept.waited_s)}"
        f"  needs {kept.demand_blocks} blk{lacks}"
    )
    return [labelled("kept for", Span(printable(words), Tone.WARN))]


# The block map

_Part = tuple[str, int, str, Tone]
"""A glyph, a number of blocks, a word, and the tone."""


def block_map(item: InstanceStatus, width: int) -> list[Line]:
    """A line of the blocks that are held, wanted by the queue head, reserved and free, and a second
    line that explains its glyphs; empty if nothing is known."""
    if not item.num_total_blocks or item.num_free_blocks is None:
        return []
    found = block_parts(item)
    cells = apportion([blocks for _, blocks, _, _ in found], width - LABEL_WIDTH - 3)
    bar = [
        Span(glyph * count, tone)
        for (glyph, _, _, tone), count in zip(found, cells, strict=True)
        if count
    ]
    missing = _num_lacking(item)
    legend = [Span(f"the head lacks {missing}  ", Tone.BAD)] if missing else []
    legend += [Span(f"{g} {blocks} {word}  ", tone) for g, blocks, word, tone in found if blocks]
    return [labelled("block map", *bar), (Span(" " * (LABEL_WIDTH + 2)), *legend)]


def block_parts(item: InstanceStatus) -> list[_Part]:
    """The parts, which add up to all blocks. The blocks that the queue head wants are taken from
    the free blocks first, and headroom from what remains; the engine never gives out the
    watermark."""
    total, free = item.num_total_blocks or 0, item.num_free_blocks or 0
    usable = min(free, free_blocks(item) or 0)
    wanted = min(usable, item.queue_head.demand_blocks if item.queue_head else 0)
    reserved = min(usable - wanted, item.headroom_blocks or 0)
    return [
        ("#", total - free, "held", Tone.PLAIN),
        ("=", wanted, "wanted by the head", Tone.WARN),
        ("+", reserved, "headroom", Tone.STRONG),
        (".", usable - wanted - reserved, "free", Tone.GOOD),
        ("-", free - usable, "watermark", Tone.DIM),
    ]


def _num_lacking(item: InstanceStatus) -> int:
    """How many blocks the queue head wants in addition to the free ones; headroom is not
    counted."""
    demand = item.queue_head.demand_blocks if item.queue_head else 0
    return max(0, demand - max(0, free_blocks(item) or 0))
