"""Rolling restarts at the controller: one instance after the other, until one fails."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from controller.core.emptying.claims import Remove
from controller.core.fleet.cluster_spec import (
    AS_MANY_AS_FIT,
    AS_STARTED,
    EngineChange,
    RollingOrder,
)
from controller.core.fleet.rolling import NO_OTHER_SERVES, RETRY_S
from controller.core.record.event_log import EventKind, LoggedEvent
from controller.runtime.controller.operations.operated_cluster import OperationRefusedError
from controller.runtime.messages.members import DrainSet, Welcome
from tests.unit.runtime.fakes import FakeNetwork, settle, virtual_time
from tests.unit.runtime.steering_bed import Disk, SteeringBed

IDS = ("i-0", "i-1", "i-2")


class Bed(SteeringBed):
    """Three instances, each of which the process `a` serves."""

    def take_wall_clock(self) -> None:
        super().take_wall_clock()
        self.controller.rolling.wall_clock = self.controller.now_s

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

    async def until_ended(self, instance_id: str) -> None:
        async def ended() -> None:
            while instance_id not in self.launcher.restarted:
                await asyncio.sleep(0.05)

        await asyncio.wait_for(ended(), 5.0)

    async def dies(self, instance_id: str) -> None:
        self.network.lose(f"mem://{instance_id}")
        await settle()
        self.peers[instance_id] = self.network.peer(f"mem://{instance_id}")

    async def comes_back(self, instance_id: str) -> None:
        await self.joins(instance_id, nonce="b")
        await self.joins(instance_id, nonce="b", incarnation=2)
        await self.reports(instance_id, incarnation=2)
        await asyncio.sleep(0.5)
        await self.reports(instance_id, incarnation=2)
        await asyncio.sleep(0.3)

    def engine_told(self, instance_id: str) -> EngineChange:
        """The last one that the instance's process was told."""
        return self.peers[instance_id].received(Welcome)[-1].engine

    async def is_restarted(self, instance_id: str) -> None:
        await self.is_ended(instance_id)
        await self.dies(instance_id)
        await self.comes_back(instance_id)

    async def is_ended(self, instance_id: str) -> None:
        """Empty as it is, its process is told to end."""
        async with asyncio.timeout(5.0):
            while instance_id not in self.away:
                await self.all_report()
        await self.all_report()
        await self.until_ended(instance_id)

    async def all_report(self) -> None:
        for member in self.controller.roster.instances():
            if member.serving:
                await self.reports(member.member_id, incarnation=member.incarnation)
        await asyncio.sleep(0.2)

    def told(self) -> list[LoggedEvent]:
        return self.events(
            EventKind.ROLLING_STARTED, EventKind.ROLLING_ENDED, EventKind.ROLLING_FAILED
        )


@virtual_time
async def test_the_next_one_begins_when_the_one_before_serves(network: FakeNetwork) -> None:
    bed = Bed(network)
    await bed.serve()
    bed.runs("i-0", "r-1")
    await bed.reports("i-0", num_running=1)
    bed.rolls()
    await asyncio.sleep(0.3)
    assert (bed.away, bed.order.left) == (["i-0"], ("i-1", "i-2"))
    assert bed.peers["i-0"].received(DrainSet) == [DrainSet(True)]
    elsewhere = (await bed.dispatched()).instance_id
    assert elsewhere != "i-0"
    await bed.reports(elsewhere, seen=1)
    await bed.reports("i-0", num_running=1)
    await asyncio.sleep(2)
    assert bed.launcher.restarted == [], "a request runs there"
    bed.runs("i-0")
    await bed.reports("i-0")
    await bed.until_ended("i-0")
    await bed.dies("i-0")
    await asyncio.sleep(5)
    assert bed.away == ["i-0"], "the next process does not serve yet"
    await bed.comes_back("i-0")
    assert bed.away == ["i-1"]
    assert bed.order.done["i-0"] == pytest.approx(8.5, abs=2)
    await bed.is_restarted("i-1")
    await bed.is_restarted("i-2")
    assert (bed.order.state, tuple(bed.order.done)) == ("done", IDS)
    assert bed.launcher.restarted == list(IDS)
    assert bed.keeper.spec.drains == {}
    began, ended = bed.told()
    assert (began.reason, began.actor, began.cause_id) == ("a patch", "ana", "op-9")
    assert (ended.kind, ended.numbers["num_restarted"]) == ("rolling_ended", 3)
    assert {each.cause_id for each in bed.events()} == {"op-9"}


