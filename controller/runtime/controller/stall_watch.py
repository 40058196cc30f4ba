"""Asks instances that serve but no longer report for their status, and puts stalls on record."""

from collections.abc import Callable

from controller.core.scheduler import GlobalScheduler
from controller.runtime.controller.journal import Journal
from controller.runtime.controller.roster import Member, Roster


class StallWatch:
    """Pulls statuses when the pushes stop (the paper's successor, status tracking). `pull` asks an
    instance for its status."""

    def __init__(
        self,
        roster: Roster,
        scheduler: GlobalScheduler,
        journal: Journal,
        pull: Callable[[Member], None],
    ) -> None:
        self._roster = roster
        self._scheduler = scheduler
        self._journal = journal
        self._pull = pull
        self._silent_since_s: dict[tuple[str, int], float] = {}
        """When stalled incarnations last reported."""

    def tick(self, now_s: float) -> None:
        for member in self._roster.instances():
            record = self._scheduler.instances.get(member.member_id)
            if not member.serving or record is None:
                continue
            reports = record.reports(now_s)
            if not reports:
                self._pull(member)
            key = (member.member_id, member.incarnation)
            if record.refusal(now_s) == "stalled" and key not in self._silent_since_s:
                self._silent_since_s[key] = record.last_report_s
                self._journal.stalled(member, True, now_s - record.last_report_s)
            elif reports and key in self._silent_since_s:
                silence_s = record.last_report_s - self._silent_since_s.pop(key)
                self._journal.stalled(member, False, silence_s)

    def forget(self, instance_id: str, incarnation: int) -> None:
        self._silent_since_s.pop((instance_id, incarnation), None)
