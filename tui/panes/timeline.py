"""The life of a request: what happened, which phase began with that, and how long the phase lasted.

There are no events for the first token and for the pause at the end of a move: they are derived
from the request's time to first token and from the move's downtime. An evicted request that is
admitted again computes its tokens again. That time is shown as decoding, because nothing says when
it ends.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from controller.api import explain
from controller.api.text.quantities import latency, printable, sized
from controller.api.wire.requests import (
    ENDED_STATES,
    Considered,
    DispatchStep,
    Explanation,
    MoveStep,
    NotMovedStep,
    OtherStep,
    RequestState,
    RequestStatus,
    Step,
)
from tui import drawing
from tui.actions import Target
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
    labelled,
)
from tui.panes.requests import PHASE_TONES, Phase

_ENDS = frozenset(str(state) for state in ENDED_STATES)


_PHASES: Mapping[str, Phase] = {
    "evicted": Phase.EVICTED,
    "request_lost": Phase.HELD,
    "request_found": Phase.DECODE,
}
"""The phases that begin with events of other kinds."""
_EVENT_TONES: Mapping[str, Tone] = {
    "evicted": Tone.WARN,
    "request_lost": Tone.BAD,
    "replayed": Tone.STRONG,
    "aborted": Tone.WARN,
    "failed": Tone.BAD,
}


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that happened `at_s` after the request arrived. `phase`: the phase that began with
    it, or None. `length_s`: the length of that phase; None if the phase goes on."""

    at_s: float
    what: str
    tone: Tone = Tone.PLAIN
    phase: Phase | None = None
    instance_id: str = ""
    notes: tuple[str, ...] = ()
    length_s: float | None = None
    ends: bool = False


def moments(found: Explanation) -> list[Moment]:
    """The moments of the request's life, the oldest first."""
    told = list(_told(found))
    ended = next((moment.at_s for moment in told if moment.ends), None)
    now_s = max(found.request.age_s, told[-1].at_s) if ended is None else ended
    until_s, goes_on = now_s, ended is None
    for place in range(len(told) - 1, -1, -1):
        moment = told[place]
        if moment.phase is None:
            continue
        length_s = None if goes_on else max(0.0, until_s - moment.at_s)
        told[place] = replace(moment, length_s=length_s)
        until_s, goes_on = moment.at_s, False
    return told


def _told(found: Explanation) -> Iterator[Moment]:
    """The moments in order. The clocks of several machines may differ a little, so a moment that
    seems to lie before its predecessor is given the predecessor's time."""
    request = found.request
    words = f"arrived at {request.frontend_id}: {request.num_prompt_tokens} prompt tokens"
    yield Moment(0.0, f"{words}, {request.level}", Tone.STRONG, Phase.HELD)
    last_s, first_token_s = 0.0, request.ttft_s
    for step in found.steps:
        at_s = max(last_s, step.time_s - request.arrival_time_s)
        if first_token_s is not None and first_token_s <= at_s:
            yield _first_token(max(last_s, first_token_s))
            first_token_s = None
        had_token = request.ttft_s is not None and first_token_s is None
        if isinstance(step, MoveStep) and step.kind == "migrated" and step.downtime_s:
            began_s = max(last_s, at_s - step.downtime_s)
            words = f"paused on {step.from_instance_id} to move to {step.to_instance_id}"
            yield Moment(began_s, words, Tone.PLAIN, Phase.MOVING, step.from_instance_id)
        yield _moment(step, at_s, had_token=had_token)
        last_s = at_s
    if first_token_s is not None:
        yield _first_token(max(last_s, first_token_s))


def _first_token(at_s: float) -> Moment:
    return Moment(at_s, f"first token, {latency(at_s)} after it arrived", Tone.GOOD, Phase.DECODE)


def _moment(step: Step, at_s: float, *, had_token: bool) -> Moment:
    what, figures = explain.told(step)
    notes = (*figures, *_notes(step))
    return Moment(
        at_s,
        what,
        _tone(step),
        _phase(step, had_token=had_token),
        _where(step),
        tuple(note for note in notes if note),
        ends=isinstance(step, OtherStep) and step.what in _ENDS,
    )


