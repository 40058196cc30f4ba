"""Rolling restarts as the controller runs them: `rolling_step` decides, drains do the work.

The spec has the order and how far it is, so a controller that starts again goes on with it; it only
counts the time that a new process may take from its own start.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import replace

from controller.api.errors import LlumctlError
from controller.api.text.engine_arguments import arguments
from controller.core.emptying.claims import Restart
from controller.core.load.snapshot import InstanceSnapshot
from controller.core.operations.drain import DrainState
from controller.core.operations.rolling import (
    NO_OTHER_SERVES,
    InstanceNow,
    RollingOrder,
    RollingStep,
    Turn,
    in_turn,
    rolling_step,
    stopped,
)
from controller.core.record.event_log import EventKind, Number
from controller.runtime.controller.operations.drains import Drains, OperationRefusedError
from controller.runtime.controller.operations.operated_cluster import OperatedCluster
from controller.runtime.controller.roster import Member

log = logging.getLogger(__name__)

# After a failure: a disk is full.
RETRY_S = 1.0


class RollingRestarts:
    def __init__(
        self,
        cluster: OperatedCluster,
        drains: Drains,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._cluster = cluster
        self._drains = drains
        self.wall_clock = wall_clock
        self._away_since_s: dict[str, float] = {}
        """By instance: when its process was first seen to have ended for its restart."""
        self._emptied_s: dict[str, float] = {}
        """By instance: how long it took until its process could be ended."""
        self._retry_at_s = float("-inf")
        self.waits = ""
        """Why the next instance must wait, if that is not for its turn."""

    @property
    def order(self) -> RollingOrder | None:
        """The last rolling restart, also when it is over."""
        return self._cluster.keeper.spec.rolling

    @property
    def goes(self) -> bool:
        return self.order is not None and self.order.goes

    def turn(self) -> tuple[str, ...]:
        """The order in which a rolling restart that began now would take the instances."""
        return in_turn(self._instances())

    # -- what operators do ---------------------------------------------------------------

    def check(self, *, force: bool) -> None:
        """Raises OperationRefusedError if no rolling restart can begin now."""
        if self.goes:
            raise OperationRefusedError(
                "rolling", "a rolling restart goes on already", "llumctl restart --stop"
            )
        instances = self._instances()
        if not in_turn(instances):
            raise OperationRefusedError(
                "no_instances", "there is no instance to restart", "llumctl status"
            )
        to_serve = [each for each in instances if each.takes_requests or not each.serving]
        if len(to_serve) == 1 and to_serve[0].takes_requests and not force:
            raise OperationRefusedError(
                "last_instance",
                f"{NO_OTHER_SERVES} while the last one is restarted",
                "llumctl scale +1      or      llumctl restart --rolling --force",
            )

    def begin(self, order: RollingOrder) -> None:
        """Begins with `order`, which gets its instances now."""
        order = replace(order, left=self.turn())
        self._cluster.keeper.change(self._cluster.keeper.spec.with_rolling(order))
        self._away_since_s.clear()
        self._emptied_s.clear()
        numbers: dict[str, Number] = {"num_instances": len(order.left)}
        why = order.reason or "all instances get a new process"
        if order.engine.args:
            why = f"{why}; engine arguments: {arguments(order.engine.args)}"
        self._tell(EventKind.ROLLING_STARTED, order, why, order.actor, numbers)

    def stop(self, why: str, actor: str) -> None:
        """Restarts that can be taken back are; those whose process has ended go on by themselves.
        Does nothing if no rolling restart goes on."""
        order = self.order
        if order is not None and order.goes:
            step = stopped(order, self._instances(), why, self.wall_clock())
            self._carry_out(order, step, actor)

    def dismiss(self) -> None:
        """It is over, and an operator has seen how."""
        order, keeper = self.order, self._cluster.keeper
        if order is not None and not (order.goes or order.dismissed):
            keeper.change(keeper.spec.dismissed(order))

    # -- how it goes on ------------------------------------------------------------------

    def tick(self) -> None:
        """A failure is tried again."""
        order, now_s = self.order, self._cluster.now_s()
        if order is None or not order.goes or now_s < self._retry_at_s:
            return
        try:
            self._carry_out(order, rolling_step(order, self._instances(), self.wall_clock()))
        except Exception as error:
            self._retry_at_s = now_s + RETRY_S
            is_defect = not isinstance(error, LlumctlError)
            log.error("the rolling restart: %s", error, exc_info=is_defect)

    def _carry_out(self, before: RollingOrder, step: RollingStep, actor: str = "") -> None:
        self.waits = step.waits
        order = step.order
        if order is before:
            return
        spec = self._cluster.keeper.spec
        restarts = {each: self._restart(order, each) for each in step.begins}
        restarts |= {each: self._put_back(order, each) for each in step.put_back}
        why = f"the rolling restart ended: {order.why}"
        taken_back = (*step.taken_back, *step.put_back)
        after = spec.with_rolling(order, restarts, taken_back, step.engines)
        self._drains.carry_out(after, why, actor)
        self._tell_done(before, order)
        if order.goes:
            return
        numbers: dict[str, Number] = {
            "num_restarted": len(order.done),
            "num_left": len(order.left),
            "took_s": round(self.wall_clock() - order.began_s, 3),
        }
        if order.state == "failed":
            self._tell(EventKind.ROLLING_FAILED, order, order.why, actor, numbers, order.failed_id)
            return
        told = order.why or "every instance has a new process"
        self._tell(EventKind.ROLLING_ENDED, order, told, actor, numbers)

    def _restart(self, order: RollingOrder, instance_id: str) -> Restart:
        """Its deadline gives the restart up; what is left stays where it runs."""
        now_s = self.wall_clock()
        return Restart(
            order.order_id,
            now_s,
            deadline_s=None if order.deadline_s is None else now_s + order.deadline_s,
            on_deadline="keep" if order.deadline_s is None else "abort",
            nonce=self._cluster.roster.members[instance_id].nonce,
            actor=order.actor,
            reason=order.reason,
        )

    def _put_back(self, order: RollingOrder, instance_id: str) -> Restart:
        """One more restart, now with the arguments of before: at once if the process serves nobody.
        It stands in place of the claim to restart the process of before."""
        member = self._cluster.roster.members[instance_id]
        return Restart(
            f"{order.order_id}-back",
            self.wall_clock(),
            nonce=member.nonce,
            at_once=not member.serving,
            actor=order.actor,
            reason="it gets the engine arguments that it had",
        )

    def _tell_done(self, before: RollingOrder, order: RollingOrder) -> None:
        for instance_id, took_s in order.done.items():
            if instance_id in before.done:
                continue
            numbers: dict[str, Number] = {"took_s": took_s}
            if (emptied_s := self._emptied_s.get(instance_id)) is not None:
                numbers["emptied_s"] = round(emptied_s, 3)
            why = "its next process serves"
            self._tell(EventKind.ROLLING_STEPPED, order, why, "", numbers, instance_id)

    # -- how things stand ----------------------------------------------------------------

    def _instances(self) -> list[InstanceNow]:
        spec, roster = self._cluster.keeper.spec, self._cluster.roster
        known = [(each, roster.members.get(each)) for each in spec.instance_ids]
        return [self._now(member) for _, member in known if member is not None]

    def _now(self, member: Member) -> InstanceNow:
        cluster, instance_id = self._cluster, member.member_id
        claims = cluster.keeper.spec.drains.get(instance_id)
        turn = self._turn(instance_id)
        restart = claims.restart if claims is not None and claims.restarts else None
        ordered = restart is not None and turn is not None and restart.nonce == turn.nonce
        record = cluster.scheduler.instances.get(instance_id)
        snapshot = record.snapshot if record is not None else None
        now = InstanceNow(
            instance_id,
            member.nonce,
            serving=member.serving,
            failed=member.alive and member.phase == "failed",
            detail=member.detail,
            removes=claims is not None and claims.goes,
            ordered=ordered,
            away_s=self._away_s(turn if ordered else None),
            takes_requests=record is not None and record.schedulable(cluster.now_s()),
            alive=member.alive,
            engine=cluster.keeper.spec.engine_of(instance_id),
            fingerprint=member.fingerprint,
            max_model_len=0 if member.info is None else member.info.max_model_len,
        )
        return now if snapshot is None else _with_load(now, snapshot)

    def _turn(self, instance_id: str) -> Turn | None:
        """Its turn, if that is under way."""
        turns = self.order.under_way if self.order is not None else ()
        return next((turn for turn in turns if turn.instance_id == instance_id), None)

    def _away_s(self, turn: Turn | None) -> float | None:
        """How long ago the process ended that is to go; None: it has not."""
        if turn is None:
            return None
        instance_id = turn.instance_id
        if self._drains.progress(instance_id).state is not DrainState.RESTARTING:
            self._away_since_s.pop(instance_id, None)
            return None
        now_s = self._cluster.now_s()
        if instance_id not in self._away_since_s:
            self._away_since_s[instance_id] = now_s
            self._emptied_s[instance_id] = self.wall_clock() - turn.began_s
        return now_s - self._away_since_s[instance_id]

    def _tell(
        self,
        kind: EventKind,
        order: RollingOrder,
        reason: str,
        actor: str,
        numbers: dict[str, Number],
        instance_id: str = "",
    ) -> None:
        journal = self._cluster.journal
        journal.rolling(kind, order.order_id, reason, actor, numbers, instance_id)


def _with_load(now: InstanceNow, snapshot: InstanceSnapshot) -> InstanceNow:
    size = snapshot.block_size
    num_requests = snapshot.num_running + snapshot.num_queued
    places = snapshot.max_num_running
    return replace(
        now,
        num_tokens=size * (snapshot.num_used_blocks + snapshot.queued_demand_blocks),
        num_requests=num_requests,
        free_tokens=size * snapshot.unclaimed_blocks,
        free_places=places - num_requests if places else None,
    )
