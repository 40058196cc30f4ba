"""Turns a request's history into the decisions that made it.

Events carry a decision's figures by name: `score_of_<instance>` of a dispatch,
`freeness_of_<instance>` of a round, `stage_<n>_...` of a move's stage; other names are the event's
own.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from controller.api.text import status_words
from controller.api.wire.requests import (
    Considered,
    DispatchStep,
    Event,
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
    """One step for each event, in their order. Forgotten events were in the middle."""
    steps: list[Step] = []
    for event in history:
        if num_forgotten and len(steps) == len(history) // 2:
            steps.append(
                ForgottenStep(
                    time_s=event.time_s, cause_id=event.cause_id, num_events=num_forgotten
                )
            )
        steps.append(_step(event, again=any(isinstance(each, DispatchStep) for each in steps)))
    return tuple(steps)


def held_back(held: HeldPlaceStatus) -> Waiting:
    """What the controller holds: what it needs, what keeps it, who may go ahead."""
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
        case "migrated" | "migration_failed":
            return _move(event, event.kind)
        case "not_moved":
            return _not_moved(event)
        case "priority_changed":
            return PriorityStep(
                time_s=event.time_s,
                cause_id=event.cause_id,
                previous=event.labels.get("previous", ""),
                level=event.labels.get("level") or event.level or "",
                actor=event.actor or "",
                reason=event.labels.get("reason", ""),
            )
        case other:
            return OtherStep(
                time_s=event.time_s,
                cause_id=event.cause_id,
                what=other,
                instance_id=event.instance_id,
                reason=event.reason,
                figures=event.numbers,
            )


def _dispatch(event: Event, *, again: bool) -> DispatchStep:
    candidates = _considered(event.numbers, SCORE_OF)
    known = event.numbers.get("num_candidates")
    return DispatchStep(
        time_s=event.time_s,
        cause_id=event.cause_id,
        instance_id=event.instance_id or "",
        by="frontend" if event.labels.get("by") == "frontend" else "controller",
        policy=event.labels.get("policy", ""),
        candidates=candidates,
        num_considered=len(candidates) if known is None else int(known),
        again=again,
    )


def _move(event: Event, kind: str) -> MoveStep:
    numbers, labels = event.numbers, event.labels
    stages = _stages(numbers)
    return MoveStep(
        kind="migrated" if kind == "migrated" else "migration_failed",
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
        "time_s": event.time_s,
        "cause_id": event.cause_id,
        "from_instance_id": labels.get("from") or event.instance_id or "",
        "to_instance_id": labels.get("to", ""),
        "freeness_steps": numbers.get("source_freeness_steps"),
        "candidates": _considered(numbers, FREENESS_OF),
        "figures": figures,
    }


def _considered(numbers: Mapping[str, float | None], prefix: str) -> tuple[Considered, ...]:
    """Instances in the order in which the decision named them, the best first."""
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
