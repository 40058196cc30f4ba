"""Drains at the controller: what instances and frontends are told, and when one is over."""

import asyncio
from dataclasses import replace

import pytest

from controller.core.admission.instance_pool import LOST_AFTER_S
from controller.core.emptying.claims import Drain, Remove
from controller.core.emptying.drains import HEARD_WITHIN_S, RETRY_S, DrainState
from controller.core.fleet.cluster_spec import emptying_refusal
from controller.core.record.event_log import EventKind
from controller.runtime.controller.operations.drain_runner import LATELY_S
from controller.runtime.controller.operations.operated_cluster import (
    OperationRefusedError,
    refuse_instances,
)
from controller.runtime.messages.members import Directory, DrainSet, InstanceLost
from tests.unit.runtime.fakes import FakeNetwork, settle, virtual_time
from tests.unit.runtime.steering_bed import MOVE, Disk, SteeringBed


def is_draining(bed: SteeringBed, instance_id: str = "i-0") -> bool:
    return bed.controller.scheduler.instances[instance_id].snapshot.draining


# -- begun and undone ---------------------------------------------------------------------


@virtual_time
async def test_a_draining_instance_gets_nothing_from_the_very_moment(network: FakeNetwork) -> None:
    bed = SteeringBed(network)
    await bed.serve()
    bed.begin("i-0")
    assert is_draining(bed), "before it has heard of it"
    assert [(await bed.dispatched(f"r-{n}")).instance_id for n in range(4)] == [
        "i-1",
        "i-2",
        "i-1",
        "i-2",
    ]
    assert await bed.peers["i-0"].receive(DrainSet) == DrainSet(True)
    await bed.reports("i-0", draining=False)
    assert is_draining(bed), "a status that was under way"
    assert bed.peers["i-1"].received(DrainSet) == []


@virtual_time
async def test_frontends_hear_of_it_at_once_so_they_leave_it_out_alone_too(
    network: FakeNetwork,
) -> None:
    bed = SteeringBed(network)
    await bed.serve()
    bed.begin("i-0")
    await settle()
    last = bed.f0.received(Directory)[-1]
    assert {e.instance_id: e.snapshot.draining for e in last.instances if e.snapshot} == {
        "i-0": True,
        "i-1": False,
        "i-2": False,
    }


@virtual_time
async def test_undrained_it_gets_requests_as_soon_as_it_says_so_itself(
    network: FakeNetwork,
) -> None:
    bed = SteeringBed(network)
    await bed.serve()
    bed.begin("i-0")
    await bed.reports("i-0", num_running=3)
    bed.controller.drains.end("i-0", "undrained", "bo")
    await settle()
    assert bed.peers["i-0"].received(DrainSet) == [DrainSet(True), DrainSet(False)]
    assert is_draining(bed), "it refuses moves still"
    await bed.reports("i-0")
    assert not is_draining(bed)
    assert (await bed.dispatched()).instance_id == "i-0"
    began, ended = bed.events()
    assert (began.kind, began.actor, began.reason) == ("drain_started", "ana", "a fan")
    assert (ended.kind, ended.actor, ended.reason) == ("drain_ended", "bo", "undrained")
    assert began.cause_id == ended.cause_id == "op-1"
    assert ended.numbers == {"num_requests_left": 3, "num_moved": 0}


@virtual_time
async def test_undraining_what_is_not_drained_is_nothing(network: FakeNetwork) -> None:
    bed = SteeringBed(network)
    await bed.serve()
    bed.controller.drains.end("i-0", "undrained")
    await settle()
    assert bed.controller.keeper.spec.revision == 0
    assert bed.events() == []
    assert bed.peers["i-0"].received(DrainSet) == []


@virtual_time
async def test_a_second_order_keeps_the_drain_and_its_new_deadline_counts(
    network: FakeNetwork,
) -> None:
    bed = SteeringBed(network)
    await bed.serve()
    bed.begin("i-0", Remove, deadline_s=bed.controller.now_s() + 5.0)
    await bed.reports("i-0", num_running=1)
    await bed.migrated()
    deadline_s = bed.controller.now_s() + 60.0
    bed.begin("i-0", Remove, cause_id="op-2", actor="bo", deadline_s=deadline_s)
    await settle()
    claims = bed.controller.keeper.spec.drains["i-0"]
    assert (claims.drain_id, claims.strongest.actor, claims.goes) == ("op-1", "bo", True)
    await asyncio.sleep(30)
    assert bed.events(EventKind.DRAIN_OVERDUE) == []
    assert bed.controller.drains.progress("i-0").num_moved == 1
    assert bed.peers["i-0"].received(DrainSet) == [DrainSet(True)]


