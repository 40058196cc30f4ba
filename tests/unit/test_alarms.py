"""Alarms: which trouble is the worst, its cause in words, and the limits."""

from typing import Any

import pytest

from controller.api.settings.settings import ConsoleTable
from controller.api.text.alarms import Alarm, alarms
from controller.api.text.status_words import in_need, is_reserved
from controller.api.wire.status import (
    ClusterState,
    DrainStatus,
    EndedMoveStatus,
    FrontendStatus,
    HeldHeadStatus,
    HeldStatus,
    InstanceState,
    InstanceStatus,
    KeptForStatus,
    LevelStatus,
    MoveStatus,
    QueueHeadStatus,
)
from tests.unit.cli_support import cluster
from tools import synthetic_cluster as synthetic

LIMITS = ConsoleTable()


def head(waited_s: float = 180.0, **fields: Any) -> QueueHeadStatus:
    known: dict[str, Any] = {
        "request_id": "r1",
        "level": "normal",
        "demand_blocks": 280,
        "evicted": False,
        "why": "fragmented",
    }
    return QueueHeadStatus(waited_s=waited_s, **(known | fields))


def texts(*found: InstanceStatus, limits: ConsoleTable = LIMITS, **fields: Any) -> list[str]:
    status = cluster(*found).model_copy(update=fields)
    return [alarm.text for alarm in alarms(status, limits)]


def test_the_worst_is_named_with_its_cause() -> None:
    starved = synthetic.instance(
        "i-6",
        num_waiting_reqs=61,
        queue_head=head(),
        num_free_blocks=196,
        ttft_p99_s=166.0,
    )
    slow = synthetic.instance("i-2", ttft_p99_s=11.0)
    assert texts(synthetic.instance("i-0"), slow, starved) == [
        "i-6: 61 wait, head for 3m00s needs 280 of 186 blocks, 28% of an instance;"
        " P99 TTFT 2m46s; i-2 has room for it (440 blocks)",
        "i-2: P99 TTFT 11s",
    ]


def test_a_quiet_cluster_has_none() -> None:
    assert texts(synthetic.instance("i-0", num_waiting_reqs=19, queue_head=head(9.9))) == []


@pytest.mark.parametrize(
    ("fields", "limits"),
    [
        ({"num_waiting_reqs": 5}, {"alarm_waiting_reqs": 5}),
        ({"queue_head": head(2.0)}, {"alarm_head_waited_s": 2.0}),
        ({"ttft_p99_s": 3.0}, {"alarm_ttft_p99_s": 3.0}),
    ],
)
def test_limits(fields: dict[str, Any], limits: dict[str, Any]) -> None:
    item = synthetic.instance("i-0", **fields)
    assert not texts(item)
    assert len(texts(item, limits=ConsoleTable(**limits))) == 1
    worse = synthetic.instance("i-0", num_waiting_reqs=999, queue_head=head(), ttft_p99_s=99.0)
    never = ConsoleTable(alarm_head_waited_s=0, alarm_waiting_reqs=0, alarm_ttft_p99_s=0)
    assert not texts(worse, limits=never)


def held(waited_s: float = 45.0, oldest_s: float = 0.0, **fields: Any) -> HeldStatus:
    known: dict[str, Any] = {
        "request_id": "r1",
        "frontend_id": "f-0",
        "level": "high",
        "rank": 1,
        "place": 1,
        "why": "kept",
        "demand_blocks": 360,
        "instance_id": "i-9",
        "lacking_blocks": 172,
    }
    head = HeldHeadStatus(waited_s=waited_s, **(known | fields))
    if oldest_s <= waited_s:
        return HeldStatus(oldest_wait_s=waited_s, head=head)
    other = {"request_id": "r2", "level": "normal", "place": 4, "why": "fragmented"}
    nowhere = {"waited_s": oldest_s, "demand_blocks": 20, "instance_id": None}
    oldest = head.model_copy(update=other | nowhere)
    return HeldStatus(oldest_wait_s=oldest_s, head=head, oldest=oldest)


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (
            held(),
            "head for 45s needs 360 blocks, lacks 172 on i-9, kept for it, 36% of an instance",
        ),
        (
            held(lacking_blocks=0, demand_blocks=20),
            "head for 45s needs 20 blocks; i-9 is kept for it and has no place for it yet",
        ),
        (
            held(why="memory", instance_id=None, demand_blocks=20),
            "head for 45s needs 20 blocks; all instances together do not have enough free memory",
        ),
        (
            held(why="no-instance", instance_id=None, demand_blocks=None, lacking_blocks=None),
            "head for 45s; no instance takes requests",
        ),
        (
            held(0.5, 62.0),
            "longest 1m02s (normal) needs 20 blocks; no instance has enough free memory;"
            " all together have; 3 before it",
        ),
    ],
)
def test_a_long_wait_at_the_controller_is_named_with_its_cause(
    what: HeldStatus, words: str
) -> None:
    kept = synthetic.instance("i-9", num_running_reqs=20)
    assert texts(kept, held=what, num_held_reqs=3) == [f"cluster: 3 held, {words}"]


