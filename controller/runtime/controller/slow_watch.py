"""Empties an instance that steps slowly: a drain, as an operator would begin it. Whether it serves
again is for an operator to say, as an empty instance makes no steps that could tell."""

import logging
import secrets
import time
from collections.abc import Callable, Mapping

from controller.core.emptying.claims import SlowDrain
from controller.core.fleet.liveness import Key
from controller.core.fleet.slowness import Slow, Slowness
from controller.runtime.controller.operations.drains import Drains, OperationRefusedError
from controller.runtime.controller.operations.operated_cluster import OperatedCluster
from controller.runtime.live_config import SlowLimits
from controller.runtime.messages.members import StatusPushed

log = logging.getLogger(__name__)

ACTOR = "slow-watch"


class SlowWatch:
    def __init__(
        self,
        cluster: OperatedCluster,
        drains: Drains,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._cluster = cluster
        self._drains = drains
        self._wall_clock = wall_clock
        self._slowness = Slowness()

    def tick(self, statuses: Mapping[str, StatusPushed], limits: SlowLimits) -> None:
        """Nothing while another instance is emptied: the others have enough to take."""
        if not limits.factor:
            return
        now_s, drained = self._cluster.now_s(), self._cluster.keeper.spec.drains
        busy: dict[Key, float] = {}
        for member in self._cluster.roster.instances():
            status = statuses.get(member.member_id)
            if member.serving and status is not None and member.member_id not in drained:
                snapshot = status.snapshot
                if snapshot.num_running and snapshot.incarnation == member.incarnation:
                    busy[member.member_id, member.incarnation] = status.step_time_s
        self._slowness.add(now_s, busy, limits.after_s)
        if drained:
            return
        slow = self._slowness.slowest(now_s, limits.after_s, limits.factor)
        if slow is not None:
            self._empty(slow)

    def _empty(self, slow: Slow) -> None:
        why = (
            f"its steps take {1000 * slow.step_time_s:.0f} ms, {slow.factor:.1f} times as long as"
            " the others'"
        )
        cause_id = f"slow-{secrets.token_hex(4)}"
        claim = SlowDrain(cause_id, self._wall_clock(), actor=ACTOR, reason=why)
        try:
            self._drains.check([slow.instance_id])
        except OperationRefusedError:
            return
        self._drains.begin({slow.instance_id: claim})
        log.warning("%s is emptied: %s", slow.instance_id, why)