def _phase(step: Step, *, had_token: bool) -> Phase | None:
    if isinstance(step, DispatchStep):
        return Phase.QUEUED
    if isinstance(step, MoveStep):
        return Phase.DECODE if step.kind == "migrated" and step.downtime_s else None
    if not isinstance(step, OtherStep):
        return None
    if step.what == "admitted":
        return Phase.DECODE if had_token else Phase.PREFILL
    return _PHASES.get(step.what)


def _where(step: Step) -> str:
    if isinstance(step, MoveStep):
        return step.to_instance_id if step.kind == "migrated" else step.from_instance_id
    if isinstance(step, NotMovedStep):
        return step.from_instance_id
    if isinstance(step, DispatchStep | OtherStep):
        return step.instance_id or ""
    return ""


def _tone(step: Step) -> Tone:
    if isinstance(step, MoveStep):
        return Tone.STRONG if step.kind == "migrated" else Tone.WARN
    if isinstance(step, OtherStep):
        return _EVENT_TONES.get(step.what, Tone.PLAIN)
    return Tone.DIM if isinstance(step, NotMovedStep) else Tone.PLAIN


def _notes(step: Step) -> list[str]:
    notes: list[str] = []
    if isinstance(step, MoveStep) and step.stages:
        stages = (
            f"{stage.num_blocks} blocks {sized(stage.num_bytes)} in {latency(stage.copy_time_s)}"
            for stage in step.stages
        )
        notes.append("stages: " + "; ".join(stages))
    if isinstance(step, DispatchStep):
        notes.append(_candidates("scores", step.candidates, step.instance_id))
    elif isinstance(step, MoveStep | NotMovedStep):
        notes.append(_candidates("freeness", step.candidates, step.to_instance_id))
    return notes


def _candidates(what: str, candidates: Sequence[Considered], chosen: str) -> str:
    """The candidates with their figures. The chosen one need not be the first: the freest may be
    the destination of another source."""
    told = (
        f"{each.instance_id} {drawing.number(each.figure)}"
        + (" (chosen)" if each.instance_id == chosen else "")
        for each in candidates
    )
    return f"{what}: {', '.join(told)}" if candidates else ""


# The table

NOTE_X = 10
"""Where the column WHAT begins."""
_INDENT = "    "


@dataclass(frozen=True, slots=True)
class TimelineRow:
    """A moment. With `note`, a further line about the moment above it."""

    id: str
    request_id: str
    moment: Moment
    note: str = ""

    @property
    def text(self) -> str:
        return f"{self.moment.what} {self.moment.phase or ''} {' '.join(self.moment.notes)}"

    @property
    def target(self) -> Target:
        return Target(self.moment.instance_id, self.request_id)


def rows(found: Explanation, width: int) -> list[TimelineRow]:
    """Each moment, and below it the notes about it, broken into lines that fit."""
    shown: list[TimelineRow] = []
    for place, moment in enumerate(moments(found)):
        room = max(20, width - NOTE_X - len(_INDENT))
        notes = [
            "",
            *(line for note in moment.notes for line in drawing.wrapped(printable(note), room)),
        ]
        shown += [
            TimelineRow(f"{place}.{line}", found.request.id, moment, note)
            for line, note in enumerate(notes)
        ]
    return shown


SORTS = {"time": False, "length": True}
"""Orders: by the time of the moments, or by the length of the phases that they began."""


def ordered(found: list[TimelineRow], sort: str, *, descending: bool) -> list[TimelineRow]:
    """Sorts the moments; each keeps its notes below it. Moments that began no phase count as the
    shortest."""
    groups = [list(lines) for _, lines in groupby(found, key=lambda row: row.id.partition(".")[0])]
    if sort == "length":
        groups.sort(key=lambda lines: _length(lines[0].moment), reverse=descending)
    elif descending:
        groups.reverse()
    return [row for lines in groups for row in lines]


def _length(moment: Moment) -> float:
    if moment.phase is None:
        return -1.0
    return float("inf") if moment.length_s is None else moment.length_s


def _at(row: TimelineRow, _: int) -> Span:
    return Span("" if row.note else f"+{latency(row.moment.at_s)}", Tone.DIM)


def _began(row: TimelineRow, _: int) -> Span:
    phase = row.moment.phase
    return Span("") if phase is None else Span(str(phase), PHASE_TONES[phase])