@virtual_time
async def test_one_that_cannot_start_ends_it_and_nothing_is_half_done(
    network: FakeNetwork,
) -> None:
    bed = Bed(network)
    await bed.serve()
    bed.rolls()
    await bed.is_ended("i-0")
    await bed.dies("i-0")
    await bed.joins("i-0", nonce="b", phase="failed")
    await bed.all_report()
    assert (bed.order.state, bed.order.failed_id) == ("failed", "i-0")
    assert bed.order.why == "i-0 could not start"
    assert (bed.order.left, bed.keeper.spec.drains) == (("i-1", "i-2"), {})
    (_, failed) = bed.told()
    assert (failed.kind, failed.instance_id) == ("rolling_failed", "i-0")
    assert failed.reason == bed.order.why
    await asyncio.sleep(5)
    assert bed.launcher.restarted == ["i-0"]
    bed.rolls()
    await asyncio.sleep(0.3)
    assert bed.away == ["i-0"], "another one begins with the one that does not serve"


@virtual_time
async def test_one_that_is_not_empty_by_its_deadline_ends_it(network: FakeNetwork) -> None:
    bed = Bed(network)
    await bed.serve()
    bed.runs("i-0", "r-1")
    bed.rolls(deadline_s=4.0)
    await bed.reports("i-0", num_running=1)
    await asyncio.sleep(5)
    assert (bed.order.state, bed.order.why) == ("failed", "i-0 was not empty within 4 s")
    assert (bed.keeper.spec.drains, bed.launcher.restarted) == ({}, [])


@virtual_time
async def test_one_whose_new_process_never_serves_ends_it(network: FakeNetwork) -> None:
    bed = Bed(network)
    await bed.serve()
    bed.rolls(start_timeout_s=20.0)
    await bed.is_ended("i-0")
    await bed.dies("i-0")
    await asyncio.sleep(15)
    assert bed.order.goes
    await asyncio.sleep(10)
    assert bed.order.why == "i-0 did not serve within 20 s of its restart"
    assert "i-0" in bed.keeper.spec.drains, "it serves when its process does"
    await bed.comes_back("i-0")
    assert bed.keeper.spec.drains == {}


@virtual_time
async def test_stopped_it_leaves_the_process_that_has_not_ended(network: FakeNetwork) -> None:
    bed = Bed(network)
    await bed.serve()
    bed.runs("i-0", "r-1")
    bed.rolls()
    await bed.reports("i-0", num_running=1)
    bed.controller.rolling.stop("stopped by an operator", "bo")
    assert (bed.order.state, bed.order.left) == ("stopped", IDS)
    assert bed.keeper.spec.drains == {}
    await asyncio.sleep(3)
    assert bed.launcher.restarted == []
    assert bed.told()[-1].actor == "bo"
    bed.rolls()
    bed.runs("i-0")
    await asyncio.sleep(0.3)
    await bed.reports("i-0")
    await bed.until_ended("i-0")
    bed.controller.rolling.stop("again", "bo")
    assert bed.keeper.spec.drains.keys() == {"i-0"}, "its process has ended: the next one comes"
    await bed.dies("i-0")
    await bed.comes_back("i-0")
    assert (bed.keeper.spec.drains, bed.order.left) == ({}, ("i-1", "i-2"))


