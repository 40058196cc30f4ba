"""A made-up cluster for tests and benchmarks of the dashboard: frames from a seed, the same each
time."""

import random
from collections.abc import Iterator
from typing import Any

from controller.adapters.http.merged_status import together
from controller.api.state.run_state import RunState
from controller.api.wire.history import HistoryReport, LevelHistory
from controller.api.wire.requests import Event, RequestList, RequestState, RequestStatus
from controller.api.wire.status import (
    AlarmStatus,
    AutoscaleStatus,
    ClusterState,
    ClusterStatus,
    DrainStatus,
    EndedMoveStatus,
    EndedReplayStatus,
    FrontendStatus,
    HeldHeadStatus,
    HeldStatus,
    InstanceState,
    InstanceStatus,
    KeptForStatus,
    LevelStatus,
    MoveStatus,
    QueueHeadStatus,
    ReplaysStatus,
    ReplayStatus,
    VerdictOrder,
    VerdictStatus,
)
from controller.api.wire.stream import EventFrame, Frame, GapFrame, PingFrame, StatusFrame

START_S = 1_767_268_800.0
"""2026-01-01 12:00:00 UTC."""
NUM_BLOCKS, WATERMARK, BLOCK_SIZE = 1000, 10, 16
STARTING = InstanceState.STARTING
WHYS = ("memory", "fragmented", "batch-full", "next-step")


def frames(
    seconds: int, num_instances: int = 16, events_per_s: int = 4, seed: int = 7
) -> Iterator[Frame]:
    """A status for each second, after the events of that second; and a gap and a ping, once."""
    chance = random.Random(seed)
    used = [chance.randint(200, 900) for _ in range(num_instances)]
    seq = 0
    for second in range(seconds):
        now_s = START_S + second
        for index in range(num_instances):
            used[index] = max(50, min(985, used[index] + chance.randint(-60, 60)))
        for place in range(events_per_s if second else 0):
            seq += 1
            at_s = now_s - 1 + (place + 1) / (events_per_s + 1)
            yield EventFrame(time_s=at_s, event=_event(chance, seq, at_s, num_instances))
        if second == 5:
            yield GapFrame(time_s=now_s - 0.01, missed=17)
            yield PingFrame(time_s=now_s - 0.005)
        instances = tuple(_instance(index, used[index], second) for index in range(num_instances))
        status = cluster(instances, now_s, second, seq)
        yield StatusFrame(time_s=now_s, status=moving(status) if num_instances > 3 else status)


def run_state_of(control_url: str, token: str, name: str = "default") -> RunState:
    """The run state of a cluster of which there is nothing but the control API."""
    return RunState(
        cluster=name,
        nonce="00",
        control_url=control_url,
        control_token=token,
        endpoint_url="http://127.0.0.1:8000",
        ray_address="127.0.0.1:6379",
        owns_ray=True,
        ray_head_pid=None,
        ray_head_started_s=None,
        namespace="n",
        started_at_s=1.0,
        log_dir="/l",
        temp_dir="/t",
    )


def overloaded(seconds: int) -> Iterator[Frame]:
    """All instances serve. One of them has a queue that does not get shorter; another is kept free
    for a request of a high priority. There are three moves per second."""
    for second, frame in enumerate(frames(seconds, events_per_s=0)):
        if not isinstance(frame, StatusFrame):
            continue
        for place in range(3):
            source, to = (second * 3 + place) % 7, (second + place * 5) % 16
            at_s = frame.time_s - 0.9 + place / 4
            labels = {"from": f"i-{source}", "to": f"i-{to if to != source else to + 1}"}
            event = Event(
                position=f"a1-{second}-{place}",
                kind="migrated",
                time_s=at_s,
                cause_id=f"m-{second}-{place}",
                request_id=f"r{second}c{place}",
                instance_id=labels["to"],
                labels=labels,
            )
            yield EventFrame(time_s=at_s, event=event)
        healthy = tuple(
            item if item.state is InstanceState.ACTIVE else instance(item.id, node=item.node)
            for item in frame.status.instances
        )
        status = frame.status.model_copy(
            update={
                "state": ClusterState.READY,
                "detail": "",
                "instances": tuple(_of_overload(item, second) for item in healthy),
                "verdict": VERDICT,
                "alarms": alarms_of(frame.time_s),
            }
        )
        yield frame.model_copy(update={"status": status})


