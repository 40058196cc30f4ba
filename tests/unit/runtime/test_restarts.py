"""Restarts at the controller: an instance is emptied, its process replaced, and it serves again."""

import asyncio

import pytest

from controller.core.emptying.claims import Restart
from controller.core.emptying.drains import HEARD_WITHIN_S, REPLACE_AGAIN_S, RETRY_S, DrainState
from controller.core.record.event_log import EventKind
from controller.runtime.messages.members import DrainSet
from tests.unit.runtime.fakes import FakeNetwork, settle, virtual_time
from tests.unit.runtime.steering_bed import Disk, SteeringBed


class Bed(SteeringBed):
    """Three instances; i-0 has the process `a`."""

    def restart(self, **what: object) -> None:
        nonce = self.controller.roster.members["i-0"].nonce
        self.begin("i-0", Restart, nonce=nonce, **what)

    async def until_ended(self) -> None:
        async def ended() -> None:
            while "i-0" not in self.launcher.restarted:
                await asyncio.sleep(0.05)

        await asyncio.wait_for(ended(), 5.0)

    async def dies(self) -> None:
        """The process of i-0, as its launcher was told."""
        self.network.lose("mem://i-0")
        await settle()
        self.peers["i-0"] = self.network.peer("mem://i-0")

    async def comes_back(self, nonce: str = "b", incarnation: int = 2) -> None:
        await self.joins("i-0", nonce=nonce)
        await self.joins("i-0", nonce=nonce, incarnation=incarnation)
        await self.reports("i-0", incarnation=incarnation)

    @property
    def state(self) -> DrainState:
        return self.controller.drains.progress("i-0").state

    def whys(self, kind: EventKind) -> list[str]:
        return [event.reason for event in self.events(kind)]


async def after(bed: Bed) -> None:
    """A few looks of the controller."""
    await asyncio.sleep(1.0)
    await bed.reports("i-0", incarnation=bed.controller.roster.members["i-0"].incarnation)


@virtual_time
async def test_it_is_emptied_replaced_and_serves_again(network: FakeNetwork) -> None:
    bed = Bed(network)
    await bed.serve()
    bed.runs("i-0", "r-1")
    await bed.reports("i-0", num_running=1)
    bed.restart()
    await bed.reports("i-0", num_running=1)
    assert (await bed.dispatched()).instance_id != "i-0"
    await asyncio.sleep(3)
    assert bed.launcher.restarted == []
    assert bed.state is DrainState.DRAINING
    await bed.migrated()
    bed.runs("i-0")
    await bed.reports("i-0")
    await bed.until_ended()
    progress = bed.controller.drains.progress("i-0")
    assert (progress.state, progress.safe_to_delete) == (DrainState.RESTARTING, False)
    await bed.dies()
    await asyncio.sleep(REPLACE_AGAIN_S)
    assert bed.state is DrainState.RESTARTING
    assert bed.launcher.restarted == ["i-0"], "a process that is gone is not ended again"
    await bed.comes_back()
    await after(bed)
    assert bed.keeper.spec.drains == {}
    assert bed.state is DrainState.ACTIVE
    assert bed.peers["i-0"].received(DrainSet) == [DrainSet(True), DrainSet(False)]
    assert bed.controller.roster.members["i-0"].incarnation == 2
    assert {(await bed.dispatched(f"r-{n}")).instance_id for n in range(3)} >= {"i-0"}
    began, drained, ended = bed.events()
    assert (began.kind, began.reason) == ("drain_started", "to be restarted: a fan")
    assert (drained.kind, drained.numbers["num_moved"]) == ("drained", 1)
    assert (ended.kind, ended.reason) == ("drain_ended", "its process was restarted")
    assert bed.whys(EventKind.INSTANCE_DIED) == ["an operator restarts it"]


