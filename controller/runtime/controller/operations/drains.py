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
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controller.api.errors import LlumctlError
from controller.core.emptying.claims import (
    Claim,
    Claims,
    Evacuate,
    Restart,
    newest,
    why_claimed,
)
from controller.core.migration.record import MoveRecord
from controller.core.operations.cluster_spec import ClusterSpec
from controller.core.operations.departure_plan import Departure
from controller.core.operations.drain import DrainState, Remainder
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
    """`claims`: None if the instance is not being drained."""

    instance_id: str
    state: DrainState
    claims: Claims | None
    num_left: int
    num_moving: int
    num_moved: int

    @property
    def safe_to_delete(self) -> bool:
        stays = self.claims is None or not self.claims.restarts
        return self.state is DrainState.DRAINED and stays


@dataclass(slots=True)
class _Watched:
    """What only this process knows of a drain."""

    num_moved: int = 0
    drained: bool = False
    replaced: str = ""
    """The nonce of the process that was told to end, so that another one comes."""
    told_drained: bool = False
    told_overdue: bool = False
    replace_at_s: float = float("-inf")
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

    def begin(self, claims: Mapping[str, Claim]) -> None:
        """Makes a claim to each of these instances. A drain that goes on keeps its id and its
        counts."""
        self.carry_out(self._cluster.keeper.spec.with_claims(claims))

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
        if not is_planned or (known is not None and known.notice is not None):
            return
        now_s = self._wall_clock()
        claim = Evacuate(
            f"notice-{member.member_id}-{member.incarnation}",
            now_s,
            deadline_s=now_s + max(0.0, within_s),
            reason="its process was told to end",
        )
        try:
            self.begin({member.member_id: claim})
        except LlumctlError as error:  # it says so again in a second
            log.error("%s must go, and is not evacuated: %s", member.member_id, error)

    def carry_out(self, spec: ClusterSpec, why: str = "", actor: str = "") -> None:
        """Makes `spec` the present one, and begins, changes and ends drains accordingly. `why` and
        `actor` are for drains that end. Raises what the keeper raises, and changes nothing then."""
        before = self._cluster.keeper.spec.drains
        self._cluster.keeper.change(spec)
        self._note_evacuated()
        for instance_id, claims in spec.drains.items():
            if claims is not before.get(instance_id):
                self._began(instance_id, claims, before.get(instance_id))
        for instance_id, claims in before.items():
            if instance_id not in spec.drains:
                self._ended(instance_id, claims, why, actor)
        self._cluster.directories.tell()

    def _began(self, instance_id: str, claims: Claims, before: Claims | None) -> None:
        """`before`: the claims of before, to the same drain or to one that ended with this."""
        if before is not None and before.drain_id != claims.drain_id:
            self._forget(instance_id, before)
        self._watch(instance_id, claims).told_overdue = False
        if before is None:
            self._cluster.handle(DrainBegan(instance_id))
        if before is None or claims.notice is not before.notice:
            self._tell_instance(instance_id)
        left = self._remainders.num_requests(instance_id)
        numbers: dict[str, Number] = {"num_requests_left": left}
        deadline_s = claims.strongest.deadline_s
        if deadline_s is not None:
            numbers["deadline_in_s"] = round(deadline_s - self._wall_clock(), 1)
        actor = (newest(claims, before) or claims.strongest).actor
        why = why_claimed(claims, before)
        self._log(EventKind.DRAIN_STARTED, instance_id, claims.drain_id, why, actor, numbers)

    def _ended(self, instance_id: str, claims: Claims, why: str, actor: str) -> None:
        watched = self._forget(instance_id, claims)
        self._cluster.handle(DrainEnded(instance_id))
        self._tell_instance(instance_id)
        left = self._remainders.num_requests(instance_id)
        numbers: dict[str, Number] = {"num_requests_left": left, "num_moved": watched.num_moved}
        self._log(EventKind.DRAIN_ENDED, instance_id, claims.drain_id, why, actor, numbers)

    # -- how far they are ----------------------------------------------------------------

    def progress(self, instance_id: str) -> DrainProgress:
        claims = self._cluster.keeper.spec.drains.get(instance_id)
        left = self._remainders.of(instance_id) or Remainder()
        if claims is None:
            state, watched = DrainState.ACTIVE, _Watched()
        else:
            watched = self._watch(instance_id, claims)
            state = DrainState.DRAINED if watched.drained else DrainState.DRAINING
            if self._is_restarting(instance_id, claims):
                state = DrainState.RESTARTING
        return DrainProgress(
            instance_id, state, claims, left.num_requests, left.num_moves_out, watched.num_moved
        )

    def is_replacing(self, instance_id: str) -> bool:
        """Whether the instance's process ends because it is restarted."""
        claims = self._cluster.keeper.spec.drains.get(instance_id)
        if claims is None or not isinstance(claims.strongest, Restart):
            return False
        return self._watch(instance_id, claims).replaced == claims.strongest.nonce

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
        claims = self._cluster.keeper.spec.drains.get(record.source_id)
        if claims is not None and record.outcome == "migrated":
            self._watch(record.source_id, claims).num_moved += 1

    def tick(self) -> None:
        """Looks at each drain. A failure of one does not touch the others, and is tried again."""
        now_s = self._cluster.now_s()
        for instance_id, claims in list(self._cluster.keeper.spec.drains.items()):
            watched = self._watch(instance_id, claims)
            if now_s < watched.retry_at_s:
                continue
            try:
                self._look_at(instance_id, claims)
            except Exception as error:
                watched.retry_at_s = now_s + RETRY_S
                is_defect = not isinstance(error, LlumctlError | LauncherLostError)
                log.error("drain of %s: %s", instance_id, error, exc_info=is_defect)

    # -- inside --------------------------------------------------------------------------

    def _look_at(self, instance_id: str, claims: Claims) -> None:
        watched = self._watch(instance_id, claims)
        left, now_s = self._remainders.of(instance_id), self._cluster.now_s()
        if left is not None:
            empty = left.nothing and self._remainders.takes_nothing(instance_id)
            watched.drained = watched.drained and empty
            may_ask = watched.task is None and now_s >= watched.check_at_s
            if empty and may_ask and not watched.drained:
                watched.check_at_s = now_s + CHECK_EVERY_S
                self._run(watched, self._ask_frontends(instance_id, claims, watched))
        claim = claims.strongest
        if isinstance(claim, Restart) and self._restart(instance_id, claims, claim, watched):
            return
        if watched.drained:
            if claims.goes and now_s >= watched.check_at_s:
                self._remove(instance_id, claims, watched)
        elif claim.is_overdue(self._wall_clock()):
            if isinstance(claim, Evacuate):
                self._remove(instance_id, claims, watched)
            else:
                self._overdue(instance_id, claims, watched)

    async def _ask_frontends(self, instance_id: str, claims: Claims, watched: _Watched) -> None:
        """Asks the frontends whether they have requests there, whose last tokens may be on their
        way; if not, the instance is drained."""
        frontends = self._cluster.roster.frontends()
        if any(f.heard_s is None for f in frontends) and not self._remainders.waited:
            return
        found = await self._cluster.queries.requests(
            [f.member_id for f in frontends if f.serving],
            instance_id=instance_id,
            max_requests=1,
        )
        left = self._remainders.of(instance_id)
        is_empty = left is not None and left.nothing
        goes_on = self._goes_on(instance_id, claims)
        if found.silent or found.num_matching or not is_empty or not goes_on:
            return
        watched.drained = True
        if not watched.told_drained:
            watched.told_drained = True
            took_s = round(self._wall_clock() - claims.began_s, 3)
            numbers: dict[str, Number] = {"num_moved": watched.num_moved, "took_s": took_s}
            why = "nothing is left there"
            self._log(EventKind.DRAINED, instance_id, claims.drain_id, why, None, numbers)

    def _overdue(self, instance_id: str, claims: Claims, watched: _Watched) -> None:
        claim = claims.strongest
        if claim.on_deadline == "abort":
            spec = self._cluster.keeper.spec.without_claim(instance_id, type(claim))
            self.carry_out(spec, "its deadline passed: what is left stays")
        elif not watched.told_overdue and watched.task is None:
            watched.told_overdue = True
            self._run(watched, self._tell_overdue(instance_id, claims))

    async def _tell_overdue(self, instance_id: str, claims: Claims) -> None:
        left = (await self._departures.of(instance_id)).departures
        if not self._goes_on(instance_id, claims):
            return
        stays = [each for each in left if each.destination_id is None]
        named = ", ".join(_named(each) for each in stays[:_NAMED_IN_EVENT])
        why = "its deadline passed, and it goes on"
        self._log(
            EventKind.DRAIN_OVERDUE,
            instance_id,
            claims.drain_id,
            f"{why}: {named}" if named else why,
            None,
            {"num_requests_left": len(left), "num_cannot_move": len(stays)},
        )

    def _remove(self, instance_id: str, claims: Claims, watched: _Watched) -> None:
        """Ends the process before it changes the spec: if this controller dies in between, the next
        one starts an empty instance and removes it. The other way round a process would run on that
        nobody knows."""
        keeper = self._cluster.keeper
        left = 0 if watched.drained else self._remainders.num_requests(instance_id)
        self._cluster.terminate(instance_id)
        keeper.change(keeper.spec.without_instance(instance_id))
        self._note_evacuated()
        self._forget(instance_id, claims)
        numbers: dict[str, Number] = {"num_requests_left": left, "num_moved": watched.num_moved}
        why = "the instance was removed"
        if claims.notice is not None:
            why = "evacuated in time" if watched.drained else "it had to go with what was left"
        self._log(EventKind.DRAIN_ENDED, instance_id, claims.drain_id, why, None, numbers)
        self._cluster.directories.tell()

    def _restart(self, instance_id: str, claims: Claims, claim: Restart, watched: _Watched) -> bool:
        """Takes the next step of a restart; False while the instance has to be emptied."""
        cluster = self._cluster
        member = cluster.roster.members.get(instance_id)
        if member is None:
            return False
        failed = member.alive and member.phase == "failed"
        process = InstanceProcess(member.nonce, member.alive, member.serving, failed)
        step = restart_step(claim, process, is_empty=watched.drained)
        if step in (RestartStep.DONE, RestartStep.FAILED):
            done = step is RestartStep.DONE
            why = "its process was restarted" if done else f"it could not start: {member.detail}"
            watched.replace_at_s = float("-inf")
            self.carry_out(cluster.keeper.spec.without_claim(instance_id, Restart), why)
        elif step is RestartStep.REPLACE and cluster.now_s() >= watched.replace_at_s:
            cluster.restart(instance_id)
            watched.replaced = claim.nonce
            watched.replace_at_s = cluster.now_s() + REPLACE_AGAIN_S
        return step is not RestartStep.WAIT or self._is_restarting(instance_id, claims)

    def _is_restarting(self, instance_id: str, claims: Claims) -> bool:
        claim, member = claims.strongest, self._cluster.roster.members.get(instance_id)
        if not isinstance(claim, Restart):
            return False
        is_another = member is not None and member.nonce not in ("", claim.nonce)
        return is_another or self._watch(instance_id, claims).replaced == claim.nonce

    def _goes_on(self, instance_id: str, claims: Claims) -> bool:
        known = self._cluster.keeper.spec.drains.get(instance_id)
        return known is not None and known.drain_id == claims.drain_id

    def _tell_instance(self, instance_id: str) -> None:
        member = self._cluster.roster.members.get(instance_id)
        if member is not None and member.serving:
            claims = self._cluster.keeper.spec.drains.get(instance_id)
            leaves_in_s = None
            if claims is not None and claims.notice is not None:
                moment_s = claims.notice.deadline_s
                leaves_in_s = None if moment_s is None else moment_s - self._wall_clock()
            self._cluster.mail.send(member, DrainSet(claims is not None, leaves_in_s))

    def _note_evacuated(self) -> None:
        drains = self._cluster.keeper.spec.drains
        evacuated = frozenset(key for key, claims in drains.items() if claims.notice is not None)
        self._cluster.rescheduler.evacuated = evacuated

    def _watch(self, instance_id: str, claims: Claims) -> _Watched:
        return self._watched.setdefault((instance_id, claims.drain_id), _Watched())

    def _forget(self, instance_id: str, claims: Claims) -> _Watched:
        return self._watched.pop((instance_id, claims.drain_id), None) or _Watched()

    def _run(self, watched: _Watched, work: Coroutine[Any, Any, None]) -> None:
        watched.task = task = asyncio.get_running_loop().create_task(work)

        def over(done: asyncio.Task[None]) -> None:
            watched.task = None
            if not done.cancelled() and (error := done.exception()) is not None:
                log.error("a drain could not be looked at", exc_info=error)

        task.add_done_callback(over)


def _named(departure: Departure) -> str:
    return f"{departure.request.request_id} {departure.code}"
