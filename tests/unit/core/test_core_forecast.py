"""The plan of a drain, how long it may take, and what a deadline means. `test_core_relieving`
compares the plan with the moves."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from controller.core.emptying.drains import Remainder
from controller.core.emptying.forecast import (
    TOO_BUSY,
    Departure,
    DrainForecast,
    estimate_s,
    to_replay,
)
from controller.core.emptying.relief import NO_DESTINATION, Candidate
from controller.core.load.snapshot import DEFAULT_LEVELS, InstanceSnapshot
from controller.core.migration.move_records import (
    CopyRates,
    MovePace,
    MoveRecord,
    StageRecord,
    measured_pace,
)
from controller.core.settings import ReschedulingConfig
from tests.unit.core.core_builders import BLOCK_SIZE, queued, running, snapshot_of
from tests.unit.rescheduling import relief_builders


def leaving(
    request_id: str = "r", blocks: int = 10, *, queued: bool = False, **more: Any
) -> Candidate:
    kind = relief_builders.queued if queued else relief_builders.running
    return kind(request_id, blocks, **more)


def planned_departures(
    requests: list[Candidate], others: Sequence[InstanceSnapshot], closed: Sequence[str] = ()
) -> tuple[Departure, ...]:
    """Each request once, in the order in which they are tried. Every instance may be a
    destination, however full it is."""
    config = ReschedulingConfig(source_below_steps=-1e9, destination_above_steps=-1e9)
    here = snapshot_of(instance_id="here", draining=True)
    forecast = DrainForecast(here, requests, others, DEFAULT_LEVELS, config, 1, closed)
    while forecast.round():
        pass
    return forecast.departures({each.request_id: "" for each in requests})


def plan(requests: list[Candidate], *others: InstanceSnapshot) -> list[tuple[str, str | None, str]]:
    planned = planned_departures(requests, others)
    return [(each.request.request_id, each.destination_id, each.code) for each in planned]


def other(instance_id: str, free: int, **what: object) -> InstanceSnapshot:
    return snapshot_of([running("x", 100 - free)], instance_id=instance_id, **what)


# -- the plan -----------------------------------------------------------------------------


def test_what_is_replayed_could_move_if_an_instance_took_it_and_has_room_elsewhere() -> None:
    requests = [
        leaving("a", 10),
        leaving("never", 10, refusal="multimodal"),
        leaving("soon", 10, refusal="in_prefill"),
        leaving("b", 10),
        leaving("queued", 10, queued=True),
    ]
    stay = planned_departures(requests, [])
    assert set(to_replay(stay, [100])) == {"a", "b", "queued"}
    assert len(to_replay(stay, [10])) == 1
    assert set(to_replay(stay, [9, 9])) == {"queued"}, "the others fit on no instance"
    assert set(to_replay(stay, [10, 11])) == {"a", "b", "queued"}
    assert len(to_replay(stay, [10, 11], waiting_blocks=10)) == 2
    assert to_replay(stay, []) == to_replay(stay, [0]) == ()
    assert to_replay(planned_departures(requests[:1], [other("b", 50)]), [100]) == ()


FULL_BATCH = InstanceSnapshot("b", 1, BLOCK_SIZE, 100, 90, num_running=4, max_num_running=4)
FULL = snapshot_of([running("x", 100)], instance_id="b")
QUEUED = leaving("r", 60, queued=True)


@pytest.mark.parametrize(
    ("request_", "others", "to", "code"),
    [
        (leaving(blocks=60), [other("b", 50), other("c", 59)], None, "no_blocks"),
        (leaving(), [FULL_BATCH], None, "no_slot"),
        (leaving(), [FULL_BATCH, other("c", 5)], None, "no_slot"),  # b has the blocks
        (leaving(), [], None, NO_DESTINATION),
        (leaving(), [other("b", 50, draining=True)], None, NO_DESTINATION),
        (leaving(refusal="multimodal"), [other("b", 50)], None, "multimodal"),
        (leaving(), [other("b", 50), other("c", 60)], "c", ""),
        (QUEUED, [FULL], "b", ""),
        # A queued request goes behind a queue's head: 100 - 30 blocks for one, 100 - 60 for one.
        (QUEUED, [snapshot_of([queued("q", 30)], instance_id="b"), other("c", 40)], "b", ""),
    ],
)
def test_where_one_request_goes_or_what_is_lacking(request_, others, to, code) -> None:
    assert plan([request_], *others) == [("r", to, code)]


def test_what_is_no_destination_gets_nothing_though_it_has_room() -> None:
    requests = [leaving("r0"), leaving("r1", 50), leaving("r2", 90)]
    planned = planned_departures(requests, [other("b", 60), other("c", 80)], closed=["c"])
    assert [(each.destination_id, each.code) for each in planned] == [
        ("b", ""),
        ("b", ""),
        (None, "no_blocks"),
    ]
    planned = planned_departures(requests, [other("c", 80)], closed=["c"])
    assert [each.code for each in planned] == [TOO_BUSY, TOO_BUSY, "no_blocks"]
    assert to_replay(planned, [200]) == ("r2",), "the others can move soon"


# -- how long -----------------------------------------------------------------------------


def moved(blocks: int, copy_s: float, duration_s: float, outcome: str = "migrated") -> MoveRecord:
    stages = (StageRecord(blocks, blocks * 1000, copy_s),) if blocks else ()
    return MoveRecord("m", "r", "a", "b", "", outcome, "", 1, 0, duration_s, stages)


def test_the_pace_is_that_of_moves_that_came_to_something() -> None:
    assert measured_pace([]) is None
    assert measured_pace([moved(10, 0.1, 0.2, "kept")]) is None
    pace = measured_pace([moved(10, 0.1, 0.15), moved(30, 0.3, 0.33), moved(10, 9.0, 9.0, "kept")])
    assert pace.blocks_per_s == pytest.approx(100)
    assert pace.overhead_s == pytest.approx(0.04)
    assert measured_pace([moved(0, 0.0, 0.02)]) == MovePace(None, 0.02)


def test_an_instance_and_the_controller_estimate_a_links_rate_alike() -> None:
    """By all that went, not by the mean of the moves' rates: here 40 blocks in 0.5 s, not 60/s."""
    records = [moved(36, 0.3, 0.4), moved(4, 0.2, 0.3), moved(10, 9.0, 9.0, "kept"), moved(0, 0, 1)]
    rates = CopyRates()
    assert rates.bytes_per_s("b") is None
    for record in records:
        rates.measured(record)
    pace = measured_pace(records)
    assert pace.blocks_per_s == pytest.approx(80)
    assert rates.bytes_per_s("b") == pytest.approx(80 * 1000)
    assert rates.bytes_per_s("c") == pytest.approx(80 * 1000), "nothing went there: as to others"
    rates.measured(replace(moved(10, 1.0, 1.0), destination_id="c"))
    assert rates.bytes_per_s("c") == pytest.approx(10 * 1000)


