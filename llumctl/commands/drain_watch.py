"""Drains as `drain`, `restart`, `scale` and `undo` show them: the plan and the question
before an order, then how far each is, until it is over.

`Watch` asks the controller again and again, and says it on stderr. A drain does not need to be
followed: leaving ends nothing. The controller may be away for a while.
"""

import shutil
import sys
import time
from collections.abc import Sequence
from typing import Self

from controller.api.errors import LlumctlError, NotRunningError, TimedOutError, UnreachableError
from controller.api.operations.on_instances import (
    DrainReport,
    cannot_move,
    capacity,
    drain_progress,
    would_move,
)
from controller.api.settings.bounds import MAX_DEADLINE_S
from controller.api.text.quantities import duration, latency, num_cells
from controller.api.wire.status import ClusterStatus, InstanceState, InstanceStatus
from llumctl import connect
from llumctl.text import output

POLL_S = 1.0
"""Each question makes the controller ask every frontend and every draining instance."""
GIVE_UP_S = 10.0
"""A drain that is given up at its deadline may take this long to end."""
MAX_ROWS = 20
"""Requests that a question and a table list; `-o wide` and the machine formats list all."""
_CLEAR_LINE = "\r\x1b[K"


def render(reports: Sequence[DrainReport], *, wide: bool, colours: bool) -> str:
    """A table: a row for each, then its plan or what cannot move."""
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


class Watch:
    """`reports`: the latest of each drain, in the order in which they were asked for."""

    def __init__(self, cluster: str, begun: Sequence[DrainReport]) -> None:
        self._cluster = cluster
        self._reports = {report.instance_id: report for report in begun}
        self._late: set[str] = set()
        self._trouble = ""
        self._said: dict[str, str] = {}
        self._drawn = False
        self._redraws = output.can_redraw(sys.stderr)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._clear()

    @property
    def reports(self) -> tuple[DrainReport, ...]:
        return tuple(self._reports.values())

    @property
    def unfinished(self) -> tuple[DrainReport, ...]:
        return tuple(report for report in self.reports if not is_over(report))

    def until_over(self, timeout_s: float | None = None) -> None:
        """Follows until each drain is over or past its deadline, or for `timeout_s`. Raises
        NotRunningError when the cluster is stopped."""
        end_s = float("inf") if timeout_s is None else time.monotonic() + timeout_s
        self._tell()
        while any(report.instance_id not in self._late for report in self.unfinished):
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                break
            time.sleep(min(POLL_S, left_s))
            self._look()
            self._tell()

    def _look(self) -> None:
        asked_s = time.time()
        try:
            with connect.client(self._cluster) as client:
                found = {report.instance_id: report for report in client.drains().drains}
                over = {report.instance_id for report in self.unfinished} - set(found)
                # A whole status is much to ask for each second.
                status = client.status() if over else None
                still_there = {i.id: i for i in status.instances} if status else {}
        except NotRunningError:
            raise
        except UnreachableError as error:
            if not self._trouble:
                self._clear()
                output.say(f"{error.message}; waiting for it")
            self._trouble = error.message
            return
        self._trouble = ""
        for report in self.unfinished:
            name = report.instance_id
            now = found.get(name) or _without_order(report, still_there.get(name))
            # Of the process that was there when it began.
            process = {"incarnation": report.incarnation, "pid": report.pid}
            self._reports[name] = now = now.model_copy(update=process)
            if not is_over(now) and _is_late(now, asked_s):
                self._late.add(name)

    def _tell(self) -> None:
        lines = {report.instance_id: drain_progress(report) for report in self.reports}
        for report in self.reports:
            name = report.instance_id
            keep = self._redraws and not is_over(report)
            if not keep and self._said.get(name) != lines[name]:
                self._clear()
                output.say(lines[name])
                self._said[name] = lines[name]
        if self._redraws and self.unfinished:
            going_on = "   ".join(lines[report.instance_id] for report in self.unfinished)
            output.say_on(f"{_CLEAR_LINE}{_fitted(going_on)}")
            self._drawn = True

    def _clear(self) -> None:
        if self._drawn:
            output.say_on(_CLEAR_LINE)
        self._drawn = False


