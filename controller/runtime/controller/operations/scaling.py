"""More instances, or fewer. Growing first keeps instances that were to be removed, then launches
new ones; shrinking drains instances and removes each when it is empty. Neither ends a request.

A second order while one goes on starts from the planned instances: those that start count, those to
be removed do not. The spec is saved first and then carried out; launches that fail are repeated.
"""

import logging
from collections.abc import Collection
from dataclasses import replace

from controller.core.emptying.claims import Remove
from controller.core.fleet.outlook import Launches
from controller.core.operations.cluster_spec import ScaleHold
from controller.core.operations.order_checks import OrderRefusal
from controller.core.operations.scaling import (
    ScalePlan,
    plan_scale,
    planned_instances,
    scale_refusal,
)
from controller.ports.launcher import Launcher
from controller.runtime.controller.operations.drain_runner import Drains
from controller.runtime.controller.operations.operated_cluster import OperatedCluster
from controller.runtime.controller.operations.order_words import refuse_instances, scaling_refused

log = logging.getLogger(__name__)


class Scaling:
    def __init__(self, cluster: OperatedCluster, drains: Drains, launcher: Launcher) -> None:
        self._cluster = cluster
        self._drains = drains
        self._launcher = launcher
        self._launches = Launches()

    @property
    def num_planned(self) -> int:
        return len(planned_instances(self._cluster.keeper.spec))

    def plan(self, target: int, *, force: bool, agreed: Collection[str] | None = None) -> ScalePlan:
        """Plans a scaling. `force` allows one after which no instance serves for a while, or for
        which there seems to be no room. `agreed`: the only instances that may be removed. Raises
        OperationRefusedError."""
        plan = plan_scale(
            self._cluster.keeper.spec, target, self._num_running(), agreed, self._missing()
        )
        if isinstance(plan, OrderRefusal):
            raise scaling_refused(plan, target)
        self.check_still(plan, force=force)
        if plan.num_added and not force and (why := self._launcher.no_room(plan.num_added)):
            raise scaling_refused(OrderRefusal.NO_ROOM, target, plan.num_added, why)
        return plan

    def check_still(self, plan: ScalePlan, *, force: bool) -> None:
        """Raises OperationRefusedError if an older plan cannot be carried out as it is any more."""
        spec, schedulable = self._cluster.keeper.spec, self._drains.schedulable_ids()
        refusal = scale_refusal(spec, plan, schedulable, force=force)
        if refusal is OrderRefusal.LAST_INSTANCE:
            refuse_instances(refusal, plan.drained)
        elif refusal is not None:
            raise scaling_refused(refusal, plan.target)

    def carry_out(
        self, plan: ScalePlan, claim: Remove, hold: ScaleHold | None = None
    ) -> tuple[str, ...]:
        """Carries out a plan; returns the ids of the new instances. `claim`: to each instance that
        goes. `hold`: auto-scaling is held from now on."""
        added, removed = self.added(plan), dict.fromkeys(plan.drained, claim)
        spec = self._cluster.keeper.spec.scaled(plan.num_added, plan.undrained, removed)
        if hold is not None:
            spec = replace(spec, autoscale_hold=hold)
        self._drains.carry_out(spec, "it is wanted again", claim.actor)
        self.launch_missing()
        return added

    def launch_all(self) -> None:
        """Finds or launches all instances of the spec. One for which that fails, as Ray may still
        clean up after a launch that died with its controller, must not end this controller too."""
        self._launch(self._cluster.keeper.spec.instance_ids)

    def launch_missing(self) -> None:
        """Launches planned instances without a process; those to be removed are not planned."""
        self._launch(planned_instances(self._cluster.keeper.spec))

    def _launch(self, instance_ids: Collection[str]) -> None:
        cluster, now_s = self._cluster, self._cluster.now_s()
        for instance_id in self._launches.look(instance_ids, cluster.roster.members, now_s):
            try:
                cluster.launch([instance_id])
            except Exception:
                self._launches.failed(instance_id, now_s)
                log.exception("%s could not be started", instance_id)

    def _missing(self) -> set[str]:
        """Instances of the spec without a process: it was ended, or not launched yet."""
        return set(self._cluster.keeper.spec.instance_ids) - set(self._cluster.roster.members)

    def added(self, plan: ScalePlan) -> tuple[str, ...]:
        after = self._cluster.keeper.spec.with_instances_added(plan.num_added)
        return after.instance_ids[len(after.instance_ids) - plan.num_added :]

    def _num_running(self) -> dict[str, int]:
        """Running requests of each instance that serves."""
        now_s = self._cluster.now_s()
        return {
            record.instance_id: record.snapshot.num_running
            for record in self._cluster.scheduler.instances.values()
            if record.snapshot is not None and record.reports(now_s)
        }
