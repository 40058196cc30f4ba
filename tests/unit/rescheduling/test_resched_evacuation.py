"""Which requests leave an instance that will be ended, in which turn, and which are too late."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from controller.core.emptying.relief import (
    MARGIN_S,
    Candidate,
    Link,
    MoveReason,
    evacuation,
    next_move,
)
from controller.core.migration.refusals import ReliefRefusal
from tests.unit.rescheduling.relief_builders import begun, queued, running, view_of

LINK = Link(block_bytes=100, bytes_per_s=1000.0)
"""Ten blocks a second."""


def ids(found: tuple[Candidate, ...]) -> list[str]:
    return [each.request_id for each in found]


def test_the_highest_rank_leaves_first_and_the_largest_of_a_rank() -> None:
    found = evacuation(
        [running("small", 2), running("large", 9), running("high", 4, rank=1), queued("waits", 30)],
        LINK,
        left_s=60.0,
    )
    assert ids(found.in_turn) == ["high", "large", "small", "waits"]
    assert found.too_late == frozenset()


def test_of_a_rank_as_many_as_fit_leave_and_the_others_stay() -> None:
    """One second carries ten blocks."""
    requests = [running("a", 8), running("b", 4), running("c", 3), running("d", 2)]
    found = evacuation(requests, LINK, left_s=1.0 + MARGIN_S)
    assert (ids(found.in_turn), found.too_late) == (["b", "c", "d"], {"a"})
    urgent = [replace(requests[0], rank=1), *requests[1:]]
    found = evacuation(urgent, LINK, left_s=1.0 + MARGIN_S)
    assert (ids(found.in_turn), found.too_late) == (["a", "d"], {"b", "c"})


def test_one_that_ends_by_itself_goes_last() -> None:
    """With steps of 0.1 s, 20 tokens take 2 s."""
    ends = running("ends", 9, rank=5, num_tokens_left=20)
    lasts = running("lasts", 2, num_tokens_left=900)
    found = evacuation([ends, lasts], LINK, 10.0, step_time_s=0.1)
    assert ids(found.in_turn) == ["lasts", "ends"]
    short = evacuation([ends, lasts], LINK, 1.6, step_time_s=0.1)
    assert ids(short.in_turn) == ["ends", "lasts"], "it does not end before that"


def test_without_a_measured_bandwidth_all_are_tried_and_without_time_none() -> None:
    unknown = Link(100, None)
    requests = [running("a", 800), queued("q", 5)]
    assert not evacuation(requests, unknown, 5.0).too_late
    assert evacuation(requests, unknown, MARGIN_S).too_late == {"a", "q"}


def candidates() -> st.SearchStrategy[list[Candidate]]:
    drawn = st.tuples(
        st.integers(0, 40),
        st.integers(-1, 2),
        st.booleans(),
        st.one_of(st.none(), st.integers(0, 200)),
    )

    def made(found: list[tuple[int, int, bool, int | None]]) -> list[Candidate]:
        return [
            running(f"r{place}", blocks, rank, outgoing=outgoing, num_tokens_left=left)
            for place, (blocks, rank, outgoing, left) in enumerate(found)
        ]

    return st.lists(drawn, max_size=12).map(made)


@given(candidates(), st.floats(0.0, 20.0))
def test_what_leaves_fits_and_no_more_of_its_rank_would(
    requests: list[Candidate], left_s: float
) -> None:
    found = evacuation(requests, LINK, left_s)
    staying = {each.request_id for each in requests if not each.outgoing}
    assert set(ids(found.in_turn)) | found.too_late == staying
    assert not set(ids(found.in_turn)) & found.too_late
    under_way = sum(LINK.copy_time_s(each.num_blocks) for each in requests if each.outgoing)
    takes_s = under_way + sum(LINK.copy_time_s(each.num_blocks) for each in found.in_turn)
    if found.in_turn:
        assert takes_s <= left_s - MARGIN_S + 1e-9
    ranks = [each.rank for each in found.in_turn]
    assert ranks == sorted(ranks, reverse=True)
    for late in (each for each in requests if each.request_id in found.too_late):
        assert takes_s + LINK.copy_time_s(late.num_blocks) > left_s - MARGIN_S - 1e-9


def test_an_instance_that_will_be_ended_moves_by_it() -> None:
    requests = [running("small", 2), running("large", 20), running("huge", 700)]
    view = view_of(requests, draining=True, total_blocks=1000, leaves_in_s=1.0, bytes_per_s=1e8)
    moves = []
    while (decision := next_move(view)).chosen is not None:
        assert decision.reason is MoveReason.EVACUATE
        moves.append(decision.chosen.request_id)
        view = begun(view, decision.chosen)
    assert moves == ["large", "small"]
    (late,) = decision.refused
    assert (late.request_id, late.code) == ("huge", ReliefRefusal.TOO_LATE)
    assert late.numbers == {"leaves_in_s": 1.0, "expected_copy_time_s": 7.0}
