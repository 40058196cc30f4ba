"""A rolling restart as a table: each instance, how far it is, what it took or would take."""

from controller.api.text.quantities import duration, latency
from controller.api.wire.status import RollingReport
from llumctl.text import output


def render(report: RollingReport, *, colours: bool) -> str:
    if report.dry_run and report.plan:
        return _plan(report, colours=colours)
    rows = [(each.instance_id, "restarted", latency(each.took_s)) for each in report.done]
    rows += [
        (each.instance_id, "starting" if each.state == "restarting" else "emptying", "-")
        for each in report.under_way
    ]
    rows += [
        (each, "failed" if each == report.failed_id else _left(report), "-")
        for each in dict.fromkeys((*filter(None, (report.failed_id,)), *report.left))
    ]
    return output.table(("ID", "STATE", "TOOK"), rows, colours=colours)


def _left(report: RollingReport) -> str:
    return "to-come" if report.state == "going" else "not-restarted"


def _plan(report: RollingReport, *, colours: bool) -> str:
    rows = [
        (
            str(place),
            each.instance_id,
            str(each.num_requests),
            str(each.num_blocks),
            str(each.num_cannot_move),
            duration(each.estimate_s),
            duration(report.cold_start_s),
        )
        for place, each in enumerate(report.plan, start=1)
    ]
    header = ("TURN", "ID", "REQUESTS", "BLOCKS", "CANNOT-MOVE", "EMPTY-IN", "START")
    return output.table(header, rows, colours=colours)
