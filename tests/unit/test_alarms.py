"""Alarms: which trouble is the worst, its cause in words, and the limits."""

from typing import Any

from controller.api.figures import gauges_of
from controller.api.settings.settings import ConsoleTable
from controller.api.text.alarms import Alarm, alarms
from controller.api.text.status_words import in_need, is_reserved
from controller.api.wire.status import (
    ClusterState,
    DrainStatus,
    EndedMoveStatus,
    FrontendStatus,
    HeldStatus,
    InstanceState,
    InstanceStatus,
    KeptForStatus,
    MoveStatus,
    QueueHeadStatus,
)
from tests.unit.cli_support import cluster
from tools import synthetic_cluster as synthetic
from tools.synthetic_cluster import instance

LIMITS = ConsoleTable()
MOVES = "alarm_failed_moves"
EXAMPLE = synthetic.moving(next(synthetic.late_binding(1)).status)
"""A cluster with moves, and with requests that are held at the controller."""
KEPT_FOR = KeptForStatus(
    request_id="r9", level="high", demand_blocks=700, lacking_blocks=9, waited_s=9.0
)


def head(waited_s: float = 180.0, demand: int = 280, **fields: Any) -> QueueHeadStatus:
    known = {"request_id": "r1", "level": "normal", "evicted": False, "why": "fragmented"} | fields
    return QueueHeadStatus(waited_s=waited_s, demand_blocks=demand, **known)


def waiting(**more: Any) -> InstanceStatus:
    """i-0 with a queue."""
    return instance("i-0", **{"num_waiting_reqs": 2, "queue_head": head(demand=500), **more})


def texts(*found: InstanceStatus, limits: ConsoleTable = LIMITS, **fields: Any) -> list[str]:
    status = cluster(*found).model_copy(update=fields)
    return [alarm.text for alarm in alarms(status, limits)]


def test_the_worst_is_named_with_its_cause() -> None:
    queue = {"num_waiting_reqs": 61, "queue_head": head(), "num_free_blocks": 196}
    starved = instance("i-6", ttft_p99_s=166.0, **queue)
    assert texts(instance("i-0"), instance("i-2", ttft_p99_s=11.0), starved) == [
        "i-6: 61 wait, head for 3m00s needs 280 blocks, 28% of an instance, 186 are free;"
        " P99 TTFT 2m46s; i-2 has room for it (440 blocks)",
        "i-2: P99 TTFT 11s",
    ]


# -- limits -----------------------------------------------------------------------------------


def test_an_alarm_begins_at_its_limit_and_0_is_none() -> None:
    never = ConsoleTable(alarm_head_waited_s=0, alarm_waiting_reqs=0, alarm_ttft_p99_s=0)
    assert not texts(
        instance("i-0", num_waiting_reqs=999, queue_head=head(), ttft_p99_s=99.0), limits=never
    )
    fields: dict[str, Any]
    for fields, limit in (
        ({"num_waiting_reqs": 5}, {"alarm_waiting_reqs": 5}),
        ({"queue_head": head(2.0)}, {"alarm_head_waited_s": 2.0}),
        ({"ttft_p99_s": 3.0}, {"alarm_ttft_p99_s": 3.0}),
    ):
        item = instance("i-0", **fields)
        assert not texts(item)
        assert len(texts(item, limits=ConsoleTable(**limit))) == 1
    for waited_s, num, is_alarm in ((9.9, 19, False), (9.9, 20, True), (10.0, 1, True)):
        found = texts(instance("i-9"), held=held(waited_s), num_held_reqs=num)
        assert bool(found) is is_alarm, "the queue at the controller has the limits of others"


def test_requests_that_nobody_waits_for_make_no_alarm() -> None:
    told = held(0.0).model_copy(update={"num_by_level": {"normal": 1, "background": 99}})
    queue = {
        "num_waiting_reqs": 99,
        "num_waiting_by_level": {"background": 99},
        "queue_head": head(level="background"),
    }
    status = cluster(instance("i-0", **queue))
    status = status.model_copy(update={"held": told, "num_held_reqs": 100})
    assert not alarms(status, LIMITS)
    assert gauges_of(status)["longest_wait_s"] == 0.0
    queue = {"num_waiting_reqs": 120, "num_waiting_by_level": {"normal": 21, "background": 99}}
    (text,) = texts(instance("i-0", **queue))
    assert text.startswith("i-0: 21 wait")


