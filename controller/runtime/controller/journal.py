"""The controller's event log, and a signal for readers that wait for the next event."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from controller.core.admission.records import PutOnRecord
from controller.core.record.event_log import EventKind, EventLog, LoggedEvent
from controller.core.scheduler_events import Dispatch
from controller.ports.processes import EventStore
from controller.runtime.controller.roster import Member
from controller.runtime.messages.members import EventsReported

_MEMBER_EVENTS = {
    ("instance", "started"): EventKind.INSTANCE_STARTED,
    ("instance", "died"): EventKind.INSTANCE_DIED,
    ("instance", "failed"): EventKind.INSTANCE_FAILED,
    ("frontend", "started"): EventKind.FRONTEND_STARTED,
    ("frontend", "died"): EventKind.FRONTEND_DIED,
    ("frontend", "failed"): EventKind.FRONTEND_FAILED,
}
_CAUSES = {"started": "start", "died": "lost", "failed": "start"}


class News:
    """A signal for those who wait for the next event."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    async def wait(self) -> None:
        await self._next.wait()

    def came(self) -> None:
        self._next.set()
        self._next = asyncio.Event()


class Journal:
    """The controller's event log. Without a `store`, events last only as long as this process
    lives. `beside`: the journal of another model of the cluster, which keeps its events in the same
    log."""

    def __init__(
        self,
        epoch: str,
        max_events: int = 10_000,
        wall_clock: Callable[[], float] = time.time,
        store: EventStore | None = None,
        beside: "Journal | None" = None,
    ) -> None:
        self._store: EventStore | None = store if beside is None else beside._store
        if beside is None:
            self.log = EventLog(epoch, max_events, store.load(max_events) if store else ())
            self._news = News()
        else:
            self.log, self._news = beside.log, beside._news
        self.counts: Counter[EventKind] = Counter()
        """How many events of each kind there were since this controller started."""
        self._num_told: dict[str, tuple[int, int]] = {}
        """For each member, its incarnation, and how many events that incarnation has reported so
        far."""
        self.on_event: Callable[[LoggedEvent], None] = lambda event: None
        """Called with each event as it is logged."""
        self._wall_clock = wall_clock

    async def wait(self) -> None:
        """Returns at the next event, of whichever model."""
        await self._news.wait()

    def append(self, event: LoggedEvent) -> None:
        position = self.log.append(event)
        if self._store is not None:
            self._store.keep(position, event)
        self.counts[event.kind] += 1
        self.on_event(event)
        self._news.came()

    def note(
        self,
        kind: EventKind,
        cause_id: str,
        reason: str = "",
        *,
        instance_id: str | None = None,
        actor: str | None = None,
        **about: Any,
    ) -> None:
        """Logs an event of this moment. An empty instance or actor counts as none."""
        there, by = instance_id or None, actor or None
        event = LoggedEvent(
            kind, self._wall_clock(), cause_id, reason, instance_id=there, actor=by, **about
        )
        self.append(event)

    def told(self, report: EventsReported) -> None:
        """Logs the events that a member reports. If some of its events were lost, an event with
        their number comes first. Events that the member reported before this controller began do
        not count as lost."""
        member_id, incarnation = report.member_id, report.incarnation
        num_before, events = report.num_before, report.events
        known_incarnation, num_told = self._num_told.get(member_id, (incarnation, num_before))
        num_lost = num_before - num_told if known_incarnation == incarnation else 0
        self._num_told[member_id] = incarnation, num_before + len(events)
        if num_lost > 0:
            is_instance = member_id.startswith("i-")
            self.note(
                EventKind.EVENTS_LOST,
                f"lost-events-{member_id}-{incarnation}",
                "the controller lagged",
                instance_id=member_id if is_instance else None,
                frontend_id=None if is_instance else member_id,
                incarnation=incarnation,
                numbers={"num_lost": num_lost},
            )
        for event in events:
            self.append(event)

    def forget(self, member_id: str) -> None:
        """Forgets a member that was ended for good."""
        self._num_told.pop(member_id, None)

    def controller_started(self) -> None:
        self.note(EventKind.CONTROLLER_STARTED, "start-controller")

    def dispatched(self, instruction: Dispatch) -> None:
        number = instruction.num_considered
        self.note(
            EventKind.DISPATCHED,
            f"arrive-{instruction.request_id}",
            f"best of {number} by {instruction.policy}" if number > 1 else "the only one",
            instance_id=instruction.instance_id,
            incarnation=instruction.incarnation,
            frontend_id=instruction.frontend_id,
            request_id=instruction.request_id,
            numbers={"score": instruction.candidates[0][1], "num_candidates": number},
        )

    def member(self, member: Member, incarnation: int, what: str, reason: str = "") -> None:
        """Logs an event about a member. `what`: started, died or failed."""
        is_instance = member.kind == "instance"
        self.note(
            _MEMBER_EVENTS[member.kind, what],
            f"{_CAUSES[what]}-{member.member_id}-{incarnation}",
            reason,
            instance_id=member.member_id if is_instance else None,
            frontend_id=None if is_instance else member.member_id,
            incarnation=incarnation,
        )

    def node_lost(self, node: str, instance_ids: Sequence[str]) -> None:
        self.note(
            EventKind.NODE_LOST,
            f"node-{node}",
            f"{node}: all its instances are gone: {', '.join(instance_ids)}",
            numbers={"num_instances": len(instance_ids)},
            labels={"node": node},
        )

    def launcher(self, what: str, *, lost: bool) -> None:
        self.note(
            EventKind.RAY_LOST if lost else EventKind.RAY_FOUND,
            "ray",
            f"{what}: no process is started or ended" if lost else f"no more: {what}",
        )

    def stalled(self, member: Member, stalled: bool, silence_s: float) -> None:
        self.note(
            EventKind.INSTANCE_STALLED if stalled else EventKind.INSTANCE_RECOVERED,
            f"stall-{member.member_id}-{member.incarnation}",
            "no progress reported" if stalled else "it reports again",
            instance_id=member.member_id,
            incarnation=member.incarnation,
            numbers={"silence_s": round(silence_s, 1)},
        )

    def busy(self, member: Member, busy: bool, lasted_s: float, cpu_cores: float) -> None:
        self.note(
            EventKind.INSTANCE_BUSY if busy else EventKind.INSTANCE_QUIET,
            f"busy-{member.member_id}-{member.incarnation}",
            "it computes without a request" if busy else "no more computing without a request",
            instance_id=member.member_id,
            incarnation=member.incarnation,
            numbers={"lasted_s": round(lasted_s, 1), "cpu_cores": round(cpu_cores, 2)},
        )

    def admission(self, record: PutOnRecord) -> None:
        self.note(
            record.kind,
            record.cause_id,
            record.reason,
            instance_id=record.instance_id,
            frontend_id=record.frontend_id,
            request_id=record.request_id,
            numbers=record.numbers,
        )

    def operator(self, cause_id: str, actor: str, what: str) -> None:
        self.note(EventKind.OPERATOR, cause_id, what, actor=actor)
