"""Which requests an instance has, and where they would go. The frontends know the requests, and the
instance knows why one cannot move."""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass

from controller.core.emptying.forecast import Departure, DrainForecast
from controller.core.emptying.relief import Candidate
from controller.core.load.snapshot import InstanceSnapshot, blocks_for
from controller.core.migration.refusals import MoveRefusal
from controller.core.record.request_record import RequestRecord, RequestState
from controller.runtime.controller.operations.operated_cluster import OperatedCluster

MAX_REQUESTS = 10_000
_THERE = (RequestState.RUNNING, RequestState.EVICTED, RequestState.WAITING)
# Rounds of a forecast in one turn of the controller's loop.
_ROUNDS_AT_ONCE = 20
# Callers share one look at a running drain for so long.
LATELY_S = 1.0


@dataclass(frozen=True, slots=True)
class Forecast:
    """`departures` in the order in which they are tried. `silent`: frontends that did not answer,
    whose requests are missing."""

    departures: tuple[Departure, ...] = ()
    silent: tuple[str, ...] = ()


class DrainForecasts:
    def __init__(self, cluster: OperatedCluster) -> None:
        self._cluster = cluster
        self._looks: dict[str, tuple[float, asyncio.Task[Forecast]]] = {}
        """The looks of `lately`, and when each began."""

    async def lately(self, instance_id: str) -> Forecast:
        """What `of` would have found at most a second ago."""
        now_s = self._cluster.now_s()
        self._looks = {key: look for key, look in self._looks.items() if now_s < look[0] + LATELY_S}
        if instance_id not in self._looks:
            looking = asyncio.get_running_loop().create_task(self.of(instance_id))
            self._looks[instance_id] = now_s, looking
        # A caller that is cancelled must not cancel the look for the others.
        return await asyncio.shield(self._looks[instance_id][1])

    async def of(self, instance_id: str, going: Collection[str] = ()) -> Forecast:
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
        forecast = DrainForecast(
            self._source(instance_id),
            departing,
            self._destinations({instance_id, *going}),
            cluster.live.scheduler.levels,
            cluster.rescheduler.config,
            cluster.live.rescheduling.max_moves,
            cluster.openness.closed_to_moves(cluster.now_s()),
        )
        num_rounds = 0
        while forecast.round():
            num_rounds += 1
            if num_rounds % _ROUNDS_AT_ONCE == 0:
                await asyncio.sleep(0)
        return Forecast(forecast.departures(client_ids), found.silent)

    def _source(self, instance_id: str) -> InstanceSnapshot:
        """An instance that has not reported has no request that could be placed."""
        status = self._cluster.statuses.get(instance_id)
        if status is not None:
            return status.snapshot
        return InstanceSnapshot(instance_id, 0, 1, num_total_blocks=1, num_free_blocks=1)

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
            record.snapshot
            for instance_id, record in cluster.scheduler.instances.items()
            if record.snapshot is not None
            and record.may_receive(now_s)
            and instance_id not in going
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
