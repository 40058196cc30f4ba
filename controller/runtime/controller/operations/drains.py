"""Drains as the controller runs them: begun, undone, watched until nothing is left.

The spec has the instance, the deadline and what comes after it, so a controller that starts again
goes on with a drain; it only forgets how many requests have moved. The rescheduler orders the
moves: an instance that drains is the least free of all.

A request that was dispatched before the drain may arrive after it began: it is served, and moved
like the others. An instance is drained when it reports that it takes no moves and has no requests,
and every frontend answers that none of its requests is there.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from controller.api.errors import LlumctlError
from controller.core.migration.record import MoveRecord
from controller.core.operations.cluster_spec import ClusterSpec, DrainOrder
from controller.core.operations.departure_plan import Departure
from controller.core.operations.drain import DrainState, Remainder, is_overdue, why_begun
from controller.core.operations.restart import InstanceProcess, RestartStep, restart_step
from controller.core.record.event_log import EventKind, Number
from controller.core.scheduler_events import DrainBegan, DrainEnded
from controller.ports.launcher import LauncherLostError
from controller.runtime.controller.operations.departures import Departures
from controller.runtime.controller.operations.operated_cluster import OperatedCluster
from controller.runtime.controller.operations.remainders import Remainders
from controller.runtime.controller.roster import Member
from controller.runtime.messages.operations import DrainSet

log = logging.getLogger(__name__)

# Between two questions to the frontends whether anything is left, and two tries to remove.
CHECK_EVERY_S = 0.3
# After a failure: a disk is full, or a process cannot be ended.
RETRY_S = 1.0
# A process that was to be replaced, and is still there, is ended again after so long.
REPLACE_AGAIN_S = 10.0
_NAMED_IN_EVENT = 5


class OperationRefusedError(Exception):
    """The operation was not done, and nothing changed."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code, self.message, self.hint = code, message, hint


@dataclass(frozen=True, slots=True)
class DrainProgress:
    """`order`: None if the instance is not being drained."""

    instance_id: str
    state: DrainState
    order: DrainOrder | None
    num_left: int
    num_moving: int
    num_moved: int

    @property
    def safe_to_delete(self) -> bool:
        stays = self.order is None or not self.order.restarts
        return self.state is DrainState.DRAINED and stays


@dataclass(slots=True)
class _Watched:
    """What only this process knows of a drain."""

    num_moved: int = 0
    drained: bool = False
    replaced: bool = False
    """Its process was told to end, so that another one comes."""
    told_drained: bool = False
    told_overdue: bool = False
    check_at_s: float = float("-inf")
    retry_at_s: float = float("-inf")
    task: asyncio.Task[None] | None = None


