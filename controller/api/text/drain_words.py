"""Puts drains into words, for the command line and the dashboard alike."""

from collections.abc import Iterable

from controller.api.text.closed import no_requests
from controller.api.text.quantities import duration, printable
from controller.api.wire.operations import REPLAYS, DrainReport
from controller.api.wire.status import ClusterStatus, InstanceState


def would_move(report: DrainReport) -> str:
    """`i-7: 12 requests would move; 2 cannot move now`."""
    affected = _requests(max(len(report.plan), report.num_requests_left))
    if any(item.code == REPLAYS for item in report.plan):
        return f"{report.instance_id}: {affected} would be replayed elsewhere"
    staying = sum(item.code not in ("", "moving") for item in report.plan)
    cannot = f"; {staying} cannot move now" if staying else ""
    return f"{report.instance_id}: {affected} would move{cannot}"


def capacity(status: ClusterStatus, leaving: Iterable[str]) -> str:
    gone = set(leaving)
    active = (each for each in status.instances if each.state is InstanceState.ACTIVE)
    serving = [each for each in active if not no_requests(each)]
    left = [item for item in serving if item.id not in gone]
    num_free = sum(item.num_free_blocks or 0 for item in left)
    num_total = sum(item.num_total_blocks or 0 for item in left)
    return (
        f"left: {len(left)} of {len(serving)} serving instances,"
        f" {num_free} of their {num_total} blocks free"
    )


def progress(report: DrainReport) -> str:
    """One line: how far the drain is, and when it may be over."""
    name = report.instance_id
    if report.state in ("removed", "restarting"):
        return f"{name}: {report.state}"
    if report.state == "restarted":
        return f"{name}: restarted ({report.num_moved} moved)"
    if report.state == "failed":
        return f"{name}: its new process could not start"
    if report.safe_to_delete:
        return f"{name}: safe to delete ({report.num_moved} moved)"
    if report.state == "active":
        return f"{name}: not draining"
    facts = [f"{report.num_requests_left} left", f"{report.num_moving} moving"]
    facts.append(f"{report.num_moved} moved")
    if report.estimate_s:
        facts.append(f"~{duration(report.estimate_s)}")
    if report.silent:
        facts.append(f"no answer from {' '.join(report.silent)}")
    line = f"{name}: {', '.join(facts)}"
    return printable(f"{line}; {cannot_move(report)}" if report.cannot_move else line)


def cannot_move(report: DrainReport) -> str:
    """`2 requests cannot move (no instance has 118 free blocks)`; without any, what is left."""
    if not report.cannot_move:
        return f"{_requests(report.num_requests_left)} left"
    whys = dict.fromkeys(item.why or item.code for item in report.cannot_move)
    return f"{_requests(len(report.cannot_move))} cannot move ({'; '.join(whys)})"


def _requests(count: int) -> str:
    return "1 request" if count == 1 else f"{count} requests"