def _for(row: TimelineRow, _: int) -> Span:
    moment = row.moment
    if moment.phase is None:
        return Span("")
    return Span("goes on" if moment.length_s is None else latency(moment.length_s))


def note(row: TimelineRow) -> tuple[str, Span] | None:
    return ("what", Span(_INDENT + row.note, Tone.DIM)) if row.note else None


def _what(row: TimelineRow, _: int) -> Span:
    return Span(printable(row.moment.what), row.moment.tone)


COLUMNS: tuple[Column[TimelineRow], ...] = (
    Column("at", "AT", 7, _at, right=True),
    Column("what", "WHAT", 30, _what, max_width=400),
    Column("phase", "THEN", 7, _began),
    Column("for", "FOR", 7, _for, right=True),
)


# Above the table


def facts(found: Explanation, width: int, glyphs: Glyphs) -> list[Line]:
    """The full id, the state of the request, and its life as a line of phases."""
    request = found.request
    title = (
        Span(f" {printable(request.id)}", Tone.STRONG),
        Span("  "),
        Span(str(request.state), _state_tone(request)),
        Span(_whereabouts(request)),
    )
    lines = [title, *fact_lines(_facts(request), width, glyphs)]
    if found.waiting is not None:
        lines += _wrapped("waits", explain.waits(found.waiting), width, Tone.WARN)
    if movable := explain.movable(found):
        lines.append(labelled("movable", Span(printable(movable))))
    return [*lines, *life(moments(found), request.age_s, width)]


def _whereabouts(request: RequestStatus) -> str:
    if request.held is not None:
        return " at the controller"
    return printable(f" on {request.instance_id}" if request.instance_id else "")


def _state_tone(request: RequestStatus) -> Tone:
    good = (RequestState.RUNNING, RequestState.FINISHED)
    return Tone.GOOD if request.state in good else Tone.WARN


def _facts(request: RequestStatus) -> list[Fact]:
    end = f" ({request.finish_reason})" if request.finish_reason else ""
    parent = [("part of", Span(printable(request.parent_id)))] if request.parent_id else []
    return [
        ("client's id", Span(printable(request.client_id))),
        ("level", Span(printable(request.level))),
        ("frontend", Span(request.frontend_id)),
        *parent,
        ("age", Span(f"{latency(request.age_s)}{end}")),
        ("TTFT", Span(latency(request.ttft_s))),
        ("prompt", Span(f"{request.num_prompt_tokens} tokens")),
        ("output", Span(f"{request.num_output_tokens} tokens")),
        ("evictions", Span(str(request.num_evictions))),
        ("moves", Span(str(request.num_moves))),
    ]


def _wrapped(label: str, words: str, width: int, tone: Tone) -> list[Line]:
    """The words in several lines, because the reason why a held request waits takes some 170
    characters."""
    room = max(20, width - LABEL_WIDTH - 3)
    first, *rest = drawing.wrapped(printable(words), room) or [""]
    return [labelled(label, Span(first, tone)), *(labelled("", Span(more, tone)) for more in rest)]


LEGEND: tuple[tuple[str, str], ...] = (
    ("AT", "the time since the request arrived"),
    ("THEN FOR", "the phase that began, and how long it lasted"),
    ("H Q P D M E", "its life in proportion to time, a letter for each phase"),
)


def life(told: Sequence[Moment], age_s: float, width: int) -> list[Line]:
    """A bar of the phases from arrival until now or the end, in proportion to their lengths, and
    the total time of each phase."""
    begun = [(m.phase, m.at_s, m.length_s) for m in told if m.phase is not None]
    lengths = [
        (phase, max(0.0, age_s - at_s) if length_s is None else length_s)
        for phase, at_s, length_s in begun
    ]
    room = width - LABEL_WIDTH - 3
    cells = apportion([length_s for _, length_s in lengths], room)
    bar = [
        Span(phase.letter * count, PHASE_TONES[phase])
        for (phase, _), count in zip(lengths, cells, strict=True)
        if count
    ]
    sums = {phase: [length_s for each, length_s in lengths if each is phase] for phase in Phase}
    legend = [
        Span(f"{phase.letter} {phase} {latency(sum(each))}  ", PHASE_TONES[phase])
        for phase, each in sums.items()
        if sum(each) > 0
    ]
    return [labelled("life", *bar), (Span(" " * (LABEL_WIDTH + 2)), *legend)]