def test_few_requests_that_hold_most_of_the_kept_instance_are_named() -> None:
    kept = synthetic.instance("i-9", num_running_reqs=4, kv_cache_usage=0.83)
    (text,) = texts(kept, held=held(), num_held_reqs=3)
    assert text.endswith("; 4 requests hold 83% of i-9")


def test_the_queue_at_the_controller_has_the_limits_of_others() -> None:
    item = synthetic.instance("i-9", num_running_reqs=20)
    assert texts(item, held=held(9.9), num_held_reqs=19) == []
    assert len(texts(item, held=held(9.9), num_held_reqs=20)) == 1
    assert len(texts(item, held=held(10.0), num_held_reqs=1)) == 1


def test_an_instance_that_is_kept_for_a_held_request_is_reserved() -> None:
    kept_for = KeptForStatus(
        request_id="r1", level="high", demand_blocks=9, lacking_blocks=1, waited_s=3.0
    )
    kept = synthetic.instance("i-9", kept_for=kept_for)
    assert (is_reserved(kept), in_need(kept)) == (True, False)
    full = synthetic.instance(
        "i-9", kept_for=kept_for, freeness_steps=-9.0, virtual_usage_blocks=1200
    )
    assert (is_reserved(full), in_need(full)) == (False, True)


def test_members_that_do_not_serve_come_first_and_in_words() -> None:
    def member(id_: str, state: InstanceState, detail: str = "") -> InstanceStatus:
        return synthetic.instance(id_, state, detail=detail, age_s=12.0)

    slow = synthetic.instance("i-0", ttft_p99_s=99.0)
    restarting = member("i-1", InstanceState.RESTARTING)
    stalled = member("i-2", InstanceState.STALLED)
    failed = member("i-3", InstanceState.FAILED, "CUDA out of memory")
    busy = member("i-4", InstanceState.ACTIVE, "computes without a request")
    assert texts(busy, slow, restarting, stalled, failed) == [
        "i-3: failed (CUDA out of memory)",
        "i-2: stalled, last heard of 12s ago; 12 requests stand still there",
        "i-1: restarting, last heard of 12s ago",
        "i-0: P99 TTFT 1m39s",
        "i-4: computes without a request",
    ]
    assert not texts(member("i-5", InstanceState.STARTING, "loading weights"))
    assert not texts(failed, state=ClusterState.STOPPING)


def test_frontends_too() -> None:
    down = FrontendStatus(id="f-0", state=InstanceState.RESTARTING, incarnation=2)
    slow = FrontendStatus(id="f-1", state=InstanceState.ACTIVE, incarnation=1, ttft_p99_s=20.0)
    assert texts(synthetic.instance(), frontends=(slow, down)) == [
        "f-0: restarting",
        "f-1: P99 TTFT 20s over all instances",
    ]


def test_a_frontend_is_not_blamed_for_what_an_instance_says() -> None:
    slow = FrontendStatus(id="f-1", state=InstanceState.ACTIVE, incarnation=1, ttft_p99_s=20.0)
    starved = synthetic.instance("i-0", ttft_p99_s=21.0)
    assert texts(starved, frontends=(slow,)) == ["i-0: P99 TTFT 21s"]


