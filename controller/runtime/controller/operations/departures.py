"""Which requests an instance has, and where they would go. The frontends know the requests, and the
instance knows why one cannot move."""

import asyncio
import math
from collections.abc import Collection
from dataclasses import dataclass

from controller.core.load.snapshot import InstanceSnapshot, blocks_for
from controller.core.migration.refusals import MoveRefusal
from controller.core.operations.departure_plan import Departure, DeparturePlan
from controller.core.record.request_record import RequestRecord, RequestState
from controller.core.rescheduling.candidate import Candidate, departing_in_turn
from controller.core.rescheduling.pairing import InstanceLoad, pair
from controller.runtime.controller.operations.operated_cluster import OperatedCluster

MAX_REQUESTS = 10_000
_THERE = (RequestState.RUNNING, RequestState.EVICTED, RequestState.WAITING)
# Requests placed in one turn of the controller's loop: 4 ms among 64 instances.
_PLACED_AT_ONCE = 100
# Callers share one look at a running drain for so long.
LATELY_S = 1.0


@dataclass(frozen=True, slots=True)
class Leaving:
    """Departures in the order in which they are tried. `silent`: frontends that did not answer,
    whose requests are missing."""

    departures: tuple[Departure, ...] = ()
    silent: tuple[str, ...] = ()


class Departures:
    def __init__(self, cluster: OperatedCluster) -> None:
        self._cluster = cluster
        self._looks: dict[str, tuple[float, asyncio.Task[Leaving]]] = {}
        """The looks of `lately`, and when each began."""

    async def lately(self, instance_id: str) -> Leaving:
        """What `of` would have found at most a second ago."""
        now_s = self._cluster.now_s()
        self._looks = {key: look for key, look in self._looks.items() if now_s < look[0] + LATELY_S}
        if instance_id not in self._looks:
            looking = asyncio.get_running_loop().create_task(self.of(instance_id))
            self._looks[instance_id] = now_s, looking
        # A caller that is cancelled must not cancel the look for the others.
        return await asyncio.shield(self._looks[instance_id][1])

    async def of(self, instance_id: str, going: Collection[str] = ()) -> Leaving:
        """Places the instance's requests by the last statuses. `going`: other instances that are no
        destination either."""
        cluster = self._cluster
        frontends = [f.member_id for f in cluster.roster.frontends() if f.serving]
        found = await cluster.queries.requests(
            frontends,
            instance_id=instance_id,
            states=_THERE,
            max_requests=MAX_REQUESTS,
        )
        refusals = await self._refusals(instance_id, found.requests)
        ranks = {level.name: level.rank for level in cluster.live.scheduler.levels}
        block_size = self._block_size(instance_id)
        departing = [
            _candidate(
                record,
                ranks.get(record.level, 0),
                block_size,
                refusals.get(record.request_id),
            )
            for record in found.requests
            # A request that the instance does not know is over, or still on its way there.
            if refusals.get(record.request_id) != MoveRefusal.UNKNOWN
        ]
        client_ids = {record.request_id: record.client_request_id for record in found.requests}
        plan = DeparturePlan(
            self._destinations({instance_id, *going}), cluster.live.scheduler.levels, self._is_open
        )
        planned = []
        for index, request in enumerate(departing_in_turn(departing)):
            if index % _PLACED_AT_ONCE == _PLACED_AT_ONCE - 1:
                await asyncio.sleep(0)
            planned.append(plan.place(request, client_ids[request.request_id]))
        return Leaving(tuple(planned), found.silent)

    def _is_open(self, snapshot: InstanceSnapshot) -> bool:
        """Whether the pairing in use would choose the instance as a destination of a drain."""
        draining = InstanceLoad("", -math.inf, draining=True)
        other = InstanceLoad.of(
            snapshot, self._cluster.live.scheduler.levels, may_send=False, may_receive=True
        )
        return bool(pair((draining, other), self._cluster.rescheduler.config))

    async def _refusals(
        self, instance_id: str, records: tuple[RequestRecord, ...]
    ) -> dict[str, str]:
        member = self._cluster.roster.members.get(instance_id)
        if not records or member is None or not member.serving:
            return {}
        ids = [record.request_id for record in records]
        answers = await self._cluster.queries.refusals({instance_id: ids})
        return dict(answers.get(instance_id, {}))

    def _destinations(self, going: Collection[str]) -> list[InstanceSnapshot]:
        cluster, now_s = self._cluster, self._cluster.now_s()
        return [
            snapshot
            for snapshot in cluster.scheduler.schedulable_snapshots(now_s)
            if snapshot.instance_id not in going
            and not cluster.operator_moves.cooling.remaining_s(snapshot.instance_id, now_s)
        ]

    def _block_size(self, instance_id: str) -> int:
        status = self._cluster.statuses.get(instance_id)
        return status.snapshot.block_size if status is not None else 1


def _candidate(record: RequestRecord, rank: int, block_size: int, refusal: str | None) -> Candidate:
    """The request as its frontend knows it. `evicted` is left out, as nothing would be placed
    beside an evicted request, which its destination admits within steps."""
    num_tokens = record.num_prompt_tokens + record.num_output_tokens
    queued = record.state is not RequestState.RUNNING
    num_blocks = 0 if queued else blocks_for(num_tokens, block_size)
    return Candidate(
        record.request_id,
        rank,
        num_tokens,
        num_blocks,
        num_blocks,
        queued,
        arrival_time_s=record.arrival_time_s,
        refusal=refusal,
    )
