"""Refusals on record: few events, and every one counted."""

from controller.core.record.event_log import EventKind
from controller.core.scheduler_events import Reject, RejectCode
from controller.runtime.controller.journal import Journal
from controller.runtime.controller.refusal_watch import EVERY_S, RefusalWatch

FULL, GONE = RejectCode.OVERLOADED, RejectCode.UNAVAILABLE


def test_thousands_of_refusals_are_few_events() -> None:
    journal = Journal("e", 100)
    watch = RefusalWatch(journal)
    for number in range(10_000):
        watch.note(Reject(f"r{number}", "f-0", FULL, 7), number / 1000)
    watch.note(Reject("h", "f-0", FULL, 7, rank=1), 9.999)
    watch.note(Reject("g", "f-0", GONE), 9.999)
    assert journal.counts[EventKind.REJECTED] == 3
    watch.tick(EVERY_S)
    assert journal.counts[EventKind.REJECTED] == 4
    found = [event for _, event in journal.log.after(None, 100).entries]
    assert [(e.request_id, e.reason, e.numbers["num_refused"]) for e in found] == [
        ("r0", "overloaded", 1),
        ("h", "overloaded", 1),
        ("g", "unavailable", 1),
        ("r9999", "overloaded", 9999),
    ]
    assert found[1].numbers == {"num_refused": 1, "rank": 1, "retry_after_s": 7}
    watch.tick(100.0)
    assert journal.counts[EventKind.REJECTED] == 4, "there is nothing to tell"


def test_they_are_counted_by_reason_and_rank() -> None:
    watch = RefusalWatch(Journal("e", 100))
    for now_s in (0.0, 30.0, 59.0):
        watch.note(Reject("r", "f-0", FULL), now_s)
    watch.note(Reject("r", "f-0", FULL, rank=1), 59.0)
    assert {key: found.number for key, found in watch.refused.items()} == {
        (FULL, 0): 3,
        (FULL, 1): 1,
    }
    assert watch.num_last_minute(FULL, 0, 70.0) == 2
    assert watch.num_last_minute(FULL, 1, 200.0) == 0
