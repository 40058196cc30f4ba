"""The queue of moves by hand: at most so many at an instance, and each in its turn."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from controller.core.migration.queue import MAX_WAITING, MoveByHand, MoveQueue, QueuedMove


def move(number: int, source: str, destination: str) -> QueuedMove:
    wanted = MoveByHand(f"r-{number}", source, 4, "by hand")
    return QueuedMove(f"m-{number}", wanted, destination, 0.0)


def begun(queue: MoveQueue, max_moves: int, **reported: int) -> list[str]:
    named = {name.replace("_", "-"): num for name, num in reported.items()}
    found = queue.begin(lambda id_: named.get(id_, 0), max_moves)
    return [each.migration_id for each in found]


def test_moves_between_other_instances_pass_by() -> None:
    queue = MoveQueue()
    for number, ends in enumerate((("i-0", "i-1"), ("i-0", "i-1"), ("i-2", "i-3"))):
        assert queue.join(move(number, *ends))
    assert begun(queue, 1) == ["m-0", "m-2"]
    assert begun(queue, 1) == []
    queue.leave("m-0")
    assert begun(queue, 1) == ["m-1"]


def test_what_an_instance_reports_counts_too() -> None:
    queue = MoveQueue()
    queue.join(move(0, "i-0", "i-1"))
    assert begun(queue, 2, i_1=2) == []
    assert begun(queue, 2, i_1=1) == ["m-0"]


def test_what_waits_is_not_overtaken_at_its_instances() -> None:
    """Else a move between two busy instances might never find both with room."""
    queue = MoveQueue()
    queue.join(move(0, "i-0", "i-1"))
    queue.join(move(1, "i-0", "i-2"))
    queue.join(move(2, "i-3", "i-1"))
    assert begun(queue, 1, i_1=1) == []
    assert begun(queue, 1) == ["m-0"]


def test_who_does_not_wait_any_more_is_forgotten() -> None:
    queue = MoveQueue()
    queue.join(move(0, "i-0", "i-1"))
    queue.leave("m-0")
    assert begun(queue, 1) == []
    queue.leave("m-0")


def test_it_has_an_end() -> None:
    queue = MoveQueue()
    assert all(queue.join(move(number, "i-0", "i-1")) for number in range(MAX_WAITING))
    assert not queue.join(move(99, "i-0", "i-1"))
    assert len(queue.waiting) == MAX_WAITING


ends = st.tuples(st.sampled_from("abcd"), st.sampled_from("abcd")).filter(lambda e: e[0] != e[1])
steps = st.lists(st.one_of(ends, st.integers(0, 30)), max_size=60)


@given(steps, st.integers(1, 3))
def test_never_too_many_and_nobody_is_left_behind(
    found: list[tuple[str, str] | int], max_moves: int
) -> None:
    """Moves come, and end in any order: an integer ends one of those under way."""
    queue, under_way, waiting = MoveQueue(), dict[str, QueuedMove](), list[str]()

    def look() -> None:
        for each in queue.begin(lambda _: 0, max_moves):
            under_way[each.migration_id] = each
            waiting.remove(each.migration_id)
        counts = Counter(end for each in under_way.values() for end in each.instance_ids)
        assert all(count <= max_moves for count in counts.values())
        assert [each.migration_id for each in queue.waiting] == waiting
        assert under_way or not waiting

    for number, step in enumerate(found):
        if isinstance(step, tuple):
            if queue.join(move(number, *step)):
                waiting.append(f"m-{number}")
        elif under_way:
            ended = sorted(under_way)[step % len(under_way)]
            del under_way[ended]
            queue.leave(ended)
        look()
    while under_way:
        for ended in list(under_way):
            del under_way[ended]
            queue.leave(ended)
        look()
    assert not waiting
