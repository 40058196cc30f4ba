"""Explains a request's history: turns its events into steps, each with the decision behind it, and
puts each step into words, for the command line and the dashboard alike.

Events carry a decision's figures by name: `score_of_<instance>` of a dispatch,
`freeness_of_<instance>` of a round, `stage_<n>_...` of a move's stage. All other names are the
event's own.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from controller.api.text import status_words
from controller.api.text.events import figure
from controller.api.text.quantities import latency, sized
from controller.api.wire.requests import (
    Considered,
    DispatchStep,
    Event,
    Explanation,
    Figures,
    ForgottenStep,
    MoveStage,
    MoveStep,
    NotMovedStep,
    OtherStep,
    PriorityStep,
    Step,
    Waiting,
)
from controller.api.wire.status import HeldPlaceStatus

SCORE_OF = "score_of_"
FREENESS_OF = "freeness_of_"
STAGE = "stage_"


def explain(history: Sequence[Event], num_forgotten: int = 0) -> tuple[Step, ...]:
    """One step for each event, in the order of the events. Forgotten events get one step together,
    in the middle, because the first and the last events are kept."""
    steps: list[Step] = []
    for event in history:
        if num_forgotten and len(steps) == len(history) // 2:
            steps.append(ForgottenStep(**_when(event), num_events=num_forgotten))
        steps.append(_step(event, again=any(isinstance(each, DispatchStep) for each in steps)))
    return tuple(steps)


def held_back(held: HeldPlaceStatus) -> Waiting:
    """Why a request waits at the controller: what it needs, what prevents that, and which requests
    may go ahead of it."""
    words = (
        status_words.held_place(held),
        status_words.held_why(held),
        status_words.held_overtaking(held),
    )
    figures: Figures = {
        "needed_blocks": held.demand_blocks,
        "lacking_blocks": held.lacking_blocks,
    }
    return Waiting(code="held", why="; ".join(filter(None, words)), figures=figures)


def _step(event: Event, *, again: bool) -> Step:
    match event.kind:
        case "dispatched":
            return _dispatch(event, again=again)
        case "migrated" | "migration_failed" as kind:
            return _move(event, kind)
        case "not_moved":
            return _not_moved(event)
        case "priority_changed":
            return PriorityStep(
                **_when(event),
                previous=event.labels.get("previous", ""),
                level=event.labels.get("level") or event.level or "",
                actor=event.actor or "",
                reason=event.labels.get("reason", ""),
            )
        case other:
            return OtherStep(
                **_when(event),
                what=other,
                instance_id=event.instance_id,
                reason=event.reason,
                figures=event.numbers,
            )


def _when(event: Event) -> dict[str, Any]:
    return {"time_s": event.time_s, "cause_id": event.cause_id}


def _dispatch(event: Event, *, again: bool) -> DispatchStep:
    candidates = _considered(event.numbers, SCORE_OF)
    known = event.numbers.get("num_candidates")
    return DispatchStep(
        **_when(event),
        instance_id=event.instance_id or "",
        by="frontend" if event.labels.get("by") == "frontend" else "controller",
        policy=event.labels.get("policy", ""),
        candidates=candidates,
        num_considered=len(candidates) if known is None else int(known),
        again=again,
    )


def _move(event: Event, kind: Literal["migrated", "migration_failed"]) -> MoveStep:
    numbers, labels = event.numbers, event.labels
    stages = _stages(numbers)
    return MoveStep(
        kind=kind,
        **_decision(event, but=("downtime_s", "num_bytes", "num_stages")),
        reason=labels.get("reason", ""),
        code=labels.get("code", ""),
        why=labels.get("why", ""),
        stages=stages,
        num_bytes=sum(stage.num_bytes for stage in stages),
        downtime_s=numbers.get("downtime_s"),
    )


def _not_moved(event: Event) -> NotMovedStep:
    labels = event.labels
    return NotMovedStep(
        **_decision(event), code=labels.get("code", ""), why=labels.get("why") or event.reason
    )


def _decision(event: Event, but: Iterable[str] = ()) -> dict[str, Any]:
    numbers, labels = event.numbers, event.labels
    told = {*but, "source_freeness_steps"}
    figures: Figures = {
        name: value
        for name, value in numbers.items()
        if name not in told and not name.startswith((FREENESS_OF, STAGE))
    }
    return {
        **_when(event),
        "from_instance_id": labels.get("from") or event.instance_id or "",
        "to_instance_id": labels.get("to", ""),
        "freeness_steps": numbers.get("source_freeness_steps"),
        "candidates": _considered(numbers, FREENESS_OF),
        "figures": figures,
    }


def _considered(numbers: Mapping[str, float | None], prefix: str) -> tuple[Considered, ...]:
    """The instances in the order in which the decision named them, the best first."""
    return tuple(
        Considered(instance_id=name.removeprefix(prefix), figure=value)
        for name, value in numbers.items()
        if name.startswith(prefix)
    )


def _stages(numbers: Mapping[str, float | None]) -> tuple[MoveStage, ...]:
    found: list[MoveStage] = []
    while (num_blocks := numbers.get(f"{STAGE}{len(found)}_blocks")) is not None:
        at = f"{STAGE}{len(found)}"
        found.append(
            MoveStage(
                num_blocks=int(num_blocks),
                num_bytes=int(numbers.get(f"{at}_bytes") or 0),
                copy_time_s=numbers.get(f"{at}_copy_time_s") or 0.0,
            )
        )
    return tuple(found)


def waits(waiting: Waiting) -> str:
    return "; ".join((f"{waiting.code}: {waiting.why}", *_figures(waiting.figures)))


def movable(found: Explanation) -> str:
    """Whether the request could move now, and where to; empty if that is not known."""
    if found.why_not_movable:
        return f"no: {found.why_not_movable}"
    if not found.request.movable:
        return ""
    to = f"freest that has room: {found.could_move_to}"
    return f"yes; {to}" if found.could_move_to else "yes; nowhere has room"


def told(step: Step) -> tuple[str, list[str]]:
    """What happened in this step, in words, with the figures of the decision."""
    if isinstance(step, DispatchStep):
        return _dispatched(step), []
    if isinstance(step, MoveStep):
        return _moved(step), [_source(step), _copied(step), ", ".join(_figures(step.figures))]
    if isinstance(step, NotMovedStep):
        words = f"not moved from {step.from_instance_id} to {step.to_instance_id}: {step.why}"
        return f"{words} ({step.code})", [_source(step), ", ".join(_figures(step.figures))]
    if isinstance(step, PriorityStep):
        by = f" by {step.actor}" if step.actor else ""
        why = f": {step.reason}" if step.reason else ""
        return f"priority {step.previous} -> {step.level}{by}{why}", []
    if isinstance(step, ForgottenStep):
        return f"{step.num_events} events are not kept", []
    return _other(step), [", ".join(_figures(step.figures))]


def _dispatched(step: DispatchStep) -> str:
    again = " again" if step.again else ""
    words = f"dispatched{again} to {step.instance_id}"
    if step.by == "frontend":
        return f"{words} by its frontend alone: the controller was silent"
    among = f", the best of {step.num_considered}" if step.num_considered > 1 else ""
    return f"{words}{among}" + (f" by {step.policy}" if step.policy else "")


def _moved(step: MoveStep) -> str:
    where = f"from {step.from_instance_id} to {step.to_instance_id}"
    reason = f" ({step.reason})" if step.reason else ""
    if step.kind == "migrated":
        return f"migrated {where}{reason}"
    why = step.why or step.code or "it ended"
    return f"move {where} came to nothing{reason}: {why}"


def _source(step: MoveStep | NotMovedStep) -> str:
    if step.freeness_steps is None:
        return ""
    return f"freeness of {step.from_instance_id} {step.freeness_steps:.0f} steps"


def _copied(step: MoveStep) -> str:
    facts = []
    if step.stages:
        facts.append(f"{len(step.stages)} stages, {sized(step.num_bytes)}")
    if step.downtime_s is not None:
        facts.append(f"downtime {latency(step.downtime_s)}")
    return ", ".join(facts)


def _other(step: OtherStep) -> str:
    if step.what == "instance_kept":
        return f"{step.instance_id} was kept for it: {step.reason}"
    if step.what == "room_not_made":
        return f"no room was made {step.reason}"
    if step.what == "request_lost":
        return f"lost with {step.instance_id}: {step.reason}"
    if step.what == "replayed":
        saved = "went on, sent again as it had no token yet"
        if step.figures.get("downtime_s") is not None:
            saved = "went on as a replay"
        return f"{saved}, {step.reason}"
    where = f" on {step.instance_id}" if step.instance_id else ""
    return f"{step.what}{where}" + (f": {step.reason}" if step.reason else "")


def _figures(figures: Mapping[str, float | int | None]) -> Iterable[str]:
    return [figure(name, value) for name, value in figures.items() if value is not None]