def is_over(report: DrainReport) -> bool:
    """A drain that was taken back is over, too: its instance is `active`."""
    return is_done(report) or report.state in ("active", "failed")


def is_done(report: DrainReport) -> bool:
    """The instance is empty, and gone if it was to go, or has another process."""
    emptied = report.safe_to_delete and not report.removes_instance
    return emptied or report.state in ("removed", "restarted")


def detached(reports: Sequence[DrainReport]) -> str:
    """What an operator who stops watching is told."""
    names = " ".join(report.instance_id for report in reports)
    first = reports[0].instance_id if reports else ""
    return (
        f"no longer watching: the drain goes on ({names})\n"
        f"try:   llumctl status --wait=drained={first}      or      llumctl uncordon {names}"
    )


def check(
    reports: Sequence[DrainReport],
    deadline_s: float | None = None,
    *,
    waited_s: float | None = None,
) -> None:
    """Raises for the first drain that is not done. `deadline_s`: how long the drains were given;
    `waited_s`: how long they were waited for, whatever the deadline.

    Raises:
        TimedOutError: its deadline passed, or nobody waits for it any longer.
        LlumctlError: it was taken back.
    """
    for report in reports:
        if is_done(report):
            continue
        name = report.instance_id
        what = "restart" if report.restarts_instance else "drain"
        if report.state == "failed":
            raise LlumctlError(
                f"{name} was restarted, and its new process could not start",
                f"llumctl logs {name}      llumctl status -o wide",
            )
        passed = report.deadline_s is not None and time.time() >= report.deadline_s
        given_up = report.state == "active" and passed and report.on_deadline == "abort"
        if report.state == "active" and not given_up:
            raise LlumctlError(
                f"the {what} of {name} was taken back before it was over",
                "llumctl events --kind operator      llumctl status",
            )
        if not passed and waited_s is not None:
            raise TimedOutError(
                f"{what} {name} is not over after {latency(waited_s)}:"
                f" {cannot_move(report)}; it goes on",
                f"llumctl status --wait=drained={name}      or      llumctl scale +1",
            )
        after, longer = "", "600"
        if passed and deadline_s is not None:
            after = f" after {duration(deadline_s)}"
            longer = f"{min(2 * deadline_s, MAX_DEADLINE_S):g}"
        goes_on = "it was given up" if given_up else "it goes on"
        raise TimedOutError(
            f"{what} {name} timed out{after}: {cannot_move(report)}; {goes_on}",
            f"llumctl scale +1      or      llumctl {what} {name} --deadline {longer}",
        )


def _is_late(report: DrainReport, now_s: float) -> bool:
    if report.state == "restarting":
        return False  # the deadline was about emptying it
    ends_then = report.on_deadline == "abort" or report.evacuates_instance
    grace_s = GIVE_UP_S if ends_then else 0.0
    return report.deadline_s is not None and now_s >= report.deadline_s + grace_s


def _without_order(report: DrainReport, instance: InstanceStatus | None) -> DrainReport:
    """The report of a drain that is no more: the instance is gone, serves again, or was
    restarted."""
    changes = {"num_moving": 0, "estimate_s": None}
    if instance is not None:
        state = "active"
        before = (report.incarnation, report.pid)
        if report.restarts_instance and before != (instance.incarnation, instance.pid):
            failed = instance.state is InstanceState.FAILED
            state = "failed" if failed else "restarted"
            changes["num_requests_left"] = 0
        return report.model_copy(update={**changes, "state": state})
    gone = {"state": "removed", "safe_to_delete": True, "num_requests_left": 0, "cannot_move": ()}
    return report.model_copy(update=changes | gone)


def _fitted(line: str) -> str:
    room = max(1, shutil.get_terminal_size().columns - 1)
    while num_cells(line) > room:
        line = line[: len(line) - max(1, (num_cells(line) - room) // 2)]
    return line
