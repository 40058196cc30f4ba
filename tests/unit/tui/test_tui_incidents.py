"""Six made-up incidents: the line under the header says what happened, and why."""

import pytest

from benchmarks import incidents
from tests.unit.tui.tui_support import FakeSource, dashboard, drawn, settle

CAUSES = {
    "hung-engine": ("i-3: stalled, last heard of ", " requests stand still there"),
    "giants": ("needs 263 of ", "blocks, 31% of an instance; memory is fragmented, i-"),
    "slow-link": ("i-4: 3 slow moves to it: ", " blocks in "),
    "priority-burst": ("i-3: ", "running are high"),
    "stuck-drain": (
        "i-2: drain 1",
        "over its deadline",
        "its moves fail: the destination has not enough free blocks",
    ),
    "unfit-head": (
        "i-1: ",
        "needs 688 of ",
        "blocks, 81% of an instance; memory is fragmented, i-",
    ),
}


@pytest.mark.parametrize("name", incidents.INCIDENTS)
async def test_its_cause_stands_on_the_alarm_line(name: str) -> None:
    source = FakeSource()
    async with dashboard(source) as (app, pilot):
        source.feed(incidents.frames(name, incidents.SHOWN_S))
        await settle(app, pilot)
        alarm = (await drawn(pilot)).splitlines()[2]
        for words in CAUSES[name]:
            assert words in alarm
