"""More instances, or fewer. Growing first takes back instances that were to go, then starts new
ones; shrinking drains instances and removes each when it is empty. Neither ends a request.

A second order while one goes on starts from what is planned then: instances that start count,
those that are to be removed do not.
"""

from dataclasses import replace

from controller.api.steer_models import MAX_INSTANCES
from controller.core.cluster_spec import DrainOrder
from controller.core.scaling import ScalePlan, plan_scale, planned_instances
from controller.ports.launcher import Launcher
from controller.runtime.drains import Drains, SteerRefusedError
from controller.runtime.steered_cluster import SteeredCluster


class Scaling:
    def __init__(self, cluster: SteeredCluster, drains: Drains, launcher: Launcher) -> None:
        self._cluster = cluster
        self._drains = drains
        self._launcher = launcher

    @property
    def num_planned(self) -> int:
        return len(planned_instances(self._cluster.keeper.spec))

    def plan(self, target: int, *, force: bool) -> ScalePlan:
        """Raises SteerRefusedError. `force`: though no instance may serve for a while, or there
        seems to be no room for new ones."""
        if target < 1:
            raise SteerRefusedError(
                "min_instances",
                f"{target} instances are wanted; a cluster has at least one",
                "llumctl scale 1      or      llumctl down",
            )
        if target > MAX_INSTANCES:
            raise SteerRefusedError(
                "max_instances",
                f"{target} instances are wanted; {MAX_INSTANCES} are the most",
                f"llumctl scale {MAX_INSTANCES}",
            )
        plan = plan_scale(self._cluster.keeper.spec, target, self._num_running())
        if plan.drained and not force:
            self._drains.check(plan.drained)
        if plan.num_added and not force:
            self._check_room(plan.num_added)
        return plan

    def _check_room(self, num_added: int) -> None:
        if why := self._launcher.no_room(num_added):
            raise SteerRefusedError(
                "no_room",
                f"{num_added} more would not start: {why}",
                "llumctl status -o wide      or      llumctl scale --force",
            )

    def carry_out(self, plan: ScalePlan, order: DrainOrder) -> tuple[str, ...]:
        """`order`: that of the drains, for no instance yet. The ids of the new instances."""
        keeper = self._cluster.keeper
        for instance_id in plan.undrained:
            self._drains.end(instance_id, "it is wanted again", order.actor)
        added = self.added(plan)
        if added:
            keeper.change(keeper.spec.with_instances_added(len(added)))
            self._cluster.launch(added)
        if plan.drained:
            self._drains.begin([_of(order, instance_id) for instance_id in plan.drained])
        return added

    def added(self, plan: ScalePlan) -> tuple[str, ...]:
        """The ids that new instances get."""
        after = self._cluster.keeper.spec.with_instances_added(plan.num_added)
        return after.instance_ids[len(after.instance_ids) - plan.num_added :]

    def _num_running(self) -> dict[str, int]:
        """Of those that serve."""
        now_s = self._cluster.now_s()
        return {
            record.instance_id: record.snapshot.num_running
            for record in self._cluster.scheduler.instances.values()
            if record.snapshot is not None and record.refusal(now_s) in (None, "draining")
        }


def _of(order: DrainOrder, instance_id: str) -> DrainOrder:
    return replace(order, instance_id=instance_id, removes=True)
