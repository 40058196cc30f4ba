"""The life of a request as decisions: each with what it chose among, and the figures it went by."""

from collections.abc import Iterable, Mapping

from controller.api.text.events import figure
from controller.api.text.quantities import latency, printable, sized
from controller.api.wire.explain import (
    Considered,
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
from llumctl.text import output

_INDENT = "    "


def render(found: Explanation, *, wide: bool, colours: bool) -> str:
    """Where the request is now, then its steps, each with the time since it arrived."""
    facts = _facts(found)
    width = max(len(name) for name, _ in facts)
    parts = ["\n".join(f"{name:<{width}}  {printable(value)}" for name, value in facts)]
    for step in found.steps:
        since_s = max(0.0, step.time_s - found.request.arrival_time_s)
        parts.append(_step(step, f"+{latency(since_s)}", wide=wide, colours=colours))
    return "\n\n".join(parts)


def _facts(found: Explanation) -> list[tuple[str, str]]:
    request = found.request
    where = f" on {request.instance_id}" if request.instance_id else ""
    facts = [
        ("request", request.id),
        ("client-id", request.client_id),
        ("state", f"{request.state}{where}"),
        ("level", request.level),
    ]
    if found.waiting is not None:
        facts.append(("waits", _waiting(found.waiting)))
    if found.why_not_movable:
        facts.append(("movable", f"no: {found.why_not_movable}"))
    elif request.movable:
        to = f"freest that has room: {found.could_move_to}"
        facts.append(("movable", f"yes; {to}" if found.could_move_to else "yes; nowhere has room"))
    return facts


def _waiting(waiting: Waiting) -> str:
    return "; ".join((f"{waiting.code}: {waiting.why}", *_figures(waiting.figures)))


def _step(step: Step, since: str, *, wide: bool, colours: bool) -> str:
    headline, figures = _told(step)
    lines = [f"{since}  {headline}" + (f"  ({step.cause_id})" if wide and step.cause_id else "")]
    lines += [f"{_INDENT}{text}" for text in figures if text]
    lines = [printable(line) for line in lines]
    if isinstance(step, DispatchStep):
        lines += _candidates(step.candidates, step.instance_id, "SCORE", colours=colours)
    elif isinstance(step, MoveStep | NotMovedStep):
        chosen = step.to_instance_id
        lines += _candidates(step.candidates, chosen, "FREENESS", colours=colours)
    return "\n".join(lines)


def _told(step: Step) -> tuple[str, list[str]]:
    """What happened, and the figures of the decision."""
    if isinstance(step, DispatchStep):
        return _dispatched(step), []
    if isinstance(step, MoveStep):
        return _moved(step), [_source(step), _copied(step), ", ".join(_figures(step.figures))]
    if isinstance(step, NotMovedStep):
        told = f"not moved from {step.from_instance_id} to {step.to_instance_id}: {step.why}"
        return f"{told} ({step.code})", [_source(step), ", ".join(_figures(step.figures))]
    if isinstance(step, PriorityStep):
        by = f" by {step.actor}" if step.actor else ""
        why = f": {step.reason}" if step.reason else ""
        return f"priority {step.previous} -> {step.level}{by}{why}", []
    if isinstance(step, ForgottenStep):
        return f"{step.num_events} events are not kept", []
    return _other(step), [", ".join(_figures(step.figures))]


def _dispatched(step: DispatchStep) -> str:
    again = " again" if step.again else ""
    told = f"dispatched{again} to {step.instance_id}"
    if step.by == "frontend":
        return f"{told} by its frontend alone: the controller was silent"
    among = f", the best of {step.num_considered}" if step.num_considered > 1 else ""
    return f"{told}{among}" + (f" by {step.policy}" if step.policy else "")


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
    where = f" on {step.instance_id}" if step.instance_id else ""
    return f"{step.what}{where}" + (f": {step.reason}" if step.reason else "")


def _figures(figures: Mapping[str, float | int | None]) -> Iterable[str]:
    return [figure(name, value) for name, value in figures.items() if value is not None]


def _candidates(
    candidates: tuple[Considered, ...], chosen: str, unit: str, *, colours: bool
) -> list[str]:
    """The chosen one need not be the first: the freest may be another source's destination."""
    if not candidates:
        return []
    rows = [
        (
            item.instance_id,
            "-" if item.figure is None else f"{item.figure:.0f}",
            "chosen" if item.instance_id == chosen else "-",
        )
        for item in candidates
    ]
    header = ("INSTANCE", unit, "")
    return [_INDENT + line for line in output.table(header, rows, colours=colours).splitlines()]
