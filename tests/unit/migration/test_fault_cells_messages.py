"""Live migration under faults, cell by cell: what a network may do (test_fault_cells_table)."""

from collections.abc import Callable

import pytest

from controller.core.migration import destination as dst
from controller.core.migration.destination import DestinationState
from controller.core.migration.protocol import DEFAULT_TIMING, MoveMessage, Say, Verb
from controller.core.migration.source import SourceState
from tests.unit.migration.move_pair import DESTINATION, KEPT, MOVED, POSITIONS, RESUMED, Pair, at

PRE_ALLOCATE, COPYING = list(POSITIONS["pre_allocate"]), list(POSITIONS["copying"])
IN_DOUBT = [
    (column, position)
    for column in ("commit_unheard", "commit_heard")
    for position in POSITIONS[column]
]
LONG_S = 200.0


def _any(_said: MoveMessage) -> bool:
    return True


def _none(_said: MoveMessage) -> bool:
    return False


def _once() -> Callable[[MoveMessage], bool]:
    """True for the first message of each verb."""
    known: set[Verb] = set()

    def first(message: MoveMessage) -> bool:
        new = message.verb not in known
        known.add(message.verb)
        return new

    return first


# -- the link stalls -----------------------------------------------------------------------


def _stalled_at(column: str, position: str, seconds: float) -> Pair:
    """The link holds everything back for so long, and then delivers it all."""
    pair = at(column, position)
    pair.stalled = True
    pair.pass_time(seconds)
    pair.stalled = False
    pair.settle()
    return pair


@pytest.mark.parametrize("position", PRE_ALLOCATE)
def test_link_stalls__pre_allocate__kept_at_the_deadline(position: str) -> None:
    assert _stalled_at("pre_allocate", position, LONG_S).outcome == KEPT


@pytest.mark.parametrize("position", COPYING)
def test_link_stalls__copying__kept(position: str) -> None:
    """Or, if there is room for the last stage already, resumed: it was out of the batch for no
    longer than the last copy may take."""
    pair = at("copying", position)
    pair.stalled = True
    pair.pass_time(LONG_S)
    assert pair.at_source == "batch"
    pair.stalled = False
    pair.settle()
    assert pair.outcome == (RESUMED if position == "suspending" else KEPT)


@pytest.mark.parametrize("position", COPYING)
def test_link_stalls__copying__goes_on_if_it_was_short(position: str) -> None:
    assert _stalled_at("copying", position, 1.0).outcome == MOVED


def test_link_stalls__suspended__resumed_at_the_deadline() -> None:
    pair = at("suspended", "suspended")
    pair.stalled = True
    pair.pass_time(DEFAULT_TIMING.suspended_timeout_s - 0.5)
    assert pair.at_source == "suspended"
    pair.pass_time(1)
    assert pair.at_source == "batch"
    pair.stalled = False
    pair.settle()
    assert pair.outcome == RESUMED


@pytest.mark.parametrize(("column", "position"), IN_DOUBT)
def test_link_stalls__commit_in_doubt__the_frontend_decides(column: str, position: str) -> None:
    pair = _stalled_at(column, position, LONG_S)
    heard = column == "commit_heard"
    assert pair.outcome == (MOVED if heard else RESUMED)


@pytest.mark.parametrize("position", ["applying", "applied"])
def test_link_stalls__commit_in_doubt__the_frontend_decides_before_it_hears(position: str) -> None:
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


def test_link_stalls__committed__moved() -> None:
    assert _stalled_at("committed", "committed", LONG_S).outcome == MOVED


# -- messages are lost -----------------------------------------------------------------------


def _lossy_at(column: str, position: str, loses: Callable[[MoveMessage], bool]) -> Pair:
    """What is under way is lost as well, if `loses` says so."""
    pair = at(column, position)
    pair.loses = loses
    for kind, what in list(pair.todo):
        if kind in ("to_source", "to_destination") and loses(what):
            pair.todo.remove((kind, what))
            pair.num_lost += 1
    return pair


@pytest.mark.parametrize("position", PRE_ALLOCATE)
def test_message_lost__pre_allocate__retried(position: str) -> None:
    pair = _lossy_at("pre_allocate", position, _once())
    pair.settle()
    assert pair.outcome == MOVED
    assert pair.num_lost > 0


@pytest.mark.parametrize("position", PRE_ALLOCATE)
def test_message_lost__pre_allocate__then_kept(position: str) -> None:
    pair = _lossy_at("pre_allocate", position, _any)
    pair.settle()
    assert pair.outcome == KEPT
    assert pair.now_s > DEFAULT_TIMING.lease_s


