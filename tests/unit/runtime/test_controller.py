"""The controller with a launcher and members played by the test, on virtual time."""

import asyncio
from dataclasses import replace

import pytest

from controller.adapters.http.cluster_view import instance_status
from controller.api.wire.status import InstanceState
from controller.core.fleet.cluster_spec import ExitReason
from controller.core.record.event_log import EventKind
from controller.core.scheduler_events import Dispatch, DispatchCancelled
from controller.core.settings import ReschedulingConfig
from controller.runtime.controller.cluster import STOP_MARGIN_S, TICK_S
from controller.runtime.controller.roster import DIRECTORY_EVERY_S, SILENCE_S, LiveConfig
from controller.runtime.messages.members import (
    Directory,
    DrainFrontend,
    FrontendLimits,
    InstanceLost,
    StatusPull,
    StatusPushSet,
    Welcome,
)
from controller.runtime.messages.move_messages import MoveLimitsSet
from controller.runtime.messages.requests import (
    Dispatched,
    DispatchWithdrawn,
    Refused,
    RequestsAnswered,
    RequestsAsked,
)
from tests.unit.runtime.controller_bed import CONFIG, HERE, Bed
from tests.unit.runtime.fakes import INFO, FakeNetwork, hello, settle, virtual_time

pytestmark = virtual_time


@pytest.fixture
async def bed(network: FakeNetwork) -> Bed:
    return await Bed.serving(network)


# -- coming up ----------------------------------------------------------------------------


async def test_it_launches_its_members_and_welcomes_them(network: FakeNetwork) -> None:
    bed = Bed(network)
    assert bed.launcher.launched == ["f-0", "i-0", "i-1"]
    await bed.joins("i-0", phase="starting")
    assert await bed.peers["i-0"].receive(Welcome) == Welcome("a", 1)
    await bed.joins("i-0", incarnation=1, phase="starting")
    assert bed.peers["i-0"].received(Welcome) == []
    assert not bed.controller.was_ready


async def test_an_instance_that_serves_is_announced_and_asked_for_its_status(
    network: FakeNetwork,
) -> None:
    bed = Bed(network)
    await bed.joins("f-0")
    assert (await bed.f0.receive(Welcome)).incarnation == 1
    await bed.joins("i-0")
    told = await bed.f0.receive(Directory, lambda d: d.instances)
    entry = told.instances[0]
    assert (entry.instance_id, entry.incarnation, entry.address) == ("i-0", 1, "mem://i-0")
    assert (entry.info, entry.snapshot) == (INFO, None)
    await bed.peers["i-0"].receive(StatusPull)
    await bed.reports("i-0", free=7)
    told = await bed.f0.receive(Directory, lambda d: d.instances and d.instances[0].snapshot)
    assert told.instances[0].snapshot.num_free_blocks == 7
    assert not bed.controller.was_ready
    await bed.joins("i-1")
    assert not bed.controller.was_ready
    await bed.reports("i-1")
    await asyncio.sleep(TICK_S)
    assert bed.controller.was_ready


async def test_unknown_members_and_frontends_change_nothing(network: FakeNetwork) -> None:
    bed = Bed(network)
    stranger = network.peer("mem://i-9")
    stranger.send(HERE, hello("i-9"))
    bed.asks("foreign", frontend_id="f-9")
    await bed.joins("f-0")
    bed.asks("held")
    await bed.joins("i-0")
    await bed.reports("i-0")
    assert (await bed.f0.receive(Dispatched)).dispatch.request_id == "held"
    assert bed.controller.scheduler.num_waiting == 0
    assert stranger.inbox == []
    await asyncio.sleep(CONFIG.hold_timeout_s + 1)
    assert not bed.task.done()


async def test_a_restarted_controller_learns_what_runs(bed: Bed) -> None:
    await bed.joins("i-0", nonce="b")  # its second incarnation
    bed.restart_controller()
    await bed.joins("f-0", incarnation=1)
    await bed.joins("i-0", nonce="b", incarnation=2)
    await bed.reports("i-0", incarnation=2, seen=41)
    dispatch = await bed.dispatched()
    assert dispatch == Dispatch("r", "f-0", "i-0", 2, 42)
    assert dispatch.candidates == (("i-0", 1024.0),)
    assert (dispatch.policy, dispatch.num_considered) == ("llumnix", 1)
    told = await bed.f0.receive(Directory, lambda d: d.instances)
    assert told.instances[0].incarnation == 2