def test_an_alarm_ends_below_a_share_of_its_limit() -> None:
    fields: dict[str, Any]
    for fields, limit in (
        ({"instances": (instance("i-0", num_waiting_reqs=16),)}, "alarm_waiting_reqs"),
        ({"instances": (instance("i-0", ttft_p99_s=8.0),)}, "alarm_ttft_p99_s"),
        ({"num_failed_moves_last_minute": 24, "num_migrated_last_minute": 29}, MOVES),
    ):
        subject = "i-0" if "instances" in fields else "cluster"
        before = [Alarm(subject, ("trouble",), (0, 0.0), (limit,))]
        status = cluster(instance("i-9")).model_copy(update=fields)
        assert alarms(status, LIMITS) == []
        (lasting,) = alarms(status, LIMITS, before)
        assert (lasting.subject, lasting.passed) == (subject, (limit,))
        assert alarms(status, LIMITS, [Alarm("i-7", ("trouble",), (0, 0.0), (limit,))]) == []
        well = cluster(instance("i-0", num_waiting_reqs=15, ttft_p99_s=7.9))
        assert alarms(well, LIMITS, before) == []
        assert alarms(status, ConsoleTable(**{limit: 0}), before) == []


# -- the queue at the controller --------------------------------------------------------------


def held(waited_s: float = 45.0, **fields: Any) -> HeldStatus:
    """The head needs 360 blocks, and waits for i-9, which is kept for it and lacks 172."""
    head = EXAMPLE.held.head.model_copy(update={"waited_s": waited_s, **fields})
    return HeldStatus(oldest_wait_s=waited_s, head=head)


def test_a_long_wait_at_the_controller_is_named_with_its_cause() -> None:
    fields: dict[str, Any]
    for fields, words in (
        ({}, "head for 45s needs 360 blocks, lacks 172 on i-9, kept for it, 36% of an instance"),
        ({"lacking_blocks": 0}, "head for 45s needs 360 blocks, 36% of an instance; i-9 is kept"),
        (
            {"why": "no-instance", "demand_blocks": None, "instance_id": None},
            "head for 45s; no instance takes requests",
        ),
    ):
        (text,) = texts(instance("i-9", num_running_reqs=20), held=held(**fields), num_held_reqs=3)
        assert text.startswith(f"cluster: 3 held, {words}")
    older = {"place": 4, "why": "fragmented", "waited_s": 62.0, "instance_id": None}
    oldest = held(0.5).head.model_copy(update=older)
    what = held(0.5).model_copy(update={"oldest": oldest, "oldest_wait_s": 62.0})
    (text,) = texts(instance("i-9"), held=what, num_held_reqs=3)
    assert text.startswith("cluster: 3 held, longest 1m02s (high) needs 360 blocks")
    assert text.endswith("; 3 before it")


# -- members ----------------------------------------------------------------------------------


def test_members_that_do_not_serve_come_first_and_in_words() -> None:
    def member(id_: str, state: InstanceState, detail: str = "") -> InstanceStatus:
        return instance(id_, state, detail=detail, age_s=12.0)

    failed = member("i-3", InstanceState.FAILED, "CUDA out of \x1b[2J")
    assert texts(
        member("i-4", InstanceState.ACTIVE, "computes without a request"),
        instance("i-0", ttft_p99_s=99.0),
        member("i-1", InstanceState.RESTARTING),
        member("i-2", InstanceState.STALLED),
        failed,
    ) == [
        "i-3: failed (CUDA out of \\x1b[2J)",
        "i-2: stalled, last heard of 12s ago; 12 requests stand still there",
        "i-1: restarting, last heard of 12s ago",
        "i-0: P99 TTFT 1m39s",
        "i-4: computes without a request",
    ]
    assert not texts(member("i-5", InstanceState.STARTING, "loading weights"))
    assert not texts(failed, state=ClusterState.STOPPING)


def test_copies_that_arrive_changed_are_worse_than_load_and_name_their_sources() -> None:
    found = texts(
        waiting(num_waiting_reqs=99),
        instance("i-1", corrupt_links=("i-0", "i-2"), ttft_p99_s=11.0),
        instance("i-2", state=InstanceState.STALLED, age_s=9.0),
    )
    assert [text.partition(":")[0] for text in found] == ["i-2", "i-1", "i-0"]
    assert found[1] == "i-1: KV copies from i-0, i-2 arrived changed; P99 TTFT 11s"


def test_a_frontend_is_not_blamed_for_what_an_instance_says() -> None:
    down = FrontendStatus(id="f-0", state=InstanceState.RESTARTING, incarnation=2)
    slow = FrontendStatus(id="f-1", state=InstanceState.ACTIVE, incarnation=1, ttft_p99_s=20.0)
    frontends = (slow, down)
    told = ["f-0: restarting", "f-1: P99 TTFT 20s over all instances"]
    assert texts(instance(), frontends=frontends) == told
    starved = instance("i-0", ttft_p99_s=21.0)
    assert texts(starved, frontends=frontends) == ["f-0: restarting", "i-0: P99 TTFT 21s"]