@pytest.mark.parametrize("position", COPYING)
def test_message_lost__copying__retried(position: str) -> None:
    pair = _lossy_at("copying", position, _once())
    pair.settle()
    assert pair.outcome == MOVED
    assert pair.num_lost > 0


@pytest.mark.parametrize("position", COPYING)
def test_message_lost__copying__then_kept(position: str) -> None:
    pair = _lossy_at("copying", position, _any)
    pair.pass_time(LONG_S)
    pair.loses = _none
    pair.settle()
    assert pair.outcome == (RESUMED if position == "suspending" else KEPT)


def test_message_lost__suspended__retried() -> None:
    pair = _lossy_at("suspended", "suspended", _once())
    pair.settle()
    assert pair.outcome == MOVED
    assert pair.num_lost > 0


def test_message_lost__suspended__then_resumed() -> None:
    pair = _lossy_at("suspended", "suspended", _any)
    pair.pass_time(LONG_S)
    assert pair.at_source == "batch"
    pair.loses = _none
    pair.settle()
    assert pair.outcome == RESUMED


@pytest.mark.parametrize(("column", "position"), IN_DOUBT)
def test_message_lost__commit_in_doubt__the_frontend_decides(column: str, position: str) -> None:
    pair = _lossy_at(column, position, _any)
    pair.pass_time(LONG_S)
    pair.loses = _none
    pair.settle()
    assert pair.outcome == (MOVED if column == "commit_heard" else RESUMED)


def test_message_lost__commit_in_doubt__commit_is_repeated() -> None:
    pair = _lossy_at("commit_unheard", "sent", _once())
    pair.settle()
    assert pair.outcome == MOVED
    assert len(pair.verbs(Verb.COMMIT)) > 1


@pytest.mark.parametrize("lost", [Verb.COMMITTED, Verb.ACKNOWLEDGED])
def test_message_lost__committed__acknowledged_again(lost: Verb) -> None:
    losing = _once()
    pair = at("commit_heard", "applying")
    pair.loses = lambda message: message.verb is lost and losing(message)
    pair.settle()
    assert pair.outcome == MOVED
    assert pair.num_lost == 1
    assert len(pair.verbs(Verb.COMMITTED)) > 1


# -- messages come twice ---------------------------------------------------------------------


def _doubled_at(column: str, position: str) -> Pair:
    pair = at(column, position)
    pair.doubles = _any
    for each in list(pair.todo):
        if each[0] in ("to_source", "to_destination"):
            pair.todo.append(each)
    pair.settle()
    assert pair.outcome == MOVED
    released = [type(each).__name__ for each in pair.source_did].count("Release")
    applied = [type(each).__name__ for each in pair.destination_did].count("Apply")
    assert (released, applied) == (1, 1)
    return pair


def _answers_twice_alike(pair: Pair, asked: MoveMessage, answer: MoveMessage | None) -> None:
    """And nothing but the answer comes of it."""
    assert pair.destination is not None
    expected = [] if answer is None else [Say(answer)]
    for _ in range(2):
        assert pair.destination.handle(asked, pair.now_s) == expected


@pytest.mark.parametrize("position", PRE_ALLOCATE)
def test_message_duplicated__pre_allocate__same_reply(position: str) -> None:
    _doubled_at("pre_allocate", position)
    pair = at("pre_allocate", "reserved")
    _answers_twice_alike(
        pair, MoveMessage(Verb.PRE_ALLOC, 0, 5), MoveMessage(Verb.PRE_ALLOCATED, 0)
    )


@pytest.mark.parametrize("position", COPYING)
def test_message_duplicated__copying__same_reply(position: str) -> None:
    _doubled_at("copying", position)
    pair = at("copying", "suspending")
    _answers_twice_alike(
        pair, MoveMessage(Verb.PRE_ALLOC, 1, 7), MoveMessage(Verb.PRE_ALLOCATED, 1)
    )
    _answers_twice_alike(pair, MoveMessage(Verb.PRE_ALLOC, 0, 5), None)


def test_message_duplicated__suspended__same_reply() -> None:
    pair = _doubled_at("suspended", "suspended")
    assert pair.source.state is SourceState.MIGRATED
    pair = at("suspended", "suspended")
    pair.tell_source(MoveMessage(Verb.PRE_ALLOCATED, 1))
    assert pair.source.state is SourceState.SUSPENDED