# -- dispatch -----------------------------------------------------------------------------


async def test_requests_are_held_while_nothing_may_take_them(network: FakeNetwork) -> None:
    bed = Bed(network)
    await bed.joins("f-0")
    for request_id in ("a", "b", "c"):
        bed.asks(request_id)
    refused = (await bed.f0.receive(Refused)).reject
    assert (refused.request_id, refused.code) == ("c", "overloaded")
    bed.says("f-0", DispatchWithdrawn(DispatchCancelled("a", "f-0")))
    bed.asks("b")  # in case its answer was lost
    await settle()
    assert bed.controller.scheduler.num_waiting == 1
    await bed.joins("i-1")
    await bed.reports("i-1")
    assert (await bed.f0.receive(Dispatched)).dispatch.request_id == "b"
    assert bed.f0.received(Dispatched) == []


async def test_a_held_request_is_refused_in_time(network: FakeNetwork) -> None:
    bed = Bed(network)
    await bed.joins("f-0")
    bed.asks()
    began_s = asyncio.get_running_loop().time()
    while not bed.f0.received(Refused):
        await asyncio.sleep(TICK_S)
        await bed.joins("f-0", incarnation=1)
    assert bed.f0.received(Refused)[0].reject.code == "unavailable"
    waited_s = asyncio.get_running_loop().time() - began_s
    assert CONFIG.hold_timeout_s <= waited_s < CONFIG.hold_timeout_s + 1


async def test_a_dead_frontend_s_requests_are_forgotten(network: FakeNetwork) -> None:
    bed = Bed(network)
    await bed.joins("f-0")
    bed.asks()
    await settle()
    network.lose("mem://f-0")
    await settle()
    assert bed.controller.scheduler.num_waiting == 0


# -- deaths -------------------------------------------------------------------------------


@pytest.mark.parametrize("is_noticed", [True, False])
async def test_a_death_is_announced_once_to_every_frontend_and_the_other_instances(
    network: FakeNetwork, is_noticed: bool
) -> None:
    """Else another process is in its place, and nothing noticed the end."""
    bed = await Bed.serving(network, num_frontends=2)
    assert await bed.chosen(1) == ["i-0"]
    if is_noticed:
        await bed.dies("i-0")
    await bed.joins("i-0", nonce="b")
    for member_id in ("f-0", "f-1", "i-1"):
        assert bed.peers[member_id].received(InstanceLost) == [InstanceLost("i-0", 1)]
    assert bed.peers["i-0"].received(InstanceLost) == []
    assert await bed.peers["i-0"].receive(Welcome) == Welcome("b", 2)
    record = bed.controller.scheduler.instances["i-0"]
    assert (record.incarnation, record.snapshot) == (2, None)
    assert record.unreported.num_requests == 0
    assert await bed.chosen(1) == ["i-1"]


async def test_members_that_begin_to_serve_are_told_what_they_go_by(network: FakeNetwork) -> None:
    bed = Bed(network)
    await bed.joins("i-0")
    assert await bed.peers["i-0"].receive(MoveLimitsSet) == MoveLimitsSet(4, None)
    await bed.joins("i-0", incarnation=1)
    await settle()
    assert bed.peers["i-0"].received(MoveLimitsSet) == []
    await bed.joins("f-0")
    assert await bed.f0.receive(FrontendLimits) == FrontendLimits(4096, None, 60.0)
    assert await bed.peers["i-0"].receive(StatusPushSet) == StatusPushSet(0.02)
    limits = ReschedulingConfig(max_moves=2, max_bytes_per_s=5e6)
    frontends = FrontendLimits(2, 9.0, 5.0)
    bed.controller.configure(LiveConfig(CONFIG, limits, frontends=frontends))
    assert await bed.peers["i-0"].receive(MoveLimitsSet) == MoveLimitsSet(2, 5e6)
    assert await bed.f0.receive(FrontendLimits) == FrontendLimits(2, 9.0, 5.0)
    await settle()
    assert bed.peers["i-0"].received(StatusPushSet) == []  # it is what it was
    await bed.joins("i-1")
    assert await bed.peers["i-1"].receive(MoveLimitsSet) == MoveLimitsSet(2, 5e6)