@virtual_time
async def test_the_last_instance_that_serves_is_not_drained(network: FakeNetwork) -> None:
    bed = SteeringBed(network)
    await bed.serve()

    def check(*instance_ids: str) -> None:
        spec, schedulable = bed.keeper.spec, bed.controller.drains.schedulable_ids()
        refusal = emptying_refusal(spec, instance_ids, schedulable, force=False)
        refuse_instances(refusal, instance_ids, cordoned=())

    check("i-0", "i-1")
    with pytest.raises(OperationRefusedError, match="i-0, i-1, i-2") as refused:
        check("i-0", "i-1", "i-2")
    assert refused.value.code == "last_instance"
    bed.begin("i-1")
    with pytest.raises(OperationRefusedError):
        check("i-0", "i-2")
    network.lose("mem://i-2")
    await settle()
    with pytest.raises(OperationRefusedError):
        check("i-0")


# -- over ---------------------------------------------------------------------------------


async def becomes(bed: SteeringBed, state: DrainState, instance_id: str = "i-0") -> None:
    while bed.controller.drains.progress(instance_id).state is not state:
        await asyncio.sleep(0.05)


@virtual_time
async def test_it_is_drained_when_it_and_all_frontends_have_nothing_left(
    network: FakeNetwork,
) -> None:
    bed = SteeringBed(network)
    await bed.serve()
    bed.runs("i-0", "r-1")
    bed.begin("i-0")
    for left in (
        {"num_running": 1},
        {"num_queued": 1},
        {"moves": (MOVE,)},
        {"num_moves_in": 1},
        {"draining": False},
        {},
    ):
        await bed.reports("i-0", **left)
        await asyncio.sleep(2)
        progress = bed.controller.drains.progress("i-0")
        assert progress.state is DrainState.DRAINING, left
        assert not progress.safe_to_delete
    await bed.migrated()
    bed.runs("i-0")
    await asyncio.wait_for(becomes(bed, DrainState.DRAINED), 2.0)
    progress = bed.controller.drains.progress("i-0")
    assert (progress.safe_to_delete, progress.num_left, progress.num_moved) == (True, 0, 1)
    (drained,) = bed.events(EventKind.DRAINED)
    assert (drained.instance_id, drained.cause_id) == ("i-0", "op-1")
    assert drained.numbers["num_moved"] == 1
    assert bed.launcher.terminated == [], "it stays, empty"
    await asyncio.sleep(5)
    assert len(bed.events(EventKind.DRAINED)) == 1


@virtual_time
async def test_what_was_dispatched_before_and_is_not_there_yet_counts(
    network: FakeNetwork,
) -> None:
    bed = SteeringBed(network, num_instances=2)
    await bed.serve()
    assert (await bed.dispatched()).instance_id == "i-0"
    bed.begin("i-0")
    await bed.reports("i-0", seen=0)
    await asyncio.sleep(2)
    progress = bed.controller.drains.progress("i-0")
    assert (progress.state, progress.num_left) == (DrainState.DRAINING, 1)
    await bed.reports("i-0", seen=1)
    await asyncio.wait_for(becomes(bed, DrainState.DRAINED), 2.0)


@virtual_time
async def test_what_a_dead_frontend_had_still_to_send_does_not_come(network: FakeNetwork) -> None:
    bed = SteeringBed(network, num_instances=2)
    await bed.serve()
    assert (await bed.dispatched()).instance_id == "i-0"
    bed.begin("i-0")
    network.lose("mem://f-0")
    await bed.reports("i-0", seen=0)
    await asyncio.wait_for(becomes(bed, DrainState.DRAINED), 2.0)


@virtual_time
async def test_what_was_lost_on_its_way_is_not_waited_for_for_ever(network: FakeNetwork) -> None:
    bed = SteeringBed(network, num_instances=2)
    await bed.serve()
    assert (await bed.dispatched()).instance_id == "i-0"
    bed.begin("i-0")
    sent_s = bed.controller.now_s()
    while bed.controller.now_s() < sent_s + LOST_AFTER_S - 1.0:
        await bed.reports("i-0", seen=0)
        assert bed.controller.drains.progress("i-0").num_left == 1
        await asyncio.sleep(0.5)
    await asyncio.sleep(2.0)
    assert bed.controller.drains.progress("i-0").num_left == 1, "no status came since"
    await bed.joins("f-0", incarnation=1)
    await bed.reports("i-0", seen=0)
    await asyncio.wait_for(becomes(bed, DrainState.DRAINED), 2.0)


