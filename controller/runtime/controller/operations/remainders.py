"""What instances still have, as far as a drain must know: by their last statuses, and by what was
dispatched to them since."""

from controller.core.operations.drain import Remainder
from controller.runtime.controller.operations.operated_cluster import OperatedCluster

# Members say Hello every second: after so long a member that was not heard is not there.
HEARD_WITHIN_S = 10.0


class Remainders:
    def __init__(self, cluster: OperatedCluster) -> None:
        self._cluster = cluster
        self._began_s = 0.0

    def resume(self) -> None:
        """This controller begins, before any member is heard."""
        self._began_s = self._cluster.now_s()

    @property
    def waited(self) -> bool:
        """Whether a member that was not heard so far is not there."""
        return self._cluster.now_s() >= self._began_s + HEARD_WITHIN_S

    def of(self, instance_id: str) -> Remainder | None:
        """What is left on the instance; None if it has not reported."""
        cluster = self._cluster
        member = cluster.roster.members.get(instance_id)
        if member is None or not member.serving:
            is_known = member is None or member.incarnation > 0
            return Remainder() if is_known or self.waited else None
        status = cluster.statuses.get(instance_id)
        record = cluster.scheduler.instances.get(instance_id)
        if status is None or record is None:
            return None
        snapshot = status.snapshot
        if snapshot.incarnation != member.incarnation:
            return None
        return Remainder(
            snapshot.num_running,
            snapshot.num_queued,
            record.unreported.num_requests,
            status.num_moves_in,
            len(status.moves),
        )

    def num_requests(self, instance_id: str) -> int:
        return (self.of(instance_id) or Remainder()).num_requests

    def takes_nothing(self, instance_id: str) -> bool:
        """The instance reported that it drains, or has no process that could take requests."""
        member = self._cluster.roster.members.get(instance_id)
        if member is None or not member.serving:
            return True
        return self._cluster.statuses[instance_id].snapshot.draining
