"""Puts on record the instances whose process computes for a while without a request."""

from collections.abc import Mapping

from controller.runtime.controller.journal import Journal
from controller.runtime.controller.roster import Roster
from controller.runtime.messages.members import StatusPushed

# A compiler that nobody can end (grammar_guard.py) or a thread that spins takes more. An idle
# instance takes 0.02.
BUSY_CORES = 0.5
# Longer than a second, for which the CPU time of a request that has just ended still counts.
LASTS_S = 5.0


def computes_for_nobody(status: StatusPushed) -> bool:
    snapshot = status.snapshot
    has_work = snapshot.num_running or snapshot.num_queued or status.moves or status.num_moves_in
    return not has_work and (status.cpu_cores or 0.0) >= BUSY_CORES


class BusyWatch:
    def __init__(self, roster: Roster, journal: Journal) -> None:
        self._roster = roster
        self._journal = journal
        self._since_s: dict[tuple[str, int], float] = {}
        """Since when an incarnation computes for nobody."""
        self._on_record: set[tuple[str, int]] = set()

    def tick(self, now_s: float, statuses: Mapping[str, StatusPushed]) -> None:
        for member in self._roster.instances():
            status = statuses.get(member.member_id)
            key = (member.member_id, member.incarnation)
            if not member.serving or status is None or not computes_for_nobody(status):
                since_s = self._since_s.pop(key, now_s)
                if key in self._on_record:
                    self._on_record.remove(key)
                    self._journal.busy(member, False, now_s - since_s, 0.0)
                continue
            since_s = self._since_s.setdefault(key, now_s)
            if now_s - since_s >= LASTS_S and key not in self._on_record:
                self._on_record.add(key)
                self._journal.busy(member, True, now_s - since_s, status.cpu_cores or 0.0)

    def is_on_record(self, instance_id: str, incarnation: int) -> bool:
        return (instance_id, incarnation) in self._on_record

    def forget(self, instance_id: str, incarnation: int) -> None:
        self._since_s.pop((instance_id, incarnation), None)
        self._on_record.discard((instance_id, incarnation))
