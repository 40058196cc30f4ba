"""Watches instances that serve but no longer report: asks for their status, puts stalls on record,
and has them fenced in the end."""

from collections.abc import Callable

from controller.core.scheduler import GlobalScheduler
from controller.core.tracking.fencing import Rest, Silent, to_fence
from controller.core.tracking.silence import Silences
from controller.runtime.controller.journal import Journal
from controller.runtime.controller.roster import Member, Roster

# Even an instance without work pushes a status each second. One that was silent for longer is asked
# before it counts as stalled.
PULL_AFTER_S = 2.5
# The requests of a fenced instance are in the statuses of others so long afterwards. Until then
# what they need counts as taken.
SETTLED_S = 5.0


class StallWatch:
    """Pulls statuses when the pushes stop (the paper's successor, status tracking). `pull` asks an
    instance for its status; `fence` takes it for dead, with a reason."""

    def __init__(
        self,
        roster: Roster,
        scheduler: GlobalScheduler,
        journal: Journal,
        pull: Callable[[Member], None],
        fence: Callable[[Member, str], None],
    ) -> None:
        self._roster = roster
        self._scheduler = scheduler
        self._journal = journal
        self._pull = pull
        self._fence = fence
        self._silences = Silences()
        self._fenced: list[tuple[float, int]] = []
        """When, and how many blocks the requests need, of those fenced lately."""
        self._silent_since_s: dict[tuple[str, int], float] = {}
        """When stalled incarnations last reported."""

    def tick(self, now_s: float, fence_after_s: float, *, pulls_all: bool = False) -> None:
        """`fence_after_s`: an instance that is silent for so long is fenced; 0: never. `pulls_all`:
        none pushes its status, so all are asked."""
        self._watch(now_s, pulls_all)
        silent = self._silent(now_s)
        if not fence_after_s or all(each.silent_s < fence_after_s for each in silent):
            return
        for fault in to_fence(silent, self._rest(now_s), fence_after_s):
            for each in fault:
                self._fenced.append((now_s, each.need_blocks))
                why = f"fenced: no progress reported for {each.silent_s:.0f} s"
                self._fence(self._roster.members[each.instance_id], why)

    def forget(self, instance_id: str, incarnation: int) -> None:
        self._silent_since_s.pop((instance_id, incarnation), None)

    def _watch(self, now_s: float, pulls_all: bool) -> None:
        for member in self._roster.instances():
            record = self._scheduler.instances.get(member.member_id)
            if not member.serving or record is None:
                continue
            reports = record.reports(now_s)
            if pulls_all or not reports or now_s - record.last_report_s > PULL_AFTER_S:
                self._pull(member)
            key = (member.member_id, member.incarnation)
            if record.refusal(now_s) == "stalled" and key not in self._silent_since_s:
                self._silent_since_s[key] = record.last_report_s
                self._journal.stalled(member, True, now_s - record.last_report_s)
            elif reports and key in self._silent_since_s:
                silence_s = record.last_report_s - self._silent_since_s.pop(key)
                self._journal.stalled(member, False, silence_s)

    def _silent(self, now_s: float) -> list[Silent]:
        """For how long each has not reported, of those that have in their incarnation."""
        found: list[tuple[tuple[str, int], int, str]] = []
        reported_s: list[tuple[tuple[str, int], float]] = []
        for member in self._roster.instances():
            record = self._scheduler.instances.get(member.member_id)
            if not member.serving or record is None or record.snapshot is None:
                continue
            key = (member.member_id, member.incarnation)
            reported_s.append((key, record.last_report_s))
            need_blocks = record.snapshot.num_used_blocks + record.snapshot.queued_demand_blocks
            found.append((key, need_blocks, member.node))
        silent_s = self._silences.turn(now_s, reported_s)
        return [Silent(*key, silent_s[key], need, node) for key, need, node in found]

    def _rest(self, now_s: float) -> Rest:
        schedulable = self._scheduler.schedulable_snapshots(now_s)
        unclaimed = sum(each.unclaimed_blocks for each in schedulable)
        held_demand = self._scheduler.held_view(now_s).demand_blocks
        self._fenced = [each for each in self._fenced if now_s - each[0] < SETTLED_S]
        under_way = sum(need_blocks for _, need_blocks in self._fenced)
        num_away = sum(member.fenced for member in self._roster.instances())
        return Rest(len(schedulable), unclaimed - held_demand - under_way, num_away)
