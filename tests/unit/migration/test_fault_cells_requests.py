"""Live migration under faults, cell by cell: what happens to the request, or to the order to move
it (test_fault_cells_table)."""

import pytest

from controller.core.migration import destination as dst
from controller.core.migration import source as src
from controller.core.migration.destination import DestinationState
from controller.core.migration.protocol import CancelCopy, IllegalMoveError, MoveMessage, Verb
from controller.core.migration.source import SourceState
from tests.unit.migration.move_pair import ENDED, KEPT, MOVED, POSITIONS, RESUMED, Pair, at

PRE_ALLOCATE, COPYING = list(POSITIONS["pre_allocate"]), list(POSITIONS["copying"])
IN_DOUBT = [
    (column, position)
    for column in ("commit_unheard", "commit_heard")
    for position in POSITIONS[column]
]


# -- it finishes ---------------------------------------------------------------------------


def _finished_at(column: str, position: str) -> Pair:
    pair = at(column, position)
    pair.request_finishes()
    pair.settle()
    assert pair.outcome == ENDED
    return pair


@pytest.mark.parametrize("position", PRE_ALLOCATE)
def test_request_finishes__pre_allocate__ended(position: str) -> None:
    _finished_at("pre_allocate", position)


@pytest.mark.parametrize("position", COPYING)
def test_request_finishes__copying__ended_and_abort(position: str) -> None:
    pair = _finished_at("copying", position)
    assert pair.source.state is SourceState.ENDED
    assert pair.verbs(Verb.ABORT, Verb.ABORTED) == [Verb.ABORT, Verb.ABORTED]


def test_request_finishes__suspended__ended() -> None:
    """The request does not decode, so it must have been ended."""
    pair = _finished_at("suspended", "suspended")
    assert CancelCopy() in pair.source_did


def test_request_finishes__commit_in_doubt__ended_on_the_owner() -> None:
    pair = at("commit_heard", "applied")
    pair.go_to(lambda pair: not any(kind == "moved_told" for kind, _ in pair.todo))
    pair.request_finishes()
    pair.settle()
    assert pair.outcome == ENDED
    assert pair.source.state is SourceState.MIGRATED, "and its copy is freed"


def test_request_finishes__committed__ended() -> None:
    _finished_at("committed", "committed")


# -- it is evicted -------------------------------------------------------------------------


@pytest.mark.parametrize("position", PRE_ALLOCATE)
def test_preempted_on_the_source__pre_allocate__abort_and_it_waits_there(position: str) -> None:
    pair = at("pre_allocate", position)
    pair.evict()
    pair.settle()
    assert pair.outcome == KEPT
    assert pair.source.code == "evicted"


@pytest.mark.parametrize("position", COPYING)
def test_preempted_on_the_source__copying__abort_and_what_was_copied_is_void(position: str) -> None:
    pair = at("copying", position)
    pair.evict()
    pair.settle()
    assert pair.outcome == KEPT
    assert Verb.ABORT in pair.verbs(Verb.ABORT)
    assert pair.destination is not None
    assert pair.destination.state is DestinationState.ABORTED


def _cannot_be_evicted(column: str, position: str) -> None:
    pair = at(column, position)
    state = pair.source.state
    with pytest.raises(IllegalMoveError):
        pair.evict()
    assert pair.source.state is state
    pair.settle()
    assert pair.outcome in (MOVED, RESUMED)


def test_preempted_on_the_source__suspended__asserted_not() -> None:
    _cannot_be_evicted("suspended", "suspended")


@pytest.mark.parametrize(("column", "position"), IN_DOUBT)
def test_preempted_on_the_source__commit_in_doubt__asserted_not(column: str, position: str) -> None:
    _cannot_be_evicted(column, position)


def test_preempted_on_the_source__committed__late_and_ignored() -> None:
    """The destination's engine preempts whom it likes: no part of the move."""
    pair = at("committed", "committed")
    pair.evict()
    pair.settle()
    assert pair.outcome == MOVED


# -- its client leaves ---------------------------------------------------------------------


def _left_at(column: str, position: str) -> Pair:
    pair = at(column, position)
    pair.client_leaves()
    pair.settle()
    assert pair.outcome == ENDED
    return pair


@pytest.mark.parametrize("position", PRE_ALLOCATE)
def test_client_disconnects_or_aborts__pre_allocate__ended(position: str) -> None:
    _left_at("pre_allocate", position)


@pytest.mark.parametrize("position", COPYING)
def test_client_disconnects_or_aborts__copying__ended(position: str) -> None:
    _left_at("copying", position)


def test_client_disconnects_or_aborts__suspended__ended() -> None:
    _left_at("suspended", "suspended")


@pytest.mark.parametrize(("column", "position"), IN_DOUBT)
def test_client_disconnects_or_aborts__commit_in_doubt__tombstone_on_both(
    column: str, position: str
) -> None:
    pair = _left_at(column, position)
    assert pair.source.state is SourceState.ENDED
    pair.tell_destination(MoveMessage(Verb.COMMIT, 1, hop=1))
    pair.run()
    assert not pair.at_destination, "a COMMIT that is late does not bring it back"


