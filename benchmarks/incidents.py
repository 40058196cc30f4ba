"""Twelve made-up incidents as recordings, the same in each run: `python -m benchmarks.incidents
FOLDER` writes them, `llumctl top --replay FILE` shows them, and docs/incidents.md explains them.

Each incident adds to the cluster what no model has, such as a process that hangs or a slow link.
"""

import argparse
import math
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from controller.adapters.http.observer import present_of, seen_of, verdict_status
from controller.api.recording import RecordingHeader, RecordingWriter
from controller.api.text.alarms import ABSENT_STATES
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
from controller.core.record.history import History
from controller.core.record.verdict import Verdicts
from controller.core.record.windows import ServedInAll, bucket_of
from controller.model.engine_model import EngineModel, StepResult
from controller.model.engine_state import ModelRequest
from controller.model.profile import ModelConfig, load_profile

# The cluster, in virtual time. Engines are the pure model, requests come from a seed and go where
# the controller's own measure sends them, and the controller's own functions compute the figures.

Figure = TypeVar("Figure", int, float)

BEGUN_S = 1_767_268_800.0
"""2026-01-01 12:00:00 UTC."""
NUM_INSTANCES = 6
RATE = 1.8
"""Requests per second that such a cluster serves easily."""
PROFILE = load_profile("a10-llama-7b")
CONFIG = ModelConfig.of(PROFILE)
LEVEL_NAMES = {level.rank: level.name for level in DEFAULT_LEVELS}


@dataclass
class Instance:
    """`stopped`: the process hangs and no longer reports. `taken`: the instance gets no
    requests."""

    id: str
    engine: EngineModel = field(default_factory=lambda: EngineModel(CONFIG, PROFILE))
    free_at_s: float = 0.0
    stopped: bool = False
    taken: bool = False
    reported_s: float = 0.0
    snapshot: InstanceSnapshot | None = None
    step_time_s: float = 0.0
    num_steps: int = 0
    live: dict[str, ModelRequest] = field(default_factory=dict)
    slowness: float = 1.0
    """How many times as long its steps take as they should."""
    failed: str = ""
    """Why it could not start."""
    returns_s: float | None = None
    """When its process serves again; None while it runs."""
    ttfts_s: list[tuple[float, int, float]] = field(default_factory=list)
    """For each first token its time, the rank of the request, and how long it took."""
    drain: DrainStatus | None = None


