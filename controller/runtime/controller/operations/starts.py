"""Which planned instances start, which cannot, and how long a start takes in this cluster."""

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from statistics import median

from controller.core.operations.scaling import planned_instances
from controller.runtime.controller.operations.operated_cluster import OperatedCluster

MAX_MEASURED = 8
_EARLIER_S = 1.0
"""A process that ran longer than it was waited for, by more than this, was not launched here."""


@dataclass(slots=True)
class _Start:
    since_s: float
    """Since when it does not serve; of one that serves, when its start began."""
    serves: bool = False
    has_served: bool = False
    failed: bool = False


class Starts:
    """`look` takes in how things stand; the rest tells it. What a controller before this one saw is
    not known: an instance that does not serve when it comes is taken for one that was launched."""

    def __init__(self, cluster: OperatedCluster) -> None:
        self._cluster = cluster
        self._starts: dict[str, _Start] = {}
        self._took_s: deque[float] = deque(maxlen=MAX_MEASURED)
        self.last_failed_s: float | None = None
        """When an instance was found to be one that cannot start, by the loop's clock."""

    @property
    def cold_start_s(self) -> float | None:
        """From the launch of an instance until it serves: the median of the last ones."""
        return median(self._took_s) if self._took_s else None

    @property
    def launched(self) -> Collection[str]:
        """Instances that have not served yet, and may."""
        return {key for key, each in self._starts.items() if not (each.has_served or each.failed)}

    @property
    def starting(self) -> Collection[str]:
        """Those launched, and those that died and are started again."""
        return {key for key, each in self._starts.items() if not (each.serves or each.failed)}

    @property
    def failed(self) -> Collection[str]:
        """Instances that said that they cannot start, or took too long."""
        return {key for key, each in self._starts.items() if each.failed}

    def look(self, timeout_s: float) -> None:
        now_s = self._cluster.now_s()
        planned = planned_instances(self._cluster.keeper.spec)
        self._starts = {key: each for key, each in self._starts.items() if key in planned}
        for instance_id in planned:
            start = self._starts.setdefault(instance_id, _Start(now_s))
            if self._serves(instance_id):
                self._began_serving(instance_id, start, now_s)
            else:
                if start.serves:
                    start.serves, start.since_s = False, now_s
                is_late = now_s - start.since_s >= timeout_s
                failed = is_late or self._gave_up(instance_id)
                if failed and not start.failed:
                    self.last_failed_s = now_s
                start.failed = failed

    def _began_serving(self, instance_id: str, start: _Start, now_s: float) -> None:
        if not start.has_served:
            took_s = now_s - start.since_s
            if self._cluster.roster.members[instance_id].up_s <= took_s + _EARLIER_S:
                self._took_s.append(took_s)
        start.serves, start.has_served, start.failed = True, True, False

    def _serves(self, instance_id: str) -> bool:
        """Also one that stalls or drains."""
        member = self._cluster.roster.members.get(instance_id)
        record = self._cluster.scheduler.instances.get(instance_id)
        return (
            member is not None
            and member.serving
            and record is not None
            and record.alive
            and record.snapshot is not None
        )

    def _gave_up(self, instance_id: str) -> bool:
        member = self._cluster.roster.members.get(instance_id)
        return member is not None and member.alive and member.phase == "failed"
