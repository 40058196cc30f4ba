"""The controller with a launcher and members played by the test, on virtual time."""

import asyncio
from dataclasses import replace

import msgspec
import pytest
from msgspec import structs

from controller.core.fleet.cluster_spec import EngineChange, ExitReason
from controller.core.fleet.outlook import RETRY_S
from controller.core.record.event_log import EventKind
from controller.core.scheduler_events import Dispatch, DispatchCancelled
from controller.core.settings import ReschedulingConfig
from controller.ports.processes import LauncherLoss, LauncherLostError
from controller.runtime.controller.cluster import OTHER_VERSION, STOP_MARGIN_S, TICK_S
from controller.runtime.controller.roster import DIRECTORY_EVERY_S, SILENCE_S, LiveConfig
from controller.runtime.messages.codec import encode
from controller.runtime.messages.members import (
    Directory,
    DrainFrontend,
    DrainSet,
    FrontendLimits,
    InstanceLost,
    StatusPull,
    StatusPushSet,
    Welcome,
)
from controller.runtime.messages.move_messages import MoveLimitsSet
from controller.runtime.messages.requests import (
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


async def test_an_instance_that_serves_is_announced_and_asked_for_its_status(
    network: FakeNetwork,
) -> None:
    bed = Bed(network)
    assert bed.launcher.launched == ["f-0", "i-0", "i-1"]
    await bed.joins("f-0")
    assert (await bed.f0.receive(Welcome)).incarnation == 1
    await bed.joins("i-0")
    (entry,) = (await bed.f0.receive(Directory, lambda d: d.instances)).instances
    assert (entry.instance_id, entry.incarnation, entry.address) == ("i-0", 1, "mem://i-0")
    assert (entry.info, entry.snapshot) == (INFO, None)
    await bed.peers["i-0"].receive(StatusPull)
    await bed.reports("i-0", free=7)
    told = await bed.f0.receive(Directory, lambda d: d.instances and d.instances[0].snapshot)
    assert told.instances[0].snapshot.num_free_blocks == 7
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
    await settle()
    assert bed.controller.scheduler.num_waiting == 0
    assert stranger.inbox == []
    await asyncio.sleep(CONFIG.hold_timeout_s + 1)
    assert not bed.task.done()


async def test_a_process_with_other_messages_is_refused_in_words(bed: Bed) -> None:
    """Whatever else its Hello has: only the first fields are the same in all versions."""
    member = bed.controller.roster.members["i-0"]
    said = hello("i-0", nonce="b", phase="starting")
    newer = ["Hello", "newer", *structs.astuple(said)[1:6], {"new": 1}]
    for wire, frame in (
        ("another", encode(structs.replace(said, wire="another"))),
        ("newer", msgspec.msgpack.encode(newer)),
    ):
        bed.peers["i-0"].mailbox.send(HERE, frame)
        await settle()
        assert (member.nonce, member.phase, member.said.wire) == ("b", "failed", wire)
        assert member.detail == OTHER_VERSION


async def test_a_process_with_another_interpreter_than_the_spec_says_is_replaced(bed: Bed) -> None:
    """It died just before a rolling restart would have replaced it, and Ray started it anew."""
    spec, next_python = bed.keeper.spec, EngineChange(1, {"python": "/next/bin/python"})
    bed.keeper.change(replace(spec, revision=spec.revision + 1, engines={"i-0": next_python}))
    await bed.dies("i-0")
    bed.launcher.lost = LauncherLoss("Ray is away", 1.0, None)
    await bed.joins("i-0", nonce="b", phase="starting")
    bed.launcher.lost = None
    assert (bed.launcher.restarted, bed.launcher.num_refused) == ([], 0), "it was not tried"
    for _ in range(2):
        await bed.joins("i-0", nonce="b", phase="starting")
    assert bed.launcher.restarted == ["i-0"]
    assert bed.peers["i-0"].received(Welcome) == []
    await bed.joins("i-0", nonce="c", phase="starting", python="/next/bin/python")
    assert bed.peers["i-0"].received(Welcome)[-1].engine == next_python
    assert bed.launcher.restarted == ["i-0"]


async def test_an_instance_whose_processes_die_in_the_wrong_environment_gets_the_right_one(
    bed: Bed,
) -> None:
    """They say nothing before they die."""
    bed.launcher.misplaced = {"i-0"}
    await asyncio.sleep(2 * TICK_S)
    assert bed.launcher.restarted == [], "it serves"
    bed.launcher.failures["i-0"] = 2
    await bed.dies("i-0")
    await asyncio.sleep(5 * TICK_S)
    assert (bed.launcher.restarted, bed.launcher.failures["i-0"]) == ([], 1), "it waits a while"
    await asyncio.sleep(3 * RETRY_S)
    assert (bed.launcher.restarted, bed.launcher.failures["i-0"]) == (["i-0"], 0)


async def test_nothing_is_launched_while_the_launcher_is_lost(
    bed: Bed, caplog: pytest.LogCaptureFixture
) -> None:
    """Each try waits on the event loop for an answer of Ray's head."""
    bed.launcher.misplaced = {"i-0"}
    bed.launcher.lost = LauncherLoss("Ray is away", 1.0, None)
    await bed.dies("i-0")
    await asyncio.sleep(3 * RETRY_S)
    assert bed.launcher.num_refused == 0
    bed.launcher.lost = None

    def lose(_: str) -> None:
        bed.launcher.lost = LauncherLoss("Ray is away", 0.0, None)
        raise LauncherLostError("Ray is away")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bed.launcher, "restart", lose)
        await asyncio.sleep(2 * TICK_S)
    told = [each for each in caplog.records if "i-0 is not started yet" in each.getMessage()]
    assert [(each.levelname, each.exc_info) for each in told] == [("WARNING", None)]
    bed.launcher.lost = None
    await asyncio.sleep(3 * RETRY_S)
    assert bed.launcher.restarted == ["i-0"]


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
    await settle()
    assert bed.controller.scheduler.num_waiting == 1
    began_s = asyncio.get_running_loop().time()
    while not bed.f0.received(Refused):
        await asyncio.sleep(TICK_S)
        await bed.joins("f-0", incarnation=1)
    assert bed.f0.received(Refused)[0].reject.code == "unavailable"
    waited_s = asyncio.get_running_loop().time() - began_s
    assert CONFIG.hold_timeout_s <= waited_s < CONFIG.hold_timeout_s + 1
    bed.asks("d")
    await settle()
    assert bed.controller.scheduler.num_waiting == 1
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
    assert bed.peers["i-0"].received(MoveLimitsSet) == [MoveLimitsSet(4, None)]
    # An instance that was drained by a controller whose spec was lost serves again.
    assert bed.peers["i-0"].received(DrainSet) == [DrainSet(False)]
    await bed.joins("f-0")
    assert await bed.f0.receive(FrontendLimits) == FrontendLimits(4096, None, 60.0)
    limits = ReschedulingConfig(max_moves=2, max_bytes_per_s=5e6)
    frontends = FrontendLimits(2, 9.0, 5.0)
    bed.controller.configure(LiveConfig(CONFIG, limits, frontends=frontends))
    assert await bed.f0.receive(FrontendLimits) == FrontendLimits(2, 9.0, 5.0)
    await bed.joins("i-1")
    for each in ("i-0", "i-1"):
        assert bed.peers[each].received(MoveLimitsSet)[-1] == MoveLimitsSet(2, 5e6)
        assert bed.peers[each].received(StatusPushSet) == [StatusPushSet(0.02)], "it is as it was"


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


