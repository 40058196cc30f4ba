"""The life of a request as decisions: each with what it chose among, and the figures it went by."""

from controller.api.text import decisions
from controller.api.text.quantities import latency, printable
from controller.api.wire.requests import (
    Considered,
    DispatchStep,
    Explanation,
    MoveStep,
    NotMovedStep,
    Step,
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
    on = f" on {request.instance_id}" if request.instance_id else ""
    where = " at the controller" if request.held else on
    facts = [
        ("request", request.id),
        ("client-id", request.client_id),
        ("state", f"{request.state}{where}"),
        ("level", request.level),
    ]
    if found.waiting is not None:
        facts.append(("waits", decisions.waits(found.waiting)))
    if movable := decisions.movable(found):
        facts.append(("movable", movable))
    return facts


def _step(step: Step, since: str, *, wide: bool, colours: bool) -> str:
    headline, figures = decisions.told(step)
    lines = [f"{since}  {headline}" + (f"  ({step.cause_id})" if wide and step.cause_id else "")]
    lines += [f"{_INDENT}{text}" for text in figures if text]
    lines = [printable(line) for line in lines]
    if isinstance(step, DispatchStep):
        lines += _candidates(step.candidates, step.instance_id, "SCORE", colours=colours)
    elif isinstance(step, MoveStep | NotMovedStep):
        chosen = step.to_instance_id
        lines += _candidates(step.candidates, chosen, "FREENESS", colours=colours)
    return "\n".join(lines)


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
