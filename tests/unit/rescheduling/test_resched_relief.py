"""Which request a source sends next, and which figures refuse one; each refusal has a test."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from controller.core.emptying.relief import Candidate, Decision, MoveReason, ReliefView, next_move
from controller.core.load.freeness import freeness
from controller.core.load.snapshot import DEFAULT_LEVELS, Level
from controller.core.migration.move_records import MoveRecord, StageRecord
from controller.core.migration.refusals import REASONS, MoveRefusal, ReliefRefusal
from tests.unit.rescheduling.relief_builders import (
    ARRIVALS,
    EASY,
    STEP_TIME_S,
    begun,
    instance,
    queued,
    running,
    view_of,
)

FULL = [running("x", 30), running("y", 20), running("z", 40)]
"""90 of 100 blocks: 53 steps; with thresholds of 96 it is a source."""
TIGHT = replace(EASY, source_below_steps=96, destination_above_steps=96)
UNGUARDED = replace(TIGHT, guard=False)


def full(**changes: object) -> list[Candidate]:
    """`y`, the first in turn, with something about it that may matter."""
    return [replace(c, **changes) if c.request_id == "y" else c for c in FULL]


def moves_of(view: ReliefView, limit: int = 50) -> list[tuple[str, str]]:
    """(id, reason) of all that leave one after the other, nothing else happening meanwhile."""
    moves = []
    while (decision := next_move(view)).chosen is not None:
        moves.append((decision.chosen.request_id, decision.reason))
        view = begun(view, decision.chosen)
        assert len(moves) <= limit
    return moves


def codes(decision: Decision) -> dict[str, str]:
    return {each.request_id: each.code for each in decision.refused}


# -- when, how many and in which order ------------------------------------------------------


def test_nobody_leaves_an_instance_that_is_free_enough() -> None:
    assert next_move(view_of(FULL)) == Decision()
    assert next_move(view_of([])) == Decision()


def test_the_fewest_tokens_leave_first_and_only_until_it_is_no_source() -> None:
    view = view_of(FULL, config=TIGHT)
    assert freeness(view.source, DEFAULT_LEVELS) == pytest.approx(16 * 10 / 3)
    decision = next_move(view)
    assert decision.chosen is not None
    assert (decision.chosen.request_id, decision.reason) == ("y", MoveReason.BALANCE)
    assert not decision.refused
    numbers = decision.numbers
    assert numbers["source_freeness_steps"] == pytest.approx(16 * 10 / 3)
    assert numbers["source_freeness_after_steps"] == 16 * 30 / 2
    assert numbers["destination_freeness_steps"] == 1600
    assert numbers["destination_freeness_after_steps"] == 16 * 80
    assert numbers["expected_copy_time_s"] == pytest.approx(0.020)
    assert numbers["relief_s"] == pytest.approx(16 * 20 / 3 * STEP_TIME_S)
    assert moves_of(view) == [("y", "balance")]


def test_what_a_move_was_chosen_by_and_what_became_of_it_have_names_of_their_own() -> None:
    """The cost that was weighed stays beside what the copy took."""
    chosen = next_move(view_of(FULL, config=TIGHT)).numbers
    stages = (StageRecord(21, 21_000_000, 0.5),)
    ids = ("m-1", "y", "a", "b", "balance", "migrated", "")
    numbers = MoveRecord(*ids, 330, 0, 0.6, stages, chosen).numbers()
    assert chosen.items() <= numbers.items()
    assert (numbers["expected_copy_time_s"], numbers["copy_time_s"]) == (pytest.approx(0.02), 0.5)
    assert (numbers["request_blocks"], numbers["num_blocks"]) == (20, 21)
    assert (numbers["request_tokens"], numbers["num_tokens"]) == (320, 330)


def test_the_lowest_rank_leaves_first() -> None:
    levels = (Level("low", -1), Level("normal", 0))
    source = [running("x", 5), running("y", 40, rank=-1), running("z", 50)]
    assert moves_of(view_of(source, levels=levels, config=TIGHT))[0][0] == "y"


def test_of_one_rank_the_fewest_tokens_go_first_and_of_the_queue_only_its_head() -> None:
    immovable = [replace(c, refusal="multimodal") for c in ARRIVALS]
    decision = next_move(view_of(immovable, config=TIGHT))
    assert [each.request_id for each in decision.refused] == ["mid", "first", "old", "new"]
    assert set(codes(decision).values()) == {"multimodal"}


# -- the queue's head -------------------------------------------------------------------------


def test_others_make_room_for_the_head_of_the_queue() -> None:
    source = [running("x", 40), running("y", 30), queued("long", 50)]
    view = view_of(source)
    assert freeness(view.source, DEFAULT_LEVELS) < 0
    assert moves_of(view) == [("y", "queue head")]


def test_the_head_itself_leaves_where_it_is_the_shortest() -> None:
    source = [running("x", 60), running("y", 39), queued("short", 10)]
    assert moves_of(view_of(source, [running("w", 50)]))[0] == ("short", "queue head")
    high, computing = running("high", 700, rank=1), running("n", 5, refusal="in_prefill")
    waits = queued("waits", 150, rank=1)
    view = view_of([high, computing, waits], total_blocks=800, config=replace(EASY, guard=False))
    assert next_move(view).chosen == waits, "its headroom is not here yet"


def test_the_head_does_not_go_where_it_would_wait_again() -> None:
    source = [running("x", 60, refusal="multimodal"), queued("long", 50)]
    view = view_of(source, [running("w", 60)])
    decision = next_move(view)
    assert decision.chosen is None
    assert codes(decision)["long"] == MoveRefusal.NO_BLOCKS


# -- headroom -----------------------------------------------------------------------------------


def test_neighbours_leave_a_high_request_until_the_target_load_is_kept() -> None:
    """A target load of 1,600 tokens is 100 blocks; of 800 the headroom is the other 700."""
    high = running("high", 20, rank=1)
    source = [high, *(running(f"n{i}", 20) for i in range(6))]
    moves = moves_of(view_of(source, total_blocks=800))
    assert [reason for _, reason in moves] == ["headroom"] * 3
    assert [request_id for request_id, _ in moves] == ["n0", "n1", "n2"]
    left = [high, *(running(f"n{i}", 20) for i in range(3, 6))]
    assert freeness(instance(*left, total_blocks=800), DEFAULT_LEVELS) >= 48


def test_the_high_one_stays_when_only_its_own_headroom_makes_a_source() -> None:
    """More than its target load by itself: it would be a source wherever it runs."""
    view = view_of([running("high", 120, rank=1)], total_blocks=800)
    assert freeness(view.source, DEFAULT_LEVELS) < 0
    decision = next_move(view)
    assert decision.chosen is None
    assert codes(decision) == {"high": ReliefRefusal.HEADROOM}
    assert decision.refused[0].numbers == {
        "source_freeness_steps": -320,
        "without_headroom_steps": 16 * 680,
    }


@pytest.mark.parametrize("guard", [True, False])
def test_the_high_one_stays_while_neighbours_are_left(guard: bool) -> None:
    source = [running("high", 30, rank=1), running("n", 769, refusal="in_prefill")]
    view = view_of(source, total_blocks=800, config=replace(EASY, guard=guard))
    assert codes(next_move(view)) == {"n": "in_prefill", "high": "headroom"}


def test_several_high_ones_that_crowd_each_other_may_part() -> None:
    source = [running(f"h{i}", 50 + i, rank=1) for i in range(10)]
    view = view_of(source, total_blocks=550)
    assert moves_of(view)[0] == ("h0", "balance")


def test_a_waiting_neighbour_keeps_the_high_one_too() -> None:
    """The one that waits is the one to go; but it finds no room over there."""
    source = [running("high", 400, rank=1), queued("n", 399)]
    view = view_of(source, [running("w", 300)], total_blocks=410)
    assert codes(next_move(view)) == {"n": "no_blocks", "high": "headroom"}


CROWDED_HIGH = [running(f"h{i}", 30, rank=1) for i in range(3)]
"""With nine more blocks in use of 110 a source without its headroom too, which is 10."""


@pytest.mark.parametrize("code", sorted({*MoveRefusal, "no_answer"}))
def test_the_high_one_waits_for_a_neighbour_unless_that_never_moves(code: str) -> None:
    view = view_of([*CROWDED_HIGH, running("n", 9, refusal=code)], total_blocks=110)
    decision = next_move(view)
    if REASONS[code].lasts:
        assert (decision.chosen, decision.reason) == (CROWDED_HIGH[0], "balance")
        assert codes(decision) == {"n": code}
    else:
        assert codes(decision) == {"n": code, **{f"h{i}": "headroom" for i in range(3)}}


# -- draining -------------------------------------------------------------------------------------


def test_everybody_leaves_a_draining_instance_the_queue_first() -> None:
    source = [
        running("x", 30),
        running("y", 5),
        queued("later", 90, arrival_time_s=2),
        queued("sooner", 80, arrival_time_s=1),
        running("high", 3, rank=1),
    ]
    moves = moves_of(view_of(source, draining=True))
    assert moves == [(each, "drain") for each in ("sooner", "later", "y", "x", "high")]
    assert next_move(view_of([], draining=True)) == Decision(reason=MoveReason.DRAIN)


def test_draining_overrides_cost_but_not_room() -> None:
    source = [running("x", 30, moves=(("b", 1.0),) * 99)]
    there = [running("w", 68)]
    slow = {"bytes_per_s": 1e3}
    assert moves_of(view_of(source, there, draining=True, **slow)) == [("x", "drain")]
    decision = next_move(view_of(source, [running("w", 71)], draining=True))
    assert codes(decision) == {"x": MoveRefusal.NO_BLOCKS}
    numbers = decision.refused[0].numbers
    assert (numbers["needed_blocks"], numbers["destination_free_blocks"]) == (30, 29)


def test_freeness_of_a_draining_source_is_no_number() -> None:
    decision = next_move(view_of(FULL, draining=True))
    assert decision.numbers["source_freeness_steps"] is None
    assert decision.numbers["source_freeness_after_steps"] is None


# -- refusals, one by one ---------------------------------------------------------------------


def tight(source: Sequence[Candidate] = FULL, there: int = 0, **more: Any) -> ReliefView:
    destination = [running("w", there)] if there else []
    return view_of(source, destination, **{"config": TIGHT, **more})


def packed(max_num_running: int, *sent: Candidate) -> ReliefView:
    """The destination runs one request already, and has so many places."""
    view = tight(there=1)
    destination = replace(view.destination, max_num_running=max_num_running)
    return replace(view, destination=destination, sent=sent)


def refuses(code: str, view: ReliefView, goes: ReliefView, **figures: float) -> None:
    """`view` refuses `y` with these figures; `goes` has just enough of what it lacks."""
    decision = next_move(view)
    assert code in REASONS
    assert codes(decision).get("y") == code
    (said,) = [each.numbers for each in decision.refused if each.request_id == "y"]
    assert {name: said[name] for name in figures} == pytest.approx(figures)
    assert "y" not in codes(next_move(goes)), code


def test_no_room() -> None:
    room = tight(there=80, config=UNGUARDED)
    full_there = tight(there=81, config=UNGUARDED)
    marked = replace(room, destination=replace(room.destination, watermark_blocks=1))
    refuses("no_blocks", full_there, room, needed_blocks=20, destination_free_blocks=19)
    refuses("no_blocks", marked, room, destination_free_blocks=19)
    refuses("no_slot", packed(1), packed(2), destination_max_num_running=1)
    refuses("no_slot", packed(2, running("other", 1)), packed(2))


def test_moved_lately_or_often() -> None:
    """Nor by a way round: it was at `c` since."""
    round_about, fine = full(moves=(("b", 9.5), ("c", 2.0))), full(moves=(("c", 9.5), ("b", 10.0)))
    refuses("moved_lately", tight(round_about), tight(fine), left_ago_s=9.5, not_back_s=10)
    six = tuple(("c", ago_s) for ago_s in (1.0, 11.0, 21.0, 31.0, 41.0, 59.9))
    older = tight(full(moves=(*six[:5], ("c", 60.0))))
    often = {"num_moves_last_minute": 6, "max_moves_per_minute": 6}
    refuses("moves_often", tight(full(moves=six)), older, **often)


@pytest.mark.parametrize("draining", [False, True])
def test_ends_first(draining: bool) -> None:
    """20 blocks take 20 ms to copy, as long as a step: with 2 tokens left it is over by then."""
    ends, lasts = (tight(full(num_tokens_left=left), draining=draining) for left in (2, 3))
    figures = {"left_s": 0.04, "expected_copy_time_s": 0.02, "step_time_s": 0.02}
    refuses("ends_first", ends, lasts, **figures)


def test_would_overload() -> None:
    """At the destination 20 blocks more leave 10 for two: 80 steps, less than 96. What is on its
    way counts, and so does the headroom there."""
    figures = {"destination_freeness_after_steps": 80, "destination_least_steps": 96}
    refuses("would_overload", tight(there=70), tight(there=68), **figures)
    view = tight(there=48)
    refuses("would_overload", replace(view, sent=(running("other", 20),)), view)
    high = view_of(FULL, [running("high", 60, rank=1)], config=TIGHT)
    levels = (DEFAULT_LEVELS[0], Level("high", 1, target_load_tokens=1200))
    after_steps = 16 * (75 - 80) / 2
    with_headroom = replace(high, levels=levels)
    refuses("would_overload", with_headroom, high, destination_freeness_after_steps=after_steps)


def test_costs_more() -> None:
    """20 blocks free 320 tokens: a batch of 3 lives on them for 107 steps, 2.1 s."""
    slow, quick = (tight(bytes_per_s=20_000_000 / seconds) for seconds in (2.14, 2.13))
    relief = {"gain_s": 320 / 3 * STEP_TIME_S, "relief_s": 320 / 3 * STEP_TIME_S}
    nothing = {"head_wait_s": 0, "destination_loss_s": 0}
    refuses("costs_more", slow, quick, expected_copy_time_s=2.14, **relief, **nothing)
    refuses("costs_more", tight(full(num_freed_blocks=0)), tight(), relief_s=0)  # all is shared


def test_a_request_that_cannot_move_lets_the_next_one_go() -> None:
    view = tight(full(refusal="in_prefill"))
    refuses("in_prefill", view, tight())
    assert next_move(view).chosen == FULL[0]


@pytest.mark.parametrize(
    "unknown", [{"bytes_per_s": None}, {"step_time_s": None}], ids=["link", "step"]
)
def test_what_was_never_measured_refuses_nothing(unknown: dict[str, None]) -> None:
    slow = view_of(FULL, config=TIGHT, **{"bytes_per_s": 1e3, **unknown})
    assert next_move(slow).refused == ()


def test_without_the_guard_only_room_counts() -> None:
    lately = full(moves=(("b", 0.0),) * 99, num_tokens_left=1)
    view = view_of(lately, [running("w", 70)], config=UNGUARDED, bytes_per_s=1.0)
    assert next_move(view).refused == ()