async def test_a_silent_instance_is_pulled_and_gets_nothing(bed: Bed) -> None:
    for _ in range(8):
        await bed.reports("i-1")
        await asyncio.sleep(1)
    assert bed.peers["i-0"].received(StatusPull)
    assert bed.peers["i-1"].received(StatusPull) == []
    await bed.joins("f-0", incarnation=1)
    assert await bed.chosen(1) == ["i-1"]
    await bed.reports("i-0")
    assert (await bed.dispatched("s")).instance_id == "i-0"
    await asyncio.sleep(2 * TICK_S)
    stalls = bed.events(EventKind.INSTANCE_STALLED, EventKind.INSTANCE_RECOVERED)
    assert [e.kind for e in stalls] == ["instance_stalled", "instance_recovered"]
    assert {e.instance_id for e in stalls} == {"i-0"}


async def test_one_that_is_silent_for_too_long_is_fenced_and_comes_back_as_another(
    network: FakeNetwork,
) -> None:
    bed = await Bed.serving(network, num_instances=3)

    async def others_report(seconds: float) -> None:
        for _ in range(int(seconds)):
            for instance_id in ("i-1", "i-2"):
                await bed.reports(instance_id)
            await asyncio.sleep(1)

    await others_report(bed.controller.live.scheduler.fence_after_s - 2)
    assert bed.f0.received(InstanceLost) == []
    await others_report(4)
    lost = InstanceLost("i-0", 1)
    assert bed.f0.received(InstanceLost) == [lost], "frontends run its requests elsewhere"
    assert bed.peers["i-1"].received(InstanceLost) == [lost], "moves with it end"
    (died,) = bed.events(EventKind.INSTANCE_DIED)
    assert "fenced: no progress" in died.reason
    assert bed.controller.replays.reason("lost-i-0-1") is ExitReason.FENCED
    for _ in range(2):  # those that were under way when it was fenced, and when it was welcomed
        await bed.reports("i-0", num_steps=77)
        assert bed.controller.statuses["i-0"].num_steps == 0
        await bed.joins("i-0", incarnation=1)
    assert await bed.peers["i-0"].receive(Welcome) == Welcome("a", 2, fenced=True)
    await bed.reports("i-0", incarnation=2)
    assert (await bed.dispatched()).incarnation == 2


