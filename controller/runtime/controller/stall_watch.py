"""Watches instances that serve but no longer report: asks for their status, puts stalls on record,
and has them fenced in the end."""

from collections.abc import Callable, Mapping

from controller.core.dispatch.instance_record import InstanceRecord
from controller.core.fleet.liveness import Fencing, Key, Rest, Serving
from controller.core.scheduler import GlobalScheduler
from controller.runtime.controller.journal import Journal
from controller.runtime.controller.roster import Member, Roster

# Even an instance without work pushes a status each second. One that was silent for longer is asked
# before it counts as stalled.
PULL_AFTER_S = 2.5


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
        self._fencing = Fencing()
        self._stalled: dict[Key, float] = {}
        """The stalled incarnations, and when each reported last or, if it never did, when this
        controller began to wait for it."""

    def tick(self, now_s: float, fence_after_s: float, *, pulls_all: bool = False) -> None:
        """`fence_after_s`: an instance that is silent for so long is fenced; 0: never. `pulls_all`:
        none pushes its status, so all are asked."""
        records = self._scheduler.instances
        watched = [
            (member, records[member.member_id])
            for member in self._roster.instances()
            if member.serving and member.member_id in records
        ]
        serving = [_serving(member, record) for member, record in watched]
        silent_s = self._fencing.silent_s(now_s, serving)
        for member, record in watched:
            self._watch(member, record, silent_s, now_s, pulls_all)
        for fault in self._fencing.turn(
            now_s, serving, silent_s, lambda: self._rest(now_s), fence_after_s
        ):
            for each in fault:
                why = f"fenced: no progress reported for {each.silent_s:.0f} s"
                self._fence(self._roster.members[each.instance_id], why)

    def is_stalled(self, member: Member) -> bool:
        """Whether it was silent for too long when this was last looked at."""
        return (member.member_id, member.incarnation) in self._stalled

    def forget(self, instance_id: str, incarnation: int) -> None:
        self._stalled.pop((instance_id, incarnation), None)

    def _watch(
        self,
        member: Member,
        record: InstanceRecord,
        silent_s: Mapping[Key, float],
        now_s: float,
        pulls_all: bool,
    ) -> None:
        key, reports = (member.member_id, member.incarnation), record.reports(now_s)
        if pulls_all or not reports or now_s - record.last_report_s > PULL_AFTER_S:
            self._pull(member)
        never = record.snapshot is None
        last_s = now_s - silent_s[key] if never else record.last_report_s
        is_stalled = record.alive and now_s - last_s > record.stall_timeout_s
        if is_stalled and key not in self._stalled and not member.fenced:
            self._stalled[key] = last_s
            self._journal.stalled(member, True, now_s - last_s)
        elif reports and key in self._stalled:
            silence_s = record.last_report_s - self._stalled.pop(key)
            self._journal.stalled(member, False, silence_s)

    def _rest(self, now_s: float) -> Rest:
        schedulable = self._scheduler.schedulable_snapshots(now_s)
        unclaimed = sum(each.unclaimed_blocks for each in schedulable)
        num_away = sum(member.fenced for member in self._roster.instances())
        return Rest(len(schedulable), unclaimed - self._scheduler.held_demand_blocks, num_away)


def _serving(member: Member, record: InstanceRecord) -> Serving:
    """What an incarnation without a report may run is known from its Hello: nothing, or, as that
    counts requests and not their memory, all that fits into it."""
    snapshot = record.snapshot
    if snapshot is not None:
        need_blocks = snapshot.num_used_blocks + snapshot.queued_demand_blocks
    else:
        all_blocks = member.info.num_gpu_blocks if member.info else 0
        need_blocks = all_blocks if member.num_live_reqs else 0
    return Serving(
        member.member_id,
        member.incarnation,
        None if snapshot is None else record.last_report_s,
        need_blocks,
        member.node,
        member.fenced,
    )
