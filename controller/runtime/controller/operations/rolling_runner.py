"""Runs rolling restarts: tells the core's machine how instances stand, saves the steps that it asks
for, and has drains do the work. `core.operations.rolling` decides.
"""

import logging
import time
from collections.abc import Callable

from controller.api.errors import LlumctlError
from controller.api.text.rolling_words import arguments
from controller.core.emptying.drains import DrainState
from controller.core.operations.cluster_spec import RollingOrder
from controller.core.operations.rolling import (
    NO_OTHER_SERVES,
    Began,
    ChangeSpec,
    Event,
    InstanceNow,
    RollingRefusal,
    RollingRestart,
    SpecChanged,
    SpecNotChanged,
    Stopped,
    Tell,
    Ticked,
    in_turn,
    refusal,
)
from controller.runtime.controller.operations.drain_runner import DrainRunner
from controller.runtime.controller.operations.operated_cluster import (
    OperatedCluster,
    OperationRefusedError,
)
from controller.runtime.controller.roster import Member

log = logging.getLogger(__name__)

_REFUSED = {
    RollingRefusal.GOES: ("a rolling restart goes on already", "llumctl restart --stop"),
    RollingRefusal.NO_INSTANCES: ("there is no instance to restart", "llumctl status"),
    RollingRefusal.LAST_INSTANCE: (
        f"{NO_OTHER_SERVES} while the last one is restarted",
        "llumctl scale +1      or      llumctl restart --rolling --force",
    ),
}


class RollingRestarts:
    def __init__(
        self,
        cluster: OperatedCluster,
        drains: DrainRunner,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._cluster = cluster
        self._drains = drains
        self._machine = RollingRestart()
        self.wall_clock = wall_clock

    @property
    def order(self) -> RollingOrder | None:
        """The last rolling restart, also when it is over."""
        return self._cluster.keeper.spec.rolling

    @property
    def goes(self) -> bool:
        return self.order is not None and self.order.goes

    @property
    def waits(self) -> str:
        """Why the next instance must wait, if that is not for its turn."""
        return self._machine.waits

    def turn(self) -> tuple[str, ...]:
        """The order in which a rolling restart that began now would take the instances."""
        return in_turn(self._seen())

    # -- what operators do ---------------------------------------------------------------

    def check(self, *, force: bool) -> None:
        """Raises OperationRefusedError if no rolling restart can begin now."""
        found = refusal(self.order, self._seen(), force=force)
        if found is not None:
            raise OperationRefusedError(found.value, *_REFUSED[found])

    def begin(self, order: RollingOrder) -> None:
        """Begins with `order`, which gets its instances now. Raises what the keeper raises, as
        `stop` and `dismiss`, and changes nothing then."""
        args = order.engine.args
        self._say(Began(order, self._seen(), arguments(args) if args else ""))

    def stop(self, why: str, actor: str) -> None:
        """Restarts that can be taken back are; those whose process has ended go on by themselves.
        Does nothing if no rolling restart goes on."""
        if self.order is not None:
            self._say(Stopped(self.order, self._seen(), self.wall_clock(), why, actor))

    def dismiss(self) -> None:
        """It is over, and an operator has seen how."""
        order, keeper = self.order, self._cluster.keeper
        if order is not None and not (order.goes or order.dismissed):
            keeper.change(keeper.spec.dismissed(order))

    # -- how it goes on ------------------------------------------------------------------

    def tick(self) -> None:
        """A failure is tried again."""
        try:
            self._say(Ticked(self.order, self._seen() if self.goes else (), self.wall_clock()))
        except Exception as error:
            self._machine.handle(SpecNotChanged(), self._cluster.now_s())
            is_defect = not isinstance(error, LlumctlError)
            log.error("the rolling restart: %s", error, exc_info=is_defect)

    def _say(self, event: Event) -> None:
        cluster = self._cluster
        for instruction in self._machine.handle(event, cluster.now_s()):
            match instruction:
                case Tell(kind, order, reason, numbers, actor, instance_id):
                    cluster.journal.note(
                        kind,
                        order.order_id,
                        reason,
                        instance_id=instance_id,
                        actor=actor,
                        numbers=numbers,
                    )
                case ChangeSpec():
                    self._change(instruction)
                    self._say(SpecChanged(self.wall_clock()))

    def _change(self, step: ChangeSpec) -> None:
        spec = self._cluster.keeper.spec
        after = spec.with_rolling(step.order, step.restarts, step.taken_back, step.engines)
        self._drains.carry_out(after, step.why, step.actor)

    # -- how things stand ----------------------------------------------------------------

    def _seen(self) -> list[InstanceNow]:
        spec, members = self._cluster.keeper.spec, self._cluster.roster.members
        return [self._now(members[each]) for each in spec.instance_ids if each in members]

    def _now(self, member: Member) -> InstanceNow:
        cluster, instance_id = self._cluster, member.member_id
        claims = cluster.keeper.spec.drains.get(instance_id)
        record = cluster.scheduler.instances.get(instance_id)
        restart = claims.restart if claims is not None and claims.restarts else None
        state = DrainState.ACTIVE
        if restart is not None:
            state = self._drains.progress(instance_id).state
        now = InstanceNow(
            instance_id,
            member.nonce,
            serving=member.serving,
            failed=member.alive and member.phase == "failed",
            detail=member.detail,
            alive=member.alive,
            removes=claims is not None and claims.goes,
            restarts="" if restart is None else restart.nonce,
            is_away=state is DrainState.RESTARTING,
            takes_requests=record is not None and record.schedulable,
            engine=cluster.keeper.spec.engine_of(instance_id),
            fingerprint=member.said.fingerprint,
            max_model_len=0 if member.info is None else member.info.max_model_len,
        )
        if record is None or record.snapshot is None:
            return now
        return now.with_load(record.snapshot)
