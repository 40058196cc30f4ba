"""The event log: positions, which events are forgotten, and that readers are told of that."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.core.record.event_log import EventKind, EventLog, LoggedEvent, parse_position


def event(number: int) -> LoggedEvent:
    return LoggedEvent(EventKind.ADMITTED, float(number), f"step-{number}", numbers={"n": number})


def numbers(log: EventLog, position: str | None, limit: int = 1000) -> list[int]:
    return [int(e.time_s) for _, e in log.after(position, limit).entries]


def test_an_empty_log() -> None:
    log = EventLog("e", 3)
    page = log.after(None, 10)
    assert (page.entries, page.next_position, page.missed) == ((), "e-0", 0)
    assert log.after("e-0", 10).missed == 0


def test_reading_on_from_a_position() -> None:
    log = EventLog("e", 10)
    positions = [log.append(event(n)) for n in range(1, 6)]
    assert positions == ["e-1", "e-2", "e-3", "e-4", "e-5"]
    assert numbers(log, None) == [1, 2, 3, 4, 5]
    assert numbers(log, "e-3") == [4, 5]
    assert numbers(log, "e-5") == []
    page = log.after("e-1", 2)
    assert [position for position, _ in page.entries] == ["e-2", "e-3"]
    assert (page.next_position, page.missed) == ("e-3", 0)


def test_what_the_log_forgot_is_said() -> None:
    log = EventLog("e", 3)
    for n in range(1, 8):
        log.append(event(n))
    assert numbers(log, None) == [5, 6, 7]
    page = log.after("e-2", 10)
    assert [int(e.time_s) for _, e in page.entries] == [5, 6, 7]
    assert page.missed == 2
    assert log.after("e-4", 10).missed == 0
    assert log.last_position == "e-7"


@pytest.mark.parametrize("position", ["other-2", "e-99"])
def test_a_position_of_another_epoch_begins_with_the_oldest(position: str) -> None:
    log = EventLog("e", 3)
    for n in range(1, 3):
        log.append(event(n))
    page = log.after(position, 10)
    assert page.missed is None
    assert len(page.entries) == 2


@pytest.mark.parametrize("position", ["", "e", "e-", "-1", "e-1x", "e--1", "e-٣", "e-" + "9" * 30])
def test_what_is_no_position(position: str) -> None:
    with pytest.raises(ValueError, match="not a position"):
        parse_position(position)


def test_a_log_holds_something() -> None:
    with pytest.raises(ValueError, match="at least one"):
        EventLog("e", 0)
    log = EventLog("e", 1)
    log.append(event(1))
    with pytest.raises(ValueError, match="at least one"):
        log.resize(0)
    assert len(log.after(None, 10).entries) == 1


def test_another_bound_keeps_the_newest_and_says_what_was_forgotten() -> None:
    log = EventLog("e", 5)
    for n in range(1, 6):
        log.append(event(n))
    log.resize(2)
    page = log.after("e-1", 10)
    assert [position for position, _ in page.entries] == ["e-4", "e-5"]
    assert (page.missed, log.last_position) == (2, "e-5")
    log.resize(4)
    for n in range(6, 9):
        log.append(event(n))
    page = log.after(None, 10)
    assert [position for position, _ in page.entries] == ["e-5", "e-6", "e-7", "e-8"]


@given(st.integers(1, 7), st.lists(st.integers(0, 4), max_size=30), st.integers(1, 5))
def test_a_reader_gets_everything_once_or_hears_how_much_it_missed(
    max_events: int, bursts: list[int], limit: int
) -> None:
    log, position, seen, missed, total = EventLog("e", max_events), "e-0", [], 0, 0
    for burst in bursts:
        for _ in range(burst):
            total += 1
            log.append(event(total))
        page = log.after(position, limit)
        position = page.next_position
        assert page.missed is not None
        missed += page.missed
        seen += [int(e.time_s) for _, e in page.entries]
        assert len(page.entries) <= limit
    while (page := log.after(position, limit)).entries:
        position = page.next_position
        missed += page.missed or 0
        seen += [int(e.time_s) for _, e in page.entries]
    assert seen == sorted(set(seen))
    assert len(seen) + missed == total


def told(log: EventLog, position: str | None) -> list[str]:
    return [position for position, _ in log.after(position, 1000).entries]


def test_a_successor_goes_on_with_what_was_kept() -> None:
    before = EventLog("a", 10)
    for n in range(1, 6):
        before.append(event(n))
    log = EventLog("b", 10, before.after(None, 10).entries)
    assert log.last_position == "a-5"
    assert log.after("a-5", 10).missed == 0
    assert log.append(event(6)) == "b-6"
    assert told(log, "a-3") == ["a-4", "a-5", "b-6"]
    assert log.after("a-3", 10).missed == 0
    assert numbers(log, None) == [1, 2, 3, 4, 5, 6]
    third = EventLog("c", 3, log.after(None, 10).entries)
    assert third.append(event(7)) == "c-7"
    assert told(third, None) == ["a-5", "b-6", "c-7"]
    page = third.after("a-1", 10)
    assert (page.missed, page.entries[0][0]) == (3, "a-5")


def test_a_reader_who_heard_more_than_was_kept_hears_all_of_the_successor() -> None:
    before = EventLog("a", 10)
    for n in range(1, 6):
        before.append(event(n))
    log = EventLog("b", 10, before.after(None, 3).entries)
    assert log.append(event(6)) == "b-4"
    page = log.after("a-5", 10)
    assert [position for position, _ in page.entries] == ["b-4"]
    assert page.missed is None


def test_what_is_before_a_hole_is_let_go() -> None:
    kept = [("a-1", event(1)), ("a-3", event(3)), ("b-4", event(4))]
    log = EventLog("c", 10, kept)
    assert told(log, None) == ["a-3", "b-4"]
    assert log.append(event(5)) == "c-5"


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=8), st.integers(1, 20))
def test_no_position_is_told_twice(lives: list[tuple[int, int]], bound: int) -> None:
    """Each life appends some events; of its log, all but the last few are kept."""
    seen: set[str] = set()
    kept: tuple[tuple[str, LoggedEvent], ...] = ()
    for number, (appended, lost) in enumerate(lives):
        log = EventLog(f"e{number}", bound, kept)
        position = log.last_position
        for n in range(appended):
            position = log.append(event(n))
            assert position not in seen
            seen.add(position)
        assert log.after(position, 100).entries == ()
        entries = log.after(None, 100).entries
        assert len(entries) <= bound
        kept = entries[: max(len(entries) - min(lost, appended), 0)]
