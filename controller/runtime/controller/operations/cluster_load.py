"""What a check of auto-scaling sees of the running cluster: the last statuses, what the controller
holds, and what comes and goes."""

from collections.abc import Iterable

from controller.core.fleet.outlook import WINDOW_S, ClusterLoad, RecentLatencies
from controller.core.holding.held_queue import Held
from controller.core.load.snapshot import InstanceSnapshot
from controller.core.operations.cluster_spec import DrainOrder
from controller.core.operations.scaling import planned_instances
from controller.runtime.controller.operations.operated_cluster import OperatedCluster
from controller.runtime.controller.operations.starts import Starts


class LoadWatch:
    """`owner`: the actor of the drains that auto-scaling began."""

    def __init__(self, cluster: OperatedCluster, starts: Starts, owner: str) -> None:
        self._cluster = cluster
        self._starts = starts
        self._owner = owner
        self._num_serving = -1
        self._since_s = 0.0
        """Since when so many serve."""

    def look(self) -> None:
        """Notes how many serve; called often."""
        now_s = self._cluster.now_s()
        number = len(self._cluster.scheduler.schedulable_snapshots(now_s))
        if number != self._num_serving:
            self._num_serving, self._since_s = number, now_s

    def load(self, wall_s: float) -> ClusterLoad:
        """As it is now. `wall_s`: seconds since the epoch."""
        cluster, starts, now_s = self._cluster, self._starts, self._cluster.now_s()
        spec = cluster.keeper.spec
        schedulable = cluster.scheduler.schedulable_snapshots(now_s)
        ids = {each.instance_id for each in schedulable}
        # One that an operator restarts is back soon, and no reason to launch another one.
        restarting = {key for key, each in spec.drains.items() if each.restarts}
        coming = ({*starts.starting, *restarting} & set(planned_instances(spec))) - {*starts.failed}
        # A fenced one hangs: nobody knows when it comes back.
        coming -= {each.member_id for each in cluster.roster.instances() if each.fenced}
        unavailable = set(planned_instances(spec)) - ids - coming - {*starts.failed}
        leaving = [order for order in spec.drains.values() if self._leaves(order)]
        is_own = len(leaving) == 1 and leaving[0].actor == self._owner
        known = [status.snapshot for status in cluster.statuses.values()]
        num_held = cluster.scheduler.num_held
        held = cluster.scheduler.held_view(now_s).entries if num_held else ()
        return ClusterLoad(
            schedulable,
            block_size=known[0].block_size if known else 1,
            new_capacity_blocks=known[0].capacity_blocks if known else 0,
            num_held=num_held,
            held_demand_blocks=cluster.scheduler.held_demand_blocks,
            num_starting=len(coming),
            num_unavailable=len(unavailable),
            action_pending=bool(starts.launched or (leaving and not is_own)),
            leaving_id=leaving[0].instance_id if is_own and not starts.launched else None,
            last_failed_start_s=starts.last_failed_s,
            recent=self._recent(schedulable, held, wall_s),
        )

    def _leaves(self, order: DrainOrder) -> bool:
        """One that could not start, and goes, holds nothing up."""
        member = self._cluster.roster.members.get(order.instance_id)
        failed = member is not None and member.alive and member.phase == "failed"
        return order.removes and not failed

    def _recent(
        self,
        schedulable: list[InstanceSnapshot],
        held: Iterable[Held],
        wall_s: float,
    ) -> RecentLatencies:
        frontends = [each for each in self._cluster.roster.frontends() if each.serving]
        ttfts_s = [each.ttft_p99_s for each in frontends if each.ttft_p99_s is not None]
        tpots_s = [each.tpot_p99_s for each in frontends if each.tpot_p99_s is not None]
        heads = [each.queue_head for each in schedulable if each.queue_head is not None]
        # One that was evicted has its first token.
        arrivals_s = [each.arrival_time_s for each in heads if not each.evicted]
        arrivals_s += [each.arrival_time_s for each in held]
        return RecentLatencies(
            max(ttfts_s, default=None),
            max(tpots_s, default=None),
            sum(each.num_first_tokens for each in frontends),
            max(0.0, wall_s - min(arrivals_s, default=wall_s)),
            settled=self._cluster.now_s() - self._since_s >= WINDOW_S,
        )