async def test_another_configuration_keeps_what_is_held_and_may_release_it(
    network: FakeNetwork,
) -> None:
    bed = Bed(network)
    await bed.joins("f-0")
    await bed.joins("i-0")
    await bed.reports("i-0")
    await asyncio.sleep(CONFIG.stall_timeout_s + 1)
    for request_id in ("a", "b"):
        bed.asks(request_id)
    await settle()
    assert bed.controller.scheduler.num_waiting == 2
    bed.controller.configure(LiveConfig(replace(CONFIG, max_held_reqs=0)))
    bed.controller.scheduler.check()
    bed.asks("c")
    assert (await bed.f0.receive(Refused)).reject.request_id == "c"
    assert bed.controller.scheduler.num_waiting == 2
    patient = replace(CONFIG, policy="vllm-dp", stall_timeout_s=60.0)
    bed.controller.configure(LiveConfig(patient))
    assert {(await bed.f0.receive(Dispatched)).dispatch.request_id for _ in "ab"} == {"a", "b"}
    bed.controller.scheduler.check()


async def test_frontends_hear_at_once_that_no_instance_takes_requests(bed: Bed) -> None:
    async def until(takes_requests: bool, within_s: float) -> None:
        async with asyncio.timeout(within_s):
            await bed.f0.receive(Directory, lambda told: told.takes_requests is takes_requests)
        bed.f0.inbox.clear()

    await until(True, DIRECTORY_EVERY_S)
    for instance_id in ("i-0", "i-1"):
        await bed.reports(instance_id, draining=True)
    await until(False, DIRECTORY_EVERY_S / 2)
    await bed.reports("i-1")
    await until(True, DIRECTORY_EVERY_S / 2)
    await asyncio.sleep(CONFIG.stall_timeout_s - 0.1)
    await bed.joins("f-0", incarnation=bed.incarnation("f-0"))
    await until(False, 0.1 + DIRECTORY_EVERY_S / 2)


async def test_a_frontend_that_was_silent_for_long_hears_of_a_death(bed: Bed) -> None:
    """It gets no directories, but without this its requests would wait for ever."""
    await asyncio.sleep(SILENCE_S + 1)
    bed.f0.inbox.clear()
    await asyncio.sleep(1)
    assert bed.f0.received(Directory) == []
    bed.network.lose("mem://i-0")
    await settle()
    assert bed.f0.received(InstanceLost) == [InstanceLost("i-0", 1)]
    bed.controller.stop(drain=True, grace_s=1.0)
    assert await bed.f0.receive(DrainFrontend) == DrainFrontend(1.0)


async def test_a_late_status_of_a_dead_incarnation_is_refused(bed: Bed) -> None:
    await bed.joins("i-0", nonce="b")
    await bed.reports("i-0", incarnation=1, seen=5, num_steps=77)
    record = bed.controller.scheduler.instances["i-0"]
    assert record.snapshot is None
    assert bed.controller.statuses["i-0"].num_steps == 0
    await bed.reports("i-0", incarnation=2)
    assert record.snapshot is not None


async def test_a_silent_instance_is_pulled_and_gets_nothing(bed: Bed) -> None:
    for _ in range(8):
        await bed.reports("i-1")
        await asyncio.sleep(1)
    assert bed.peers["i-0"].received(StatusPull)
    assert bed.peers["i-1"].received(StatusPull) == []
    await bed.joins("f-0", incarnation=1)
    assert (await bed.dispatched()).instance_id == "i-1"
    await bed.reports("i-0")
    assert (await bed.dispatched("s")).instance_id == "i-0"
    await asyncio.sleep(2 * TICK_S)
    stalls = bed.events(EventKind.INSTANCE_STALLED, EventKind.INSTANCE_RECOVERED)
    assert [(e.kind, e.instance_id) for e in stalls] == [
        (EventKind.INSTANCE_STALLED, "i-0"),
        (EventKind.INSTANCE_RECOVERED, "i-0"),
    ]


async def others_report(bed: Bed, seconds: int, *others: str) -> None:
    for _ in range(seconds):
        for instance_id in others:
            await bed.reports(instance_id)
        await asyncio.sleep(1)


