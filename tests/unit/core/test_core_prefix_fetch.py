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
    Digested,
    Distrusted,
    Enter,
    Event,
    FetchOutcome,
    FetchState,
    Instruction,
    NoDigest,
    PrefixFetch,
    RequestLeft,
    Reserve,
    Reserved,
    Store,
    Stored,
    TellCorrupt,
    Ticked,
    Verify,
)

LIMIT_S = 2.0
LATE_S = LIMIT_S + PATIENCE_S


def after(
    *events: Event, now_s: float = 0.0, is_verified: bool = False
) -> tuple[PrefixFetch, list[Instruction]]:
    """The fetch after these events, and its last instructions."""
    found = PrefixFetch(LIMIT_S, 0.0, verified=is_verified)
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


# -- verified -----------------------------------------------------------------------------


def verified(*events: Event, now_s: float = 0.0) -> tuple[PrefixFetch, list[Instruction]]:
    """A fetch that is verified, after the copy of three blocks and these events."""
    return after(Reserved(3), Copied(3), *events, now_s=now_s, is_verified=True)


def test_what_is_verified_is_stored_once_both_sides_have_the_same_digest() -> None:
    fetch, told = verified()
    assert (fetch.state, told) == (FetchState.VERIFYING, [Verify(3)])
    assert fetch.handle(Digested(matches=True), 0.0) == [Store(3)]
    assert fetch.view().outcome is FetchOutcome.FETCHED
    assert fetch.handle(Digested(matches=False), 0.0) == [], "once"


@pytest.mark.parametrize(
    ("event", "outcome"),
    [(NoDigest(), FetchOutcome.FAILED), (RequestLeft(), FetchOutcome.LEFT)],
)
def test_what_cannot_be_verified_is_not_stored(event, outcome) -> None:
    fetch, told = verified(event)
    assert told == [Store(0)]
    assert fetch.view().outcome is outcome
    assert fetch.handle(Digested(matches=True), 0.0) == [], "it comes too late"


def test_a_corrupt_copy_is_told_and_not_stored() -> None:
    fetch, told = verified(Digested(matches=False))
    assert told == [TellCorrupt(), Store(0)]
    assert fetch.view().outcome is FetchOutcome.CORRUPT
    assert fetch.handle(Stored(), 0.0) == [Enter()]


def test_a_digest_that_takes_too_long_is_not_waited_for() -> None:
    fetch, _ = verified()
    assert fetch.handle(Ticked(), LATE_S - 0.01) == []
    assert fetch.handle(Ticked(), LATE_S) == [Store(0)]
    assert fetch.view().outcome is FetchOutcome.LATE


def test_what_was_given_up_before_it_could_be_verified_is_not_stored() -> None:
    fetch, _ = after(Reserved(3), is_verified=True)
    assert fetch.handle(Ticked(), LATE_S) == [CancelCopy()]
    assert fetch.handle(Copied(3), LATE_S) == [Store(0)]


def test_nothing_is_verified_where_nothing_came() -> None:
    fetch, told = after(Reserved(3), Copied(0), is_verified=True)
    assert (told, fetch.view().outcome) == ([Store(0)], FetchOutcome.NOT_THERE)


# -- another copy from the source was corrupt ---------------------------------------------


def test_from_a_source_that_is_not_trusted_nothing_is_fetched() -> None:
    fetch = PrefixFetch(LIMIT_S, 0.0)
    assert fetch.start(trusts=False) == [Enter()]
    assert fetch.over
    assert fetch.view().outcome is FetchOutcome.DISTRUSTED


@pytest.mark.parametrize(
    ("before", "told", "then"),
    [((), [], Reserved(3)), ((Reserved(3),), [CancelCopy()], Copied(3))],
)
def test_a_copy_under_way_from_there_is_given_up_and_not_stored(before, told, then) -> None:
    fetch, found = after(*before, Distrusted())
    assert found == told
    assert fetch.handle(then, 0.0) == [Store(0)]
    assert fetch.view().outcome is FetchOutcome.DISTRUSTED


def test_a_copy_that_is_being_verified_is_judged_by_its_own_digest() -> None:
    fetch, told = verified(Distrusted())
    assert told == []
    assert fetch.handle(Digested(matches=True), 0.0) == [Store(3)]


# -- whatever happens ---------------------------------------------------------------------

ANSWERS = st.sampled_from([Digested(matches=True), Digested(matches=False), NoDigest()])
NEXT = None
"""The engine, the link or the digests answer what has been waiting longest."""
EVENTS = st.sampled_from([NEXT, NEXT, RequestLeft(), Ticked(), Distrusted()])


@given(st.lists(EVENTS, max_size=12), st.integers(0, 4), st.booleans(), ANSWERS)
def test_blocks_and_requests_are_never_handled_twice(
    events, num_reserved, is_verified, answer
) -> None:
    """The engine and the link answer each instruction once; all other events come at any time."""
    fetch, now_s = PrefixFetch(LIMIT_S, 0.0, verified=is_verified), 0.0
    told = list[Instruction]()
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
                case Verify(num_blocks):
                    assert num_blocks == min(2, num_reserved)
                    owed.append(answer)
                case Store(num_blocks):
                    assert num_blocks <= num_reserved
                    assert not (num_blocks and is_verified) or answer == Digested(matches=True)
                    owed.append(Stored())

    follow(todo)
    for event in events:
        now_s += 0.5
        if event is not NEXT:
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
    is_corrupt = fetch.view().outcome is FetchOutcome.CORRUPT
    assert kinds.count(TellCorrupt) == 1 if is_corrupt else kinds.count(TellCorrupt) <= num_left
    late = (Copied(1), CopyFailed(), Stored(), Reserved(3), RequestLeft(), Ticked())
    for event in (*late, Digested(matches=False), NoDigest(), Distrusted()):
        assert fetch.handle(event, now_s + 99) == []
