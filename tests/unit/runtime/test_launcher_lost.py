"""A controller whose launcher cannot start or end processes any more."""

import asyncio
from dataclasses import replace

import pytest

from controller.core.emptying.claims import Evacuate
from controller.core.fleet.outlook import RETRY_S
from controller.core.record.event_log import EventKind
from controller.ports.processes import LauncherLoss
from controller.runtime.controller.cluster import STOP_MARGIN_S, TICK_S
from controller.runtime.messages.members import DrainFrontend
from tests.unit.runtime.controller_bed import Bed
from tests.unit.runtime.fakes import FakeNetwork, virtual_time

LOST = LauncherLoss("Ray's head at h:1 does not answer", 3.0, 60.0)


pytestmark = virtual_time


@pytest.fixture
async def bed(network: FakeNetwork) -> Bed:
    return await Bed.serving(network)


async def test_what_needs_a_process_is_tried_again_when_it_is_back(bed: Bed) -> None:
    bed.launcher.lost = LOST
    keeper = bed.controller.keeper
    keeper.change(keeper.spec.with_instances_added(1))
    bed.controller.drains.begin({"i-0": Evacuate("d", 0.0, deadline_s=1.0)})
    await asyncio.sleep(3 * RETRY_S)
    assert bed.launcher.launched == ["f-0", "i-0", "i-1"]
    assert bed.launcher.terminated == []
    assert "i-0" in bed.controller.keeper.spec.instance_ids
    assert not bed.task.done()
    bed.launcher.lost = None
    await asyncio.sleep(3 * RETRY_S)
    assert bed.launcher.launched == ["f-0", "i-0", "i-1", "i-2"]
    assert bed.launcher.terminated == ["i-0"]
    told = bed.events(EventKind.RAY_LOST, EventKind.RAY_FOUND)
    assert [(event.kind, event.reason) for event in told] == [
        (EventKind.RAY_LOST, f"{LOST.what}: no process is started or ended"),
        (EventKind.RAY_FOUND, f"no more: {LOST.what}"),
    ]


async def test_streams_end_with_an_error_before_their_processes_end(bed: Bed) -> None:
    bed.launcher.lost = replace(LOST, for_s=51.0)
    await asyncio.sleep(2 * TICK_S)
    assert not bed.controller.stopping
    bed.launcher.lost = replace(LOST, for_s=52.0)
    await asyncio.sleep(2 * TICK_S)
    assert (await bed.f0.receive(DrainFrontend)).grace_s == 0.0
    assert bed.controller.stopping
    # Nothing can be ended, and the stop is over all the same.
    await asyncio.sleep(STOP_MARGIN_S + 1.0)
    assert bed.controller.stopped
    assert bed.launcher.terminated == []
