"""Whether vLLM has accepted the arguments, so that `up --detach` may return.

vLLM finds many faults of arguments only once it is imported and has built its configuration
(docs/decisions/0018). All members have the same arguments, so one instance and one frontend that
have built theirs are enough. `llumctl status` tells of later failures, such as of loading weights.
"""

from controller.api.wire.status import ClusterStatus, FrontendStatus, InstanceState, InstanceStatus
from controller.runtime.messages.members import IMPORTING, LAUNCHING

_BEFORE = (LAUNCHING, IMPORTING)


def are_taken(status: ClusterStatus) -> bool:
    return any(map(_has_taken, status.instances)) and any(map(_has_taken, status.frontends))


def _has_taken(member: InstanceStatus | FrontendStatus) -> bool:
    starts = member.state is InstanceState.STARTING
    return member.state is InstanceState.ACTIVE or (starts and member.detail not in _BEFORE)