def test_an_evicted_head_waits_since_its_eviction() -> None:
    for evicted_for_s, told in (
        (None, []),  # its age is no wait
        (9.0, []),
        (30.0, ["i-0: 1 wait, head for 30s; memory is fragmented"]),
    ):
        queue = head(evicted=True, evicted_for_s=evicted_for_s)
        assert texts(instance("i-0", num_waiting_reqs=1, queue_head=queue)) == told


# M is 990 blocks: with 751 of headroom 1,198 are wanted, without it 447.
FULL = {"freeness_steps": -80.0, "virtual_usage_blocks": 1198}


def test_what_is_kept_free_is_not_in_need() -> None:
    fields: dict[str, Any]
    for fields, reserved, needs in (
        ({**FULL, "headroom_blocks": 751}, True, False),
        ({**FULL, "headroom_blocks": 100}, False, True),
        ({"headroom_blocks": 751}, False, False),
        ({"kept_for": KEPT_FOR}, True, False),
        ({**FULL, "kept_for": KEPT_FOR}, False, True),
    ):
        item = instance("i-9", **fields)
        assert (is_reserved(item), in_need(item)) == (reserved, needs)


# -- why a queue waits ------------------------------------------------------------------------

WAITING = "i-0: 2 wait, head for 3m00s needs 500 blocks, 50% of an instance, 440 are free"


def test_why_a_queue_waits_where_others_have_room_or_are_reserved_or_cordoned() -> None:
    reserved = {"freeness_steps": -9.0, "virtual_usage_blocks": 1040, "headroom_blocks": 900}
    kept = instance("i-3", num_free_blocks=608, **reserved)
    roomy = instance("i-1", num_free_blocks=550)
    cordoned = instance("i-2", num_free_blocks=600, closed_by=("cordoned",))
    small = instance("i-1", num_free_blocks=300)
    other_model = instance("i-4", num_free_blocks=900, model="another")
    large = {"num_running_reqs": 3, "kv_cache_usage": 0.8}
    for queue, others, why in (
        (waiting(), [kept], "i-3 has room (598 blocks), but it is reserved"),
        (waiting(), [kept, roomy], "i-1 has room for it (540 blocks)"),
        (waiting(), [cordoned, roomy], "i-1 has room for it (540 blocks)"),
        (waiting(), [small], "memory is fragmented, i-1 has most: 290"),
        (waiting(), [other_model, small], "memory is fragmented, i-1 has most: 290"),
        (waiting(**large), [], "memory is fragmented; 3 requests hold 80% of it"),
        (waiting(queue_head=head(demand=500, why="batch-full")), [], "its batch is full"),
    ):
        assert texts(queue, *others) == [f"{WAITING}; {why}"]


# -- moves and drains -------------------------------------------------------------------------


def ended(outcome: str, why: str = "", source: str = "i-0") -> EndedMoveStatus:
    known = {"outcome": outcome, "why": why, "from_instance_id": source, "to_instance_id": "i-1"}
    return EXAMPLE.ended_moves[0].model_copy(update=known)


def test_a_drain_that_is_stuck_says_why() -> None:
    drain = DrainStatus(drain_id="d", num_requests_left=2, num_moved=1, deadline_s=100.0)
    item = instance("i-0", InstanceState.DRAINING, drain=drain)
    moves: list[EndedMoveStatus]
    for moves, why in (
        ([], ""),
        ([ended("kept", "no room"), ended("migrated")], "; its moves fail: no room"),
        ([ended("kept", "no room"), ended("migrated"), ended("migrated")], ""),
    ):
        assert not texts(item, time_s=99.0, ended_moves=moves)
        late = "i-0: drain 1m00s over its deadline, 2 requests left"
        assert texts(item, time_s=160.0, ended_moves=moves) == [late + why]


def test_moves_that_fail_are_the_clusters() -> None:
    moves = (ended("kept", "the link broke", "i-3"), ended("migrated", "", "i-3"))
    counts = {"num_failed_moves_last_minute": 43, "num_migrated_last_minute": 12}
    told = ["cluster: 43 of 55 moves failed, mostly i-3>i-1 the link broke"]
    assert texts(instance(), ended_moves=moves, **counts) == told
    assert not texts(instance(), **(counts | {"num_migrated_last_minute": 43}))


def slow_move(to: str, age_s: float) -> MoveStatus:
    known = {"from_instance_id": "i-0", "to_instance_id": to, "age_s": age_s}
    return EXAMPLE.moves[0].model_copy(update={**known, "num_blocks_copied": 9, "num_blocks": 80})


def test_a_slow_link_is_told_by_the_moves_over_it() -> None:
    moves = (slow_move("i-4", 40.0), slow_move("i-5", 50.0), slow_move("i-6", 3.0))
    told = ["i-0: 2 slow moves from it: 9 of 80 blocks in 50s"]
    assert texts(instance(), moves=moves) == told
    assert not texts(instance(), moves=moves, limits=ConsoleTable(alarm_move_s=0))