@virtual_time
async def test_as_many_as_fit_go_at_once(network: FakeNetwork) -> None:
    bed = Bed(network)
    await bed.serve()
    bed.rolls(at_once=AS_MANY_AS_FIT)
    await asyncio.sleep(0.3)
    assert (bed.away, bed.order.left) == (["i-0", "i-1"], ("i-2",))
    for each in ("i-0", "i-1"):
        await bed.is_restarted(each)
    await bed.is_restarted("i-2")
    assert bed.order.state == "done"


@virtual_time
async def test_it_waits_while_no_other_serves(network: FakeNetwork) -> None:
    bed = Bed(network)
    await bed.serve()
    bed.rolls()
    await asyncio.sleep(0.3)
    await bed.dies("i-2")
    await bed.is_restarted("i-0")
    await bed.dies("i-0")
    await bed.all_report()
    assert bed.away == ["i-1"]


@virtual_time
async def test_refusals(network: FakeNetwork) -> None:
    bed = Bed(network)
    await bed.serve()
    rolling = bed.controller.rolling
    bed.rolls()
    with pytest.raises(OperationRefusedError) as goes:
        rolling.check(force=True)
    assert goes.value.code == "rolling"
    rolling.stop("stopped", "bo")
    bed.begin("i-1")
    bed.begin("i-2")
    for each in ("i-1", "i-2"):
        await bed.reports(each)
    with pytest.raises(OperationRefusedError) as last:
        rolling.check(force=False)
    assert last.value.code == "last_instance"
    assert NO_OTHER_SERVES in last.value.message
    rolling.check(force=True)


@virtual_time
async def test_a_full_disk_holds_it_up_and_no_more(network: FakeNetwork) -> None:
    bed = Bed(network)
    disk = bed.keeper._store = Disk()
    await bed.serve()
    bed.rolls()
    disk.is_full = True
    await asyncio.sleep(3 * RETRY_S)
    assert (bed.away, bed.order.left) == ([], IDS)
    disk.is_full = False
    await asyncio.sleep(2 * RETRY_S)
    assert bed.away == ["i-0"]


@virtual_time
async def test_another_controller_goes_on_with_it(network: FakeNetwork) -> None:
    bed = Bed(network)
    await bed.serve()
    bed.rolls()
    await bed.is_restarted("i-0")
    assert bed.away == ["i-1"]
    before = bed.order
    bed.restart_controller()
    bed.take_wall_clock()
    await asyncio.sleep(1)
    assert bed.order is before, "nobody was heard yet"
    for member_id in bed.peers:
        nonce, number = ("b", 2) if member_id == "i-0" else ("a", 1)
        await bed.joins(member_id, nonce=nonce, incarnation=number)
        if member_id.startswith("i"):
            await bed.reports(member_id, incarnation=number)
    await bed.is_restarted("i-1")
    await bed.is_restarted("i-2")
    assert bed.order.state == "done"
    assert bed.launcher.restarted == ["i-1", "i-2"]


@virtual_time
async def test_one_that_is_scaled_in_meanwhile_is_left_out(network: FakeNetwork) -> None:
    bed = Bed(network)
    await bed.serve()
    bed.rolls()
    await asyncio.sleep(0.3)
    bed.begin("i-1", Remove)
    await bed.is_restarted("i-0")
    assert bed.away == ["i-2"]
    await bed.is_restarted("i-2")
    assert tuple(bed.order.done) == ("i-0", "i-2")


NEW = EngineChange(1, {"max_num_seqs": 64})


