"""Rolling restarts at the controller: one instance after the other, until one fails."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from controller.core.fleet.cluster_spec import AS_STARTED, EngineChange, RollingOrder
from controller.core.fleet.rolling import RETRY_S
from controller.core.record.event_log import EventKind, LoggedEvent
from controller.runtime.messages.members import DrainSet, Welcome
from tests.unit.runtime.fakes import FakeNetwork, virtual_time
from tests.unit.runtime.steering_bed import SteeringBed

pytestmark = virtual_time

IDS = ("i-0", "i-1", "i-2")
NEW = EngineChange(1, {"max_num_seqs": 64})


class Bed(SteeringBed):
    """Three instances, each of which the process `a` serves."""

    def rolls(self, **what: Any) -> None:
        order = RollingOrder("op-9", self.controller.now_s(), (), actor="ana", reason="a patch")
        self.controller.rolling.begin(replace(order, **what))

    @property
    def order(self) -> RollingOrder:
        found = self.keeper.spec.rolling
        assert found is not None
        found.check()
        return found

    @property
    def away(self) -> list[str]:
        return [turn.instance_id for turn in self.order.under_way]

    def engine_told(self, instance_id: str) -> EngineChange:
        """The last one that the instance's process was told."""
        return self.peers[instance_id].received(Welcome)[-1].engine

    async def takes_its_turn(self, instance_id: str) -> None:
        """Empty as it is, its process is told to end, and ends."""
        async with asyncio.timeout(5.0):
            while instance_id not in self.away:
                await self.all_report()
        await self.all_report()
        await self.is_restarted(instance_id)
        await self.dies(instance_id)

    async def takes_its_turn_and_serves(self, instance_id: str) -> None:
        await self.takes_its_turn(instance_id)
        await self.comes_back(instance_id)
        for _ in range(2):
            await self.all_report()

    async def all_report(self) -> None:
        for member in self.controller.roster.instances():
            if member.serving:
                await self.reports(member.member_id, incarnation=member.incarnation)
        await asyncio.sleep(0.4)

    def told(self) -> list[LoggedEvent]:
        return self.events(
            EventKind.ROLLING_STARTED, EventKind.ROLLING_ENDED, EventKind.ROLLING_FAILED
        )


@pytest.fixture
async def bed(network: FakeNetwork) -> Bed:
    return await Bed.serving(network)


async def test_the_next_one_begins_when_the_one_before_serves(bed: Bed) -> None:
    bed.runs("i-0", "r-1")
    await bed.reports("i-0", num_running=1)
    bed.rolls()
    await asyncio.sleep(0.3)
    assert (bed.away, bed.order.left) == (["i-0"], ("i-1", "i-2"))
    assert bed.peers["i-0"].received(DrainSet) == [DrainSet(True)]
    await bed.reports("i-0", num_running=1)
    await asyncio.sleep(2)
    assert bed.launcher.restarted == [], "a request runs there"
    bed.runs("i-0")
    await bed.reports("i-0")
    await bed.is_restarted("i-0")
    await bed.dies("i-0")
    await asyncio.sleep(5)
    assert bed.away == ["i-0"], "the next process does not serve yet"
    await bed.comes_back("i-0")
    for _ in range(2):
        await bed.all_report()
    for each in ("i-1", "i-2"):
        assert bed.away == [each]
        await bed.takes_its_turn_and_serves(each)
    assert (bed.order.state, tuple(bed.order.done)) == ("done", IDS)
    assert bed.launcher.restarted == list(IDS)
    assert bed.keeper.spec.drains == {}
    began, ended = bed.told()
    assert (began.reason, began.actor, began.cause_id) == ("a patch", "ana", "op-9")
    assert (ended.kind, ended.numbers["num_restarted"]) == ("rolling_ended", 3)
    steps = bed.events(EventKind.ROLLING_STEPPED)
    assert [each.instance_id for each in steps] == list(IDS)
    assert all(each.numbers["took_s"] > each.numbers["emptied_s"] > 0 for each in steps)


async def test_a_full_disk_holds_it_up_and_no_more(bed: Bed) -> None:
    bed.rolls()
    bed.disk.is_full = True
    await asyncio.sleep(3 * RETRY_S)
    assert (bed.away, bed.order.left) == ([], IDS)
    bed.disk.is_full = False
    await asyncio.sleep(2 * RETRY_S)
    assert bed.away == ["i-0"]


async def test_another_controller_goes_on_with_it_and_knows_who_has_the_new_arguments(
    bed: Bed,
) -> None:
    bed.rolls(engine=NEW)
    await bed.takes_its_turn_and_serves("i-0")
    assert bed.away == ["i-1"]
    before = bed.order
    bed.restart_controller()
    await asyncio.sleep(1)
    assert bed.order is before, "nobody was heard yet"
    for member_id in bed.peers:
        nonce, number = ("b", 2) if member_id == "i-0" else ("a", 1)
        await bed.joins(member_id, nonce=nonce, incarnation=number)
    await bed.all_report()
    assert (bed.engine_told("i-0"), bed.engine_told("i-2")) == (NEW, AS_STARTED)
    await bed.takes_its_turn_and_serves("i-1")
    await bed.takes_its_turn_and_serves("i-2")
    assert bed.order.state == "done"
    assert (bed.keeper.spec.engine, bed.keeper.spec.engines) == (NEW, {})
    assert bed.launcher.restarted == ["i-1", "i-2"]


async def test_one_that_cannot_start_with_them_starts_with_its_old_ones(bed: Bed) -> None:
    bed.rolls(engine=NEW)
    await bed.takes_its_turn("i-0")
    await bed.joins("i-0", nonce="b", phase="failed")
    assert bed.engine_told("i-0") == NEW
    await bed.all_report()
    assert bed.order.why == "i-0 could not start; it starts again with the arguments that it had"
    assert (bed.order.state, bed.order.failed_id) == ("failed", "i-0")
    assert bed.order.left == ("i-1", "i-2")
    await asyncio.sleep(1.0)
    assert bed.launcher.restarted == ["i-0", "i-0"], "the process that failed is replaced"
    await bed.dies("i-0")
    await bed.comes_back("i-0", nonce="c", incarnation=3)
    assert bed.engine_told("i-0") == AS_STARTED
    await asyncio.sleep(0.5)
    assert bed.keeper.spec.drains == {}
    (_, failed) = bed.told()
    assert (failed.kind, failed.instance_id) == ("rolling_failed", "i-0")
