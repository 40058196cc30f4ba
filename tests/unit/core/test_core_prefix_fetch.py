"""The machine of a fetch: whatever happens, the blocks are stored or freed once, after nothing
touches them any more, and the request enters once unless it has left."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.core.migration.prefix_fetch import (
    PATIENCE_S,
    CancelCopy,
    Copied,
    Copy,
    CopyFailed,
    Enter,
    Event,
    FetchOutcome,
    Instruction,
    PrefixFetch,
    RequestLeft,
    Reserve,
    Reserved,
    Store,
    Stored,
    Ticked,
)

LIMIT_S = 2.0
LATE_S = LIMIT_S + PATIENCE_S


def after(*events: Event, now_s: float = 0.0) -> tuple[PrefixFetch, list[Instruction]]:
    """The fetch after these events, and its last instructions."""
    found = PrefixFetch(LIMIT_S, 0.0)
    told = found.start()
    for event in events:
        told = found.handle(event, now_s)
        found.check()
    return found, told


@pytest.mark.parametrize(
    ("events", "outcome", "enters"),
    [
        ((Reserved(3), Copied(3), Stored()), FetchOutcome.FETCHED, True),
        ((Reserved(3), Copied(1), Stored()), FetchOutcome.FETCHED, True),
        ((Reserved(3), Copied(0), Stored()), FetchOutcome.NOT_THERE, True),
        ((Reserved(3), CopyFailed(), Stored()), FetchOutcome.FAILED, True),
        ((Reserved(0, 3),), FetchOutcome.NO_ROOM, True),
        ((Reserved(0, 0),), FetchOutcome.HAD_IT, True),
        ((RequestLeft(), Reserved(3), Stored()), FetchOutcome.LEFT, False),
        ((RequestLeft(), Reserved(0, 3)), FetchOutcome.LEFT, False),
        ((Reserved(3), RequestLeft(), CopyFailed(), Stored()), FetchOutcome.LEFT, False),
        ((Reserved(3), Copied(3), RequestLeft(), Stored()), FetchOutcome.LEFT, False),
    ],
)
def test_how_a_fetch_ends(events, outcome, enters) -> None:
    fetch, told = after(*events)
    assert fetch.over
    assert fetch.view().outcome is outcome
    assert told == ([Enter()] if enters else [])


def test_a_copy_that_takes_longer_than_computing_is_given_up() -> None:
    fetch, told = after(Reserved(3), Ticked(), now_s=LATE_S - 0.01)
    assert told == []
    assert fetch.handle(Ticked(), LATE_S) == [CancelCopy()]
    assert fetch.handle(Ticked(), LATE_S + 1) == [], "once"
    assert fetch.handle(CopyFailed(), LATE_S + 1) == [Store(0)]
    assert fetch.view().outcome is FetchOutcome.LATE
    fetch, _ = after(Reserved(3))
    fetch.handle(Ticked(), LATE_S)
    assert fetch.handle(Copied(3), LATE_S) == [Store(3)], "it was complete by then"


EVENTS = st.sampled_from([Copied(2), CopyFailed(), Stored(), RequestLeft(), Ticked(), Reserved(4)])


@given(st.lists(EVENTS, max_size=12), st.integers(0, 4))
def test_blocks_and_requests_are_never_handled_twice(events, num_reserved) -> None:
    """The engine and the link answer each instruction once; all other events come at any time."""
    fetch, now_s, told = PrefixFetch(LIMIT_S, 0.0), 0.0, list[Instruction]()
    owed: list[Event] = []
    todo = fetch.start()
    num_left = 0

    def follow(instructions: list[Instruction]) -> None:
        told.extend(instructions)
        for instruction in instructions:
            match instruction:
                case Reserve():
                    owed.append(Reserved(num_reserved, 4))
                case Copy():
                    owed.append(Copied(min(2, num_reserved)))
                case CancelCopy():
                    owed[:] = [CopyFailed()]
                case Store(num_blocks):
                    assert num_blocks <= num_reserved
                    owed.append(Stored())

    follow(todo)
    for event in events:
        now_s += 0.5
        if isinstance(event, RequestLeft | Ticked):
            num_left += isinstance(event, RequestLeft)
            follow(fetch.handle(event, now_s))
        elif owed:
            follow(fetch.handle(owed.pop(0), now_s))
        fetch.check()
    while owed:
        follow(fetch.handle(owed.pop(0), now_s))
    assert fetch.over
    kinds = [type(each) for each in told]
    assert kinds.count(Store) == bool(num_reserved)
    assert kinds.count(Enter) + bool(num_left) <= 1 + (kinds.count(Enter) and num_left > 0)
    assert kinds.count(Enter) <= 1
    assert kinds.count(Enter) == 1 or num_left
    for event in (Copied(1), CopyFailed(), Stored(), Reserved(3), RequestLeft(), Ticked()):
        assert fetch.handle(event, now_s + 99) == []
