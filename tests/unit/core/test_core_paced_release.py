"""Requests that waited at a controller that died: each goes once, in order, at a bounded rate."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from controller.core.admission.asking import AT_LEAST_EVERY_S, PacedRelease
from controller.core.load.snapshot import InstanceSnapshot
from controller.core.scheduler_events import DispatchRequested

ROOM_TO_GROW_TOKENS = 480
GROWTH = ROOM_TO_GROW_TOKENS // 16


def snapshot(name: str, spare: int) -> InstanceSnapshot:
    """A busy instance with so much room beside what those that run may grow by."""
    return InstanceSnapshot(name, 1, 16, 1000, spare + GROWTH, num_running=1)


def release_of(
    snapshots: Iterable[InstanceSnapshot], own_blocks: Mapping[str, int], num_frontends: int = 1
) -> PacedRelease:
    return PacedRelease(snapshots, own_blocks, num_frontends, ROOM_TO_GROW_TOKENS, 0.0)


def waiting(*blocks: int) -> list[DispatchRequested]:
    return [
        DispatchRequested(f"r{n}", "f", 16 * each, 0, float(n)) for n, each in enumerate(blocks)
    ]


def test_as_many_go_at_once_as_fit_the_freest_instance_first() -> None:
    release = release_of([snapshot("a", 30), snapshot("b", 20)], {})
    found = release.due(waiting(20, 15, 10, 10), {}, "ab", 0.0)
    assert found == [("r0", "a"), ("r1", "b"), ("r2", "a")]
    release = release_of([snapshot("a", 30), snapshot("b", 20)], {})
    assert release.due(waiting(31, 1), {}, "a", 0.5) == [], "nobody goes ahead of one"
    assert release.due(waiting(10), {}, "b", 0.5) == [("r0", "b")], "a is gone"
    assert release.due(waiting(10), {}, (), 9.0) == []


def test_a_higher_rank_goes_first_then_who_came_first() -> None:
    release = release_of([snapshot("a", 10)], {})
    late, early = waiting(10, 10)
    late = replace(late, arrival_time_s=9.0)
    assert release.due([late, early], {}, "a", 0.0) == [("r1", "a")]
    release = release_of([snapshot("a", 10)], {})
    assert release.due([replace(late, rank=1), early], {}, "a", 0.0) == [("r0", "a")]


def test_own_requests_that_end_make_room_and_those_that_grow_take_it() -> None:
    release = release_of([snapshot("a", 10)], {"a": 40})
    assert release.due(waiting(11), {"a": 40}, "a", 0.1) == []
    assert release.due(waiting(11), {"a": 41}, "a", 0.2) == []
    assert release.due(waiting(11), {"a": 39}, "a", 0.3) == [("r0", "a")]
    # The caller counts it as its own from now on.
    assert release.due(waiting(1), {"a": 50}, "a", 0.4) == []


def test_the_first_goes_after_a_while_even_where_nothing_seems_to_fit() -> None:
    release = release_of([snapshot("a", 3), snapshot("b", 2)], {})
    late_s = 1.1 * AT_LEAST_EVERY_S
    assert release.due(waiting(50, 50), {}, "ab", 0.9 * AT_LEAST_EVERY_S) == []
    assert release.due(waiting(50, 50), {}, "ab", late_s) == [("r0", "a")]
    assert release.due(waiting(50), {"a": 50}, "ab", late_s + 0.1) == []
    assert release.due(waiting(50), {"a": 50}, "ab", late_s + 1.1) == [("r0", "b")]


@given(
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 60), min_size=1),
    st.lists(st.integers(1, 40), max_size=20),
    st.integers(1, 3),
)
def test_all_go_in_the_end_in_order_and_never_much_more_than_fits(
    spare: dict[str, int], blocks: list[int], num_frontends: int
) -> None:
    release = release_of([snapshot(i, free) for i, free in spare.items()], {}, num_frontends)
    left, own, now_s = waiting(*blocks), dict.fromkeys(spare, 0), 0.0
    gone: list[str] = []
    for _ in range(100 * len(blocks) + 1):
        forced = 0
        for request_id, instance_id in release.due(left, own, spare, now_s):
            demand = next(w.num_prompt_tokens for w in left if w.request_id == request_id) // 16
            own[instance_id] += demand
            forced += own[instance_id] > spare[instance_id] // num_frontends
            gone.append(request_id)
        assert forced <= 1, "one for want of an end, each second"
        left = [each for each in left if each.request_id not in gone]
        now_s += 0.05
    assert gone == [f"r{n}" for n in range(len(blocks))]