def test_an_evicted_head_waits_since_its_eviction() -> None:
    def evicted(for_s: float | None) -> list[str]:
        waits = head(evicted=True, evicted_for_s=for_s)
        return texts(synthetic.instance("i-0", num_waiting_reqs=1, queue_head=waits))

    assert not evicted(None), "its age is no wait"
    assert not evicted(9.0)
    assert evicted(30.0) == ["i-0: 1 wait, head for 30s; memory is fragmented"]


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({"instances": (synthetic.instance("i-0", num_waiting_reqs=16),)}, "alarm_waiting_reqs"),
        ({"instances": (synthetic.instance("i-0", ttft_p99_s=8.0),)}, "alarm_ttft_p99_s"),
        ({"num_held_reqs": 16, "held": held(0.5)}, "alarm_waiting_reqs"),
        (
            {"num_failed_moves_last_minute": 24, "num_migrated_last_minute": 29},
            "alarm_failed_moves",
        ),
    ],
)
def test_an_alarm_ends_below_a_share_of_its_limit(fields: dict[str, Any], limit: str) -> None:
    subject = "i-0" if "instances" in fields else "cluster"
    before = [Alarm(subject, ("trouble",), (0, 0.0), (limit,))]
    status = cluster(synthetic.instance("i-9")).model_copy(update=fields)
    assert alarms(status, LIMITS) == []
    (lasting,) = alarms(status, LIMITS, before)
    assert (lasting.subject, lasting.passed) == (subject, (limit,))
    assert alarms(status, LIMITS, [Alarm("i-7", ("trouble",), (0, 0.0), (limit,))]) == []
    well = cluster(synthetic.instance("i-0", num_waiting_reqs=15, ttft_p99_s=7.9))
    assert alarms(well, LIMITS, before) == []
    never = ConsoleTable(**{limit: 0})
    assert alarms(status, never, before) == []


def test_a_drain_that_is_stuck() -> None:
    drain = DrainStatus(drain_id="d", num_requests_left=2, num_moved=1, deadline_s=100.0)
    item = synthetic.instance("i-0", InstanceState.DRAINING, drain=drain)
    assert not texts(item, time_s=99.0)
    assert texts(item, time_s=160.0) == ["i-0: drain 1m00s over its deadline, 2 requests left"]


def test_held_requests_and_moves_that_fail_are_the_clusters() -> None:
    moves = tuple(
        EndedMoveStatus(
            migration_id=f"m-{place}",
            request_id="r",
            from_instance_id="i-3",
            to_instance_id=f"i-{min(place, 1)}",
            outcome="kept" if place else "migrated",
            why="the link broke" if place else "",
            ended_s=1.0,
            num_blocks=1,
            num_bytes=1,
        )
        for place in range(4)
    )
    counts = {"num_failed_moves_last_minute": 43, "num_migrated_last_minute": 12}
    nowhere = held(why="no-instance", instance_id=None, demand_blocks=None, lacking_blocks=None)
    queue = {"num_held_reqs": 61, "held": nowhere}
    assert texts(synthetic.instance(), ended_moves=moves, **queue, **counts) == [
        "cluster: 61 held, head for 45s; no instance takes requests",
        "cluster: 43 of 55 moves failed, mostly i-3>i-1 the link broke",
    ]
    assert not texts(synthetic.instance(), **(counts | {"num_migrated_last_minute": 43}))


def test_kept_free_is_not_in_need() -> None:
    """M is 990 blocks: with 751 of headroom 1,198 are wanted, without it 447."""
    fields = {"freeness_steps": -80.0, "virtual_usage_blocks": 1198}
    kept = synthetic.instance(headroom_blocks=751, **fields)
    assert is_reserved(kept)
    assert not in_need(kept)
    full = synthetic.instance(headroom_blocks=100, **fields)
    assert in_need(full)
    assert not is_reserved(full)
    free = synthetic.instance(headroom_blocks=751)
    assert not is_reserved(free)
    assert not in_need(free)


def test_foreign_text_cannot_drive_the_terminal() -> None:
    failed = synthetic.instance("i-3", InstanceState.FAILED, detail="\x1b[2J")
    assert texts(failed) == ["i-3: failed (\\x1b[2J)"]


def moved(outcome: str, why: str = "", to: str = "i-1") -> EndedMoveStatus:
    return EndedMoveStatus(
        migration_id=f"m-{outcome}",
        request_id="r",
        from_instance_id="i-0",
        to_instance_id=to,
        outcome=outcome,
        why=why,
        ended_s=1.0,
        num_blocks=1,
        num_bytes=1,
    )


