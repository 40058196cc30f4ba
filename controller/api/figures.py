"""The figures of a whole cluster, from one status: what the controller's history samples each
second, and what the dashboard draws where no history is known."""

from collections.abc import Iterable
from statistics import fmean

from controller.api.text.status_words import BACKGROUND_LEVEL, head_wait_s, no_requests
from controller.api.wire.status import ClusterStatus, InstanceState, InstanceStatus

_SERVING = frozenset({"active", "draining"})


def gauges_of(status: ClusterStatus) -> dict[str, float]:
    """The gauges by their names in the history (docs/metrics.md), without those that are not
    known."""
    found = serving_instances(status)
    gauges = {
        "num_instances": float(len(status.instances)),
        "num_serving": float(len(found)),
        "num_running_reqs": float(_sum(each.num_running_reqs for each in found)),
        "num_waiting_reqs": float(
            _sum(each.num_waiting_reqs for each in found) + status.num_held_reqs
        ),
        "longest_wait_s": _longest_wait_s(status),
    }
    if total := sum(map(usable_blocks, found)):
        gauges["kv_held_share"] = sum(map(held_blocks, found)) / total
        gauges["kv_wanted_share"] = (sum(map(wanted_blocks, found)) + _held_demand(status)) / total
    free = [e.freeness_steps for e in found if e.freeness_steps is not None and takes_requests(e)]
    if free:
        gauges["freeness_steps"] = fmean(free)
    if backlogs_s := [each.backlog_s for each in found if each.backlog_s is not None]:
        gauges["backlog_s"] = fmean(backlogs_s)
    return gauges


def loads_by_level(status: ClusterStatus) -> dict[str, tuple[int, int]]:
    """The running and the waiting requests of each level. Requests at the controller wait, too."""
    held = status.held.num_by_level if status.held is not None else {}
    return {
        each.name: (each.num_running_reqs, each.num_waiting_reqs + held.get(each.name, 0))
        for each in status.levels
    }


def takes_requests(item: InstanceStatus) -> bool:
    """Whether the instance gets new requests. What others have free is of no use now."""
    return item.state is InstanceState.ACTIVE and not no_requests(item)


def serving_instances(status: ClusterStatus) -> list[InstanceStatus]:
    """The instances that run requests."""
    return [each for each in status.instances if each.state in _SERVING]


def usable_blocks(item: InstanceStatus) -> int:
    """The blocks that requests may use."""
    return (item.num_total_blocks or 0) - (item.watermark_blocks or 0)


def held_blocks(item: InstanceStatus) -> int:
    return (item.num_total_blocks or 0) - (item.num_free_blocks or 0)


def wanted_blocks(item: InstanceStatus) -> int:
    """The blocks that its requests hold or want, also those behind the queue head. Headroom, which
    nobody uses, does not count. An older controller does not tell of those behind it."""
    if item.queued_demand_blocks is None:
        usage = (item.virtual_usage_blocks or 0) - (item.headroom_blocks or 0)
        return max(held_blocks(item), usage)
    return held_blocks(item) + (item.fill_blocks or 0) + item.queued_demand_blocks


def _held_demand(status: ClusterStatus) -> int:
    return (status.held.demand_blocks or 0) if status.held is not None else 0


def _longest_wait_s(status: ClusterStatus) -> float:
    """Of the requests that somebody waits for."""
    heads = [each.queue_head for each in status.instances if each.queue_head is not None]
    waits_s = [head_wait_s(each) or 0.0 for each in heads if each.level != BACKGROUND_LEVEL]
    if status.held is not None:
        waits_s.append(status.held.oldest_wait_s)
    return max(waits_s, default=0.0)


def _sum(numbers: Iterable[int | None]) -> int:
    return sum(each or 0 for each in numbers)