@virtual_time
async def test_at_once_nobody_waits_for_requests(network: FakeNetwork) -> None:
    bed = Bed(network)
    await bed.serve()
    bed.runs("i-0", "r-1")
    bed.restart(at_once=True)
    await bed.reports("i-0", num_running=1)
    await bed.until_ended()
    assert bed.whys(EventKind.DRAIN_STARTED) == ["to be restarted at once: a fan"]
    await bed.dies()
    bed.runs("i-0")
    await bed.comes_back()
    await after(bed)
    assert bed.keeper.spec.drains == {}
    assert bed.launcher.restarted == ["i-0"]


@virtual_time
async def test_a_process_that_stays_is_ended_again(network: FakeNetwork) -> None:
    bed = Bed(network)
    await bed.serve()
    bed.restart(at_once=True)
    await bed.until_ended()
    for _ in range(3):
        await asyncio.sleep(REPLACE_AGAIN_S / 2)
        await bed.joins("i-0", incarnation=1)
        await bed.reports("i-0")
    assert bed.launcher.restarted == ["i-0", "i-0"]


@virtual_time
async def test_a_process_that_cannot_be_ended_is_tried_again(
    network: FakeNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed = Bed(network)
    await bed.serve()

    def fails(_member_id: str) -> None:
        raise RuntimeError("Ray does not answer")

    monkeypatch.setattr(bed.launcher, "restart", fails)
    bed.restart(at_once=True)
    await asyncio.sleep(2 * RETRY_S)
    assert bed.state is DrainState.DRAINING
    monkeypatch.undo()
    await bed.until_ended()


@virtual_time
async def test_one_that_dies_while_it_is_emptied_is_restarted_by_that(network: FakeNetwork) -> None:
    bed = Bed(network)
    await bed.serve()
    bed.runs("i-0", "r-1")
    bed.restart()
    await bed.reports("i-0", num_running=1)
    await bed.dies()
    bed.runs("i-0")
    await bed.comes_back()
    await after(bed)
    assert bed.keeper.spec.drains == {}
    assert bed.launcher.restarted == []
    assert bed.whys(EventKind.INSTANCE_DIED) == ["its process is gone"]


@virtual_time
async def test_a_process_that_cannot_start_ends_the_restart(network: FakeNetwork) -> None:
    bed = Bed(network)
    await bed.serve()
    bed.restart()
    await bed.reports("i-0")
    await bed.until_ended()
    await bed.dies()
    await bed.joins("i-0", nonce="b", phase="failed")
    await asyncio.sleep(1)
    assert bed.keeper.spec.drains == {}
    (why,) = bed.whys(EventKind.DRAIN_ENDED)
    assert why.startswith("it could not start: ")


@virtual_time
async def test_one_that_could_not_start_is_restarted(network: FakeNetwork) -> None:
    """Its process is alive, and says why it does not serve."""
    bed = Bed(network)
    await bed.serve()
    await bed.joins("i-0", incarnation=1, phase="failed")
    bed.restart()
    await bed.until_ended()
    await bed.dies()
    await bed.comes_back()
    await after(bed)
    assert bed.keeper.spec.drains == {}


@virtual_time
async def test_at_its_deadline_it_is_given_up(network: FakeNetwork) -> None:
    bed = Bed(network)
    await bed.serve()
    bed.runs("i-0", "r-1")
    bed.restart(deadline_s=bed.controller.now_s() + 5.0, on_deadline="abort")
    await bed.reports("i-0", num_running=1)
    await asyncio.sleep(6)
    assert bed.keeper.spec.drains == {}
    assert bed.launcher.restarted == []
    assert bed.whys(EventKind.DRAIN_ENDED) == ["its deadline passed: what is left stays"]
    assert bed.peers["i-0"].received(DrainSet) == [DrainSet(True), DrainSet(False)]


@virtual_time
async def test_a_deadline_that_passes_while_the_next_process_starts_is_none(
    network: FakeNetwork,
) -> None:
    bed = Bed(network)
    await bed.serve()
    bed.restart(deadline_s=bed.controller.now_s() + 5.0, on_deadline="abort")
    await bed.reports("i-0")
    await bed.until_ended()
    await bed.dies()
    await asyncio.sleep(10)
    assert bed.state is DrainState.RESTARTING
    await bed.comes_back()
    await after(bed)
    assert bed.whys(EventKind.DRAIN_ENDED) == ["its process was restarted"]


@virtual_time
async def test_undrained_it_keeps_its_process(network: FakeNetwork) -> None:
    bed = Bed(network)
    await bed.serve()
    bed.runs("i-0", "r-1")
    bed.restart()
    await bed.reports("i-0", num_running=1)
    bed.controller.drains.end("i-0", "undrained", "bo")
    bed.runs("i-0")
    await bed.reports("i-0")
    await asyncio.sleep(2)
    assert bed.launcher.restarted == []
    assert bed.state is DrainState.ACTIVE


@virtual_time
async def test_a_drained_instance_is_drained_after_its_restart(network: FakeNetwork) -> None:
    bed = Bed(network)
    await bed.serve()
    bed.begin("i-0")
    await bed.reports("i-0")
    await asyncio.sleep(1)
    assert bed.state is DrainState.DRAINED
    bed.restart()
    await bed.until_ended()
    await bed.dies()
    await bed.comes_back()
    await after(bed)
    await asyncio.sleep(1)
    assert bed.state is DrainState.DRAINED
    assert bed.keeper.spec.drains["i-0"].restart is None
    assert bed.whys(EventKind.DRAIN_STARTED)[-1] == "its restart is over; it drains on: a fan"
    assert bed.launcher.restarted == ["i-0"]
    bed.restart()
    await asyncio.sleep(1)
    assert bed.launcher.restarted == ["i-0", "i-0"], "a second one is as the first"


@virtual_time
async def test_the_end_of_a_restart_that_cannot_be_saved_is_tried_again(
    network: FakeNetwork,
) -> None:
    bed = Bed(network)
    disk = bed.keeper._store = Disk()
    await bed.serve()
    bed.restart(at_once=True)
    await bed.until_ended()
    await bed.dies()
    disk.is_full = True
    await bed.comes_back()
    await after(bed)
    assert bed.state is DrainState.RESTARTING
    disk.is_full = False
    await asyncio.sleep(2 * RETRY_S)
    assert bed.keeper.spec.drains == {}
    assert bed.launcher.restarted == ["i-0"]


# -- another controller -------------------------------------------------------------------


async def another_controller(bed: Bed, process: str, incarnation: int) -> None:
    bed.restart_controller()
    bed.take_wall_clock()
    await asyncio.sleep(HEARD_WITHIN_S / 2)
    for member_id in bed.peers:
        mine = member_id == "i-0"
        nonce, number = (process, incarnation) if mine else ("a", 1)
        await bed.joins(member_id, nonce=nonce, incarnation=number)
        if mine and not number:
            await bed.joins(member_id, nonce=nonce, incarnation=1)
        if member_id.startswith("i"):
            await bed.reports(member_id)


@virtual_time
async def test_a_new_controller_replaces_the_process_that_was_meant(network: FakeNetwork) -> None:
    bed = Bed(network)
    await bed.serve()
    bed.runs("i-0", "r-1")
    bed.restart()
    await bed.reports("i-0", num_running=1)
    bed.runs("i-0")
    await another_controller(bed, "a", 1)
    await bed.until_ended()
    assert bed.state is DrainState.RESTARTING


@virtual_time
async def test_a_new_controller_knows_the_next_process(network: FakeNetwork) -> None:
    """It came while no controller was there."""
    bed = Bed(network)
    await bed.serve()
    bed.restart()
    await another_controller(bed, "b", 0)
    await asyncio.sleep(1)
    assert bed.controller.roster.members["i-0"].incarnation == 2
    assert bed.keeper.spec.drains == {}
    assert bed.launcher.restarted == []
