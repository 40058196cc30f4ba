"""What a change of the number of instances does, as lines of text."""

from controller.api.operations.on_cluster import ScaleReport
from controller.api.text.quantities import printable
from llumctl.text import drain_text


def render(report: ScaleReport, *, wide: bool, colours: bool) -> str:
    """Numbers and names; then the drains of a scale-in."""
    draining = tuple(drain.instance_id for drain in report.draining)
    facts = (
        ("instances", f"{report.previous} -> {report.target}"),
        ("added", " ".join(report.added)),
        ("undrained", " ".join(report.undrained)),
        ("draining", " ".join(draining)),
        ("revision", str(report.revision)),
    )
    shown = [(name, value) for name, value in facts if value]
    width = max(len(name) for name, _ in shown)
    parts = ["\n".join(f"{name:<{width}}  {printable(value)}" for name, value in shown)]
    if report.draining:
        parts.append(drain_text.render(report.draining, wide=wide, colours=colours))
    return "\n\n".join(parts)
