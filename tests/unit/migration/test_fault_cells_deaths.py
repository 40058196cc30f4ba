"""Live migration under faults, cell by cell: which process dies, and when
(test_fault_cells_table)."""

import pytest

from controller.core.migration import destination as dst
from controller.core.migration.ownership import Epoch, Loss, Ownership
from controller.core.migration.protocol import DEFAULT_TIMING, IllegalMoveError, MoveMessage, Verb
from tests.unit.migration.move_pair import (
    DESTINATION,
    ENDED,
    KEPT,
    LOST,
    MOVED,
    POSITIONS,
    RESUMED,
    SOURCE,
    Pair,
    at,
)

PRE_ALLOCATE, COPYING = list(POSITIONS["pre_allocate"]), list(POSITIONS["copying"])
UNHEARD, HEARD = list(POSITIONS["commit_unheard"]), list(POSITIONS["commit_heard"])


def _source_died_at(column: str, position: str) -> Pair:
    pair = at(column, position)
    pair.source_dies()
    pair.settle()
    return pair


@pytest.mark.parametrize("position", PRE_ALLOCATE)
def test_source_dies__pre_allocate__replay_and_nothing_stays_reserved(position: str) -> None:
    assert _source_died_at("pre_allocate", position).outcome == LOST


@pytest.mark.parametrize("position", ["reserved"])
def test_source_dies__pre_allocate__lease_expires_where_nobody_says_so(position: str) -> None:
    pair = at("pre_allocate", position)
    pair.source_alive = False
    pair.todo.clear()
    pair.pass_time(DEFAULT_TIMING.lease_s - 0.5)
    assert pair.num_reserved > 0
    pair.pass_time(1)
    assert pair.num_reserved == 0
    pair.settle()


@pytest.mark.parametrize("position", COPYING)
def test_source_dies__copying__replay(position: str) -> None:
    assert _source_died_at("copying", position).outcome == LOST


def test_source_dies__suspended__replay() -> None:
    assert _source_died_at("suspended", "suspended").outcome == LOST


@pytest.mark.parametrize("position", UNHEARD)
def test_source_dies__commit_in_doubt__replay_if_commit_did_not_come(position: str) -> None:
    pair = _source_died_at("commit_unheard", position)
    assert pair.outcome == LOST
    pair.tell_destination(MoveMessage(Verb.COMMIT, 1, hop=1))
    assert not pair.at_destination, "its answer to the frontend was final"


@pytest.mark.parametrize("position", HEARD)
def test_source_dies__commit_in_doubt__moved_if_commit_came(position: str) -> None:
    assert _source_died_at("commit_heard", position).outcome == MOVED


def test_source_dies__commit_in_doubt__moved_if_commit_is_there_before_the_bytes() -> None:
    pair = at("commit_unheard", "sent")
    pair.go_to(lambda pair: pair.todo[0][0] == "bytes")
    pair.tell_destination(dst.SourceDied())
    pair.source_alive = False
    pair.tell_destination(dst.OwnerAsked())
    pair.run()
    pair.settle()
    assert pair.client_reads(DESTINATION, 1)


def test_source_dies__commit_in_doubt__its_late_words_give_the_request_to_nobody() -> None:
    """The frontend knows that the source is dead, and asks, when the source's last messages
    come: it takes tokens of that epoch, but no fence and no later epoch."""
    ownership: Ownership[str] = Ownership(SOURCE)
    ownership.announce(DESTINATION, Epoch(0, 1))
    assert ownership.lost(*SOURCE.key) is Loss.ASK
    assert ownership.fence(SOURCE, Epoch(0, 2)) is None
    assert ownership.offer(SOURCE, Epoch(0, 2), 0, 1, "later epoch") is None
    assert [each.item for each in ownership.offer(SOURCE, Epoch(0, 0), 0, 1, "0")] == ["0"]
    assert ownership.to_ask == (DESTINATION, Epoch(0, 1))
    assert ownership.moved(DESTINATION, Epoch(0, 1), 1)
    assert ownership.owner == DESTINATION
    ownership.check()


def test_source_dies__committed__moved() -> None:
    assert _source_died_at("committed", "committed").outcome == MOVED


# -- the destination -----------------------------------------------------------------------


def _destination_died_at(column: str, position: str) -> Pair:
    pair = at(column, position)
    pair.destination_dies()
    pair.settle()
    return pair


@pytest.mark.parametrize("position", PRE_ALLOCATE)
def test_destination_dies__pre_allocate__kept(position: str) -> None:
    assert _destination_died_at("pre_allocate", position).outcome == KEPT


@pytest.mark.parametrize("position", COPYING)
def test_destination_dies__copying__kept(position: str) -> None:
    assert _destination_died_at("copying", position).outcome == KEPT


def test_destination_dies__suspended__resumed() -> None:
    assert _destination_died_at("suspended", "suspended").outcome == RESUMED


@pytest.mark.parametrize("position", UNHEARD)
def test_destination_dies__commit_in_doubt__the_frontend_decides_then_resumed(
    position: str,
) -> None:
    pair = at("commit_unheard", position)
    pair.destination_dies()
    assert pair.at_source == "suspended", "not before the frontend reads nothing else"
    pair.settle()
    assert pair.outcome == RESUMED
    assert pair.source_hop == 2


def test_destination_dies__commit_in_doubt__resumed_if_it_was_not_heard_of() -> None:
    pair = at("commit_heard", "applying")
    pair.destination_dies()
    pair.settle()
    assert pair.outcome == RESUMED
    assert not pair.client_reads(DESTINATION, 1), "what it sent is late, and fenced"


