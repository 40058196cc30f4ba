"""Restarts at the controller: an instance is emptied, its process replaced, and it serves again."""

import asyncio

import pytest

from controller.core.emptying.claims import Restart
from controller.core.emptying.drains import HEARD_WITHIN_S, REPLACE_AGAIN_S, RETRY_S, DrainState
from controller.core.record.event_log import EventKind
from controller.runtime.messages.members import DrainSet
from tests.unit.runtime.fakes import FakeNetwork, virtual_time
from tests.unit.runtime.steering_bed import SteeringBed

pytestmark = virtual_time


class Bed(SteeringBed):
    """Three instances; i-0 has the process `a`."""

    def restart(self, **what: object) -> None:
        nonce = self.controller.roster.members["i-0"].nonce
        self.begin("i-0", Restart, nonce=nonce, **what)

    async def restart_is_over(self) -> None:
        await self.comes_back("i-0")
        await asyncio.sleep(1.0)
        await self.reports("i-0", incarnation=2)
        assert self.keeper.spec.drains == {}


@pytest.fixture
async def bed(network: FakeNetwork) -> Bed:
    return await Bed.serving(network)


async def test_it_is_emptied_replaced_and_serves_again(bed: Bed) -> None:
    bed.runs("i-0", "r-1")
    await bed.reports("i-0", num_running=1)
    bed.restart()
    await bed.reports("i-0", num_running=1)
    assert "i-0" not in await bed.chosen()
    await asyncio.sleep(3)
    assert bed.launcher.restarted == []
    assert bed.progress().state is DrainState.DRAINING
    await bed.migrated()
    bed.runs("i-0")
    await bed.reports("i-0")
    await bed.is_restarted()
    assert (bed.progress().state, bed.progress().safe_to_delete) == (DrainState.RESTARTING, False)
    await bed.dies("i-0")
    await asyncio.sleep(REPLACE_AGAIN_S)
    assert bed.progress().state is DrainState.RESTARTING
    assert bed.launcher.restarted == ["i-0"], "a process that is gone is not ended again"
    await bed.restart_is_over()
    assert bed.progress().state is DrainState.ACTIVE
    assert bed.peers["i-0"].received(DrainSet) == [DrainSet(True), DrainSet(False)]
    assert bed.controller.roster.members["i-0"].incarnation == 2
    assert "i-0" in bed.scheduled()
    began, drained, ended = bed.events()
    assert (began.kind, began.reason) == ("drain_started", "to be restarted: a fan")
    assert (drained.kind, drained.numbers["num_moved"]) == ("drained", 1)
    assert (ended.kind, ended.reason) == ("drain_ended", "its process was restarted")
    assert bed.whys(EventKind.INSTANCE_DIED) == ["an operator restarts it"]


async def test_a_process_that_stays_or_cannot_be_ended_is_ended_again(bed: Bed) -> None:
    bed.launcher.failures["i-0"] = 2
    bed.restart(at_once=True)
    await asyncio.sleep(RETRY_S)
    assert bed.progress().state is DrainState.DRAINING
    await bed.is_restarted()
    for _ in range(3):
        await asyncio.sleep(REPLACE_AGAIN_S / 2)
        await bed.joins("i-0", incarnation=1)
        await bed.reports("i-0")
    assert bed.launcher.restarted == ["i-0", "i-0"]


async def test_a_process_that_cannot_start_ends_the_restart(bed: Bed) -> None:
    bed.restart()
    await bed.reports("i-0")
    await bed.is_restarted()
    await bed.dies("i-0")
    await bed.joins("i-0", nonce="b", phase="failed")
    await asyncio.sleep(1)
    assert bed.keeper.spec.drains == {}
    (why,) = bed.whys(EventKind.DRAIN_ENDED)
    assert why.startswith("it could not start: ")


async def test_the_end_of_a_restart_that_cannot_be_saved_is_tried_again(bed: Bed) -> None:
    bed.restart(at_once=True)
    await bed.is_restarted()
    await bed.dies("i-0")
    bed.disk.is_full = True
    await bed.comes_back("i-0")
    await asyncio.sleep(1.0)
    await bed.reports("i-0", incarnation=2)
    assert bed.progress().state is DrainState.RESTARTING
    bed.disk.is_full = False
    await asyncio.sleep(2 * RETRY_S)
    assert (bed.keeper.spec.drains, bed.launcher.restarted) == ({}, ["i-0"])


@pytest.mark.parametrize("process", ["a", "b"])
async def test_a_new_controller_replaces_the_process_that_was_meant_and_no_other(
    bed: Bed, process: str
) -> None:
    """`b` came while no controller was there."""
    bed.runs("i-0", "r-1")
    bed.restart()
    await bed.reports("i-0", num_running=1)
    bed.runs("i-0")
    bed.restart_controller()
    await asyncio.sleep(HEARD_WITHIN_S / 2)
    for member_id in bed.peers:
        if (member_id, process) == ("i-0", "b"):
            await bed.joins("i-0", nonce="b")
        nonce = process if member_id == "i-0" else "a"
        await bed.joins(member_id, nonce=nonce, incarnation=1)
        if member_id.startswith("i"):
            await bed.reports(member_id)
    if process == "a":
        await bed.is_restarted()
        assert bed.progress().state is DrainState.RESTARTING
    else:
        await asyncio.sleep(1)
        assert bed.controller.roster.members["i-0"].incarnation == 2
        assert (bed.keeper.spec.drains, bed.launcher.restarted) == ({}, [])