@virtual_time
async def test_a_frontend_that_does_not_answer_may_have_something_there(
    network: FakeNetwork,
) -> None:
    bed = SteeringBed(network)
    await bed.serve()
    bed.silent.add("f-0")
    bed.begin("i-0")
    await bed.reports("i-0")
    for _ in range(10):
        await bed.joins("f-0", incarnation=1)
        await asyncio.sleep(1)
        await bed.reports("i-0")
        assert bed.controller.drains.progress("i-0").state is DrainState.DRAINING
    bed.silent.clear()
    await asyncio.wait_for(becomes(bed, DrainState.DRAINED), 5.0)


@virtual_time
async def test_a_request_that_a_frontend_sent_alone_makes_it_draining_again(
    network: FakeNetwork,
) -> None:
    """A frontend that had not heard of the drain when the controller died."""
    bed = SteeringBed(network)
    await bed.serve()
    bed.begin("i-0")
    await bed.reports("i-0")
    await asyncio.wait_for(becomes(bed, DrainState.DRAINED), 2.0)
    bed.runs("i-0", "r-9")
    await bed.reports("i-0", num_running=1)
    await asyncio.wait_for(becomes(bed, DrainState.DRAINING), 2.0)
    bed.runs("i-0")
    await bed.reports("i-0")
    await asyncio.wait_for(becomes(bed, DrainState.DRAINED), 2.0)


@virtual_time
async def test_an_instance_that_dies_while_it_drains_comes_back_draining(
    network: FakeNetwork,
) -> None:
    bed = SteeringBed(network)
    await bed.serve()
    bed.begin("i-0")
    await bed.reports("i-0", num_running=1)
    network.lose("mem://i-0")
    await asyncio.wait_for(becomes(bed, DrainState.DRAINED), 2.0)
    bed.peers["i-0"] = network.peer("mem://i-0")
    await bed.joins("i-0", nonce="b")
    assert bed.peers["i-0"].received(DrainSet) == [DrainSet(True)]
    await bed.reports("i-0", incarnation=2, draining=False)
    assert is_draining(bed)
    assert (await bed.dispatched()).instance_id == "i-1"


@virtual_time
async def test_whoever_begins_to_serve_is_told_whether_it_drains(network: FakeNetwork) -> None:
    """An instance that was drained by a controller whose spec was lost serves again."""
    bed = SteeringBed(network)
    await bed.joins("i-1")
    assert bed.peers["i-1"].received(DrainSet) == [DrainSet(False)]


# -- deadlines ----------------------------------------------------------------------------


@virtual_time
async def test_keep_goes_on_and_names_once_what_cannot_move(network: FakeNetwork) -> None:
    bed = SteeringBed(network)
    await bed.serve()
    bed.runs("i-0", "r-1", "r-2")
    bed.refusals = {"r-2": "multimodal"}
    bed.begin("i-0", deadline_s=bed.controller.now_s() + 5.0)
    await bed.reports("i-0", num_running=2)
    await asyncio.sleep(4.8)
    assert bed.events(EventKind.DRAIN_OVERDUE) == []
    for member in ("i-1", "i-2"):
        await bed.reports(member)  # or it would be stalled by now
    await asyncio.sleep(4)
    (overdue,) = bed.events(EventKind.DRAIN_OVERDUE)
    assert overdue.reason == "its deadline passed, and it goes on: r-2 multimodal"
    assert overdue.numbers == {"num_requests_left": 2, "num_cannot_move": 1}
    assert bed.controller.drains.progress("i-0").state is DrainState.DRAINING
    assert is_draining(bed)


@virtual_time
async def test_a_drain_that_is_taken_back_while_it_is_looked_at_is_not_overdue(
    network: FakeNetwork,
) -> None:
    bed = SteeringBed(network)
    await bed.serve()
    bed.runs("i-0", "r-1")
    bed.begin("i-0", deadline_s=bed.controller.now_s() + 1.0)
    await bed.reports("i-0", num_running=1)
    bed.silent.add("f-0")  # and so the look takes a while
    await asyncio.sleep(1.5)
    bed.controller.drains.end("i-0", "undrained")
    await asyncio.sleep(5)
    assert [event.kind for event in bed.events()] == [
        EventKind.DRAIN_STARTED,
        EventKind.DRAIN_ENDED,
    ]