@virtual_time
async def test_each_next_process_is_told_the_new_arguments(network: FakeNetwork) -> None:
    bed = Bed(network)
    await bed.serve()
    bed.rolls(engine=NEW)
    await bed.is_restarted("i-0")
    assert bed.engine_told("i-0") == NEW
    assert bed.keeper.spec.engine == AS_STARTED, "not all have them yet"
    await bed.dies("i-2")
    await bed.joins("i-2", nonce="x")
    assert bed.engine_told("i-2") == AS_STARTED, "it died before its turn"
    bed.keeper.change(bed.keeper.spec.with_instances_added(1))
    assert bed.keeper.spec.engine_of("i-3") == AS_STARTED, "nothing is proved yet"
    bed.keeper.change(bed.keeper.spec.without_instance("i-3"))
    for each in ("i-1", "i-2"):
        await bed.joins("i-2", nonce="x", incarnation=2)
        await bed.is_restarted(each)
        assert bed.engine_told(each) == NEW
    assert (bed.keeper.spec.engine, bed.keeper.spec.engines) == (NEW, {})
    steps = bed.events(EventKind.ROLLING_STEPPED)
    assert [each.instance_id for each in steps] == list(IDS)
    assert all(each.numbers["took_s"] > each.numbers["emptied_s"] > 0 for each in steps)
    assert "max_num_seqs=64" in bed.told()[0].reason


@virtual_time
async def test_one_that_cannot_start_with_them_starts_with_its_old_ones(
    network: FakeNetwork,
) -> None:
    bed = Bed(network)
    await bed.serve()
    bed.rolls(engine=NEW)
    await bed.is_ended("i-0")
    await bed.dies("i-0")
    await bed.joins("i-0", nonce="b", phase="failed")
    assert bed.engine_told("i-0") == NEW
    await bed.all_report()
    assert bed.order.why == "i-0 could not start; it starts again with the arguments that it had"
    assert (bed.order.state, bed.order.left) == ("failed", ("i-1", "i-2"))
    assert (bed.keeper.spec.engine, bed.keeper.spec.engines) == (AS_STARTED, {})
    await asyncio.sleep(1.0)
    assert bed.launcher.restarted == ["i-0", "i-0"], "the process that failed is replaced"
    await bed.dies("i-0")
    await bed.joins("i-0", nonce="c")
    assert bed.engine_told("i-0") == AS_STARTED
    await bed.joins("i-0", nonce="c", incarnation=3)
    await bed.reports("i-0", incarnation=3)
    await asyncio.sleep(0.5)
    assert bed.keeper.spec.drains == {}
    assert bed.keeper.spec.next_generation == 2, "no number is used twice"
    (failed,) = bed.events(EventKind.ROLLING_FAILED)
    assert failed.reason == bed.order.why


@virtual_time
async def test_one_that_dies_with_them_at_once_ends_it(network: FakeNetwork) -> None:
    bed = Bed(network)
    await bed.serve()
    bed.rolls(engine=NEW)
    await bed.is_ended("i-0")
    await bed.dies("i-0")
    await bed.joins("i-0", nonce="b", phase="starting")
    await bed.dies("i-0")
    await asyncio.sleep(0.3)
    assert bed.order.why.startswith("the new process of i-0 died before it served; it starts again")
    await bed.joins("i-0", nonce="c", phase="starting")
    assert bed.engine_told("i-0") == AS_STARTED
    assert bed.launcher.restarted == ["i-0"], "Ray starts the next one by itself"


@virtual_time
async def test_another_controller_knows_which_have_them(network: FakeNetwork) -> None:
    bed = Bed(network)
    await bed.serve()
    bed.rolls(engine=NEW)
    await bed.is_restarted("i-0")
    bed.restart_controller()
    bed.take_wall_clock()
    await bed.joins("i-0", nonce="y")
    await bed.joins("i-2", nonce="z")
    assert bed.engine_told("i-0") == NEW
    assert bed.engine_told("i-2") == AS_STARTED


@virtual_time
async def test_it_is_dismissed_when_it_is_over(network: FakeNetwork) -> None:
    bed = Bed(network)
    await bed.serve()
    bed.rolls()
    bed.controller.rolling.dismiss()
    assert not bed.order.dismissed
    bed.controller.rolling.stop("stopped", "bo")
    bed.controller.rolling.dismiss()
    assert bed.order.dismissed
    bed.rolls()
    assert not bed.order.dismissed
