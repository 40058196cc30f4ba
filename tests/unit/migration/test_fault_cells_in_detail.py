"""Live migration under faults: deaths, blocks, and what happens to the request, beyond the outcome
(test_fault_cells_table)."""

import pytest

from controller.core.migration import destination as dst
from controller.core.migration import source as src
from controller.core.migration.destination import DestinationState
from controller.core.migration.ownership import Epoch, Loss, Ownership
from controller.core.migration.protocol import (
    DEFAULT_TIMING,
    IllegalMoveError,
    MoveMessage,
    Verb,
)
from controller.core.migration.source import SourceState
from tests.unit.migration.move_pair import (
    DESTINATION,
    ENDED,
    KEPT,
    LOST,
    MOVED,
    POSITIONS,
    RESUMED,
    SOURCE,
    at,
)

COPYING = list(POSITIONS["copying"])
IN_DOUBT = [
    (column, position)
    for column in ("commit_unheard", "commit_heard")
    for position in POSITIONS[column]
]

# -- deaths --------------------------------------------------------------------------------


def test_the_lease_expires_where_nobody_says_that_the_source_died() -> None:
    pair = at("pre_allocate", "reserved")
    pair.source_alive = False
    pair.todo.clear()
    pair.pass_time(DEFAULT_TIMING.lease_s - 0.5)
    assert pair.num_reserved > 0
    pair.pass_time(1)
    assert pair.num_reserved == 0
    pair.settle()


@pytest.mark.parametrize("position", POSITIONS["commit_unheard"])
def test_a_commit_that_comes_after_the_source_s_death_was_told_moves_nothing(position: str) -> None:
    pair = at("commit_unheard", position)
    pair.source_dies()
    pair.settle()
    pair.tell_destination(MoveMessage(Verb.COMMIT, 1, hop=1))
    assert not pair.at_destination, "its answer to the frontend was final"


def test_the_source_dies_when_its_commit_is_there_before_the_bytes() -> None:
    pair = at("commit_unheard", "sent")
    pair.go_to(lambda pair: pair.todo[0][0] == "bytes")
    pair.tell_destination(dst.SourceDied())
    pair.source_alive = False
    pair.tell_destination(dst.OwnerAsked())
    pair.run()
    pair.settle()
    assert pair.client_reads(DESTINATION, 1)


def test_the_late_words_of_a_dead_source_give_the_request_to_nobody() -> None:
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


@pytest.mark.parametrize("position", POSITIONS["commit_unheard"])
def test_the_destination_dies_in_doubt_and_the_frontend_decides(position: str) -> None:
    pair = at("commit_unheard", position)
    pair.destination_dies()
    assert pair.at_source == "suspended", "not before the frontend reads nothing else"
    pair.settle()
    assert (pair.outcome, pair.source_hop) == (RESUMED, 2)
    assert not pair.client_reads(DESTINATION, 1), "what it sent is late, and fenced"


@pytest.mark.parametrize("where", [("commit_heard", "applied"), ("committed", "committed")])
def test_what_the_client_reads_of_a_destination_dies_with_it(where: tuple[str, str]) -> None:
    """Tokens of its own may have been read: they cannot be computed again."""
    pair = at(*where).go_to(lambda pair: pair.ownership.owner == DESTINATION)
    pair.destination_dies()
    pair.settle()
    assert pair.outcome == LOST
    assert not pair.at_source


# -- blocks --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "position", "stage"),
    [
        ("pre_allocate", "planning", 0),
        ("pre_allocate", "reserving", 0),
        ("copying", "copying", 1),
        ("copying", "next_stage_reserving", 1),
    ],
)
def test_a_destination_without_blocks_frees_all_stages(
    column: str, position: str, stage: int
) -> None:
    pair = at(column, position)
    pair.no_blocks_from_stage = stage
    pair.settle()
    assert (pair.outcome, pair.source.code) == (KEPT, "no_blocks")
    assert pair.num_reserved == 0


def test_a_refusal_while_the_request_is_stopped_resumes_it() -> None:
    pair = at("suspended", "suspended")
    pair.tell_source(MoveMessage(Verb.REFUSED, 1, code="no_blocks"))
    pair.settle()
    assert pair.outcome == RESUMED