@virtual_time
async def test_abort_ends_the_drain_and_no_request(network: FakeNetwork) -> None:
    bed = SteeringBed(network)
    await bed.serve()
    bed.runs("i-0", "r-1")
    bed.begin("i-0", deadline_s=bed.controller.now_s() + 5.0, on_deadline="abort")
    await bed.reports("i-0", num_running=1)
    await asyncio.sleep(6)
    assert bed.controller.keeper.spec.drains == {}
    (ended,) = bed.events(EventKind.DRAIN_ENDED)
    assert ended.reason == "its deadline passed: what is left stays"
    assert ended.numbers["num_requests_left"] == 1
    said = [type(message).__name__ for message, _ in bed.peers["i-0"].inbox]
    assert "AbortRequests" not in said
    assert bed.peers["i-0"].received(DrainSet)[-1] == DrainSet(False)
    await bed.reports("i-0", num_running=1)
    assert not is_draining(bed)


@virtual_time
async def test_a_deadline_that_passes_after_the_end_is_nothing(network: FakeNetwork) -> None:
    bed = SteeringBed(network)
    await bed.serve()
    bed.begin("i-0", deadline_s=bed.controller.now_s() + 5.0, on_deadline="abort")
    await bed.reports("i-0")
    await asyncio.wait_for(becomes(bed, DrainState.DRAINED), 2.0)
    for _ in range(8):
        await asyncio.sleep(1)
        await bed.reports("i-0")
    assert bed.controller.drains.progress("i-0").state is DrainState.DRAINED


# -- removal ------------------------------------------------------------------------------


@virtual_time
async def test_a_removed_instance_is_forgotten_and_no_failure(network: FakeNetwork) -> None:
    bed = SteeringBed(network)
    await bed.serve()
    bed.begin("i-0", Remove)
    await bed.reports("i-0", num_running=1)
    await asyncio.sleep(2)
    assert bed.launcher.terminated == []
    bed.f0.inbox.clear()
    await bed.reports("i-0")
    await asyncio.wait_for(bed.is_gone(), 5.0)
    assert bed.launcher.terminated == ["i-0"]
    assert bed.controller.keeper.spec.instance_ids == ("i-1", "i-2")
    assert bed.controller.keeper.spec.drains == {}
    assert "i-0" not in bed.controller.scheduler.instances
    assert "i-0" not in bed.controller.statuses
    await settle()
    assert bed.peers["i-1"].received(InstanceLost) == [InstanceLost("i-0", 1)]
    assert [e.instance_id for e in bed.f0.received(Directory)[-1].instances] == ["i-1", "i-2"]
    network.lose("mem://i-0")
    await bed.joins("f-0", incarnation=1)
    assert bed.events(EventKind.INSTANCE_DIED) == []
    ended = bed.events(EventKind.DRAIN_ENDED)
    assert [e.reason for e in ended] == ["the instance was removed"]
    assert (await bed.dispatched()).instance_id == "i-1"


@virtual_time
async def test_a_hello_of_the_removed_one_comes_to_nothing(network: FakeNetwork) -> None:
    bed = SteeringBed(network)
    await bed.serve()
    bed.begin("i-0", Remove)
    await bed.reports("i-0")
    await asyncio.wait_for(bed.is_gone(), 5.0)
    await bed.joins("i-0", incarnation=1)
    await bed.reports("i-0")
    assert "i-0" not in bed.controller.roster.members
    assert "i-0" not in bed.controller.statuses


@virtual_time
async def test_a_removal_that_cannot_be_saved_is_tried_again(network: FakeNetwork) -> None:
    bed = SteeringBed(network)
    disk = bed.keeper._store = Disk()
    await bed.serve()
    bed.begin("i-0", Remove)
    disk.is_full = True
    await bed.reports("i-0")
    await asyncio.wait_for(bed.is_gone(), 5.0)
    await asyncio.sleep(3)
    assert not bed.task.done()
    assert "i-0" in bed.keeper.spec.instance_ids
    assert bed.launcher.launched.count("i-0") == 1, "it is on its way out"
    disk.is_full = False
    await asyncio.sleep(RETRY_S + 0.5)
    assert bed.keeper.spec.instance_ids == ("i-1", "i-2")


