"""What the source waits for, for how long, and which side is at fault when it waited in vain."""

from dataclasses import replace

import pytest

from controller.core.migration.protocol import DEFAULT_TIMING
from controller.core.migration.refusals import reason_of, why
from controller.core.migration.source import (
    LIMIT_SLACK,
    SourceClock,
    SourceState,
    TimedOut,
    TookTooLong,
)
from tests.unit.migration.move_pair import KEPT, MOVED, RESUMED, at

TIMING = replace(DEFAULT_TIMING, answer_timeout_s=2.0, stage_timeout_s=30.0)
STALLED_S = 5.0


@pytest.mark.parametrize(
    ("state", "stalled_s", "event"),
    [
        (SourceState.COPYING, 0.0, TookTooLong),
        (SourceState.COPYING, STALLED_S, TimedOut),
        (SourceState.SUSPENDED, 0.0, TookTooLong),
        (SourceState.SUSPENDED, STALLED_S, TimedOut),
        (SourceState.PRE_ALLOCATING, 0.0, TimedOut),  # bytes flow, but the destination says nothing
        (SourceState.COMMITTING, 0.0, TimedOut),
        (SourceState.SUSPENDING, STALLED_S, TookTooLong),  # its own engine is in a long step
    ],
)
def test_which_side_is_at_fault(state: SourceState, stalled_s: float, event: type) -> None:
    clock = SourceClock(0.0, TIMING)
    assert clock.gives_up(state, 1.0, stalled_s) is None
    assert type(clock.gives_up(state, 31.0, stalled_s)) is event


@pytest.mark.parametrize("state", [SourceState.PRE_ALLOCATING, SourceState.COMMITTING])
def test_a_destination_in_a_long_step_is_believed_for_a_while(state: SourceState) -> None:
    clock = SourceClock(0.0, TIMING)
    clock.working_s = TIMING.stage_timeout_s - 1.0
    assert clock.gives_up(state, TIMING.stage_timeout_s - 0.5, 0.0) is None
    assert clock.gives_up(state, TIMING.stage_timeout_s + 0.5, 0.0) == TimedOut()


def test_a_stage_has_more_time_where_the_limit_makes_it_take_more() -> None:
    clock = SourceClock(0.0, TIMING)
    clock.copy_time_s = 100.0
    due_s = TIMING.stage_timeout_s + LIMIT_SLACK * clock.copy_time_s
    assert clock.gives_up(SourceState.COPYING, due_s - 1, 0.0) is None
    assert clock.gives_up(SourceState.COPYING, due_s + 1, 0.0) == TookTooLong()
    assert clock.gives_up(SourceState.SUSPENDED, 3.0, 0.0) == TookTooLong(), (
        "the request is stopped"
    )


@pytest.mark.parametrize(
    ("column", "position", "outcome"),
    [("copying", "copying", KEPT), ("suspended", "suspended", RESUMED)],
)
@pytest.mark.parametrize("stalled", [True, False])
def test_a_slow_copy_ends_the_move_and_tells_whose_fault_it_was(
    column: str, position: str, outcome: str, stalled: bool
) -> None:
    pair = at(column, position)
    pair.slow, pair.stalled = not stalled, stalled
    pair.pass_time(DEFAULT_TIMING.stage_timeout_s + 1)
    assert pair.source.over
    pair.slow = pair.stalled = False
    pair.settle()
    assert pair.outcome == outcome
    assert pair.source.code == ("no_answer" if stalled else "too_slow")
    assert reason_of(pair.source.code).cools is stalled
    assert why(pair.source.code) != pair.source.code.replace("_", " ")


@pytest.mark.parametrize(("more_s", "outcome"), [(0.0, MOVED), (0.1, KEPT)])
def test_a_last_copy_for_which_there_is_no_time_does_not_stop_the_request(
    more_s: float, outcome: str
) -> None:
    pair = at("copying", "copying")
    pair.copy_time_s = DEFAULT_TIMING.suspended_timeout_s + more_s
    pair.settle()
    assert pair.outcome == outcome
    if outcome == KEPT:
        assert (pair.source.code, pair.source.hop) == ("too_slow", 0)


def test_each_time_limit_of_a_move_ends_what_no_other_one_is_to_end_before() -> None:
    DEFAULT_TIMING.check()
    with pytest.raises(AssertionError, match="the source gives up first"):
        replace(DEFAULT_TIMING, reserve_timeout_s=40.0).check()