def test_destination_dies__commit_in_doubt__lost_if_the_client_reads_it_already() -> None:
    """Tokens of its own may have been read: they cannot be computed again."""
    pair = at("commit_heard", "applied")
    pair.go_to(lambda pair: pair.ownership.owner == DESTINATION)
    pair.destination_dies()
    pair.settle()
    assert pair.outcome == LOST
    assert not pair.at_source


def test_destination_dies__commit_in_doubt__its_late_words_give_it_nothing() -> None:
    """What it sent comes when the frontend knows of its death: the source gets its fence."""
    ownership: Ownership[str] = Ownership(SOURCE)
    ownership.announce(DESTINATION, Epoch(0, 1))
    assert ownership.lost(*DESTINATION.key) is Loss.NONE
    assert not ownership.moved(DESTINATION, Epoch(0, 1), 0)
    assert ownership.offer(DESTINATION, Epoch(0, 1), 0, 1, "0") is None
    assert ownership.owner == SOURCE
    assert ownership.fence(SOURCE, Epoch(0, 2)) is True
    ownership.check()


def test_destination_dies__committed__replay() -> None:
    pair = at("committed", "committed")
    pair.go_to(lambda pair: pair.ownership.owner == DESTINATION)
    pair.destination_dies()
    pair.settle()
    assert pair.outcome == LOST


def test_destination_dies__committed__replay_if_its_frontend_had_not_heard_of_it_either() -> None:
    """The source has freed its copy, and nobody but the source knows that it moved."""
    pair = at("committed", "committed")
    assert any(kind == "moved_told" for kind, _ in pair.todo)
    pair.destination_dies()
    pair.settle()
    assert pair.outcome == LOST


# -- the global scheduler ------------------------------------------------------------------
# It wants moves and calls them off, and is told of their ends: no machine asks it anything.


def _goes_on_alone(column: str, position: str) -> None:
    pair = at(column, position)
    pair.settle()
    assert pair.outcome == MOVED


@pytest.mark.parametrize("position", PRE_ALLOCATE)
def test_global_scheduler_dies__pre_allocate__goes_on(position: str) -> None:
    _goes_on_alone("pre_allocate", position)


@pytest.mark.parametrize("position", COPYING)
def test_global_scheduler_dies__copying__goes_on(position: str) -> None:
    _goes_on_alone("copying", position)


def test_global_scheduler_dies__suspended__goes_on() -> None:
    _goes_on_alone("suspended", "suspended")


@pytest.mark.parametrize(
    ("column", "position"),
    [("commit_unheard", "sent"), ("commit_unheard", "lost_once")]
    + [("commit_heard", position) for position in HEARD],
)
def test_global_scheduler_dies__commit_in_doubt__goes_on(column: str, position: str) -> None:
    _goes_on_alone(column, position)


def test_global_scheduler_dies__committed__moved() -> None:
    _goes_on_alone("committed", "committed")


# -- blocks --------------------------------------------------------------------------------


@pytest.mark.parametrize("position", ["planning", "asking", "reserving"])
def test_destination_out_of_blocks__pre_allocate__kept(position: str) -> None:
    pair = at("pre_allocate", position)
    pair.no_blocks_from_stage = 0
    pair.settle()
    assert pair.outcome == KEPT
    assert pair.source.code == "no_blocks"


@pytest.mark.parametrize("position", ["copying", "sent", "next_stage", "next_stage_reserving"])
def test_destination_out_of_blocks__copying__kept_and_all_stages_freed(position: str) -> None:
    pair = at("copying", position)
    assert pair.num_reserved == 5
    pair.no_blocks_from_stage = 1
    pair.settle()
    assert pair.outcome == KEPT
    assert pair.num_reserved == 0


def test_destination_out_of_blocks__suspended__resumed() -> None:
    """It has all it needs by then; whatever makes it refuse, the request goes on."""
    pair = at("suspended", "suspended")
    pair.tell_source(MoveMessage(Verb.REFUSED, 1, code="no_blocks"))
    pair.settle()
    assert pair.outcome == RESUMED


@pytest.mark.parametrize("position", ["sent", "lost_once"])
def test_destination_out_of_blocks__commit_in_doubt__impossible(position: str) -> None:
    """COMMIT asks for no block, and nothing else does from then on."""
    pair = at("commit_unheard", position)
    pair.no_blocks_from_stage = 0
    before = len(pair.destination_did)
    pair.settle()
    assert pair.outcome == MOVED
    asked = [type(each) for each in pair.destination_did[before:]]
    assert asked.count(dst.Apply) == 1
    assert dst.Reserve not in asked


def test_destination_out_of_blocks__commit_in_doubt__no_such_event_while_it_is_applied() -> None:
    pair = at("commit_heard", "applying")
    with pytest.raises(IllegalMoveError):
        pair.tell_destination(dst.NotReserved("no_blocks"))
    pair.settle()
    assert pair.outcome == MOVED


def test_destination_out_of_blocks__committed__is_the_engines_business() -> None:
    """It evicts a request there; the move is over and hears nothing of it."""
    pair = at("committed", "committed")
    pair.no_blocks_from_stage = 0
    pair.evict()
    before = len(pair.source_did)
    pair.settle()
    assert pair.outcome == MOVED
    assert pair.source_did[before:] == []


def test_a_client_that_left_is_not_an_error_when_an_instance_dies_later() -> None:
    pair = at("copying", "copying")
    pair.client_leaves()
    pair.source_dies()
    pair.settle()
    assert pair.outcome == ENDED
