"""A made-up cluster in virtual time, as the controller tells of it.

Engines are the pure model, requests come from a seed and go where the controller's own measure
sends them, and figures are computed by the controller's own functions.
"""

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from controller.api.wire.requests import Event
from controller.api.wire.status import (
    AutoscaleStatus,
    ClusterState,
    ClusterStatus,
    DrainStatus,
    EndedMoveStatus,
    FrontendStatus,
    InstanceState,
    InstanceStatus,
    LevelStatus,
    MoveStatus,
    QueueHeadStatus,
)
from controller.api.wire.stream import EventFrame, Frame, StatusFrame
from controller.core.admission.placement import queue_reason
from controller.core.load.freeness import (
    dispatch_freeness,
    freeness,
    headroom_by_rank,
    instance_virtual_usage,
    total_headroom_blocks,
)
from controller.core.load.snapshot import DEFAULT_LEVELS, InstanceSnapshot
from controller.model.engine_model import EngineModel, StepResult
from controller.model.engine_state import ModelRequest
from controller.model.profile import ModelConfig, load_profile

Figure = TypeVar("Figure", int, float)

BEGUN_S = 1_767_268_800.0
"""2026-01-01 12:00:00 UTC."""
NUM_INSTANCES = 6
RATE = 1.8
"""Requests a second that such a cluster serves at its ease."""
PROFILE = load_profile("a10-llama-7b")
CONFIG = ModelConfig.of(PROFILE)
LEVEL_NAMES = {level.rank: level.name for level in DEFAULT_LEVELS}


@dataclass
class Instance:
    """`stopped`: its process hangs, and reports nothing any more. `taken`: it gets no requests."""

    id: str
    engine: EngineModel = field(default_factory=lambda: EngineModel(CONFIG, PROFILE))
    free_at_s: float = 0.0
    stopped: bool = False
    taken: bool = False
    reported_s: float = 0.0
    snapshot: InstanceSnapshot | None = None
    step_time_s: float = 0.0
    num_steps: int = 0
    ttfts_s: list[tuple[float, int, float]] = field(default_factory=list)
    """When there was a first token, of which rank, and how long it took."""
    drain: DrainStatus | None = None