class Drains:
    def __init__(
        self,
        cluster: OperatedCluster,
        departures: Departures,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._cluster = cluster
        self._log = cluster.journal.drain
        self._departures = departures
        self._wall_clock = wall_clock
        self._watched: dict[tuple[str, str], _Watched] = {}
        """By (instance, drain)."""
        self._remainders = Remainders(cluster)

    # -- what operators do ---------------------------------------------------------------

    def check(self, instance_ids: Sequence[str], despite: str = "drain {} --force") -> None:
        """Raises OperationRefusedError if no instance would serve beside these. `despite`: the
        command that does it all the same."""
        cluster, now_s = self._cluster, self._cluster.now_s()
        drained = {*instance_ids, *cluster.keeper.spec.drains}
        for record in cluster.scheduler.instances.values():
            if record.instance_id not in drained and record.schedulable(now_s):
                return
        names = ", ".join(instance_ids)
        raise OperationRefusedError(
            "last_instance",
            f"without {names} no instance would serve",
            f"llumctl scale +1      or      llumctl {despite.format(' '.join(instance_ids))}",
        )

    def begin(self, orders: Sequence[DrainOrder]) -> None:
        """Begins drains. A drain that goes on keeps its id and its counts, and still removes its
        instance if it was to; for the rest the new order counts."""
        self.carry_out(self._cluster.keeper.spec.with_drains(*self.following(orders)))

    def end(self, instance_id: str, why: str, actor: str = "") -> None:
        """Ends a drain: requests stay where they are, and the instance takes new ones. Does nothing
        if the instance is not being drained."""
        spec = self._cluster.keeper.spec
        if instance_id in spec.drains:
            self.carry_out(spec.without_drain(instance_id), why, actor)

    def must_go(self, member: Member, within_s: float) -> None:
        """The instance says that its process will be ended: it is evacuated. Does nothing if it is
        being evacuated already."""
        known = self._cluster.keeper.spec.drains.get(member.member_id)
        is_planned = member.member_id in self._cluster.keeper.spec.instance_ids
        if not is_planned or (known is not None and known.evacuates):
            return
        now_s = self._wall_clock()
        order = DrainOrder(
            f"notice-{member.member_id}-{member.incarnation}",
            member.member_id,
            now_s,
            deadline_s=now_s + max(0.0, within_s),
            removes=True,
            evacuates=True,
            reason="its process was told to end",
        )
        try:
            self.begin([order])
        except LlumctlError as error:  # it says so again in a second
            log.error("%s must go, and is not evacuated: %s", member.member_id, error)

    def following(self, orders: Sequence[DrainOrder]) -> list[DrainOrder]:
        known = self._cluster.keeper.spec.drains
        return [order.following(known.get(order.instance_id)) for order in orders]

    def carry_out(self, spec: ClusterSpec, why: str = "", actor: str = "") -> None:
        """Makes `spec` the present one, and begins, changes and ends drains accordingly. `why` and
        `actor` are for drains that end. Raises what the keeper raises, and changes nothing then."""
        before = self._cluster.keeper.spec.drains
        self._cluster.keeper.change(spec)
        self._note_evacuated()
        for instance_id, order in spec.drains.items():
            if order is not before.get(instance_id):
                self._began(order, before.get(instance_id))
        for instance_id, order in before.items():
            if instance_id not in spec.drains:
                self._ended(order, why, actor)
        self._cluster.directories.tell()

    def _began(self, order: DrainOrder, before: DrainOrder | None) -> None:
        """`before`: the order that `order` follows, or replaces."""
        if before is not None and before.drain_id != order.drain_id:
            self._forget(before)
        self._watch(order).told_overdue = False
        if before is None:
            self._cluster.handle(DrainBegan(order.instance_id))
        if before is None or order.evacuates:
            self._tell_instance(order.instance_id)
        left = self._remainders.num_requests(order.instance_id)
        numbers: dict[str, Number] = {"num_requests_left": left}
        if order.deadline_s is not None:
            numbers["deadline_in_s"] = round(order.deadline_s - self._wall_clock(), 1)
        self._log(EventKind.DRAIN_STARTED, order, why_begun(order, before), order.actor, numbers)

    def _ended(self, order: DrainOrder, why: str, actor: str) -> None:
        watched = self._forget(order)
        self._cluster.handle(DrainEnded(order.instance_id))
        self._tell_instance(order.instance_id)
        left = self._remainders.num_requests(order.instance_id)
        numbers = {"num_requests_left": left, "num_moved": watched.num_moved}
        self._log(EventKind.DRAIN_ENDED, order, why, actor, numbers)

    # -- how far they are ----------------------------------------------------------------

    def progress(self, instance_id: str) -> DrainProgress:
        order = self._cluster.keeper.spec.drains.get(instance_id)
        left = self._remainders.of(instance_id) or Remainder()
        if order is None:
            state, watched = DrainState.ACTIVE, _Watched()
        else:
            watched = self._watch(order)
            state = DrainState.DRAINED if watched.drained else DrainState.DRAINING
            if self._is_restarting(order):
                state = DrainState.RESTARTING
        return DrainProgress(
            instance_id, state, order, left.num_requests, left.num_moves_out, watched.num_moved
        )

    def is_replacing(self, instance_id: str) -> bool:
        """Whether the instance's process ends because it is restarted."""
        order = self._cluster.keeper.spec.drains.get(instance_id)
        return order is not None and bool(order.restarts) and self._watch(order).replaced

    # -- what the controller says --------------------------------------------------------

    def resume(self) -> None:
        """Goes on with the spec's drains, before any instance is heard."""
        self._remainders.resume()
        self._note_evacuated()
        for instance_id in self._cluster.keeper.spec.drains:
            self._cluster.handle(DrainBegan(instance_id))

    def began_serving(self, member: Member) -> None:
        self._tell_instance(member.member_id)

    def move_ended(self, record: MoveRecord) -> None:
        order = self._cluster.keeper.spec.drains.get(record.source_id)
        if order is not None and record.outcome == "migrated":
            self._watch(order).num_moved += 1

    def tick(self) -> None:
        """Looks at each drain. A failure of one does not touch the others, and is tried again."""
        now_s = self._cluster.now_s()
        for order in list(self._cluster.keeper.spec.drains.values()):
            watched = self._watch(order)
            if now_s < watched.retry_at_s:
                continue
            try:
                self._look_at(order)
            except Exception as error:
                watched.retry_at_s = now_s + RETRY_S
                is_defect = not isinstance(error, LlumctlError | LauncherLostError)
                log.error("drain of %s: %s", order.instance_id, error, exc_info=is_defect)

    # -- inside --------------------------------------------------------------------------

    def _look_at(self, order: DrainOrder) -> None:
        watched = self._watch(order)
        left, now_s = self._remainders.of(order.instance_id), self._cluster.now_s()
        if left is not None:
            empty = left.nothing and self._remainders.takes_nothing(order.instance_id)
            watched.drained = watched.drained and empty
            may_ask = watched.task is None and now_s >= watched.check_at_s
            if empty and may_ask and not watched.drained:
                watched.check_at_s = now_s + CHECK_EVERY_S
                self._run(watched, self._ask_frontends(order, watched))
        if order.restarts and self._restart(order, watched):
            return
        if watched.drained:
            if order.removes and now_s >= watched.check_at_s:
                self._remove(order, watched)
        elif is_overdue(order, self._wall_clock()):
            if order.evacuates:
                self._remove(order, watched)
            else:
                self._overdue(order, watched)

    async def _ask_frontends(self, order: DrainOrder, watched: _Watched) -> None:
        """Asks the frontends whether they have requests there, whose last tokens may be on their
        way; if not, the instance is drained."""
        frontends = self._cluster.roster.frontends()
        if any(f.heard_s is None for f in frontends) and not self._remainders.waited:
            return
        found = await self._cluster.queries.requests(
            [f.member_id for f in frontends if f.serving],
            instance_id=order.instance_id,
            max_requests=1,
        )
        left = self._remainders.of(order.instance_id)
        is_empty = left is not None and left.nothing
        if found.silent or found.num_matching or not is_empty or not self._goes_on(order):
            return
        watched.drained = True
        if not watched.told_drained:
            watched.told_drained = True
            took_s = round(self._wall_clock() - order.began_s, 3)
            numbers = {"num_moved": watched.num_moved, "took_s": took_s}
            self._log(EventKind.DRAINED, order, "nothing is left there", None, numbers)

    def _overdue(self, order: DrainOrder, watched: _Watched) -> None:
        if order.on_deadline == "abort":
            spec = self._cluster.keeper.spec.falling_back(order.instance_id)
            self.carry_out(spec, "its deadline passed: what is left stays")
        elif not watched.told_overdue and watched.task is None:
            watched.told_overdue = True
            self._run(watched, self._tell_overdue(order))

    async def _tell_overdue(self, order: DrainOrder) -> None:
        left = (await self._departures.of(order.instance_id)).departures
        if not self._goes_on(order):
            return
        stays = [each for each in left if each.destination_id is None]
        named = ", ".join(_named(each) for each in stays[:_NAMED_IN_EVENT])
        why = "its deadline passed, and it goes on"
        self._log(
            EventKind.DRAIN_OVERDUE,
            order,
            f"{why}: {named}" if named else why,
            None,
            {"num_requests_left": len(left), "num_cannot_move": len(stays)},
        )

    def _remove(self, order: DrainOrder, watched: _Watched) -> None:
        """Ends the process before it changes the spec: if this controller dies in between, the next
        one starts an empty instance and removes it. The other way round a process would run on that
        nobody knows."""
        instance_id, keeper = order.instance_id, self._cluster.keeper
        left = 0 if watched.drained else self._remainders.num_requests(instance_id)
        self._cluster.terminate(instance_id)
        keeper.change(keeper.spec.without_instance(instance_id))
        self._note_evacuated()
        self._forget(order)
        numbers: dict[str, Number] = {"num_requests_left": left, "num_moved": watched.num_moved}
        why = "the instance was removed"
        if order.evacuates:
            why = "evacuated in time" if watched.drained else "it had to go with what was left"
        self._log(EventKind.DRAIN_ENDED, order, why, None, numbers)
        self._cluster.directories.tell()

    def _restart(self, order: DrainOrder, watched: _Watched) -> bool:
        """Takes the next step of a restart; False while the instance has to be emptied."""
        instance_id, cluster = order.instance_id, self._cluster
        member = cluster.roster.members.get(instance_id)
        if member is None:
            return False
        failed = member.alive and member.phase == "failed"
        process = InstanceProcess(member.nonce, member.alive, member.serving, failed)
        step = restart_step(order, process, is_empty=watched.drained)
        if step in (RestartStep.DONE, RestartStep.FAILED):
            done = step is RestartStep.DONE
            why = "its process was restarted" if done else f"it could not start: {member.detail}"
            watched.replaced, watched.check_at_s = False, float("-inf")
            self.carry_out(cluster.keeper.spec.falling_back(instance_id), why)
        elif step is RestartStep.REPLACE and cluster.now_s() >= watched.check_at_s:
            cluster.restart(instance_id)
            watched.replaced = True
            watched.check_at_s = cluster.now_s() + REPLACE_AGAIN_S
        return step is not RestartStep.WAIT or self._is_restarting(order)

    def _is_restarting(self, order: DrainOrder) -> bool:
        member = self._cluster.roster.members.get(order.instance_id)
        is_another = member is not None and member.nonce not in ("", order.restarts)
        return bool(order.restarts) and (is_another or self._watch(order).replaced)

    def _goes_on(self, order: DrainOrder) -> bool:
        known = self._cluster.keeper.spec.drains.get(order.instance_id)
        return known is not None and known.drain_id == order.drain_id

    def _tell_instance(self, instance_id: str) -> None:
        member = self._cluster.roster.members.get(instance_id)
        if member is not None and member.serving:
            order = self._cluster.keeper.spec.drains.get(instance_id)
            leaves_in_s = None
            if order is not None and order.evacuates and order.deadline_s is not None:
                leaves_in_s = order.deadline_s - self._wall_clock()
            self._cluster.mail.send(member, DrainSet(order is not None, leaves_in_s))

    def _note_evacuated(self) -> None:
        drains = self._cluster.keeper.spec.drains
        evacuated = frozenset(key for key, order in drains.items() if order.evacuates)
        self._cluster.rescheduler.evacuated = evacuated

    def _watch(self, order: DrainOrder) -> _Watched:
        return self._watched.setdefault((order.instance_id, order.drain_id), _Watched())

    def _forget(self, order: DrainOrder) -> _Watched:
        return self._watched.pop((order.instance_id, order.drain_id), None) or _Watched()

    def _run(self, watched: _Watched, work: Coroutine[Any, Any, None]) -> None:
        watched.task = task = asyncio.get_running_loop().create_task(work)

        def over(done: asyncio.Task[None]) -> None:
            watched.task = None
            if not done.cancelled() and (error := done.exception()) is not None:
                log.error("a drain could not be looked at", exc_info=error)

        task.add_done_callback(over)


def _named(departure: Departure) -> str:
    return f"{departure.request.request_id} {departure.code}"
