"""Which events are recorded of requests that wait at the controller or are refused, and how
rarely."""

from dataclasses import replace

import pytest

from controller.core.admission import records
from controller.core.admission.policies import SchedulerConfig
from controller.core.record.event_log import EventKind
from controller.core.scheduler_events import (
    DispatchCancelled,
    Reject,
    RejectCode,
    Ticked,
)
from controller.core.settings import HoldingConfig
from tests.unit.core.core_builders import request, running, scheduler_with, status

PLUS = SchedulerConfig(
    policy="llumnix+", holding=HoldingConfig(room_to_grow_tokens=0), stall_timeout_s=1e6
)


class Watched:
    """Two instances of 100 blocks with 30 and 10 free ones; ticks come every 0.1 s."""

    def __init__(self, config: SchedulerConfig = PLUS) -> None:
        self.scheduler = scheduler_with(config, a=70, b=90)
        self.records = records.AdmissionRecords(self.scheduler)
        self._told: list[records.PutOnRecord] = []
        self.now_s = 0.0

    def reports(self, instance_id: str, used: int, seen: int = 0) -> None:
        self.scheduler.handle(
            status(instance_id, requests=[running("x", used)], seen=seen), self.now_s
        )

    def asks(self, request_id: str, blocks: int) -> None:
        asked = request(request_id, tokens=16 * blocks, arrival=self.now_s)
        self.scheduler.handle(asked, self.now_s)

    def leaves(self, request_id: str) -> None:
        self.scheduler.handle(DispatchCancelled(request_id, "f"), self.now_s)

    def waits(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while self.now_s < end_s - 1e-9:
            self.now_s = round(self.now_s + 0.1, 6)
            self.scheduler.handle(Ticked(), self.now_s)
            self.tick()

    def tick(self) -> None:
        self._told += self.records.handle(Ticked(), self.now_s)
        self.records.check()

    def refuses(self, reject: Reject, now_s: float) -> None:
        self._told += self.records.handle(records.Rejected(reject), now_s)
        self.records.check()

    def told(self, *kinds: EventKind) -> list[records.PutOnRecord]:
        return [record for record in self._told if not kinds or record.kind in kinds]


@pytest.mark.parametrize(("held_s", "pause_s", "kinds"), [(0.5, 0.1, []), (4.0, 4.0, ["held"])])
def test_what_is_held_for_a_moment_is_not_on_record_and_a_pause_ends_nothing(
    held_s, pause_s, kinds
) -> None:
    watched = Watched()
    for number in range(20):
        watched.asks(f"r{number}", 50)
        watched.waits(held_s)
        watched.leaves(f"r{number}")
        watched.waits(pause_s)
    assert [each.kind for each in watched.told()] == kinds


def test_a_queue_is_on_record_once_and_so_is_its_end() -> None:
    watched = Watched()
    watched.asks("r1", 50)
    watched.waits(1.0)
    watched.asks("r2", 60)
    watched.waits(30.0)
    (event,) = watched.told(EventKind.HELD)
    assert (event.cause_id, event.request_id) == ("held-1", None)
    assert event.numbers == {"lasted_s": 2.0, "num_held": 2}
    for request_id in ("r1", "r2"):
        watched.leaves(request_id)
    watched.waits(records.QUIET_S - 0.2)
    assert watched.told(EventKind.HELD_ENDED) == []
    watched.waits(0.3)
    (ended,) = watched.told(EventKind.HELD_ENDED)
    assert (ended.cause_id, ended.numbers["num_held_at_most"]) == ("held-1", 2)
    assert ended.numbers["lasted_s"] == pytest.approx(31.0, abs=0.2)
    watched.asks("r3", 50)
    watched.waits(3.0)
    assert [each.cause_id for each in watched.told(EventKind.HELD)] == ["held-1", "held-2"]


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_an_instance_that_is_kept_for_long_is_on_record_once(share: float) -> None:
    """If several are kept for one request, the one that lacks the least."""
    held = HoldingConfig(room_to_grow_tokens=0, reserve_after_s=0.0, reserved_share=share)
    watched = Watched(replace(PLUS, holding=held))
    watched.asks("r1", 50)
    watched.waits(records.KEPT_S - 0.2)
    assert watched.told(EventKind.INSTANCE_RESERVED) == []
    watched.waits(30.0)
    (event,) = watched.told(EventKind.INSTANCE_RESERVED)
    assert (event.instance_id, event.request_id, event.frontend_id) == ("a", "r1", "f")
    assert event.cause_id == "arrive-r1"
    assert event.numbers["needed_blocks"] == 50
    assert event.numbers["lacking_blocks"] == 20
    assert event.numbers["kept_s"] == pytest.approx(records.KEPT_S, abs=0.11)


def test_overtaking_is_on_record_at_each_power_of_ten_of_each_head() -> None:
    watched, num_sent = Watched(), 0
    for first, num_ahead in (("r1", 120), ("r2", 12)):
        watched.asks(first, 50)  # a is kept for it; the others go to b
        for _ in range(num_ahead):
            watched.asks(f"s{num_sent}", 10)
            num_sent += 1
            watched.waits(1.0)
            watched.reports("b", 90, seen=num_sent)
        watched.leaves(first)
    found = watched.told(EventKind.OVERTAKEN)
    assert [(event.request_id, event.numbers["num_went_ahead"]) for event in found] == [
        ("r1", 10),
        ("r1", 100),
        ("r2", 10),
    ]


# -- refusals ------------------------------------------------------------------------------

FULL, GONE = RejectCode.OVERLOADED, RejectCode.UNAVAILABLE


def test_thousands_of_refusals_are_few_events() -> None:
    watched = Watched()
    for number in range(10_000):
        watched.refuses(Reject(f"r{number}", "f-0", FULL, 7), number / 1000)
    watched.refuses(Reject("h", "f-0", FULL, 7, rank=1), 9.999)
    watched.refuses(Reject("g", "f-0", GONE), 9.999)
    assert len(watched.told()) == 3
    watched.now_s = records.EVERY_S
    watched.tick()
    assert [(e.request_id, e.reason, e.numbers["num_refused"]) for e in watched.told()] == [
        ("r0", "overloaded", 1),
        ("h", "overloaded", 1),
        ("g", "unavailable", 1),
        ("r9999", "overloaded", 9999),
    ]
    assert {e.kind for e in watched.told()} == {EventKind.REJECTED}
    assert watched.told()[1].numbers == {"num_refused": 1, "rank": 1, "retry_after_s": 7}
    watched.now_s = 100.0
    watched.tick()
    assert len(watched.told()) == 4, "there is nothing to tell"


def test_refusals_are_counted_by_reason_and_rank() -> None:
    watched = Watched()
    for now_s in (0.0, 30.0, 59.0):
        watched.refuses(Reject("r", "f-0", FULL), now_s)
    watched.refuses(Reject("r", "f-0", FULL, rank=1), 59.0)
    assert {key: found.number for key, found in watched.records.refusals.items()} == {
        (FULL, 0): 3,
        (FULL, 1): 1,
    }
    assert watched.records.num_last_minute(FULL, 0, 70.0) == 2
    assert watched.records.num_last_minute(FULL, 1, 200.0) == 0