@virtual_time
async def test_one_that_cannot_be_ended_harms_no_other_drain(
    network: FakeNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed = SteeringBed(network)
    await bed.serve()
    ends = bed.launcher.terminate

    def terminate(member_id: str) -> None:
        if member_id == "i-0":
            raise RuntimeError("Ray does not answer")
        ends(member_id)

    monkeypatch.setattr(bed.launcher, "terminate", terminate)
    for instance_id in ("i-0", "i-1"):
        bed.begin(instance_id, Remove)
        await bed.reports(instance_id)
    await asyncio.wait_for(bed.is_gone("i-1"), 5.0)
    assert not bed.task.done()
    assert "i-0" in bed.controller.roster.members
    monkeypatch.undo()
    await asyncio.wait_for(bed.is_gone("i-0"), 5.0)


@virtual_time
async def test_an_abort_that_cannot_be_saved_is_tried_now_and_then(
    network: FakeNetwork, caplog: pytest.LogCaptureFixture
) -> None:
    bed = SteeringBed(network)
    disk = bed.keeper._store = Disk()
    await bed.serve()
    bed.begin("i-0", deadline_s=bed.controller.now_s() + 1.0, on_deadline="abort")
    await bed.reports("i-0", num_running=1)
    disk.is_full = True
    await asyncio.sleep(1.0 + 5 * RETRY_S)
    assert 4 <= sum("no space left" in said for said in caplog.messages) <= 6
    disk.is_full = False
    await asyncio.sleep(RETRY_S + 0.5)
    assert bed.keeper.spec.drains == {}


# -- what would go where ------------------------------------------------------------------


@virtual_time
async def test_who_watches_a_drain_has_it_looked_at_once_a_second(network: FakeNetwork) -> None:
    bed = SteeringBed(network)
    await bed.serve()
    bed.runs("i-0", "r-1")
    await bed.reports("i-0", num_running=1)
    asked = bed.controller.queries._query_ids
    first = next(asked)
    seen = await asyncio.gather(*(bed.controller.drain_forecasts.lately("i-0") for _ in range(5)))
    assert [each.request.request_id for each in seen[0].departures] == ["r-1"]
    assert next(asked) == first + 3, "one question to the frontend and one to i-0, for five"
    bed.runs("i-0")
    await asyncio.sleep(LATELY_S)
    assert (await bed.controller.drain_forecasts.lately("i-0")).departures == ()


@virtual_time
async def test_a_plan_is_tried_in_the_order_in_which_requests_leave(network: FakeNetwork) -> None:
    bed = SteeringBed(network)
    await bed.serve()
    bed.runs("i-0", "long", tokens=160)
    bed.requests.append(replace(bed.requests[0], request_id="short", num_prompt_tokens=16))
    await bed.reports("i-0", num_running=2)
    leaving = await bed.controller.drain_forecasts.of("i-0")
    assert [each.request.request_id for each in leaving.departures] == ["short", "long"]


@virtual_time
async def test_a_plan_names_the_frontend_that_did_not_answer(network: FakeNetwork) -> None:
    bed = SteeringBed(network)
    await bed.serve()
    bed.silent.add("f-0")
    assert (await bed.controller.drain_forecasts.of("i-0")).silent == ("f-0",)


# -- another controller -------------------------------------------------------------------


@virtual_time
async def test_a_new_controller_goes_on_with_the_drains_of_the_old_one(
    network: FakeNetwork,
) -> None:
    bed = SteeringBed(network)
    await bed.serve()
    bed.begin("i-0", Remove)
    await bed.reports("i-0", num_running=1)
    bed.runs("i-0", "r-1")
    bed.restart_controller()
    bed.take_wall_clock()
    await asyncio.sleep(HEARD_WITHIN_S / 2)
    assert bed.launcher.terminated == [], "nobody has said that it is empty"
    for member_id in bed.peers:
        await bed.joins(member_id, incarnation=1)
    assert bed.peers["i-0"].received(DrainSet)[-1] == DrainSet(True)
    await bed.reports("i-0", draining=False, num_running=1)
    await bed.reports("i-1")
    await bed.reports("i-2")
    assert is_draining(bed)
    await asyncio.sleep(3)
    assert bed.launcher.terminated == []
    bed.runs("i-0")
    await bed.reports("i-0")
    await asyncio.wait_for(bed.is_gone(), 5.0)
    assert bed.launcher.terminated == ["i-0"]


@virtual_time
async def test_one_that_never_was_there_is_removed_after_a_while(network: FakeNetwork) -> None:
    bed = SteeringBed(network)
    for member_id in ("i-1", "i-2", "f-0"):
        await bed.joins(member_id)
    bed.begin("i-0", Remove)
    await asyncio.sleep(HEARD_WITHIN_S - 2)
    for _ in range(5):
        await bed.joins("f-0", incarnation=1)
        await asyncio.sleep(1)
    assert bed.launcher.terminated == ["i-0"]


def test_a_claim_says_what_a_deadline_does() -> None:
    assert Drain("d", 0.0).on_deadline == "keep"