@pytest.mark.parametrize(("column", "position"), IN_DOUBT)
def test_client_disconnects_or_aborts__commit_in_doubt__the_source_says_so_alone(
    column: str, position: str
) -> None:
    """The frontend did not know of the destination, and the link loses all for minutes."""
    pair = at(column, position)
    pair.loses = lambda _said: True
    pair.client = "left"
    pair.engine_aborts_at_source()
    pair.pass_time(120)
    pair.loses = lambda _said: False
    pair.settle()
    assert pair.outcome == ENDED
    came = (column, position) not in (
        ("commit_unheard", "lost_once"),
        ("commit_unheard", "fencing"),
    )
    assert (dst.EndRequest() in pair.destination_did) == came


def test_client_disconnects_or_aborts__committed__ended_and_forwarded() -> None:
    """Its frontend still takes the source for the owner."""
    pair = at("committed", "committed")
    pair.client = "left"
    pair.engine_aborts_at_source()
    pair.settle()
    assert pair.outcome == ENDED
    assert pair.verbs(Verb.END, Verb.ENDED) == [Verb.END, Verb.ENDED]
    assert dst.EndRequest() in pair.destination_did


# -- its priority changes ------------------------------------------------------------------

HIGH = 1


def _rank_changed_at(column: str, position: str) -> Pair:
    pair = at(column, position)
    pair.tell_source(src.PriorityChanged(HIGH))
    return pair


def _moves_with_its_rank(pair: Pair) -> None:
    pair.settle()
    assert pair.outcome == MOVED
    assert pair.destination_rank == HIGH


@pytest.mark.parametrize("position", PRE_ALLOCATE)
def test_priority_changed__pre_allocate__applied_on_the_source_and_sent(position: str) -> None:
    pair = _rank_changed_at("pre_allocate", position)
    assert pair.source_rank == HIGH
    _moves_with_its_rank(pair)


@pytest.mark.parametrize("position", COPYING)
def test_priority_changed__copying__applied_on_the_source_and_sent(position: str) -> None:
    pair = _rank_changed_at("copying", position)
    assert pair.source_rank == HIGH
    _moves_with_its_rank(pair)


def test_priority_changed__suspended__queued() -> None:
    pair = _rank_changed_at("suspended", "suspended")
    assert pair.source_rank == 0, "it is in no queue and no batch"
    _moves_with_its_rank(pair)


def test_priority_changed__suspended__applied_when_it_resumes() -> None:
    pair = _rank_changed_at("suspended", "suspended")
    pair.destination_dies()
    pair.settle()
    assert pair.outcome == RESUMED
    assert pair.source_rank == HIGH


@pytest.mark.parametrize(("column", "position"), IN_DOUBT)
def test_priority_changed__commit_in_doubt__queued_to_the_owner(column: str, position: str) -> None:
    pair = _rank_changed_at(column, position)
    pair.settle()
    rank = pair.destination_rank if pair.outcome == MOVED else pair.source_rank
    assert rank == HIGH


def test_priority_changed__committed__forwarded() -> None:
    _moves_with_its_rank(_rank_changed_at("committed", "committed"))


def test_priority_changed__committed__the_last_of_several_stays() -> None:
    """Messages may get lost or doubled both ways; an answer to the first change does not answer the
    second."""
    pair = at("committed", "committed")
    pair.doubles = lambda message: message.verb in (Verb.PRIORITY, Verb.PRIORITY_SET)
    pair.tell_source(src.PriorityChanged(3))
    pair.go_to(lambda pair: ("to_source", MoveMessage(Verb.PRIORITY_SET, 1, change=1)) in pair.todo)
    pair.loses = lambda message: message.verb is Verb.PRIORITY
    pair.tell_source(src.PriorityChanged(HIGH))
    pair.run()
    pair.loses = lambda _said: False
    _moves_with_its_rank(pair)
    pair.tell_destination(MoveMessage(Verb.PRIORITY, 1, rank=3, change=1))
    assert pair.destination_rank == HIGH, "the first one again, late"


# -- the drain that wanted the move is cancelled ---------------------------------------------


def _cancelled_at(column: str, position: str) -> Pair:
    pair = at(column, position)
    pair.tell_source(src.MoveCancelled("drain_cancelled"))
    pair.settle()
    return pair


@pytest.mark.parametrize("position", PRE_ALLOCATE)
def test_drain_cancelled__pre_allocate__kept(position: str) -> None:
    assert _cancelled_at("pre_allocate", position).outcome == KEPT


@pytest.mark.parametrize("position", COPYING)
def test_drain_cancelled__copying__kept(position: str) -> None:
    assert _cancelled_at("copying", position).outcome == KEPT


def test_drain_cancelled__suspended__finishes() -> None:
    assert _cancelled_at("suspended", "suspended").outcome == MOVED


@pytest.mark.parametrize(("column", "position"), IN_DOUBT)
def test_drain_cancelled__commit_in_doubt__decided_as_without_it(
    column: str, position: str
) -> None:
    alone = at(column, position)
    alone.settle()
    assert _cancelled_at(column, position).outcome == alone.outcome


def test_drain_cancelled__committed__moved() -> None:
    assert _cancelled_at("committed", "committed").outcome == MOVED