class Cluster:
    """`now_s` counts from 0. An incident may set `moves`, `ended_moves` and what instances have."""

    def __init__(self, seed: int) -> None:
        self.now_s = 0.0
        self.dice = random.Random(seed)
        self.instances = [Instance(f"i-{number}") for number in range(NUM_INSTANCES)]
        self.moves: tuple[MoveStatus, ...] = ()
        self.ended_moves: tuple[EndedMoveStatus, ...] = ()
        self.num_migrated = self.num_failed = 0
        self._arrived: dict[str, tuple[float, int]] = {}
        self._evicted_s: dict[str, float] = {}
        self._events: list[Event] = []
        self._num_events = 0

    # What happens

    def arrive(
        self, num_prompt_tokens: int, num_output_tokens: int, rank: int = 0, to: str = ""
    ) -> str:
        """A request comes and goes to the freest instance, as the controller measures it."""
        request_id = f"cmpl-{self.dice.getrandbits(64):016x}-0-{self.dice.getrandbits(32):08x}"
        request = ModelRequest(request_id, num_prompt_tokens, num_output_tokens, rank, self.now_s)
        level = next(each for each in DEFAULT_LEVELS if each.rank == rank)
        able = [each for each in self.instances if not each.taken or each.id == to]
        chosen = max(
            (each for each in able if to in ("", each.id)),
            key=lambda each: dispatch_freeness(
                each.engine.snapshot(each.id, 1), level, DEFAULT_LEVELS
            ),
        )
        chosen.engine.add(request)
        self._arrived[request_id] = self.now_s, rank
        self.tell("dispatched", chosen.id, request_id)
        return request_id

    def traffic(self, seconds: float, rate: float = RATE, rank: int = 0) -> None:
        """Requests of middling lengths, for so long."""
        end_s = self.now_s + seconds
        while (next_s := self.now_s + self.dice.expovariate(rate)) < end_s:
            self.now_s = next_s
            self._run()
            self.arrive(self._length(), self._length(), rank)
        self.now_s = end_s
        self._run()

    def _length(self) -> int:
        return int(min(1500, max(16, self.dice.expovariate(1 / 220))))

    def tell(self, kind: str, instance_id: str, request_id: str | None = None, **more: str) -> None:
        """An event, as the controller logs it."""
        self._num_events += 1
        self._events.append(
            Event(
                position=f"a1-{self._num_events}",
                kind=kind,
                time_s=BEGUN_S + self.now_s,
                cause_id=f"c-{self._num_events}",
                instance_id=instance_id,
                incarnation=1,
                request_id=request_id,
                reason=more.get("reason", ""),
                actor=more.get("actor"),
            )
        )

    def _run(self) -> None:
        for each in self.instances:
            while not each.stopped and each.free_at_s <= self.now_s and each.engine.has_work():
                done = each.engine.step()
                each.free_at_s = max(each.free_at_s, self.now_s - 0.05) + done.duration_s
                each.step_time_s, each.num_steps = done.duration_s, each.num_steps + 1
                self._stepped(each, done)

    def _stepped(self, instance: Instance, done: StepResult) -> None:
        for request_id in done.emitted:
            if (arrived := self._arrived.pop(request_id, None)) is not None:
                arrived_s, rank = arrived
                instance.ttfts_s.append((self.now_s, rank, instance.free_at_s - arrived_s))
        self._evicted_s.update(dict.fromkeys(done.evicted, self.now_s))
        for kind, ids in (
            ("admitted", done.admitted),
            ("evicted", done.evicted),
            ("finished", done.finished),
        ):
            for request_id in ids:
                self.tell(kind, instance.id, request_id)

    # What the controller says

    def frames(self) -> Iterator[Frame]:
        """The events since the last status, and a status."""
        events, self._events = self._events, []
        for event in events:
            yield EventFrame(time_s=event.time_s, event=event)
        time_s = BEGUN_S + self.now_s
        yield StatusFrame(time_s=time_s, status=self.status())

    def status(self) -> ClusterStatus:
        for each in self.instances:
            if not each.stopped:
                each.reported_s, each.snapshot = self.now_s, each.engine.snapshot(each.id, 1)
        found = tuple(self._instance(each) for each in self.instances)
        slowest = max((item.ttft_p99_s for item in found if item.ttft_p99_s), default=None)
        slowest_by_level = _slowest(item.ttft_p99_by_level_s for item in found)
        stalled = [item.id for item in found if item.state is InstanceState.STALLED]
        num_live = sum((i.num_running_reqs or 0) + (i.num_waiting_reqs or 0) for i in found)
        return ClusterStatus(
            cluster="prod-a",
            state=ClusterState.DEGRADED if stalled else ClusterState.READY,
            detail=", ".join(f"{id_} is stalled" for id_ in stalled),
            model="llama-7b",
            policy="llumnix",
            engine="emulated",
            endpoint_url="http://10.0.0.5:8000",
            time_s=BEGUN_S + self.now_s,
            uptime_s=7200.0 + self.now_s,
            cluster_uptime_s=7200.0 + self.now_s,
            num_held_reqs=0,
            autoscale=AutoscaleStatus(
                mode="off", min_instances=1, max_instances=16, num_instances=len(found)
            ),
            levels=tuple(
                LevelStatus(
                    name=each.name,
                    rank=each.rank,
                    target_load_tokens=each.target_load_tokens,
                    num_running_reqs=sum(i.num_running_by_level.get(each.name, 0) for i in found),
                    num_waiting_reqs=sum(i.num_waiting_by_level.get(each.name, 0) for i in found),
                    headroom_blocks=sum(
                        i.headroom_by_level_blocks.get(each.name, 0) for i in found
                    ),
                    ttft_p99_s=slowest_by_level.get(each.name),
                )
                for each in DEFAULT_LEVELS
            ),
            last_event=f"a1-{self._num_events}",
            moves=self.moves,
            ended_moves=self.ended_moves,
            num_migrated_last_minute=self.num_migrated,
            num_failed_moves_last_minute=self.num_failed,
            instances=found,
            frontends=(
                FrontendStatus(
                    id="f-0",
                    state=InstanceState.ACTIVE,
                    incarnation=1,
                    num_live_reqs=num_live,
                    ttft_p99_s=slowest,
                    ttft_p99_by_level_s=slowest_by_level,
                    age_s=0.2,
                ),
            ),
        )

    def _instance(self, each: Instance) -> InstanceStatus:
        snapshot = each.snapshot
        assert snapshot is not None
        others = [s for i in self.instances if (s := i.snapshot) is not None and not i.taken]
        age_s = self.now_s - each.reported_s
        state = InstanceState.STALLED if age_s > 3 else InstanceState.ACTIVE
        if each.drain is not None:
            state = InstanceState.DRAINING
        draining = each.drain is not None
        lately = [(rank, took_s) for at_s, rank, took_s in each.ttfts_s if at_s > self.now_s - 60]
        ttfts_s = {
            rank: _p99([took_s for of, took_s in lately if of == rank])
            for rank in sorted({rank for rank, _ in lately})
        }
        return InstanceStatus(
            id=each.id,
            state=state,
            incarnation=1,
            node="10.0.0.11",
            pid=4000 + int(each.id[2:]),
            up_s=7200.0 + self.now_s,
            freeness_steps=None if draining else round(freeness(snapshot, DEFAULT_LEVELS), 1),
            virtual_usage_blocks=None
            if draining
            else int(instance_virtual_usage(snapshot, DEFAULT_LEVELS)),
            headroom_blocks=total_headroom_blocks(snapshot, DEFAULT_LEVELS),
            block_size=snapshot.block_size,
            num_total_blocks=snapshot.num_total_blocks,
            num_free_blocks=snapshot.num_free_blocks,
            watermark_blocks=snapshot.watermark_blocks,
            max_running_reqs=snapshot.max_num_running,
            num_running_reqs=snapshot.num_running,
            num_running_by_level=_by_level(snapshot.num_running_by_rank),
            num_waiting_reqs=snapshot.num_queued,
            num_waiting_by_level=_by_level(snapshot.num_queued_by_rank),
            headroom_by_level_blocks=_by_level(headroom_by_rank(snapshot, DEFAULT_LEVELS)),
            kv_cache_usage=snapshot.num_used_blocks / snapshot.num_total_blocks,
            queue_head=self._head(snapshot, others),
            num_evictions=snapshot.num_evictions,
            num_moves_in=sum(move.to_instance_id == each.id for move in self.moves),
            num_moves_out=sum(move.from_instance_id == each.id for move in self.moves),
            step_time_s=round(each.step_time_s, 6),
            num_steps=each.num_steps,
            ttft_p99_s=_p99([took_s for _, took_s in lately]) if lately else None,
            ttft_p99_by_level_s=_by_level(ttfts_s),
            age_s=round(age_s + 0.2, 3),
            drain=each.drain,
        )

    def _head(
        self, snapshot: InstanceSnapshot, others: list[InstanceSnapshot]
    ) -> QueueHeadStatus | None:
        head = snapshot.queue_head
        if head is None:
            return None
        evicted_s = self._evicted_s.get(head.request_id, self.now_s)
        return QueueHeadStatus(
            request_id=head.request_id,
            level=LEVEL_NAMES[head.rank],
            demand_blocks=head.demand_blocks,
            waited_s=round(self.now_s - head.arrival_time_s, 1),
            evicted=head.evicted,
            evicted_for_s=round(self.now_s - evicted_s, 1) if head.evicted else None,
            why=str(queue_reason(snapshot, others) or ""),
        )


def _by_level(by_rank: Mapping[int, Figure]) -> dict[str, Figure]:
    return {LEVEL_NAMES[rank]: figure for rank, figure in by_rank.items()}


def _slowest(of_instances: Iterable[Mapping[str, float]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for by_level in of_instances:
        for name, took_s in by_level.items():
            found[name] = max(took_s, found.get(name, 0.0))
    return found


def _p99(took_s: list[float]) -> float:
    return round(sorted(took_s)[-1 - len(took_s) // 100], 3)
