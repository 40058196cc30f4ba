"""Drains as tables: the plan, how far each is, and what keeps its requests where they are."""

import time
from collections.abc import Sequence

from controller.api.operations.on_instances import DrainReport, capacity, would_move
from controller.api.text.quantities import duration
from controller.api.wire.status import ClusterStatus
from llumctl.text import output

MAX_ROWS = 20
"""Requests that a question and a table list; `-o wide` and the machine formats list all."""


def render(reports: Sequence[DrainReport], *, wide: bool, colours: bool) -> str:
    """A row for each, then its plan or what cannot move."""
    columns: tuple[str, ...] = (
        "ID",
        "STATE",
        "LEFT",
        "MOVING",
        "MOVED",
        "ESTIMATE",
        "DEADLINE",
        "SAFE-TO-DELETE",
    )
    rows = [_row(report) for report in reports]
    if wide:
        columns += ("ON-DEADLINE", "THEN", "REVISION", "BY", "REASON")
        rows = [row + _wide(report) for row, report in zip(rows, reports, strict=True)]
    limit = None if wide else MAX_ROWS
    parts = [output.table(columns, rows, colours=colours)]
    for report in reports:
        if report.plan:
            parts.append(plan(report, limit=limit, colours=colours))
        elif report.cannot_move:
            parts.append(_staying(report, limit=limit, colours=colours))
    return "\n\n".join(parts)


def plan(report: DrainReport, *, limit: int | None = MAX_ROWS, colours: bool) -> str:
    """Where each request would go, or why it cannot."""
    rows = [
        (
            item.request_id,
            item.client_id,
            str(item.num_tokens),
            str(item.num_blocks),
            item.to_instance_id or "-",
            item.why or item.code,
        )
        for item in report.plan
    ]
    header = ("REQUEST", "CLIENT-ID", "TOKENS", "BLOCKS", "TO", "WHY-NOT")
    shown = output.table(header, rows[:limit], colours=colours, ids=("CLIENT-ID", "REQUEST"))
    return "\n".join((f"{report.instance_id}:", shown, *_more(len(rows), limit)))


def question(reports: Sequence[DrainReport], status: ClusterStatus, *, colours: bool) -> str:
    """What an operator should know before saying yes: the requests, and the capacity left."""
    parts = [plan(report, colours=colours) for report in reports if report.plan]
    parts += [would_move(report) for report in reports]
    parts.append(capacity(status, {report.instance_id for report in reports}))
    return "\n".join(parts)


def _row(report: DrainReport) -> tuple[str, ...]:
    return (
        report.instance_id,
        report.state,
        str(report.num_requests_left),
        str(report.num_moving),
        str(report.num_moved),
        duration(report.estimate_s or None),
        _deadline(report.deadline_s),
        "yes" if report.safe_to_delete else "no",
    )


def _wide(report: DrainReport) -> tuple[str, ...]:
    then = "restarted" if report.restarts_instance else "kept"
    then = "removed" if report.removes_instance else then
    return report.on_deadline, then, str(report.revision), report.actor, report.reason


def _deadline(deadline_s: float | None) -> str:
    """The control API is on this machine, and so is its clock."""
    if deadline_s is None:
        return "-"
    left_s = deadline_s - time.time()
    return f"in {duration(left_s)}" if left_s > 0 else "passed"


def _staying(report: DrainReport, *, limit: int | None, colours: bool) -> str:
    rows = [(item.request_id, item.client_id, item.why or item.code) for item in report.cannot_move]
    header = ("REQUEST", "CLIENT-ID", "CANNOT-MOVE")
    shown = output.table(header, rows[:limit], colours=colours, ids=("CLIENT-ID", "REQUEST"))
    return "\n".join((f"{report.instance_id}:", shown, *_more(len(rows), limit)))


def _more(count: int, limit: int | None) -> list[str]:
    return [] if limit is None or count <= limit else [f"... and {count - limit} more (-o wide)"]