def goes(blocks: int, to: str | None = "b", code: str = "") -> Departure:
    return Departure(leaving(blocks=max(1, blocks), queued=not blocks), "", to, code)


PACE = MovePace(blocks_per_s=100, overhead_s=0.2)
ONLY_QUEUED = MovePace(None, 0.2)


@pytest.mark.parametrize(
    ("departures", "pace", "max_moves", "num_left", "expected_s"),
    [
        ([], None, 4, 0, 0.0),
        ([goes(50), goes(50)], PACE, 4, 0, 1.0 + 2 * 0.2 / 4),
        ([goes(0)] * 8, ONLY_QUEUED, 4, 0, 0.4),
        ([goes(10, None, "in_prefill")], PACE, 1, 0, 0.3),
        # Requests that nobody named.
        ([], None, 4, 1, None),
        ([goes(10)], PACE, 4, 2, None),
        ([goes(10)], PACE, 4, 1, 0.15),
        # No copy was measured, or a request cannot move.
        ([goes(10)], None, 4, 0, None),
        ([goes(10)], ONLY_QUEUED, 4, 0, None),
        ([goes(10), goes(90, None, "no_blocks")], PACE, 4, 0, None),
        ([goes(10, None, "multimodal")], PACE, 4, 0, None),
    ],
)
def test_an_estimate_is_the_copies_and_what_surrounds_them(
    departures, pace, max_moves, num_left, expected_s
) -> None:
    found_s = estimate_s(departures, pace, max_moves, num_left)
    assert found_s == (None if expected_s is None else pytest.approx(expected_s))


# -- ends ---------------------------------------------------------------------------------


def test_nothing_is_left_only_without_requests_and_moves() -> None:
    assert Remainder().nothing
    for name in ("num_running", "num_queued", "num_awaited", "num_moves_in", "num_moves_out"):
        assert not Remainder(**{name: 1}).nothing, name
    assert Remainder(1, 2, 3, 9, 9).num_requests == 6
