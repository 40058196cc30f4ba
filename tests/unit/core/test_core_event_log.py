"""The event log: positions, which events are forgotten, and that readers are told of that."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.core.record.event_log import EventKind, EventLog, LoggedEvent, parse_position


def event(number: int) -> LoggedEvent:
    return LoggedEvent(EventKind.ADMITTED, float(number), f"step-{number}", numbers={"n": number})


def log_of(
    number: int,
    max_events: int = 10,
    epoch: str = "e",
    kept: tuple[tuple[str, LoggedEvent], ...] = (),
) -> EventLog:
    """With the events 1 to `number`."""
    log = EventLog(epoch, max_events, kept)
    for each in range(1, number + 1):
        log.append(event(each))
    return log


def read(log: EventLog, position: str | None, limit: int = 1000) -> tuple[str, int | None, str]:
    """The positions of the page, how many were missed before, and where it goes on."""
    page = log.after(position, limit)
    told = " ".join(position for position, _ in page.entries)
    return told, page.missed, page.next_position


@pytest.mark.parametrize(
    ("log", "position", "limit", "page"),
    [
        (log_of(0), None, 10, ("", 0, "e-0")),
        (log_of(5), "e-1", 2, ("e-2 e-3", 0, "e-3")),
        (log_of(5), "e-5", 10, ("", 0, "e-5")),
        (log_of(7, 3), None, 10, ("e-5 e-6 e-7", 0, "e-7")),
        (log_of(7, 3), "e-2", 10, ("e-5 e-6 e-7", 2, "e-7")),
        (log_of(7, 3), "e-4", 10, ("e-5 e-6 e-7", 0, "e-7")),
        # A position of another epoch begins with the oldest.
        (log_of(2, 3), "other-2", 10, ("e-1 e-2", None, "e-2")),
        (log_of(2, 3), "e-99", 10, ("e-1 e-2", None, "e-2")),
    ],
)
def test_a_page(log, position, limit, page) -> None:
    assert read(log, position, limit) == page


@pytest.mark.parametrize("position", ["", "e", "e-", "-1", "e-1x", "e--1", "e-٣", "e-" + "9" * 30])
def test_what_is_no_position(position: str) -> None:
    with pytest.raises(ValueError, match="not a position"):
        parse_position(position)


def test_another_bound_keeps_the_newest_and_says_what_was_forgotten() -> None:
    log = log_of(5, 5)
    log.resize(2)
    assert read(log, "e-1") == ("e-4 e-5", 2, "e-5")
    log.resize(4)
    for n in range(6, 9):
        log.append(event(n))
    assert read(log, None)[0] == "e-5 e-6 e-7 e-8"
    for make in (lambda: EventLog("e", 0), lambda: log.resize(0)):
        with pytest.raises(ValueError, match="at least one"):
            make()


def test_a_successor_goes_on_with_what_was_kept() -> None:
    log = EventLog("b", 10, log_of(5, epoch="a").after(None, 10).entries)
    assert log.last_position == "a-5"
    assert read(log, "a-5") == ("", 0, "a-5")
    assert log.append(event(6)) == "b-6"
    assert read(log, "a-3") == ("a-4 a-5 b-6", 0, "b-6")
    third = EventLog("c", 3, log.after(None, 10).entries)
    assert third.append(event(7)) == "c-7"
    assert read(third, None)[0] == "a-5 b-6 c-7"
    assert read(third, "a-1") == ("a-5 b-6 c-7", 3, "c-7")


def test_a_reader_who_heard_more_than_was_kept_hears_all_of_the_successor() -> None:
    log = EventLog("b", 10, log_of(5, epoch="a").after(None, 3).entries)
    assert log.append(event(6)) == "b-4"
    assert read(log, "a-5") == ("b-4", None, "b-4")


def test_what_is_before_a_hole_is_let_go() -> None:
    log = EventLog("c", 10, [("a-1", event(1)), ("a-3", event(3)), ("b-4", event(4))])
    assert read(log, None)[0] == "a-3 b-4"
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
