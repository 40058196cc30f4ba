"""The decisions about a request in words, for the command line and the dashboard alike."""

from collections.abc import Iterable, Mapping

from controller.api.text.events import figure
from controller.api.text.quantities import latency, sized
from controller.api.wire.requests import (
    DispatchStep,
    Explanation,
    ForgottenStep,
    MoveStep,
    NotMovedStep,
    OtherStep,
    PriorityStep,
    Step,
    Waiting,
)


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
    """What happened, and the figures of the decision."""
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
