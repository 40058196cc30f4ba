"""Which instances come and which go, for a wanted number of instances.

Instances that are to be removed once empty do not count, because they are on their way out. Getting
one of them back is the cheapest way to have more, so that comes first.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from controller.core.bounds import MAX_INSTANCES
from controller.core.load.closed import OPEN, stop_requests
from controller.core.operations.cluster_spec import ClusterSpec
from controller.core.operations.order_checks import OrderRefusal, none_would_serve


@dataclass(frozen=True, slots=True)
class ScalePlan:
    """`previous` and `target` count the planned instances, also those that are starting."""

    previous: int
    target: int
    num_added: int = 0
    undrained: tuple[str, ...] = ()
    """Instances that would have gone, and stay."""
    drained: tuple[str, ...] = ()
    """Instances that go once they are empty."""

    @property
    def changes(self) -> bool:
        return bool(self.num_added or self.undrained or self.drained)


def planned_instances(spec: ClusterSpec) -> tuple[str, ...]:
    return tuple(each for each in spec.instance_ids if not _goes(spec, each))


def plan_scale(
    spec: ClusterSpec,
    target: int,
    num_running: Mapping[str, int],
    agreed: Collection[str] | None = None,
    gone: Collection[str] = (),
) -> ScalePlan | OrderRefusal:
    """`num_running`: running requests of each instance that serves. Instances that do not serve, or
    to which the spec lets no requests come, go first, then those with the fewest requests, ties by
    id; those with the most come back first. One that is being restarted goes after all others: it
    serves soon, and somebody waits for that. `agreed`: just these go, however busy they are by now.
    `gone`: their processes have ended, so they cannot come back.
    """
    if target < 1:
        return OrderRefusal.MIN_INSTANCES
    if target > MAX_INSTANCES:
        return OrderRefusal.MAX_INSTANCES
    planned, closed = planned_instances(spec), spec.closed

    def order(instance_id: str) -> tuple[bool, bool, int, str]:
        drain = spec.drains.get(instance_id)
        is_shut = stop_requests(closed.get(instance_id, OPEN))
        takes_requests = instance_id in num_running and not is_shut
        is_restarted = drain is not None and drain.restarts
        return (is_restarted, takes_requests, num_running.get(instance_id, -1), instance_id)

    more = target - len(planned)
    if not more:
        return ScalePlan(target, target)
    if agreed is not None and (len(set(agreed)) != max(0, -more) or set(agreed) - set(planned)):
        return OrderRefusal.PLAN_CHANGED
    if more < 0:
        going = sorted(planned if agreed is None else set(agreed), key=order)[:-more]
        return ScalePlan(len(planned), target, drained=tuple(going))
    leaving = [each for each in spec.instance_ids if _may_stay(spec, each) and each not in gone]
    back = sorted(leaving, key=order, reverse=True)[:more]
    return ScalePlan(len(planned), target, more - len(back), tuple(back))


def scale_refusal(
    spec: ClusterSpec, plan: ScalePlan, schedulable: Collection[str], *, force: bool
) -> OrderRefusal | None:
    """Why a plan, perhaps an older one, cannot be carried out as it is. `schedulable`: instances
    that may get requests now. `force`: though none would be left."""
    staying = set(planned_instances(spec))
    leaving = set(spec.instance_ids) - staying
    if set(plan.undrained) - leaving or set(plan.drained) - staying:
        return OrderRefusal.PLAN_CHANGED
    if plan.drained and not force and none_would_serve(spec, plan.drained, schedulable):
        return OrderRefusal.LAST_INSTANCE
    return None


def _may_stay(spec: ClusterSpec, instance_id: str) -> bool:
    """It is to go, and not because it will be ended in any case."""
    claims = spec.drains.get(instance_id)
    return claims is not None and claims.goes and claims.notice is None


def _goes(spec: ClusterSpec, instance_id: str) -> bool:
    claims = spec.drains.get(instance_id)
    return claims is not None and claims.goes
