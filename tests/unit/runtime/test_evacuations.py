"""Evacuations at the controller: an instance is removed at its moment, empty or not, and for
good."""

import asyncio

import msgspec
import pytest

from controller.core.emptying.claims import Claims, Evacuate
from controller.core.fleet.cluster_spec import ExitReason
from controller.core.record.event_log import EventKind
from controller.runtime.messages.members import DrainSet, InstanceLost
from tests.unit.runtime.fakes import FakeNetwork, hello, settle, virtual_time
from tests.unit.runtime.steering_bed import SteeringBed

pytestmark = virtual_time


class Bed(SteeringBed):
    def evacuates(self, within_s: float = 10.0, **what: object) -> None:
        deadline_s = self.controller.now_s() + within_s
        self.begin("i-0", Evacuate, deadline_s=deadline_s, **what)

    async def notices(self, leaves_in_s: float = 30.0) -> None:
        said = hello("i-0", incarnation=1)
        self.says("i-0", msgspec.structs.replace(said, leaves_in_s=leaves_in_s))
        await settle()

    @property
    def claims(self) -> Claims:
        return self.keeper.spec.drains["i-0"]

    @property
    def notice(self) -> Evacuate:
        assert self.claims.notice is not None
        return self.claims.notice


@pytest.fixture
async def bed(network: FakeNetwork) -> Bed:
    return await Bed.serving(network)


async def test_it_goes_when_it_is_empty(bed: Bed) -> None:
    bed.runs("i-0", "r-1")
    await bed.reports("i-0", num_running=1)
    bed.evacuates()
    await bed.reports("i-0", num_running=1)
    (told,) = bed.peers["i-0"].received(DrainSet)
    assert told == DrainSet(draining=True, leaves_in_s=10.0)
    assert bed.controller.rescheduler.evacuated == {"i-0"}
    assert "i-0" not in await bed.chosen(1)
    plan = bed.controller.scaling.plan(3, force=False)
    assert (plan.undrained, plan.num_added) == ((), 1), "it goes in any case"
    await bed.migrated()
    bed.runs("i-0")
    await bed.reports("i-0")
    await bed.is_gone()
    assert bed.launcher.terminated == ["i-0"]
    assert bed.keeper.spec.instance_ids == ("i-1", "i-2")
    assert bed.controller.rescheduler.evacuated == set()
    began, _, ended = bed.events()
    assert began.reason == "to be evacuated: a fan"
    assert (ended.reason, ended.numbers["num_moved"]) == ("evacuated in time", 1)


@pytest.mark.parametrize("is_drained", [False, True])
async def test_at_its_moment_it_goes_with_what_is_left(bed: Bed, is_drained: bool) -> None:
    bed.runs("i-0", "r-1", "r-2")
    if is_drained:
        bed.begin()
        await bed.reports("i-0", num_running=2)
    bed.evacuates()
    await settle()
    assert bed.peers["i-0"].received(DrainSet)[-1].leaves_in_s == 10.0
    for _ in range(9):
        await asyncio.sleep(1)
        await bed.reports("i-0", num_running=2)
    assert bed.launcher.terminated == []
    await asyncio.sleep(1.5)
    assert bed.launcher.terminated == ["i-0"]
    assert "i-0" not in bed.keeper.spec.instance_ids
    ended = bed.events()[-1]
    assert ended.kind is EventKind.DRAIN_ENDED
    assert ended.reason == "it had to go with what was left"
    assert (ended.numbers["num_requests_left"], ended.numbers["num_moved"]) == (2, 0)
    assert bed.f0.received(InstanceLost) == [InstanceLost("i-0", 1)]
    assert bed.controller.replays.reason("lost-i-0-1") is ExitReason.EVACUATION
    await asyncio.sleep(5)
    assert "i-0" not in bed.launcher.launched[4:], "it is not started again"


async def test_a_process_that_says_that_it_must_go_is_evacuated(bed: Bed) -> None:
    await bed.reports("i-0", num_running=1)
    bed.runs("i-0", "r-1")
    await bed.notices(30.0)
    assert bed.claims.goes
    assert bed.notice.reason == "its process was told to end"
    deadline_s = bed.notice.deadline_s
    await asyncio.sleep(1)
    await bed.notices(29.0)
    assert bed.notice.deadline_s == deadline_s, "it says so again and again"
    (began,) = bed.events()
    assert began.cause_id == "notice-i-0-1"
    bed.controller.drains.end("i-0", "undrained", "bo")
    await bed.notices(28.0)
    assert bed.claims.notice is not None, "nobody can take that back"


async def test_the_last_one_is_evacuated_too(network: FakeNetwork) -> None:
    bed = await Bed.serving(network, num_instances=1)
    await bed.notices(5.0)
    await bed.reports("i-0")
    await bed.is_gone()
    assert bed.keeper.spec.instance_ids == ()
    bed.scale(1)
    assert bed.launcher.launched[-1] == "i-1"


async def test_another_controller_ends_it_at_its_moment(bed: Bed) -> None:
    bed.runs("i-0", "r-1")
    bed.evacuates(within_s=8.0)
    bed.restart_controller()
    assert bed.controller.rescheduler.evacuated == {"i-0"}
    for member_id in bed.peers:
        await bed.joins(member_id, incarnation=1)
    await bed.reports("i-0", num_running=1)
    assert bed.peers["i-0"].received(DrainSet)[-1].leaves_in_s is not None
    await asyncio.sleep(9)
    assert bed.launcher.terminated == ["i-0"]
