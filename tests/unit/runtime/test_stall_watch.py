"""Who is asked for its status, and whose silence is put on record."""

from unittest import mock

import pytest

from controller.core.load.snapshot import InstanceSnapshot
from controller.core.scheduler import GlobalScheduler
from controller.core.scheduler_config import SchedulerConfig
from controller.core.scheduler_events import Event, InstanceDied, InstanceStarted, StatusReported
from controller.runtime.controller.journal import Journal
from controller.runtime.controller.roster import Roster
from controller.runtime.controller.stall_watch import PULL_AFTER_S, StallWatch
from tests.unit.runtime.fakes import hello

STALL_S = 5.0
NEVER = 0.0


def status(*, draining: bool = False) -> StatusReported:
    return StatusReported(InstanceSnapshot("i-0", 1, 16, 100, 100, draining=draining), 0)


class Watched:
    """One instance that serves, as the controller knows it after some events at 0 s."""

    def __init__(self, *events: Event) -> None:
        self.scheduler = GlobalScheduler(SchedulerConfig(stall_timeout_s=STALL_S))
        roster = Roster()
        roster.expect("instance", "i-0")
        change = roster.hello(hello(), 0.0)
        assert change is not None
        self.member = change.member
        self.journal = mock.create_autospec(Journal, instance=True)
        self.pull = mock.Mock()
        self.fence = mock.Mock()
        self.watch = StallWatch(roster, self.scheduler, self.journal, self.pull, self.fence)
        for event in (InstanceStarted("i-0", 1), *events):
            self.scheduler.handle(event, 0.0)


@pytest.mark.parametrize(
    ("events", "now_s", "asked"),
    [
        ([], 0.0, True),
        ([status()], PULL_AFTER_S, False),
        ([status()], PULL_AFTER_S + 0.1, True),
        ([status(draining=True)], PULL_AFTER_S, False),
        ([status(draining=True)], PULL_AFTER_S + 0.1, True),
        ([status(), InstanceDied("i-0", 1)], 0.0, True),
    ],
)
def test_whoever_does_not_report_is_asked(events: list[Event], now_s: float, asked: bool) -> None:
    watched = Watched(*events)
    watched.watch.tick(now_s, NEVER)
    assert watched.pull.mock_calls == ([mock.call(watched.member)] if asked else [])


def test_where_nobody_pushes_all_are_asked() -> None:
    watched = Watched(status())
    watched.watch.tick(0.1, NEVER, pulls_all=True)
    assert watched.pull.mock_calls == [mock.call(watched.member)]


@pytest.mark.parametrize("draining", [False, True])
def test_a_silence_is_put_on_record_once_and_its_end(draining: bool) -> None:
    watched = Watched(status(draining=draining))
    for now_s in (6.0, 7.0):
        watched.watch.tick(now_s, NEVER)
    watched.scheduler.handle(status(draining=draining), 8.0)
    for now_s in (8.0, 9.0):
        watched.watch.tick(now_s, NEVER)
    assert watched.journal.stalled.mock_calls == [
        mock.call(watched.member, True, 6.0),
        mock.call(watched.member, False, 8.0),
    ]