VERDICT = VerdictStatus(
    word="overloaded",
    severity="bad",
    since_s=START_S - 112.0,
    why="61 wait on 1 of 16, the longest 112 s, KV 91%, 1.3 times more arrives than leaves",
    order=VerdictOrder(deed="add", expected="serving in 25 s"),
)


def alarms_of(now_s: float) -> tuple[AlarmStatus, ...]:
    """One that is raised, and two that ended."""
    return (
        AlarmStatus(subject="i-6", text="61 wait", since_s=now_s - 112.0),
        AlarmStatus(
            subject="cluster", text="9 moves failed", since_s=now_s - 400, ended_s=now_s - 60
        ),
        AlarmStatus(subject="i-9", text="stalled", since_s=now_s - 900, ended_s=now_s - 861),
    )


def history(seconds: int, end_s: float = START_S, *, instances: int = 0) -> HistoryReport:
    """What a controller remembers of the time up to `end_s`: requests of two levels come and go.
    With `instances` it has the figures of as many."""
    places = range(seconds)
    running = tuple(100.0 + 20.0 * ((place // 10) % 3) for place in places)
    waiting = tuple(float(place % 30) for place in places)
    shares = tuple(0.5 + 0.01 * (place % 40) for place in places)
    levels = {
        name: LevelHistory(
            num_running_reqs=tuple(share * each for each in running),
            num_waiting_reqs=tuple(share * each for each in waiting),
            ttft_p99_s=tuple(None if place < 5 else 12.0 * share for place in places),
        )
        for name, share in (("normal", 0.9), ("high", 0.1))
    }
    return HistoryReport(
        time_s=tuple(end_s - seconds + 1 + place for place in places),
        span_s=(1.0,) * seconds,
        cluster={
            "kv_held_share": shares,
            "kv_wanted_share": tuple(1.5 * each for each in shares),
            "num_migrated": tuple(float(place % 7 == 0) for place in places),
            "num_evictions": tuple(float(place % 50 > 40) for place in places),
        },
        levels=levels,
        instances={
            f"i-{number}": {"freeness_steps": tuple(300.0 - place for place in places)}
            for number in range(instances)
        },
    )


def _of_overload(item: InstanceStatus, second: int) -> InstanceStatus:
    if item.id == "i-6":
        head = QueueHeadStatus(
            request_id="r8006c6",
            level="normal",
            demand_blocks=280,
            waited_s=112.0 + second,
            evicted=False,
            why="fragmented",
        )
        return item.model_copy(
            update={
                "freeness_steps": -214.0,
                "virtual_usage_blocks": 1250,
                "headroom_blocks": 90,
                "num_free_blocks": 196,
                "kv_cache_usage": 0.804,
                "num_waiting_reqs": 61,
                "queue_head": head,
                "ttft_p99_s": 166.0,
            }
        )
    if item.id == "i-9":
        return item.model_copy(
            update={
                "freeness_steps": -120.0,
                "virtual_usage_blocks": 1240,
                "headroom_blocks": 743,
                "num_free_blocks": 503,
                "kv_cache_usage": 0.497,
                "num_waiting_reqs": 0,
                "queue_head": None,
            }
        )
    return item


def on_four_nodes(seconds: int) -> Iterator[Frame]:
    """Four instances on each of four machines. The third machine is lost, and its requests are
    replayed; i-1 is evacuated."""
    for frame in frames(seconds, events_per_s=0):
        if not isinstance(frame, StatusFrame):
            continue
        found = tuple(
            _of_four_nodes(
                item if item.state is not InstanceState.FAILED else instance(item.id),
                frame.time_s,
            )
            for item in frame.status.instances
        )
        yield frame.model_copy(update={"status": with_replays(frame.status, found)})


def of_two_models(seconds: int) -> Iterator[Frame]:
    """A cluster that serves two models: two quiet instances of `big`, and four of `small`, of which
    one drains and one starts, with auto-scaling and a queue that does not get shorter."""
    for second, frame in enumerate(frames(seconds, 6, events_per_s=0)):
        if isinstance(frame, StatusFrame):
            yield frame.model_copy(update={"status": two_models(frame.time_s, second)})


def two_models(now_s: float = START_S, second: int = 0) -> ClusterStatus:
    big = (instance("i-0", model="big"), instance("i-1", model="big", freeness_steps=800.0))
    starting = InstanceStatus(
        id="i-5", state=STARTING, detail="loading weights 61%", incarnation=1, model="small"
    )
    drain = DrainStatus(drain_id="op-1", num_requests_left=7, num_moved=5)
    small = (
        instance("i-2", model="small", freeness_steps=-20.0, num_waiting_reqs=9),
        instance("i-3", model="small", freeness_steps=90.0),
        instance("i-4", InstanceState.DRAINING, model="small", drain=drain),
        starting,
    )
    quiet = VerdictStatus(word="ok", severity="quiet", since_s=START_S, why="2 serve, 24 run")
    scaling = AutoscaleStatus(
        mode="on", min_instances=1, max_instances=8, num_instances=3, num_wanted=4
    )
    of_each = {
        "big": (big, quiet, cluster(big).autoscale.model_copy(update={"num_instances": 2})),
        "small": (small, VERDICT, scaling),
    }
    return together(
        {
            name: cluster(found, now_s, second).model_copy(
                update={
                    "verdict": verdict,
                    "revision": 7,
                    "autoscale": autoscale,
                    "tokens_per_s": 1200.0,
                }
            )
            for name, (found, verdict, autoscale) in of_each.items()
        }
    )


def _of_four_nodes(item: InstanceStatus, now_s: float) -> InstanceStatus:
    number = int(item.id[2:])
    node = f"10.0.0.{11 + number // 4}" if item.state is not STARTING else ""
    if 8 <= number < 12:
        return InstanceStatus(
            id=item.id,
            state=InstanceState.RESTARTING,
            detail="its process is gone",
            incarnation=1,
            num_replays_out=2 if number == 9 else 0,
            node=node,
        )
    if number == 1:
        drain = DrainStatus(
            drain_id="op-1",
            num_requests_left=7,
            num_moved=5,
            deadline_s=now_s + 21.0,
            removes=True,
            evacuates=True,
        )
        update = {"drain": drain, "state": InstanceState.DRAINING, "node": node}
        return item.model_copy(update=update)
    return item.model_copy(update={"num_replays_in": int(number == 4), "node": node})


def with_replays(status: ClusterStatus, instances: tuple[InstanceStatus, ...]) -> ClusterStatus:
    """Two replays are under way, two succeeded and one failed."""
    under_way = (
        ReplayStatus(
            request_id="r9c0",
            from_instance_id="i-9",
            state="placing",
            reason="death",
            num_tokens=1800,
            pause_s=1.7,
        ),
        ReplayStatus(
            request_id="r9c1",
            from_instance_id="i-9",
            to_instance_id="i-4",
            state="computing",
            reason="death",
            num_tokens=412,
            pause_s=1.4,
        ),
    )
    ended = tuple(
        EndedReplayStatus(
            request_id=f"r9d{place}",
            from_instance_id="i-8",
            to_instance_id=to,
            outcome=outcome,
            code=code,
            reason="death",
            num_tokens=140,
            pause_s=pause_s,
            ended_s=status.time_s - 0.5 - place,
        )
        for place, (outcome, to, code, pause_s) in enumerate(
            (
                ("replayed", "i-0", "", 1.1),
                ("dispatched_again", "i-2", "", None),
                ("failed", None, "too_often", None),
            )
        )
    )
    replays = ReplaysStatus(
        under_way=under_way,
        ended=ended,
        num_replaying=2,
        num_replayed_last_minute=11,
        num_not_replayed_last_minute=1,
    )
    return status.model_copy(update={"instances": instances, "replays": replays})


def late_binding(seconds: int) -> Iterator[Frame]:
    """Requests wait at the controller: i-9 is kept for the first of them, i-2 for another."""
    for second, frame in enumerate(frames(seconds, events_per_s=0)):
        if not isinstance(frame, StatusFrame):
            continue
        instances = tuple(
            _of_late_binding(
                item if item.state is InstanceState.ACTIVE else instance(item.id, node=item.node),
                second,
            )
            for item in frame.status.instances
        )
        head = HeldHeadStatus(
            request_id="r9001c9",
            frontend_id="f-0",
            level="high",
            rank=1,
            place=1,
            why="kept",
            demand_blocks=360,
            instance_id="i-9",
            lacking_blocks=172,
            overtaken_by="any",
            num_overtaken=140,
            waited_s=31.5 + second,
        )
        status = frame.status.model_copy(
            update={
                "state": ClusterState.READY,
                "detail": "",
                "policy": "llumnix+",
                "instances": instances,
                "num_held_reqs": 61,
                "held": HeldStatus(
                    num_by_level={"high": 3, "normal": 58},
                    demand_blocks=4321,
                    oldest_wait_s=40.5 + second,
                    head=head,
                    oldest=head.model_copy(
                        update={
                            "request_id": "r9002c2",
                            "level": "normal",
                            "rank": 0,
                            "place": 4,
                            "demand_blocks": 300,
                            "instance_id": "i-2",
                            "lacking_blocks": 96,
                            "num_overtaken": 0,
                            "waited_s": 40.5 + second,
                        }
                    ),
                ),
            }
        )
        yield frame.model_copy(update={"status": status})


def _of_late_binding(item: InstanceStatus, second: int) -> InstanceStatus:
    """An instance without a queue of its own and with little free memory."""
    kept = {"i-9": ("r9001c9", "high", 360, 172, 31.5), "i-2": ("r9002c2", "normal", 300, 96, 40.5)}
    number = int(item.id.removeprefix("i-"))
    free = {"i-9": 208, "i-2": 224}.get(item.id, 30 + (number * 37 + second) % 90)
    update: dict[str, Any] = {
        "queue_head": None,
        "num_waiting_reqs": 0,
        "num_waiting_by_level": {},
        "num_running_reqs": 20,
        "num_running_by_level": {"normal": 18, "high": 2},
        "num_free_blocks": free,
        "headroom_blocks": 0,
        "headroom_by_level_blocks": {},
        "virtual_usage_blocks": NUM_BLOCKS - free,
        "kv_cache_usage": 1 - free / NUM_BLOCKS,
        "freeness_steps": BLOCK_SIZE * (free - WATERMARK) / 20,
    }
    if item.id in kept:
        request_id, level, demand, lacking, waited_s = kept[item.id]
        update["kept_for"] = KeptForStatus(
            request_id=request_id,
            level=level,
            demand_blocks=demand,
            lacking_blocks=lacking,
            waited_s=waited_s + second,
        )
    return item.model_copy(update=update)


def cluster(
    instances: tuple[InstanceStatus, ...], now_s: float = START_S, second: int = 0, seq: int = 0
) -> ClusterStatus:
    stalled = [item.id for item in instances if item.state is InstanceState.STALLED]
    return ClusterStatus(
        cluster="prod-a",
        state=ClusterState.DEGRADED if stalled else ClusterState.READY,
        detail=f"{stalled[0]} is stalled" if stalled else "",
        model="llama-3-8b",
        policy="llumnix",
        endpoint_url="http://10.0.0.5:8000",
        time_s=now_s,
        uptime_s=7200.0 + second,
        cluster_uptime_s=7200.0 + second,
        num_held_reqs=0,
        autoscale=AutoscaleStatus(mode="off", min_instances=1, max_instances=16, num_instances=1),
        levels=(
            _level(LevelStatus(name="normal", rank=0, ttft_p99_s=1.9), instances),
            _level(
                LevelStatus(name="high", rank=1, target_load_tokens=1600, ttft_p99_s=0.3), instances
            ),
        ),
        last_event=f"a1-{seq}",
        instances=instances,
        frontends=(
            FrontendStatus(
                id="f-0",
                state=InstanceState.ACTIVE,
                incarnation=1,
                num_live_reqs=300,
                ttft_p99_s=1.9,
                age_s=0.3,
            ),
        ),
    )


def _level(level: LevelStatus, instances: tuple[InstanceStatus, ...]) -> LevelStatus:
    name = level.name
    return level.model_copy(
        update={
            "num_running_reqs": sum(i.num_running_by_level.get(name, 0) for i in instances),
            "num_waiting_reqs": sum(i.num_waiting_by_level.get(name, 0) for i in instances),
            "headroom_blocks": sum(i.headroom_by_level_blocks.get(name, 0) for i in instances),
        }
    )


def moving(status: ClusterStatus) -> ClusterStatus:
    """Three moves under way, and three that ended a while ago."""
    wanted = (
        ("i-3", "i-1", "committing", 64),
        ("i-3", "i-2", "copying", 118),
        ("i-0", "i-2", "suspended", 9),
    )
    moves = tuple(
        MoveStatus(
            migration_id=f"m-a1-{place + 9}",
            request_id=f"r77c{place}",
            from_instance_id=source,
            to_instance_id=destination,
            state=state,
            stage=place,
            num_blocks_copied=blocks - 30 * (place == 1),
            num_blocks=blocks,
            reason="by hand",
            age_s=0.9 - 0.2 * place,
        )
        for place, (source, destination, state, blocks) in enumerate(wanted)
    )
    ended = tuple(
        EndedMoveStatus(
            migration_id=f"m-a1-{8 - place}",
            request_id=f"r66c{place}",
            from_instance_id="i-3",
            to_instance_id="i-1",
            outcome=outcome,
            why=why,
            reason="by hand",
            ended_s=status.time_s - 2 - place,
            num_blocks=40 + place,
            num_bytes=40_000_000,
            downtime_s=downtime_s,
        )
        for place, (outcome, why, downtime_s) in enumerate(
            (
                ("migrated", "", 0.024),
                ("kept", "the destination has not enough free blocks", None),
                ("migrated", "", 0.031),
            )
        )
    )
    found = {
        "moves": moves,
        "ended_moves": ended,
        "num_migrated_last_minute": 41,
        "num_failed_moves_last_minute": 1,
    }
    return status.model_copy(update=found)


def instance(
    id_: str = "i-0", state: InstanceState = InstanceState.ACTIVE, **fields: Any
) -> InstanceStatus:
    """An instance that has reported; `fields` differ from the usual ones."""
    known: dict[str, Any] = {
        "incarnation": 1,
        "node": "10.0.0.11",
        "pid": 4242,
        "up_s": 7200.0,
        "freeness_steps": 521.0,
        "virtual_usage_blocks": 600,
        "headroom_blocks": 0,
        "block_size": BLOCK_SIZE,
        "num_total_blocks": NUM_BLOCKS,
        "num_free_blocks": 450,
        "watermark_blocks": WATERMARK,
        "max_running_reqs": 64,
        "num_running_reqs": 12,
        "num_running_by_level": {"normal": 12},
        "num_waiting_reqs": 0,
        "kv_cache_usage": 0.55,
        "num_evictions": 0,
        "num_moves_in": 0,
        "num_moves_out": 0,
        "step_time_s": 0.021,
        "num_steps": 1000,
        "ttft_p99_s": 0.8,
        "age_s": 0.2,
    }
    return InstanceStatus(id=id_, state=state, **(known | fields))


def _instance(index: int, used: int, second: int) -> InstanceStatus:
    """An instance. The last four are starting, draining, stalled and failed."""
    id_ = f"i-{index}"
    if index == 12:
        done = min(99, 40 + second // 2)
        detail = f"loading weights {done}% (eta {max(1, 18 - second // 10)}s)"
        return InstanceStatus(id=id_, state=InstanceState.STARTING, detail=detail, incarnation=1)
    if index == 15:
        return InstanceStatus(
            id=id_,
            state=InstanceState.FAILED,
            detail="the engine could not start: CUDA out of memory",
            incarnation=2,
            num_restarts=1,
            node="10.0.0.11",
        )
    running = max(1, used // 24)
    high = running // 8
    queued = used > 500
    demand = 118 + index if queued else 0
    headroom = 90 * min(1, high)
    virtual = used + headroom + demand
    capacity = NUM_BLOCKS - WATERMARK
    draining = index == 13
    batch = running + queued
    state = {13: InstanceState.DRAINING, 14: InstanceState.STALLED}.get(index, InstanceState.ACTIVE)
    head = QueueHeadStatus(
        request_id=f"r{8000 + index:x}c{index:x}",
        level="high" if index % 3 == 0 else "normal",
        demand_blocks=demand,
        waited_s=0.4 + index * 0.7 + second % 5,
        evicted=index % 4 == 1,
        evicted_for_s=0.4 + index * 0.7 + second % 5 if index % 4 == 1 else None,
        why=WHYS[index % len(WHYS)],
    )
    return instance(
        id_,
        state,
        pid=4000 + index,
        up_s=7200.0 + second - 60 * index,
        freeness_steps=None if draining else BLOCK_SIZE * (capacity - virtual) / batch,
        virtual_usage_blocks=None if draining else virtual,
        headroom_blocks=headroom,
        num_free_blocks=NUM_BLOCKS - used,
        num_running_reqs=running,
        num_running_by_level={"normal": running - high, "high": high},
        num_waiting_reqs=3 + index % 4 if queued else 0,
        num_waiting_by_level={"normal": 2 + index % 4, "high": 1} if queued else {},
        headroom_by_level_blocks={"high": headroom} if headroom else {},
        ttft_p99_by_level_s={"normal": 0.2 + used / 400, "high": 0.1 + used / 4000},
        kv_cache_usage=used / NUM_BLOCKS,
        queue_head=head if queued else None,
        num_evictions=used // 300,
        num_moves_in={1: 1, 2: 2}.get(index, 0),
        num_moves_out={0: 1, 3: 2}.get(index, 0),
        num_steps=1000 + 40 * second,
        ttft_p99_s=0.2 + used / 400,
        age_s=12.0 + second if index == 14 else 0.2,
    )


def _event(chance: random.Random, seq: int, at_s: float, num_instances: int) -> Event:
    index = chance.randrange(num_instances)
    request_id = f"r{0x7000 + seq // 4:x}c{index:x}"
    kind = ("dispatched", "admitted", "finished", "evicted")[seq % 4]
    fields: dict[str, Any] = {"request_id": request_id, "cause_id": f"arrive-{request_id}"}
    if kind == "dispatched":
        fields["numbers"] = {"freeness_steps": 120.5 + index, "num_prompt_tokens": 512}
    if kind == "finished":
        fields |= {"reason": "stop", "numbers": {"num_output_tokens": 200, "ttft_s": 0.31}}
    if kind == "evicted":
        fields |= {"reason": "memory", "cause_id": f"step-i-{index}-1-{seq}"}
    if seq % 23 == 0:
        kind = "instance_started"
        fields = {"cause_id": f"start-i-{index}-2", "numbers": {"start_s": 21.5}}
    if seq % 31 == 0:
        kind = "instance_died"
        fields = {"cause_id": f"lost-i-{index}-1", "reason": "connection closed"}
    if seq % 41 == 0:
        kind = "operator"
        fields = {"cause_id": f"op-{seq:x}", "reason": "stop", "actor": "ana@head"}
    return Event(
        position=f"a1-{seq}",
        kind=kind,
        time_s=at_s,
        instance_id=f"i-{index}",
        incarnation=1,
        **fields,
    )


def requests(instance_id: str, count: int = 4) -> RequestList:
    """Live requests in the controller's order: running ones, an evicted one, a waiting one."""
    states = [RequestState.RUNNING] * max(0, count - 2)
    states += [RequestState.EVICTED, RequestState.WAITING]
    found = tuple(
        RequestStatus(
            id=f"r{0x9000 + place:x}",
            client_id=f"chatcmpl-{place:04d}",
            state=state,
            level="high" if place == 0 else "normal",
            frontend_id="f-0",
            instance_id=instance_id,
            arrival_time_s=START_S - 10 + place,
            age_s=10.0 - place,
            ttft_s=None if state is RequestState.WAITING else 0.42,
            num_prompt_tokens=512,
            last_token_age_s=0.0 if state is RequestState.RUNNING else None,
            num_output_tokens=0 if state is RequestState.WAITING else 40 + place,
            num_blocks=35 if state is RequestState.RUNNING else 0,
            num_evictions=int(state is RequestState.EVICTED),
            num_moves=place % 3,
        )
        for place, state in enumerate(states)
    )
    return RequestList(requests=found, num_matching=len(found))
