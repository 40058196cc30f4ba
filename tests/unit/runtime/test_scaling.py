"""Scaling at the controller: which instances are started, drained, kept and removed."""

import asyncio
from collections import Counter

import pytest

from controller.api.errors import LlumctlError
from controller.core.fleet.cluster_spec import ScalePlan
from tests.unit.runtime.fakes import FakeLauncher, FakeNetwork, virtual_time
from tests.unit.runtime.steering_bed import SteeringBed

pytestmark = virtual_time


@pytest.fixture
async def bed(network: FakeNetwork) -> SteeringBed:
    """i-0 runs one request, i-1 two, and i-2 three."""
    bed = await SteeringBed.serving(network)
    await run(bed, 0, 1, 2)
    return bed


async def run(bed: SteeringBed, *numbers: int) -> None:
    for n in numbers:
        await bed.reports(f"i-{n}", num_running=n + 1)


async def test_one_that_cannot_be_launched_does_not_end_a_controller_that_starts(
    network: FakeNetwork,
) -> None:
    launcher = FakeLauncher()
    launcher.failures = Counter({"i-0": 2})
    bed = SteeringBed(network, 2, launcher=launcher)
    assert launcher.launched == ["f-0", "i-1"]
    await asyncio.sleep(2.5)
    assert launcher.launched == ["f-0", "i-1", "i-0"]
    assert not bed.task.done()


async def test_growing_starts_instances_with_new_numbers(bed: SteeringBed) -> None:
    assert bed.scale(5) == ScalePlan(3, 5, num_added=2)
    assert bed.launcher.launched[-2:] == ["i-3", "i-4"]
    assert bed.keeper.spec.instance_ids == ("i-0", "i-1", "i-2", "i-3", "i-4")
    assert bed.keeper.spec.revision == 1


async def test_shrinking_drains_the_least_busy_and_removes_it_when_it_is_empty(
    bed: SteeringBed,
) -> None:
    assert bed.scale(2).drained == ("i-0",)
    await run(bed, 0)
    await asyncio.sleep(2)
    assert bed.launcher.terminated == []
    await bed.reports("i-0")
    await bed.is_gone("i-0")
    assert bed.keeper.spec.instance_ids == ("i-1", "i-2")
    assert bed.events()[0].reason == "to be removed: a fan"
    bed.scale(3)
    assert bed.launcher.launched[-1] == "i-3", "the number of the removed one is not used again"


async def test_a_scale_is_one_change_and_made_whole_or_not_at_all(bed: SteeringBed) -> None:
    bed.scale(1)
    assert (bed.disk.num_saved, bed.keeper.spec.revision) == (1, 1)
    before, launched = bed.keeper.spec, list(bed.launcher.launched)
    bed.disk.is_full = True
    with pytest.raises(LlumctlError):
        bed.scale(5)
    assert (bed.keeper.spec, bed.launcher.launched) == (before, launched)
    bed.disk.is_full = False
    assert bed.scale(5).num_added == 2
    assert (bed.disk.num_saved, bed.keeper.spec.revision, bed.keeper.spec.drains) == (2, 2, {})
