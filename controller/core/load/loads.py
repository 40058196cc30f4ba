"""Other measures of load, to compare Llumnix with. Larger is busier, for every one of them.

All count requests that were dispatched and not reported yet as queued; without them a burst between
two statuses would land on one instance. None of them knows priorities or draining: the caller
leaves draining instances out.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from controller.core.load.freeness import dispatch_freeness
from controller.core.load.snapshot import NORMAL, InstanceSnapshot, Unreported

LoadFunction = Callable[[InstanceSnapshot, Unreported], float]


def kv_ratio(snapshot: InstanceSnapshot, unreported: Unreported) -> float:
    """Memory in use or waited for, as a share of M; above 1 when the queue does not fit."""
    return _wanted_blocks(snapshot, unreported) / max(1, snapshot.capacity_blocks)


def remaining_steps(snapshot: InstanceSnapshot, unreported: Unreported) -> float:
    """Minus the decode steps left to all requests here, blind to priorities.

    The paper's INFaaS++ and Llumnix-base (section 6.1) dispatch by this: the memory of queued
    requests counts, no headroom does.
    """
    return -dispatch_freeness(snapshot, NORMAL, (), unreported)


def queue_length(snapshot: InstanceSnapshot, unreported: Unreported) -> float:
    """Requests that wait."""
    return snapshot.num_queued + unreported.num_requests


def num_requests(snapshot: InstanceSnapshot, unreported: Unreported) -> float:
    """Requests that run or wait."""
    return snapshot.num_running + snapshot.num_queued + unreported.num_requests


def outstanding_tokens(snapshot: InstanceSnapshot, unreported: Unreported) -> float:
    """Prompts and outputs so far of all that runs or waits, in whole blocks."""
    return snapshot.block_size * _wanted_blocks(snapshot, unreported)


def _wanted_blocks(snapshot: InstanceSnapshot, unreported: Unreported) -> int:
    return (
        snapshot.num_used_blocks
        + snapshot.fill_blocks
        + snapshot.queued_demand_blocks
        + unreported.demand_blocks
    )


LOADS: Mapping[str, LoadFunction] = MappingProxyType(
    {
        "kv-ratio": kv_ratio,
        "remaining-steps": remaining_steps,
        "queue-length": queue_length,
        "num-requests": num_requests,
        "least-tokens": outstanding_tokens,
    }
)