async def test_one_that_is_silent_for_too_long_is_fenced_and_comes_back_as_another(
    network: FakeNetwork,
) -> None:
    bed = await Bed.serving(network, num_instances=3)
    fence_after_s = bed.controller.live.scheduler.fence_after_s
    await others_report(bed, int(fence_after_s) - 2, "i-1", "i-2")
    assert bed.f0.received(InstanceLost) == []
    await others_report(bed, 4, "i-1", "i-2")
    lost = InstanceLost("i-0", 1)
    assert bed.f0.received(InstanceLost) == [lost], "frontends run its requests elsewhere"
    assert bed.peers["i-1"].received(InstanceLost) == [lost], "moves with it end"
    (stalled,) = bed.events(EventKind.INSTANCE_STALLED)
    assert stalled.instance_id == "i-0"
    (died,) = bed.events(EventKind.INSTANCE_DIED)
    assert "fenced: no progress" in died.reason
    assert bed.controller.replays.reason("lost-i-0-1") is ExitReason.FENCED
    await bed.reports("i-0")  # it was under way when it was fenced
    await bed.joins("i-0", incarnation=1)
    assert await bed.peers["i-0"].receive(Welcome) == Welcome("a", 2, fenced=True)
    await bed.reports("i-0", incarnation=2)
    assert (await bed.dispatched()).incarnation == 2


async def test_of_many_that_are_silent_only_as_many_are_fenced_as_the_rest_can_hold(
    network: FakeNetwork,
) -> None:
    bed = await Bed.serving(network, num_instances=4)
    for instance_id in ("i-0", "i-1", "i-2"):
        await bed.reports(instance_id, free=14)  # of 64 blocks each
    for _ in range(int(2 * bed.controller.live.scheduler.fence_after_s)):
        await bed.reports("i-3", free=44)  # no room for the requests of any of them
        for instance_id in ("i-0", "i-1", "i-2"):  # their loops live
            await bed.joins(instance_id, incarnation=bed.incarnation(instance_id))
        await asyncio.sleep(1)
    assert [lost.instance_id for lost in bed.f0.received(InstanceLost)] == ["i-0"]
    await bed.reports("i-3", free=64)
    await asyncio.sleep(1)
    assert [lost.instance_id for lost in bed.f0.received(InstanceLost)] == ["i-0", "i-1"]


HANGS = InstanceState.STALLED


async def test_one_whose_engine_hangs_is_fenced_though_this_controller_never_heard_it_report(
    network: FakeNetwork,
) -> None:
    """Its loop says Hello all the while: to the controller before, to this one, and once it is
    fenced."""
    bed = await Bed.serving(network, num_instances=3)
    bed.restart_controller()
    await bed.joins("f-0", incarnation=1)
    fence_after_s = bed.controller.live.scheduler.fence_after_s

    async def state_after(seconds: float) -> tuple[InstanceState, str]:
        for _ in range(int(seconds)):
            await bed.joins("i-0", incarnation=bed.incarnation("i-0"), num_live_reqs=3)
            for instance_id in ("i-1", "i-2"):
                await bed.joins(instance_id, incarnation=1)
                await bed.reports(instance_id)
            await asyncio.sleep(1)
        member, now_s = bed.controller.roster.members["i-0"], bed.controller.now_s()
        status = instance_status(bed.controller, member, [], now_s, None)
        return status.state, status.detail

    assert await state_after(CONFIG.stall_timeout_s - 1) == (InstanceState.STARTING, "")
    assert await state_after(fence_after_s - CONFIG.stall_timeout_s) == (HANGS, "")
    assert bed.f0.received(InstanceLost) == []
    fenced = await state_after(3)
    assert (fenced[0], "fenced: no progress" in fenced[1]) == (HANGS, True)
    assert Welcome("a", 2, fenced=True) in bed.peers["i-0"].received(Welcome)
    assert await state_after(2 * fence_after_s) == fenced, "its Hellos changed that"
    assert bed.f0.received(InstanceLost) == [InstanceLost("i-0", 1)], "it was fenced once more"
    autoscaling = bed.controller.autoscaling
    load = autoscaling.machine.load(autoscaling.look(), bed.controller.now_s())
    assert (load.num_starting, load.num_unavailable) == (0, 1), "it counts as a free instance"
    await bed.reports("i-0", incarnation=2)
    assert await state_after(1) == (InstanceState.ACTIVE, "")