class Cluster:
    """`now_s` counts from 0. An incident may set `moves`, `ended_moves` and the state of
    instances."""

    def __init__(self, seed: int) -> None:
        self.now_s = 0.0
        self.dice = random.Random(seed)
        self.instances = [Instance(f"i-{number}") for number in range(NUM_INSTANCES)]
        self.moves: tuple[MoveStatus, ...] = ()
        self.ended_moves: tuple[EndedMoveStatus, ...] = ()
        self.num_migrated = self.num_failed = 0
        self.controller_since_s = -7200.0
        self._num_arrived = self._num_ended = 0
        self._ttfts: dict[str, Counter[int]] = {}
        self._history, self._verdicts = History(), Verdicts()
        self._arrived: dict[str, tuple[float, int]] = {}
        self._evicted_s: dict[str, float] = {}
        self._events: list[Event] = []
        self._num_events = 0

    # What happens

    def arrive(
        self, num_prompt_tokens: int, num_output_tokens: int, rank: int = 0, to: str = ""
    ) -> str:
        """A request arrives and goes to the freest instance, by the controller's measure."""
        request_id = f"cmpl-{self.dice.getrandbits(64):016x}-0-{self.dice.getrandbits(32):08x}"
        request = ModelRequest(request_id, num_prompt_tokens, num_output_tokens, rank, self.now_s)
        self._num_arrived += 1
        self._arrived[request_id] = self.now_s, rank
        self._dispatch(request, to)
        return request_id

    def _dispatch(self, request: ModelRequest, to: str = "") -> None:
        level = next(each for each in DEFAULT_LEVELS if each.rank == request.rank)
        able = [each for each in self.instances if not each.taken or each.id == to]
        chosen = max(
            (each for each in able if to in ("", each.id)),
            key=lambda each: dispatch_freeness(
                each.engine.snapshot(each.id, 1), level, DEFAULT_LEVELS
            ),
        )
        chosen.engine.add(request)
        chosen.live[request.request_id] = request
        self.tell("dispatched", chosen.id, request.request_id)

    def traffic(self, seconds: float, rate: float = RATE, rank: int = 0) -> None:
        """Requests of medium lengths, for so many seconds."""
        end_s = self.now_s + seconds
        while (next_s := self.now_s + self.dice.expovariate(rate)) < end_s:
            self.now_s = next_s
            self._run()
            self.arrive(self._length(), self._length(), rank)
        self.now_s = end_s
        self._run()

    def kill(self, instance: Instance, start_s: float) -> None:
        """Ends the instance's process. What it ran is computed again elsewhere, and it serves again
        after `start_s`."""
        self.tell("instance_died", instance.id, reason="its process ended")
        lost, instance.live = list(instance.live.values()), {}
        instance.engine = EngineModel(CONFIG, PROFILE)
        instance.taken, instance.returns_s = True, self.now_s + start_s
        for request in lost:
            self.tell("replayed", instance.id, request.request_id)
            self._dispatch(request)

    def _length(self) -> int:
        return int(min(1500, max(16, self.dice.expovariate(1 / 220))))

    def tell(self, kind: str, instance_id: str, request_id: str | None = None, **more: str) -> None:
        """Logs an event, as the controller does."""
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
                took_s = each.slowness * done.duration_s
                each.free_at_s = max(each.free_at_s, self.now_s - 0.05) + took_s
                each.step_time_s, each.num_steps = took_s, each.num_steps + 1
                self._stepped(each, done)

    def _stepped(self, instance: Instance, done: StepResult) -> None:
        for request_id in done.emitted:
            if (arrived := self._arrived.pop(request_id, None)) is not None:
                arrived_s, rank = arrived
                ttft_s = instance.free_at_s - arrived_s
                instance.ttfts_s.append((self.now_s, rank, ttft_s))
                self._ttfts.setdefault(LEVEL_NAMES[rank], Counter())[bucket_of(ttft_s)] += 1
        self._num_ended += len(done.finished)
        for request_id in done.finished:
            del instance.live[request_id]
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
        yield StatusFrame(time_s=time_s, status=self._judged(self.status()))

    def _judged(self, status: ClusterStatus) -> ClusterStatus:
        """The status with the verdict that the controller would give."""
        served = ServedInAll(self._num_arrived, self._num_ended, 0, self._ttfts)
        evictions = {each.id: each.num_evictions or 0 for each in status.instances}
        self._history.handle(seen_of(status, {"num_evictions": evictions}, {"f-0": served}), 1.0)
        sample = self._history.latest
        assert sample is not None
        self._verdicts.handle(present_of(status, sample))
        verdict = self._verdicts.view()
        assert verdict is not None
        return status.model_copy(update={"verdict": verdict_status(verdict)})

    def status(self) -> ClusterStatus:
        for each in self.instances:
            if not each.stopped:
                each.reported_s, each.snapshot = self.now_s, each.engine.snapshot(each.id, 1)
        found = tuple(self._instance(each) for each in self.instances)
        slowest = max((item.ttft_p99_s for item in found if item.ttft_p99_s), default=None)
        slowest_by_level = _slowest(item.ttft_p99_by_level_s for item in found)
        absent = [item for item in found if item.state in ABSENT_STATES]
        num_live = sum((i.num_running_reqs or 0) + (i.num_waiting_reqs or 0) for i in found)
        return ClusterStatus(
            cluster="prod-a",
            state=ClusterState.DEGRADED if absent else ClusterState.READY,
            detail=", ".join(f"{item.id} is {item.state}" for item in absent),
            model="llama-7b",
            policy="llumnix",
            engine="emulated",
            endpoint_url="http://10.0.0.5:8000",
            time_s=BEGUN_S + self.now_s,
            uptime_s=self.now_s - self.controller_since_s,
            cluster_uptime_s=7200.0 + self.now_s,
            num_held_reqs=0,
            autoscale=AutoscaleStatus(
                mode="off",
                min_instances=1,
                max_instances=16,
                num_instances=len(found),
                cold_start_s=25.0,
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
        if each.returns_s is not None:
            begins = InstanceState.STARTING if each.num_steps == 0 else InstanceState.RESTARTING
            return InstanceStatus(
                id=each.id,
                state=InstanceState.FAILED if each.failed else begins,
                detail=each.failed or "loading weights",
                incarnation=1 if each.num_steps == 0 else 2,
                num_restarts=int(each.num_steps > 0),
                node="10.0.0.11",
            )
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
            fill_blocks=snapshot.fill_blocks,
            queued_demand_blocks=snapshot.queued_demand_blocks,
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


# The incidents

SECONDS = 90
Incident = Callable[[Cluster, int], None]
"""Makes a second of an incident happen, with its traffic, before its status."""
HAPPENS_S = 20
SHOWN_S = 65
"""At this second the screen shows what happened."""


def hung_engine(cluster: Cluster, second: int) -> None:
    """The engine of i-3 hangs: its requests stop, and new ones go elsewhere."""
    if second == HAPPENS_S:
        cluster.instances[3].stopped = True
    if second == HAPPENS_S + 10:
        cluster.instances[3].taken = True
        cluster.tell("instance_stalled", "i-3", reason="no progress reported")
    cluster.traffic(1, 3.0)


def giants(cluster: Cluster, second: int) -> None:
    """A client begins to send prompts of thousands of tokens and to ask for as many: they fill the
    memory of all instances, and hardly any other request finds room."""
    if second >= HAPPENS_S and second % 2 == 0:
        cluster.arrive(4200, 3500)
    cluster.traffic(1)


def slow_link(cluster: Cluster, second: int) -> None:
    """The link to the machine of i-4 is 100 times slower than before: moves there do not end."""
    _moves_to(cluster, "i-4", second, blocks_per_s=0.5 if second >= HAPPENS_S else 150.0)
    cluster.traffic(1, 3.0)


def priority_burst(cluster: Cluster, second: int) -> None:
    """Hundreds of requests of high priority come at once: most instances are kept for them, and
    other requests wait."""
    if HAPPENS_S <= second < HAPPENS_S + 40:
        for _ in range(2):
            cluster.arrive(400, 500, rank=1)
    cluster.traffic(1, 2.2)


def stuck_drain(cluster: Cluster, second: int) -> None:
    """i-2 is drained while the others are full: two of its requests find no room."""
    drained = cluster.instances[2]
    if second == HAPPENS_S - 10:
        for _ in range(2):
            cluster.arrive(4000, 4000, to="i-2")
    if second == HAPPENS_S:
        drained.taken = True
        cluster.tell("drain_started", "i-2", actor="ana@head")
    if second >= HAPPENS_S:
        _drain(cluster, drained, second)
    cluster.traffic(1, 5.5)


def unfit_head(cluster: Cluster, second: int) -> None:
    """A request needs nearly all of an instance's memory. The cluster has enough free memory, but
    no single instance has; later requests wait too."""
    if second == HAPPENS_S - 5:
        for _ in range(3):
            cluster.arrive(1400, 2500, to="i-1")
    if second == HAPPENS_S:
        cluster.arrive(11_000, 300, to="i-1")
    if second > HAPPENS_S:
        cluster.arrive(250, 250, to="i-1")
    cluster.traffic(1, 2.4)


def overload(cluster: Cluster, second: int) -> None:
    """Three times as many requests come as before."""
    cluster.traffic(1, 14.0 if second >= HAPPENS_S else 3.5)


def high_overload(cluster: Cluster, second: int) -> None:
    """More requests of high priority come than all instances together can serve."""
    if second >= HAPPENS_S:
        for _ in range(6):
            cluster.arrive(500, 600, rank=1)
    cluster.traffic(1, 1.5)


def failed_start(cluster: Cluster, second: int) -> None:
    """An operator adds an instance, and its engine cannot start."""
    if second == HAPPENS_S:
        cluster.tell("operator", "", reason="scale 6 -> 7", actor="ana@head")
        cluster.instances.append(Instance("i-6", taken=True, returns_s=math.inf))
    if second == HAPPENS_S + 12:
        cluster.instances[6].failed = "ValueError: no weights in this folder"
        cluster.tell("instance_failed", "i-6", reason=cluster.instances[6].failed)
    cluster.traffic(1, 3.0)


def slow_instance(cluster: Cluster, second: int) -> None:
    """The GPU of i-2 is throttled: its steps take five times as long."""
    if second == HAPPENS_S:
        cluster.instances[2].slowness = 5.0
    cluster.traffic(1, 3.0)


def dead_instance(cluster: Cluster, second: int) -> None:
    """The process of i-3 dies. Its requests go on elsewhere, and it starts again, which takes two
    minutes."""
    if second == HAPPENS_S:
        cluster.kill(cluster.instances[3], 120.0)
    cluster.traffic(1, 3.0)


def new_controller(cluster: Cluster, second: int) -> None:
    """The controller dies and comes back; all else goes on without it."""
    if second == SHOWN_S - 4:
        cluster.controller_since_s = cluster.now_s
        cluster.tell("controller_started", "")
    cluster.traffic(1, 3.0)


INCIDENTS: Mapping[str, Incident] = {
    "overload": overload,
    "high-overload": high_overload,
    "failed-start": failed_start,
    "slow-instance": slow_instance,
    "dead-instance": dead_instance,
    "new-controller": new_controller,
    "hung-engine": hung_engine,
    "giants": giants,
    "slow-link": slow_link,
    "priority-burst": priority_burst,
    "stuck-drain": stuck_drain,
    "unfit-head": unfit_head,
}


def frames(name: str, seconds: int = SECONDS) -> Iterator[Frame]:
    """A status for each second, after the events of that second."""
    cluster = Cluster(sorted(INCIDENTS).index(name))
    for second in range(seconds):
        INCIDENTS[name](cluster, second)
        yield from cluster.frames()


def _moves_to(cluster: Cluster, to: str, second: int, blocks_per_s: float) -> None:
    """Every third second a move begins to this instance and to another one; the latter ends at
    once."""
    going = [
        move.model_copy(
            update={
                "age_s": move.age_s + 1,
                "num_blocks_copied": min(move.num_blocks, round(blocks_per_s * (move.age_s + 1))),
            }
        )
        for move in cluster.moves
    ]
    over = [move for move in going if move.num_blocks_copied >= move.num_blocks]
    ended = [
        EndedMoveStatus(
            migration_id=move.migration_id,
            request_id=move.request_id,
            from_instance_id=move.from_instance_id,
            to_instance_id=move.to_instance_id,
            outcome="migrated",
            reason=move.reason,
            ended_s=BEGUN_S + cluster.now_s,
            num_blocks=move.num_blocks,
            num_bytes=move.num_blocks << 20,
            downtime_s=0.024,
        )
        for move in over
    ]
    kept = [move for move in going if move not in over]
    if second % 3 == 0:
        kept += [_new_move(cluster, source, other) for source, other in (("i-0", to), ("i-1", to))][
            : max(0, 3 - len(kept))
        ]
        done = _new_move(cluster, "i-5", "i-2")
        ended.append(
            EndedMoveStatus(
                migration_id=done.migration_id,
                request_id=done.request_id,
                from_instance_id="i-5",
                to_instance_id="i-2",
                outcome="migrated",
                reason="balance",
                ended_s=BEGUN_S + cluster.now_s + 0.4,
                num_blocks=done.num_blocks,
                num_bytes=done.num_blocks << 20,
                downtime_s=0.022,
            )
        )
    cluster.moves = tuple(kept)
    cluster.ended_moves = (*reversed(ended), *cluster.ended_moves)[:20]
    cluster.num_migrated = 20 + second % 4


def _new_move(cluster: Cluster, source: str, to: str) -> MoveStatus:
    dice = cluster.dice
    return MoveStatus(
        migration_id=f"m-{dice.getrandbits(32):08x}",
        request_id=f"cmpl-{dice.getrandbits(64):016x}-0-{dice.getrandbits(32):08x}",
        from_instance_id=source,
        to_instance_id=to,
        state="copying",
        stage=0,
        num_blocks_copied=0,
        num_blocks=dice.randint(60, 90),
        reason="balance",
        age_s=0.0,
    )


def _drain(cluster: Cluster, drained: Instance, second: int) -> None:
    """Drains an instance: its small requests end or move; a giant's moves are refused again and
    again."""
    number = drained.engine.snapshot("i-2", 1).num_running
    drained.drain = DrainStatus(
        drain_id="d-1",
        num_requests_left=number,
        num_moved=7,
        deadline_s=BEGUN_S + HAPPENS_S + 30,
    )
    if second % 2 == 0 and number:
        others = [each for each in cluster.instances if each is not drained]
        to = max(others, key=lambda each: each.engine.snapshot(each.id, 1).num_free_blocks)
        tried = _new_move(cluster, "i-2", to.id)
        refused = EndedMoveStatus(
            migration_id=tried.migration_id,
            request_id=f"cmpl-9f3c0d27a6b1e854-0-0c1f77d{second // 2 % 2}",
            from_instance_id="i-2",
            to_instance_id=to.id,
            outcome="kept",
            why="the destination has not enough free blocks",
            reason="drain",
            ended_s=BEGUN_S + cluster.now_s,
            num_blocks=0,
            num_bytes=0,
        )
        cluster.ended_moves = (refused, *cluster.ended_moves)[:20]
        cluster.num_failed = min(30, cluster.num_failed + 1)


def write(path: Path, found: Iterable[Frame]) -> None:
    writer = RecordingWriter(path, RecordingHeader(cluster="prod-a", time_s=BEGUN_S))
    for frame in found:
        writer.append(frame)
    writer.close()


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.incidents",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(INCIDENTS))
    options = parser.parse_args()
    if unknown := set(options.names) - set(INCIDENTS):
        parser.error(f"no such incident: {', '.join(sorted(unknown))}")
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in options.names or INCIDENTS:
        path = options.folder / f"{name}.jsonl"
        write(path, frames(name))
        print(f"llumctl top --replay {path} --at {SHOWN_S}s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
