"""Why an order about instances is refused, by the spec and by what is seen of the cluster; and
which instances come and which go, for a wanted number of them.

Each check is asked when the order comes, and again when it has been written to the audit log; it
changes nothing. `schedulable`: the ids of the instances that may get requests now. `force`: the
order is carried out though no instance would take requests then.

Those who take orders say a refusal in words (`runtime/controller/operations/operated_cluster.py`).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum

from controller.core.bounds import MAX_INSTANCES
from controller.core.load.closed import OPEN, Closed, stop_requests
from controller.core.operations.cluster_spec import ClusterSpec


class OrderRefusal(StrEnum):
    LAST_INSTANCE = "last_instance"
    """No instance would take requests."""
    NOT_STARTED = "not_started"
    """The instance has no process yet that could be replaced."""
    LEAVING = "leaving"
    """The instance goes when it is empty, and no process starts there again."""
    NOT_DRAINING = "not_draining"
    MIN_INSTANCES = "min_instances"
    MAX_INSTANCES = "max_instances"
    PLAN_CHANGED = "plan_changed"
    """Other instances would come or go than those of the plan that the operator agreed to."""
    NO_ROOM = "no_room"
    """Ray, or the machine, seems to have no room for more instances."""


def none_would_serve(
    spec: ClusterSpec, going: Collection[str], schedulable: Collection[str]
) -> bool:
    """Whether no instance takes requests beside `going` and those that drain."""
    return not (set(schedulable) - set(going) - spec.drains.keys())


def emptying_refusal(
    spec: ClusterSpec, instance_ids: Collection[str], schedulable: Collection[str], *, force: bool
) -> OrderRefusal | None:
    """Of a drain of all of these, or of an evacuation."""
    if force or set(instance_ids) <= spec.drains.keys():
        return None
    return _last(spec, instance_ids, schedulable)


def mark_refusal(
    spec: ClusterSpec,
    reason: Closed,
    instance_ids: Collection[str],
    schedulable: Collection[str],
    *,
    force: bool,
) -> OrderRefusal | None:
    """Of a mark on all of these, such as a cordon."""
    if force or not reason.stops_requests or set(instance_ids) <= spec.marked(reason).keys():
        return None
    return _last(spec, instance_ids, schedulable)


def restart_refusal(
    spec: ClusterSpec,
    instance_id: str,
    schedulable: Collection[str],
    *,
    started: bool,
    serving: bool,
    force: bool,
) -> OrderRefusal | None:
    """`started`: the instance has had a process. `serving`: it serves, so that something is lost
    while it restarts."""
    if not started:
        return OrderRefusal.NOT_STARTED
    claims = spec.drains.get(instance_id)
    if claims is not None and claims.goes:
        return OrderRefusal.LEAVING
    if claims is not None or force or not serving:
        return None
    return _last(spec, [instance_id], schedulable)


def undrain_refusal(spec: ClusterSpec, instance_id: str) -> OrderRefusal | None:
    return None if instance_id in spec.drains else OrderRefusal.NOT_DRAINING


def _last(
    spec: ClusterSpec, going: Collection[str], schedulable: Collection[str]
) -> OrderRefusal | None:
    return OrderRefusal.LAST_INSTANCE if none_would_serve(spec, going, schedulable) else None


# -- the plan of a scale ---------------------------------------------------------------------------
#
# Instances that are to be removed once empty do not count, because they are on their way out.
# Getting one of them back is the cheapest way to have more, so that comes first.


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
    """Those that are to stay, whether they serve or not."""
    going = {key for key, claims in spec.drains.items() if claims.goes}
    return tuple(each for each in spec.instance_ids if each not in going)


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
