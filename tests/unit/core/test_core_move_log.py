"""The moves that ended, as the cluster counts them."""

import pytest

from controller.core.migration.move_records import (
    DOWNTIME_BOUNDS_S,
    MAX_RECENT,
    OUTCOMES,
    MoveLog,
    MoveRecord,
    StageRecord,
)


def record(number: int = 0, outcome: str = "migrated", num_bytes: int = 1000) -> MoveRecord:
    stages = (StageRecord(2, num_bytes, 0.01), StageRecord(1, num_bytes, 0.01))
    return MoveRecord(f"m-{number}", "r", "i-0", "i-1", "by hand", outcome, "", 48, 0, 0.1, stages)


def test_the_last_ones_are_kept_and_all_are_counted() -> None:
    log = MoveLog()
    assert dict(log.num_by_outcome) == dict.fromkeys(OUTCOMES, 0)
    for number in range(MAX_RECENT + 3):
        log.ended(record(number, "kept" if number % 2 else "migrated"), float(number), "by_hand")
    assert [move.record.migration_id for move in log.recent] == [
        f"m-{number}" for number in range(3, MAX_RECENT + 3)
    ]
    assert sum(log.num_by_outcome.values()) == MAX_RECENT + 3
    assert sum(log.num_by_reason.values()) == MAX_RECENT + 3
    assert log.num_by_reason["kept", "by_hand"] == log.num_by_outcome["kept"]
    assert log.num_bytes == 2000 * (MAX_RECENT + 3)


def test_the_last_minute() -> None:
    log = MoveLog()
    ends = ((0, "migrated"), (1, "kept"), (2, "resumed"), (59, "migrated"), (60.5, "ended"))
    for now_s, outcome in ends:
        log.ended(record(0, outcome), now_s, "drain")
    assert log.last_minute(60.5) == (2, 2), "and up to a second more"
    assert log.last_minute(62.0) == (1, 1)
    assert log.last_minute(63.0) == (1, 0), "a request that finished is no failure"
    assert log.last_minute(500.0) == (0, 0)


def test_a_downtime_may_come_before_or_after_the_end() -> None:
    log = MoveLog()
    assert log.typical_excess_s() is None
    log.timed("m-1", 0.02, 0.004)
    log.ended(record(1), 5.0, "drain")
    log.ended(record(2), 6.0, "drain")
    log.timed("m-2", 0.03, 0.008)
    log.ended(record(3), 7.0, "drain")
    assert [(move.downtime_s, move.excess_s) for move in log.recent] == [
        (0.02, 0.004),
        (0.03, 0.008),
        (None, None),
    ]
    assert log.typical_excess_s() == pytest.approx(0.006)
    assert sum(log.num_downtimes) == 2
    assert log.sum_downtimes_s == pytest.approx(0.05)


def test_a_downtime_counts_for_the_first_bound_that_it_does_not_exceed() -> None:
    last = len(DOWNTIME_BOUNDS_S)
    for downtime_s, place in ((0.005, 0), (0.0051, 1), (5.0, last - 1), (5.1, last)):
        log = MoveLog()
        log.timed("m", downtime_s, 0.0)
        assert log.num_downtimes[place] == 1
