"""What the global scheduler knows about one instance, with instant accounting.

A request that was dispatched is not in the instance's status at once. Until a status names its
dispatch sequence number (or a later one) it counts here, or a burst between two statuses would
all go to the instance that was freest before it.
"""

from collections import deque
from dataclasses import dataclass, replace

from controller.core.load.closed import (
    OPEN,
    Closed,
    Reasons,
    stop_arrivals,
    stop_requests,
    stop_sending,
)
from controller.core.load.freeness import NOTHING_UNREPORTED
from controller.core.load.snapshot import InstanceSnapshot, Unreported, blocks_for

LOST_AFTER_S = 10.0
"""A request reaches its instance within milliseconds of its dispatch. If a status from this much
later does not count the request, its frontend died or the message was lost."""


@dataclass(slots=True)
class _OnItsWay:
    seq: int
    demand_blocks: int
    frontend_id: str
    sent_s: float


class InstanceRecord:
    """One incarnation of one instance. The scheduler mutates it; everybody else only reads."""

    __slots__ = (
        "_unreported",
        "alive",
        "closed_by",
        "incarnation",
        "instance_id",
        "is_shut",
        "last_dispatch_seq",
        "last_report_s",
        "may_receive",
        "may_send",
        "ordered",
        "schedulable",
        "snapshot",
        "stalled",
        "unreported",
    )

    def __init__(
        self,
        instance_id: str,
        incarnation: int,
        ordered: Reasons = OPEN,
    ) -> None:
        self.instance_id = instance_id
        self.incarnation = incarnation
        self.alive = True
        self.stalled = False
        """`fleet.liveness` said so, and it has not reported since."""
        self.snapshot: InstanceSnapshot | None = None
        """The last status of this incarnation."""
        self.ordered = ordered
        """What the spec has against the instance. It counts as draining also while only its status
        says so, so that a drain ends by the instance's own word."""
        self.last_report_s = float("-inf")
        self.last_dispatch_seq = 0
        """The last sequence number given out to this incarnation."""
        self.unreported = NOTHING_UNREPORTED
        self._unreported: deque[_OnItsWay] = deque()
        """The requests that `unreported` sums up; their sequence numbers ascend."""
        self._sum_up()

    def _sum_up(self) -> None:
        """After a change of what the reasons follow from. They are kept, as each decision asks."""
        self.closed_by: tuple[Closed, ...] = self._reasons()
        """What is against the instance. The first reason counts most: a draining instance that
        hangs is stalled, because it does not drain."""
        self.schedulable = not stop_requests(self.closed_by)
        """Whether the instance may get requests."""
        self.may_receive = not stop_arrivals(self.closed_by)
        """Whether moves may go there, as far as `closed_by` says it."""
        self.may_send = not stop_sending(self.closed_by)
        """Whether moves may begin there."""
        drains = self.snapshot is not None and self.snapshot.draining
        self.is_shut = drains or stop_requests(self.ordered)
        """Whether the instance gets no requests because somebody wants it so."""

    def _reasons(self) -> tuple[Closed, ...]:
        reasons = set(self.ordered)
        if not self.alive:
            reasons.add(Closed.NOT_SERVING)
        elif self.snapshot is None:
            reasons.add(Closed.NO_STATUS)
        else:
            if self.stalled:
                reasons.add(Closed.STALLED)
            if self.snapshot.draining:
                reasons.add(Closed.DRAINING)
        return tuple(each for each in Closed if each in reasons) if reasons else ()

    @property
    def reports(self) -> bool:
        """Whether the instance serves and says so."""
        return self.alive and self.snapshot is not None and not self.stalled

    def report(self, snapshot: InstanceSnapshot, last_dispatch_seq: int, now_s: float) -> None:
        """Takes a status of this incarnation. Requests that the status counts are unreported no
        more, nor those dispatched `LOST_AFTER_S` ago."""
        before, self.snapshot = self.snapshot, self._as_ordered(snapshot)
        self.last_report_s = now_s
        if self.stalled or before is None or before.draining != self.snapshot.draining:
            self.stalled = False
            self._sum_up()
        # A scheduler that was restarted goes on where its predecessor stopped: numbers below
        # what the instance has seen would count as reported before they were sent.
        self.last_dispatch_seq = max(self.last_dispatch_seq, last_dispatch_seq)
        pending, num_before = self._unreported, len(self._unreported)
        lost_s = now_s - LOST_AFTER_S
        while pending and (pending[0].seq <= last_dispatch_seq or pending[0].sent_s <= lost_s):
            pending.popleft()
        if len(pending) != num_before:
            self._account()

    def dispatch(self, num_prompt_tokens: int, frontend_id: str, now_s: float) -> int:
        """Accounts for one dispatched request; returns its sequence number. Needs a status."""
        assert self.snapshot is not None
        self.last_dispatch_seq += 1
        demand_blocks = blocks_for(num_prompt_tokens, self.snapshot.block_size)
        self._unreported.append(
            _OnItsWay(self.last_dispatch_seq, demand_blocks, frontend_id, now_s)
        )
        self.unreported = Unreported(
            self.unreported.num_requests + 1, self.unreported.demand_blocks + demand_blocks
        )
        return self.last_dispatch_seq

    def order(self, reasons: Reasons) -> None:
        """What the spec has against the instance from now on, whatever its status says yet."""
        self.ordered = reasons
        if self.snapshot is not None:
            self.snapshot = self._as_ordered(self.snapshot)
        self._sum_up()

    def stall(self, *, over: bool) -> None:
        """`over`: it is not stalled any more, though it has not reported."""
        self.stalled = not over
        self._sum_up()

    def _as_ordered(self, snapshot: InstanceSnapshot) -> InstanceSnapshot:
        drains = Closed.DRAINING in self.ordered and not snapshot.draining
        return replace(snapshot, draining=True) if drains else snapshot

    def frontend_died(self, frontend_id: str) -> None:
        """Forgets the unreported requests of a dead frontend: it will not send them."""
        self._unreported = deque(e for e in self._unreported if e.frontend_id != frontend_id)
        self._account()

    def die(self) -> None:
        """This incarnation gets no requests any more; its last status can still be read."""
        self.alive = False
        self._sum_up()
        self._unreported.clear()
        self._account()

    def _account(self) -> None:
        pending = self._unreported
        self.unreported = (
            Unreported(len(pending), sum(each.demand_blocks for each in pending))
            if pending
            else NOTHING_UNREPORTED
        )

    def check(self) -> None:
        """Raises AssertionError if an invariant is broken."""
        assert self.closed_by == self._reasons(), "not summed up"
        seqs = [each.seq for each in self._unreported]
        assert seqs == sorted(set(seqs)), "sequence numbers out of order"
        assert not seqs or 1 <= seqs[0] <= seqs[-1] <= self.last_dispatch_seq
        assert self.unreported.num_requests == len(seqs)
        demands = [each.demand_blocks for each in self._unreported]
        assert self.unreported.demand_blocks == sum(demands)
        assert self.alive or not seqs, "a dead incarnation owes no report"
        if self.snapshot is None:
            assert not seqs, "dispatched before the first status"
            return
        assert self.snapshot.instance_id == self.instance_id
        assert self.snapshot.incarnation == self.incarnation
        assert self.snapshot.draining or Closed.DRAINING not in self.ordered