@pytest.mark.parametrize(
    ("column", "position"), [each for each in IN_DOUBT if each != ("commit_unheard", "fencing")]
)
def test_message_duplicated__commit_in_doubt__same_reply(column: str, position: str) -> None:
    _doubled_at(column, position)
    pair = at("commit_heard", "applied")
    _answers_twice_alike(
        pair, MoveMessage(Verb.COMMIT, 1, hop=1), MoveMessage(Verb.COMMITTED, 1, hop=1)
    )


def test_message_duplicated__committed__same_reply() -> None:
    pair = _doubled_at("committed", "committed")
    _answers_twice_alike(
        pair, MoveMessage(Verb.COMMIT, 1, hop=1), MoveMessage(Verb.COMMITTED, 1, hop=1)
    )
    _answers_twice_alike(pair, MoveMessage(Verb.ACKNOWLEDGED, 1), None)


def test_message_duplicated__after_an_abort__same_reply() -> None:
    pair = at("copying", "suspending")
    pair.tell_destination(MoveMessage(Verb.ABORT, 1, code="evicted"))
    for _ in range(2):
        _answers_twice_alike(pair, MoveMessage(Verb.ABORT, 1), MoveMessage(Verb.ABORTED, 1))
        _answers_twice_alike(pair, MoveMessage(Verb.END, 1), MoveMessage(Verb.ENDED, 1))
        refused = MoveMessage(Verb.REFUSED, 1, code="evicted")
        _answers_twice_alike(pair, MoveMessage(Verb.COMMIT, 1, hop=1), refused)
        pair.run_destination()
        assert pair.destination is not None
        assert pair.destination.state is DestinationState.ABORTED


# -- messages are late -----------------------------------------------------------------------


def _lease_over_at(column: str, position: str) -> Pair:
    """The destination heard nothing for a lease, of a source that does not know yet."""
    pair = at(column, position)
    pair.tell_destination(dst.LeaseExpired())
    pair.run_destination()
    assert pair.num_reserved == 0
    assert pair.destination is not None
    assert pair.destination.state is DestinationState.ABORTED
    return pair


def _refused_and_frees_nothing_more(pair: Pair, late: MoveMessage) -> None:
    before = len(pair.destination_did)
    pair.tell_destination(late)
    did = pair.destination_did[before:]
    assert did == [Say(MoveMessage(Verb.REFUSED, pair.stage, code="lease_expired"))]
    assert pair.num_reserved == 0


@pytest.mark.parametrize("position", ["reserving", "reserved"])
def test_message_late__pre_allocate__refused_and_nothing_allocated(position: str) -> None:
    pair = _lease_over_at("pre_allocate", position)
    _refused_and_frees_nothing_more(pair, MoveMessage(Verb.PRE_ALLOC, 0, 5))
    pair.settle()
    assert pair.outcome == KEPT


@pytest.mark.parametrize("position", ["copying", "next_stage", "next_stage_reserving"])
def test_message_late__copying__refused(position: str) -> None:
    pair = _lease_over_at("copying", position)
    _refused_and_frees_nothing_more(pair, MoveMessage(Verb.PRE_ALLOC, 1, 7))
    pair.settle()
    assert pair.outcome == KEPT


def test_message_late__suspended__refused_then_resumed() -> None:
    pair = _lease_over_at("suspended", "suspended")
    _refused_and_frees_nothing_more(pair, MoveMessage(Verb.PRE_ALLOC, 1, 7))
    pair.settle()
    assert pair.outcome == RESUMED


@pytest.mark.parametrize("position", ["lost_once", "fencing"])
def test_message_late__commit_in_doubt__refused_then_resumed(position: str) -> None:
    pair = _lease_over_at("commit_unheard", position)
    _refused_and_frees_nothing_more(pair, MoveMessage(Verb.COMMIT, 1, hop=1))
    pair.settle()
    assert pair.outcome == RESUMED
    assert dst.Apply not in [type(each) for each in pair.destination_did]


def test_message_late__committed__ignored() -> None:
    pair = at("committed", "committed")
    before = pair.source.state, len(pair.source_did)
    pair.tell_destination(MoveMessage(Verb.PRE_ALLOC, 1, 7))
    pair.tell_destination(MoveMessage(Verb.PRE_ALLOC, 0, 5))
    pair.tell_source(MoveMessage(Verb.PRE_ALLOCATED, 0))
    assert (pair.source.state, len(pair.source_did)) == before
    pair.settle()
    assert pair.outcome == MOVED
