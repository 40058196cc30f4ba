"""Why an order about instances is refused, by the spec and by what is seen of the cluster. Each
check is asked when the order comes, and again when it has been written to the audit log; it changes
nothing. `schedulable`: the ids of the instances that may get requests now. `force`: the order is
carried out though no instance would take requests then.

Those who take orders say a refusal in words (`runtime/controller/operations/operated_cluster.py`).
"""

from collections.abc import Collection
from enum import StrEnum

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


def cordon_refusal(
    spec: ClusterSpec, instance_ids: Collection[str], schedulable: Collection[str], *, force: bool
) -> OrderRefusal | None:
    """Of a cordon of all of these."""
    if force or set(instance_ids) <= spec.cordons.keys():
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