async def test_one_whose_engine_hangs_is_fenced_though_this_controller_never_heard_it_report(
    network: FakeNetwork,
) -> None:
    """Its loop says Hello all the while: to the controller before, to this one, and once it is
    fenced."""
    bed = await Bed.serving(network, num_instances=3)
    bed.restart_controller()
    await bed.joins("f-0", incarnation=1)
    fence_after_s = bed.controller.live.scheduler.fence_after_s

    async def passes(seconds: float) -> None:
        for _ in range(int(seconds)):
            await bed.joins("i-0", incarnation=bed.incarnation("i-0"), num_live_reqs=3)
            for instance_id in ("i-1", "i-2"):
                await bed.joins(instance_id, incarnation=1)
                await bed.reports(instance_id)
            await asyncio.sleep(1)

    await passes(fence_after_s - 1)
    assert bed.f0.received(InstanceLost) == []
    await passes(3)
    member = bed.controller.roster.members["i-0"]
    assert (member.fenced, "fenced: no progress" in member.detail) == (True, True)
    assert Welcome("a", 2, fenced=True) in bed.peers["i-0"].received(Welcome)
    await passes(2 * fence_after_s)
    assert member.fenced, "its Hellos changed that"
    assert bed.f0.received(InstanceLost) == [InstanceLost("i-0", 1)], "it was fenced once more"
    autoscaling = bed.controller.autoscaling
    load = autoscaling.machine.load(autoscaling.look(), bed.controller.now_s())
    assert (load.num_starting, load.num_unavailable) == (0, 1), "it counts as a free instance"
    await bed.reports("i-0", incarnation=2)
    assert not member.fenced


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
            bed.disk.is_full = False
    ((instance_id, claims),) = bed.keeper.spec.drains.items()
    assert (instance_id, claims.strongest.actor) == ("i-2", "slow-watch")


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