def test_why_a_drain_is_stuck() -> None:
    drain = DrainStatus(drain_id="d", num_requests_left=2, num_moved=1, deadline_s=100.0)
    item = synthetic.instance("i-0", InstanceState.DRAINING, drain=drain)
    late = "i-0: drain 1m00s over its deadline, 2 requests left"
    refused = moved("kept", "no room")
    assert texts(item, time_s=160.0, ended_moves=(refused, moved("migrated"))) == [
        f"{late}; its moves fail: no room"
    ]
    mostly_fine = (refused, moved("migrated"), moved("migrated"))
    assert texts(item, time_s=160.0, ended_moves=mostly_fine) == [late]


def test_why_a_queue_waits() -> None:
    def starved(**fields: Any) -> InstanceStatus:
        known = {"num_waiting_reqs": 2, "queue_head": head(demand_blocks=500)}
        return synthetic.instance("i-0", **(known | fields))

    waiting = "i-0: 2 wait, head for 3m00s needs 500 of 440 blocks, 50% of an instance"
    assert texts(starved(), synthetic.instance("i-1", num_free_blocks=300)) == [
        f"{waiting}; memory is fragmented, i-1 has most: 290"
    ]
    full = starved(queue_head=head(demand_blocks=500, why="memory"))
    assert texts(full) == [f"{waiting}; memory is full everywhere"]
    giants = starved(num_running_reqs=3, kv_cache_usage=0.8)
    assert texts(giants) == [f"{waiting}; memory is fragmented; 3 requests hold 80% of it"]


def test_what_is_reserved_has_no_room_for_what_waits_elsewhere() -> None:
    """Blocks that are kept beside a high priority, or for a held request, are free but cannot be
    used."""
    starved = synthetic.instance(
        "i-0", num_waiting_reqs=2, queue_head=head(demand_blocks=500), num_free_blocks=100
    )
    waiting = "i-0: 2 wait, head for 3m00s needs 500 of 90 blocks, 50% of an instance"
    by_headroom = {"freeness_steps": -9.0, "virtual_usage_blocks": 1040, "headroom_blocks": 900}
    kept = KeptForStatus(
        request_id="r9", level="high", waited_s=9.0, demand_blocks=700, lacking_blocks=9
    )
    for fields in (by_headroom, {"kept_for": kept}):
        reserved = synthetic.instance("i-3", num_free_blocks=608, **fields)
        assert is_reserved(reserved)
        assert texts(starved, reserved) == [
            f"{waiting}; i-3 has room (598 blocks), but it is reserved"
        ]
        roomy = synthetic.instance("i-1", num_free_blocks=550)
        assert texts(starved, reserved, roomy) == [f"{waiting}; i-1 has room for it (540 blocks)"]
        cordoned = synthetic.instance("i-2", num_free_blocks=600, closed_by=("cordoned",))
        assert texts(starved, cordoned, roomy) == [f"{waiting}; i-1 has room for it (540 blocks)"]
        small = synthetic.instance("i-3", num_free_blocks=408, **fields)
        assert texts(starved, small) == [f"{waiting}; memory is fragmented"]


def test_requests_of_a_high_priority_are_named_where_most_are() -> None:
    levels = (LevelStatus(name="high", rank=1, target_load_tokens=1600),)

    def slow(high: int) -> list[str]:
        running = {"num_running_reqs": 30, "num_running_by_level": {"high": high}}
        return texts(synthetic.instance("i-0", ttft_p99_s=20.0, **running), levels=levels)

    assert slow(26) == ["i-0: P99 TTFT 20s; 26 of 30 running are high"]
    assert slow(15) == ["i-0: P99 TTFT 20s"]


def test_a_slow_link_is_told_by_the_moves_over_it() -> None:
    def move(to: str, age_s: float) -> MoveStatus:
        return MoveStatus(
            migration_id=f"m-{to}-{age_s}",
            request_id="r",
            from_instance_id="i-0",
            to_instance_id=to,
            state="copying",
            stage=0,
            num_blocks_copied=9,
            num_blocks=80,
            age_s=age_s,
        )

    found = texts(synthetic.instance(), moves=(move("i-4", 40.0), move("i-4", 20.0)))
    assert found == ["i-4: 2 slow moves to it: 9 of 80 blocks in 40s"]
    apart = (move("i-4", 40.0), move("i-5", 50.0), move("i-6", 3.0))
    assert texts(synthetic.instance(), moves=apart) == [
        "i-0: 2 slow moves from it: 9 of 80 blocks in 50s"
    ]
    never = ConsoleTable(alarm_move_s=0)
    assert not texts(synthetic.instance(), moves=apart, limits=never)
