"""Six made-up incidents: the line under the header says what happened, and why."""

import pytest

from benchmarks import incidents
from controller.api.text.status_words import head_wait_s
from controller.api.wire.stream import StatusFrame
from tests.unit.tui.tui_support import after, text_of
from tui.drawing import UNICODE
from tui.panes import header

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
def test_its_cause_stands_on_the_alarm_line(name: str) -> None:
    found = after(incidents.frames(name, incidents.SHOWN_S)).alarms
    alarm = text_of(header.alarm_line(found, 120, UNICODE))
    for words in CAUSES[name]:
        assert words in alarm


def test_each_level_has_its_figures() -> None:
    """Large screens have columns for the levels."""
    *_, frame = incidents.frames("priority-burst", incidents.SHOWN_S)
    assert isinstance(frame, StatusFrame)
    status = frame.status
    assert status.frontends[0].ttft_p99_by_level_s.keys() == {"normal", "high"}
    for level in status.levels:
        waiting = [item.num_waiting_by_level.get(level.name, 0) for item in status.instances]
        assert level.num_waiting_reqs == sum(waiting) > 0
        ttfts_s = [item.ttft_p99_by_level_s.get(level.name, 0.0) for item in status.instances]
        assert level.ttft_p99_s == max(ttfts_s) > 0
    (high,) = [level for level in status.levels if level.name == "high"]
    assert high.headroom_blocks
    for item in status.instances:
        assert sum(item.num_waiting_by_level.values()) == item.num_waiting_reqs
        assert item.ttft_p99_s is None or max(item.ttft_p99_by_level_s.values()) >= item.ttft_p99_s


def test_an_evicted_head_tells_how_long_it_has_waited_since() -> None:
    *_, frame = incidents.frames("priority-burst", incidents.SHOWN_S)
    assert isinstance(frame, StatusFrame)
    heads = [each.queue_head for each in frame.status.instances if each.queue_head is not None]
    (evicted,) = [each for each in heads if each.evicted]
    waited_s = head_wait_s(evicted)
    assert waited_s is not None
    assert 0 < waited_s < evicted.waited_s
