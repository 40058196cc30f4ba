"""Silence, and which silent instances are fenced."""

from hypothesis import given
from hypothesis import strategies as st

from controller.core.fleet.liveness import MAX_TURN_S, Rest, Silences, Silent, to_fence

AFTER_S = 30.0
KEY = ("i-0", 1)


def silent(name: str, silent_s: float, need_blocks: int = 0, node: str = "n") -> Silent:
    return Silent(name, 1, silent_s, need_blocks, node)


def names(found: list[list[Silent]]) -> list[str]:
    return [each.instance_id for fault in found for each in fault]


def test_silence_counts_from_the_last_report() -> None:
    silences = Silences()
    assert silences.turn(0.0, [(KEY, 0.0)]) == {KEY: 0.0}
    for turn in range(1, 11):
        found = silences.turn(turn / 10, [(KEY, 0.0)])
    assert 0.9 <= found[KEY] <= 1.0
    assert silences.turn(1.1, [(KEY, 1.05)]) == {KEY: 0.0}


def test_a_listener_that_slept_counts_no_silence_of_others() -> None:
    silences = Silences()
    silences.turn(0.0, [(KEY, 0.0)])
    assert silences.turn(3600.0, [(KEY, 0.0)])[KEY] <= MAX_TURN_S


def test_another_incarnation_begins_anew() -> None:
    silences = Silences()
    for turn in range(5):
        silences.turn(float(turn), [(KEY, 0.0)])
    assert silences.turn(5.0, [(("i-0", 2), 5.0)]) == {("i-0", 2): 0.0}


def test_the_longest_silent_goes_first_and_alone_if_its_requests_do_not_fit() -> None:
    overdue = [silent("i-0", 31, 80), silent("i-1", 40, 200), silent("i-2", 29)]
    assert names(to_fence(overdue, Rest(3, 100, 0), AFTER_S)) == ["i-1"]


def test_more_go_as_far_as_the_rest_has_memory() -> None:
    overdue = [silent("i-0", 31, 60), silent("i-1", 40, 30), silent("i-2", 35, 20)]
    assert names(to_fence(overdue, Rest(3, 100, 0), AFTER_S)) == ["i-1", "i-2"]
    assert names(to_fence(overdue, Rest(3, 110, 0), AFTER_S)) == ["i-1", "i-2", "i-0"]


def test_while_one_is_away_the_next_must_fit() -> None:
    overdue = [silent("i-1", 40, 200)]
    assert to_fence(overdue, Rest(3, 100, num_away=1), AFTER_S) == []
    assert names(to_fence(overdue, Rest(3, 200, num_away=1), AFTER_S)) == ["i-1"]


def test_none_goes_where_nothing_could_take_its_requests_or_never_is_wanted() -> None:
    overdue = [silent("i-0", 1000)]
    assert to_fence(overdue, Rest(0, 100, 0), AFTER_S) == []
    assert to_fence(overdue, Rest(2, 100, 0), 0) == []


@given(
    st.lists(st.tuples(st.floats(0, 100), st.integers(0, 500)), max_size=12),
    st.integers(0, 4),
    st.integers(-100, 2000),
    st.integers(0, 3),
)
def test_never_more_than_the_rest_can_hold(
    found: list[tuple[float, int]], num_schedulable: int, free_blocks: int, num_away: int
) -> None:
    all_silent = [silent(f"i-{n}", *each) for n, each in enumerate(found)]
    chosen = to_fence(all_silent, Rest(num_schedulable, free_blocks, num_away), AFTER_S)
    flat = [each for fault in chosen for each in fault]
    assert all(each.silent_s >= AFTER_S for each in flat)
    assert len(set(names(chosen))) == len(flat)
    if num_away or len(chosen) > 1:
        assert sum(each.need_blocks for each in flat) <= free_blocks or not flat
    overdue = any(each.silent_s >= AFTER_S for each in all_silent)
    if overdue and num_schedulable and not num_away:
        assert chosen


def test_a_node_all_of_whose_instances_are_silent_is_one_fault() -> None:
    found = [
        silent("i-0", 31, 80, "a"),
        silent("i-1", 33, 80, "a"),
        silent("i-2", 0, 10, "b"),
        silent("i-3", 40, 50, "b"),
    ]
    chosen = to_fence(found, Rest(1, 500, 0), AFTER_S)
    assert [[each.instance_id for each in fault] for fault in chosen] == [["i-3"], ["i-0", "i-1"]]
    assert names(to_fence(found, Rest(1, 100, 0), AFTER_S)) == ["i-3"]


def test_of_one_machine_alone_each_instance_is_a_fault_of_its_own() -> None:
    found = [silent("i-0", 31, 80), silent("i-1", 33, 80)]
    assert names(to_fence(found, Rest(1, 100, 0), AFTER_S)) == ["i-1"]