async def test_one_that_steps_slowly_is_emptied_though_the_disk_was_full(
    network: FakeNetwork,
) -> None:
    bed = await Bed.serving(network, num_instances=4)
    bed.controller.configure(LiveConfig(replace(CONFIG, slow_factor=3.0, slow_after_s=5.0)))
    bed.disk.is_full = True
    for number in range(120):
        for instance_id in ("i-0", "i-1", "i-2", "i-3"):
            step_time_s = 0.05 if instance_id == "i-2" else 0.01
            await bed.reports(instance_id, num_steps=number, step_time_s=step_time_s, num_running=2)
        await asyncio.sleep(0.1)
        if number == 100:
            assert bed.disk.num_refused > 1, "it was not tried again"
            assert not bed.task.done()
            assert bed.keeper.spec.drains == {}
            bed.disk.is_full = False
    ((instance_id, claims),) = bed.keeper.spec.drains.items()
    assert (instance_id, claims.strongest.actor) == ("i-2", "slow-watch")
    assert "times as long as the others'" in claims.strongest.reason


# -- the end ------------------------------------------------------------------------------


async def test_stop_drains_the_frontends_then_ends_everything(bed: Bed) -> None:
    await bed.joins("f-0", incarnation=1, num_live_reqs=3)
    bed.controller.stop(drain=True, grace_s=20.0)
    assert await bed.f0.receive(DrainFrontend) == DrainFrontend(20.0)
    await asyncio.sleep(5)
    assert (bed.controller.stopping, bed.controller.stopped) == (True, False)
    assert bed.controller.num_live_reqs == 3
    assert bed.launcher.terminated == []
    bed.controller.stop(drain=True, grace_s=0.0)  # no effect: only the first call counts
    await bed.joins("f-0", incarnation=1, phase="stopped")
    await asyncio.sleep(0.1)
    assert bed.controller.stopped
    assert sorted(bed.launcher.terminated) == ["f-0", "i-0", "i-1"]
    assert bed.f0.received(DrainFrontend) == []
    bed.controller.stop(drain=False, grace_s=0.0)
    await settle()
    assert bed.f0.received(DrainFrontend) == []


async def test_a_second_stop_without_drain_cuts_it_short(bed: Bed) -> None:
    bed.controller.stop(drain=True, grace_s=1000.0)
    await bed.f0.receive(DrainFrontend)
    await asyncio.sleep(1)
    bed.controller.stop(drain=False, grace_s=1000.0)
    assert await bed.f0.receive(DrainFrontend) == DrainFrontend(0.0)
    await asyncio.sleep(STOP_MARGIN_S - 0.5)
    assert not bed.controller.stopped
    await asyncio.sleep(1)  # the frontend does not answer
    assert bed.controller.stopped


async def test_a_cluster_that_has_not_started_stops_at_once(network: FakeNetwork) -> None:
    bed = Bed(network)
    await bed.joins("f-0", phase="starting")
    bed.controller.stop(drain=True, grace_s=30.0)
    await asyncio.sleep(0.1)
    assert bed.controller.stopped
    assert len(bed.launcher.terminated) == 3


async def test_loads_are_told_now_and_then_and_who_serves_at_once(bed: Bed) -> None:
    for free in range(20):
        await bed.reports("i-0", free=free)
        await asyncio.sleep(TICK_S)
    told = bed.f0.received(Directory)
    assert 4 <= len(told) <= 6, "every 0.4 s"
    bed.f0.inbox.clear()
    await bed.joins("i-0", nonce="another", incarnation=0)
    (told,) = bed.f0.received(Directory)[:1]
    assert [entry.incarnation for entry in told.instances if entry.instance_id == "i-0"] == [2]


async def test_a_frontend_that_dies_while_it_is_asked_is_not_waited_for(bed: Bed) -> None:
    asking = asyncio.create_task(bed.controller.queries.requests(["f-0"]))
    await bed.f0.receive(RequestsAsked)
    bed.network.lose("mem://f-0")
    await settle()
    assert asking.done()
    assert (await asking).silent == ("f-0",)


async def test_an_answer_to_the_controller_before_this_one_is_none(bed: Bed) -> None:
    asking = asyncio.create_task(bed.controller.queries.requests(["f-0"]))
    late = await bed.f0.receive(RequestsAsked)
    asking.cancel()
    bed.restart_controller()
    await bed.serve()
    asking = asyncio.create_task(bed.controller.queries.requests(["f-0"]))
    asked = await bed.f0.receive(RequestsAsked)
    bed.says("f-0", RequestsAnswered(late.query_id, "f-0", (), 7))
    await settle()
    assert not asking.done()
    bed.says("f-0", RequestsAnswered(asked.query_id, "f-0", (), 1))
    assert (await asking).num_matching == 1
