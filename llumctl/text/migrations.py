"""What came of a move, or what it would take, as lines of text. A dash: not known."""

from controller.api.operations.on_requests import MigrationReport, MoveAttempt, MovePlanned
from controller.api.text.quantities import printable, sized
from llumctl.text import output

Fact = tuple[str, str]

WAITING = "none, the request waits for memory"


def render(report: MigrationReport, *, colours: bool) -> str:
    """The move's figures, its last attempt's stages, and the attempts if there were several."""
    facts = [
        ("request", report.request_id),
        ("client-id", report.client_id),
        ("from", report.from_instance_id),
        ("to", report.to_instance_id or "-"),
        ("outcome", report.outcome.replace("_", " ")),
        *([("why", report.why)] if report.why else []),
        *([("note", report.note)] if report.note else []),
    ]
    last = report.attempts[-1] if report.attempts else None
    if report.plan is not None:
        facts += _planned(report.plan)
    elif last is not None and last.duration_s is not None:
        facts += _moved(report, last)
    width = max(len(name) for name, _ in facts)
    parts = ["\n".join(f"{name:<{width}}  {printable(value)}" for name, value in facts)]
    if last is not None and last.stages:
        parts.append(_stages(last, colours=colours))
    if len(report.attempts) > 1:
        parts.append(_attempts(report.attempts, colours=colours))
    return "\n\n".join(parts)


def _planned(plan: MovePlanned) -> list[Fact]:
    return [
        ("tokens", str(plan.num_tokens)),
        ("blocks", str(plan.num_blocks)),
        ("bytes", sized(plan.num_bytes)),
        ("copy", _millis(plan.copy_time_s)),
        ("downtime", _expected_downtime(plan)),
    ]


def _expected_downtime(plan: MovePlanned) -> str:
    if not plan.num_blocks:
        return WAITING
    return f"about {_millis(plan.downtime_s)}" if plan.downtime_s else "-"


def _moved(report: MigrationReport, last: MoveAttempt) -> list[Fact]:
    cached = f", {last.num_cached_blocks} were there" if last.num_cached_blocks else ""
    return [
        ("migration", last.migration_id),
        ("tokens", "-" if last.num_tokens is None else str(last.num_tokens)),
        ("blocks", f"{report.num_blocks}{cached}"),
        ("bytes", sized(report.num_bytes)),
        ("copy", _millis(report.copy_time_s)),
        ("took", _millis(last.duration_s)),
        ("downtime", _downtime(report, last)),
        ("excess", _millis(report.excess_s)),
    ]


def _downtime(report: MigrationReport, last: MoveAttempt) -> str:
    """A move without any block is one of a request that waits."""
    if report.downtime_s is None and not (report.num_blocks or last.num_cached_blocks):
        return WAITING
    return _millis(report.downtime_s)


def _stages(attempt: MoveAttempt, *, colours: bool) -> str:
    rows = [
        (str(index), str(stage.num_blocks), sized(stage.num_bytes), _millis(stage.copy_time_s))
        for index, stage in enumerate(attempt.stages)
    ]
    return output.table(("STAGE", "BLOCKS", "BYTES", "COPY"), rows, colours=colours)


def _attempts(attempts: tuple[MoveAttempt, ...], *, colours: bool) -> str:
    rows = [(each.migration_id, each.to_instance_id, each.outcome, each.why) for each in attempts]
    return output.table(("MIGRATION", "TO", "OUTCOME", "WHY"), rows, colours=colours)


def _millis(seconds: float | None) -> str:
    """A step is some milliseconds: tenths of one count."""
    if seconds is None:
        return "-"
    return f"{seconds:.2f}s" if seconds >= 1 else f"{1000 * seconds:.1f}ms"
