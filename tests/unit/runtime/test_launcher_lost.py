"""A controller whose launcher cannot start or end processes any more."""

import asyncio
from dataclasses import replace

from controller.core.emptying.claims import Evacuate
from controller.core.fleet.outlook import RETRY_S
from controller.core.record.event_log import EventKind
from controller.ports.processes import LauncherLoss
from controller.runtime.controller.cluster import STOP_MARGIN_S, TICK_S
from controller.runtime.messages.members import DrainFrontend
from tests.unit.runtime.controller_bed import Bed
from tests.unit.runtime.fakes import FakeNetwork, virtual_time

LOST = LauncherLoss("Ray's head at h:1 does not answer", 3.0, 60.0)


async def a_tick() -> None:
    await asyncio.sleep(2 * TICK_S)


def told(bed: Bed) -> list[tuple[EventKind, str]]:
    kinds = (EventKind.RAY_LOST, EventKind.RAY_FOUND)
    entries = bed.controller.journal.log.after(None, 1000).entries
    return [(event.kind, event.reason) for _, event in entries if event.kind in kinds]


@virtual_time
async def test_it_says_so_once_and_again_when_it_is_back(network: FakeNetwork) -> None:
    bed = Bed(network)
    await bed.serve()
    assert told(bed) == []
    bed.launcher.lost = LOST
    await a_tick()
    bed.launcher.lost = replace(LOST, for_s=4.0)
    await a_tick()
    bed.launcher.lost = None
    await a_tick()
    assert told(bed) == [
        (EventKind.RAY_LOST, f"{LOST.what}: no process is started or ended"),
        (EventKind.RAY_FOUND, f"no more: {LOST.what}"),
    ]


@virtual_time
async def test_what_needs_a_process_is_tried_again_when_it_is_back(network: FakeNetwork) -> None:
    bed = Bed(network)
    await bed.serve()
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


@virtual_time
async def test_streams_end_with_an_error_before_their_processes_end(network: FakeNetwork) -> None:
    bed = Bed(network)
    await bed.serve()
    bed.launcher.lost = replace(LOST, for_s=51.0)
    await a_tick()
    assert not bed.controller.stopping
    bed.launcher.lost = replace(LOST, for_s=52.0)
    await a_tick()
    assert (await bed.f0.receive(DrainFrontend)).grace_s == 0.0
    assert bed.controller.stopping
    # Nothing can be ended, and the stop is over all the same.
    await asyncio.sleep(STOP_MARGIN_S + 1.0)
    assert bed.controller.stopped
    assert bed.launcher.terminated == []
