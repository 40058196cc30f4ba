"""Instances that compute though no request is there, and how that is measured."""

from dataclasses import replace
from unittest import mock

import pytest

from controller.core.load.snapshot import InstanceSnapshot
from controller.runtime.controller.busy_watch import (
    BUSY_CORES,
    LASTS_S,
    BusyWatch,
    computes_for_nobody,
)
from controller.runtime.controller.journal import Journal
from controller.runtime.controller.roster import Roster
from controller.runtime.instance.process_cpu import ProcessCpu
from controller.runtime.messages.members import StatusPushed
from tests.unit.runtime.fakes import hello

IDLE = InstanceSnapshot("i-0", 1, 16, 100, 100)


def status(
    cpu_cores: float | None = 1.1, snapshot: InstanceSnapshot = IDLE, num_moves_in: int = 0
) -> StatusPushed:
    return StatusPushed(snapshot, 0, 1, 0.01, num_moves_in=num_moves_in, cpu_cores=cpu_cores)


@pytest.mark.parametrize(
    ("found", "computes"),
    [
        (status(), True),
        (status(BUSY_CORES), True),
        (status(0.02), False),
        (status(None), False),
        (status(snapshot=replace(IDLE, num_running=1)), False),
        (status(snapshot=replace(IDLE, num_queued=1)), False),
        (status(num_moves_in=1), False),
    ],
)
def test_whose_work_it_is(found: StatusPushed, computes: bool) -> None:
    assert computes_for_nobody(found) is computes


class Watched:
    def __init__(self) -> None:
        roster = Roster()
        roster.expect("instance", "i-0")
        change = roster.hello(hello(), 0.0)
        assert change is not None
        self.member = change.member
        self.journal = mock.create_autospec(Journal, instance=True)
        self.watch = BusyWatch(roster, self.journal)

    def tick(self, now_s: float, found: StatusPushed | None) -> list[tuple[bool, float, float]]:
        self.journal.reset_mock()
        self.watch.tick(now_s, {} if found is None else {"i-0": found})
        return [call.args[1:] for call in self.journal.busy.mock_calls]

    @property
    def on_record(self) -> bool:
        return self.watch.is_on_record("i-0", self.member.incarnation)


def test_what_lasts_is_put_on_record_once_and_its_end() -> None:
    watched = Watched()
    assert watched.tick(0.0, None) == []
    assert watched.tick(1.0, status()) == []
    assert watched.tick(1.0 + LASTS_S - 0.1, status()) == []
    assert not watched.on_record
    assert watched.tick(1.0 + LASTS_S, status()) == [(True, LASTS_S, 1.1)]
    assert watched.on_record
    assert watched.tick(8.0, status()) == []
    assert watched.tick(9.0, status(0.01)) == [(False, 8.0, 0.0)]
    assert not watched.on_record
    assert watched.tick(10.0, status(0.01)) == []


def test_what_does_not_last_is_not() -> None:
    watched = Watched()
    for now_s in range(20):
        assert watched.tick(now_s, status(1.1 if now_s % 4 else 0.01)) == []


def test_an_instance_that_is_gone() -> None:
    watched = Watched()
    watched.tick(0.0, status())
    watched.tick(LASTS_S, status())
    watched.watch.forget("i-0", watched.member.incarnation)
    assert not watched.on_record
    assert watched.tick(LASTS_S + 1, None) == []


def test_cores_are_measured_over_a_second() -> None:
    cpu_s, now_s = [5.0], [100.0]
    cpu = ProcessCpu(lambda: cpu_s[0], lambda: now_s[0])
    assert cpu.cores() is None
    cpu_s[0], now_s[0] = 5.5, 100.5
    assert cpu.cores() is None
    cpu_s[0], now_s[0] = 7.0, 101.0
    assert cpu.cores() == 2.0
    cpu_s[0], now_s[0] = 7.0, 101.9
    assert cpu.cores() == 2.0, "the last that is over"
    now_s[0] = 105.0
    assert cpu.cores() == 0.0
