"""Live migration under faults: what a network may do, beyond the outcome
(test_fault_cells_table)."""

import pytest

from controller.core.migration import destination as dst
from controller.core.migration.destination import DestinationState
from controller.core.migration.protocol import DEFAULT_TIMING, MoveMessage, Say, Verb
from controller.core.migration.source import SourceState
from tests.unit.migration.move_pair import DESTINATION, KEPT, MOVED, POSITIONS, RESUMED, Pair, at
from tests.unit.migration.test_fault_cells_table import LONG_S, lose, once

FIRST, SECOND = MoveMessage(Verb.PRE_ALLOC, 0, 5), MoveMessage(Verb.PRE_ALLOC, 1, 7)
COMMIT = MoveMessage(Verb.COMMIT, 1, hop=1)

# -- the link stalls -----------------------------------------------------------------------


@pytest.mark.parametrize("position", POSITIONS["copying"])
def test_a_request_decodes_while_the_link_of_its_copy_stalls(position: str) -> None:
    """Or it is back in the batch, if there was room for the last stage already: it was out of the
    batch for no longer than the last copy may take."""
    pair = at("copying", position)
    pair.stalled = True
    pair.pass_time(LONG_S)
    assert pair.at_source == "batch"


def test_a_suspended_request_is_resumed_at_the_deadline() -> None:
    pair = at("suspended", "suspended")
    pair.stalled = True
    pair.pass_time(DEFAULT_TIMING.suspended_timeout_s - 0.5)
    assert pair.at_source == "suspended"
    pair.pass_time(1)
    assert pair.at_source == "batch"


@pytest.mark.parametrize("position", ["applying", "applied"])
def test_the_frontend_decides_before_it_hears_of_the_commit(position: str) -> None:
    """The destination runs it, but its frontend does not know: the source has it back, and the
    destination drops it as soon as it can be told to."""
    pair = at("commit_heard", position)
    pair.frontend_stalled = pair.stalled = True
    pair.go_to(lambda pair: pair.source.state is SourceState.FENCING)
    pair.run()
    assert pair.at_destination == "batch"
    pair.todo.reverse()
    pair.frontend_stalled = False
    pair.go_to(lambda pair: pair.source.state is SourceState.RESUMED)
    assert not pair.client_reads(DESTINATION, 1)
    pair.stalled = False
    pair.settle()
    assert pair.outcome == RESUMED
    assert dst.Drop(1) in pair.destination_did


# -- messages are lost ---------------------------------------------------------------------


def test_a_commit_that_is_lost_is_repeated() -> None:
    pair = at("commit_unheard", "sent")
    lose(pair, once())
    pair.settle()
    assert pair.outcome == MOVED
    assert len(pair.verbs(Verb.COMMIT)) > 1


@pytest.mark.parametrize("lost", [Verb.COMMITTED, Verb.ACKNOWLEDGED])
def test_a_commit_is_acknowledged_again(lost: Verb) -> None:
    losing = once()
    pair = at("commit_heard", "applying")
    pair.loses = lambda message: message.verb is lost and losing(message)
    pair.settle()
    assert (pair.outcome, pair.num_lost) == (MOVED, 1)
    assert len(pair.verbs(Verb.COMMITTED)) > 1


# -- messages come twice -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "position", "asked", "answer"),
    [
        ("pre_allocate", "reserved", FIRST, MoveMessage(Verb.PRE_ALLOCATED, 0)),
        ("copying", "suspending", SECOND, MoveMessage(Verb.PRE_ALLOCATED, 1)),
        ("copying", "suspending", FIRST, None),
        ("commit_heard", "applied", COMMIT, MoveMessage(Verb.COMMITTED, 1, hop=1)),
        ("committed", "committed", MoveMessage(Verb.ACKNOWLEDGED, 1), None),
    ],
)
def test_what_comes_twice_gets_the_same_reply(
    column: str, position: str, asked: MoveMessage, answer: MoveMessage | None
) -> None:
    _answers_twice_alike(at(column, position), asked, answer)


def _answers_twice_alike(pair: Pair, asked: MoveMessage, answer: MoveMessage | None) -> None:
    """And nothing but the answer comes of it."""
    assert pair.destination is not None
    expected = [] if answer is None else [Say(answer)]
    for _ in range(2):
        assert pair.destination.handle(asked, pair.now_s) == expected


def test_what_comes_after_an_abort_gets_the_same_reply() -> None:
    pair = at("copying", "suspending")
    pair.tell_destination(MoveMessage(Verb.ABORT, 1, code="evicted"))
    for _ in range(2):
        _answers_twice_alike(pair, MoveMessage(Verb.ABORT, 1), MoveMessage(Verb.ABORTED, 1))
        _answers_twice_alike(pair, MoveMessage(Verb.END, 1), MoveMessage(Verb.ENDED, 1))
        refused = MoveMessage(Verb.REFUSED, 1, code="evicted")
        _answers_twice_alike(pair, COMMIT, refused)
        pair.run_destination()
        assert pair.destination is not None
        assert pair.destination.state is DestinationState.ABORTED


# -- messages are late ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "position", "late", "outcome"),
    [
        ("pre_allocate", "reserving", FIRST, KEPT),
        ("pre_allocate", "reserved", FIRST, KEPT),
        ("copying", "copying", SECOND, KEPT),
        ("copying", "next_stage", SECOND, KEPT),
        ("copying", "next_stage_reserving", SECOND, KEPT),
        ("suspended", "suspended", SECOND, RESUMED),
        ("commit_unheard", "lost_once", COMMIT, RESUMED),
        ("commit_unheard", "fencing", COMMIT, RESUMED),
    ],
)
def test_what_comes_after_the_lease_is_refused_and_allocates_and_frees_nothing(
    column: str, position: str, late: MoveMessage, outcome: str
) -> None:
    """The destination heard nothing for a lease, of a source that does not know yet."""
    pair = at(column, position)
    pair.tell_destination(dst.LeaseExpired())
    pair.run_destination()
    assert pair.destination is not None
    assert (pair.num_reserved, pair.destination.state) == (0, DestinationState.ABORTED)
    before = len(pair.destination_did)
    pair.tell_destination(late)
    did = pair.destination_did[before:]
    assert did == [Say(MoveMessage(Verb.REFUSED, pair.stage, code="lease_expired"))]
    assert pair.num_reserved == 0
    pair.settle()
    assert pair.outcome == outcome
    assert dst.Apply not in [type(each) for each in pair.destination_did]


def test_what_comes_after_the_commit_is_ignored() -> None:
    pair = at("committed", "committed")
    before = pair.source.state, len(pair.source_did)
    pair.tell_destination(SECOND)
    pair.tell_source(MoveMessage(Verb.PRE_ALLOCATED, 0))
    assert (pair.source.state, len(pair.source_did)) == before
    pair.settle()
    assert pair.outcome == MOVED