def test_a_commit_asks_for_no_block() -> None:
    pair = at("commit_unheard", "lost_once")
    pair.no_blocks_from_stage = 0
    before = len(pair.destination_did)
    pair.settle()
    assert pair.outcome == MOVED
    asked = [type(each) for each in pair.destination_did[before:]]
    assert asked.count(dst.Apply) == 1
    assert dst.Reserve not in asked


# -- the request ends, or is evicted -------------------------------------------------------


@pytest.mark.parametrize("position", COPYING)
def test_what_was_copied_of_a_request_that_finishes_or_is_evicted_is_void(position: str) -> None:
    finishing, evicted = at("copying", position), at("copying", position)
    finishing.request_finishes()
    evicted.evict()
    for pair, state in ((finishing, SourceState.ENDED), (evicted, SourceState.STAYED)):
        pair.settle()
        assert pair.source.state is state
        assert pair.verbs(Verb.ABORT, Verb.ABORTED) == [Verb.ABORT, Verb.ABORTED]
        assert pair.destination is not None
        assert pair.destination.state is DestinationState.ABORTED
    assert evicted.source.code == "evicted"


def test_a_request_that_finishes_on_its_new_owner_is_freed_at_the_source() -> None:
    pair = at("commit_heard", "applied")
    pair.go_to(lambda pair: not any(kind == "moved_told" for kind, _ in pair.todo))
    pair.request_finishes()
    pair.settle()
    assert (pair.outcome, pair.source.state) == (ENDED, SourceState.MIGRATED)


@pytest.mark.parametrize(("column", "position"), [("suspended", "suspended"), *IN_DOUBT])
def test_a_stopped_request_cannot_be_evicted(column: str, position: str) -> None:
    pair = at(column, position)
    state = pair.source.state
    with pytest.raises(IllegalMoveError):
        pair.evict()
    assert pair.source.state is state
    pair.settle()
    assert pair.outcome in (MOVED, RESUMED)


# -- its client leaves ---------------------------------------------------------------------


@pytest.mark.parametrize(("column", "position"), IN_DOUBT)
def test_a_late_commit_does_not_bring_back_a_request_whose_client_left(
    column: str, position: str
) -> None:
    pair = at(column, position)
    pair.client_leaves()
    pair.settle()
    assert pair.source.state is SourceState.ENDED
    pair.tell_destination(MoveMessage(Verb.COMMIT, 1, hop=1))
    pair.run()
    assert not pair.at_destination


@pytest.mark.parametrize(("column", "position"), [*IN_DOUBT, ("committed", "committed")])
def test_the_source_alone_tells_the_destination_that_the_client_left(
    column: str, position: str
) -> None:
    """The frontend did not know of the destination, and the link loses all for minutes."""
    pair = at(column, position)
    pair.loses = lambda _said: True
    pair.client = "left"
    pair.engine_aborts_at(SOURCE)
    pair.pass_time(120)
    pair.loses = lambda _said: False
    pair.settle()
    assert pair.outcome == ENDED
    came = (column, position) not in (
        ("commit_unheard", "lost_once"),
        ("commit_unheard", "fencing"),
    )
    assert (dst.EndRequest() in pair.destination_did) == came


# -- its priority changes ------------------------------------------------------------------


def test_a_suspended_request_gets_its_new_rank_when_it_resumes() -> None:
    pair = at("suspended", "suspended")
    pair.tell_source(src.PriorityChanged(1))
    assert pair.source_rank == 0, "it is in no queue and no batch"
    pair.destination_dies()
    pair.settle()
    assert (pair.outcome, pair.source_rank) == (RESUMED, 1)


def test_the_last_of_several_new_ranks_stays() -> None:
    """Messages may get lost or doubled both ways; an answer to the first change does not answer the
    second."""
    pair = at("committed", "committed")
    pair.doubles = lambda message: message.verb in (Verb.PRIORITY, Verb.PRIORITY_SET)
    pair.tell_source(src.PriorityChanged(3))
    pair.go_to(lambda pair: ("to_source", MoveMessage(Verb.PRIORITY_SET, 1, change=1)) in pair.todo)
    pair.loses = lambda message: message.verb is Verb.PRIORITY
    pair.tell_source(src.PriorityChanged(1))
    pair.run()
    pair.loses = lambda _said: False
    pair.settle()
    assert (pair.outcome, pair.destination_rank) == (MOVED, 1)
    pair.tell_destination(MoveMessage(Verb.PRIORITY, 1, rank=3, change=1))
    assert pair.destination_rank == 1, "the first one again, late"
