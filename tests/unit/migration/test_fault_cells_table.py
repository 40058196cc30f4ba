"""The table of faults of live migration: what comes of each fault at each position of a move.

    kept     goes on at the source; the destination frees its blocks
    resumed  the same after the request was stopped, with a newer hop
    moved    goes on at the destination; the source frees its blocks
    ended    over, and nothing is held on either side
    lost     on neither side: a replay, or one error

A cell is the outcome at all positions of its column (`POSITIONS`), or the usual outcome and those
of some positions. An empty cell cannot happen, or is in one of the files test_fault_cells_*, which
look at more than the outcome.
"""

from collections.abc import Callable, Iterator

import pytest

from controller.core.migration import source as src
from controller.core.migration.protocol import DEFAULT_TIMING, MoveMessage, Verb
from tests.unit.migration.move_pair import POSITIONS, RESUMED, Pair, at

TABLE = """
fault                | pre_allocate | copying                 | suspended | commit_unheard         | commit_heard | committed
source dies          | lost         | lost                    | lost      | lost                   | moved        | moved
destination dies     | kept         | kept                    | resumed   | resumed                | resumed      | lost
request finishes     | ended        | ended                   | ended     |                        |              | ended
evicted              | kept         | kept                    |           |                        |              | moved
client leaves        | ended        | ended                   | ended     | ended                  | ended        | ended
global scheduler dies| moved        | moved                   | moved     | moved, fencing resumed | moved        | moved
drain cancelled      | kept         | kept                    | moved     | moved, fencing resumed | moved        | moved
priority changes     | moved        | moved                   | moved     | moved, fencing resumed | moved        | moved
link stalls          | kept         | kept, suspending resumed| resumed   | resumed                | moved        | moved
link stalls shortly  | moved        | moved                   | moved     | moved, fencing resumed | moved        | moved
all messages lost    | kept         | kept, suspending resumed| resumed   | resumed                | moved        | moved
first messages lost  | moved        | moved                   | moved     | moved, fencing resumed | moved        | moved
messages doubled     | moved        | moved                   | moved     | moved, fencing resumed | moved        | moved
"""  # noqa: E501
LONG_S = 200.0
HIGH = 1


def stall(pair: Pair, seconds: float) -> None:
    """The link holds everything back for so long, and then delivers it all."""
    pair.stalled = True
    pair.pass_time(seconds)
    pair.stalled = False


def lose(pair: Pair, loses: Callable[[MoveMessage], bool]) -> None:
    """What is under way is lost as well, if `loses` says so."""
    pair.loses = loses
    for kind, what in list(pair.todo):
        if kind in ("to_source", "to_destination") and loses(what):
            pair.todo.remove((kind, what))
            pair.num_lost += 1


def _lose_all_for_long(pair: Pair) -> None:
    lose(pair, lambda _said: True)
    pair.pass_time(LONG_S)
    pair.loses = lambda _said: False


def once() -> Callable[[MoveMessage], bool]:
    """True for the first message of each verb."""
    known: set[Verb] = set()

    def first(message: MoveMessage) -> bool:
        new = message.verb not in known
        known.add(message.verb)
        return new

    return first


def _double(pair: Pair) -> None:
    pair.doubles = lambda _said: True
    pair.todo.extend([each for each in pair.todo if each[0] in ("to_source", "to_destination")])


FAULTS: dict[str, Callable[[Pair], object]] = {
    "source dies": Pair.source_dies,
    "destination dies": Pair.destination_dies,
    "request finishes": Pair.request_finishes,
    "evicted": Pair.evict,
    "client leaves": Pair.client_leaves,
    "global scheduler dies": lambda _: None,  # no machine asks it anything
    "drain cancelled": lambda pair: pair.tell_source(src.MoveCancelled("drain_cancelled")),
    "priority changes": lambda pair: pair.tell_source(src.PriorityChanged(HIGH)),
    "link stalls": lambda pair: stall(pair, LONG_S),
    "link stalls shortly": lambda pair: stall(pair, 0.5),
    "all messages lost": _lose_all_for_long,
    "first messages lost": lambda pair: lose(pair, once()),
    "messages doubled": _double,
}


def _cells() -> Iterator[tuple[str, str, str, str]]:
    (_, *columns), *rows = [
        [cell.strip() for cell in line.split("|")] for line in TABLE.strip().splitlines()
    ]
    assert columns == list(POSITIONS)
    for fault, *cells in rows:
        for column, cell in zip(columns, cells, strict=True):
            usual, *others = cell.split(", ")
            outcomes = dict.fromkeys(POSITIONS[column], usual)
            outcomes.update(other.split() for other in others)
            for position, outcome in outcomes.items():
                if outcome:
                    yield fault, column, position, outcome


@pytest.mark.parametrize(("fault", "column", "position", "outcome"), list(_cells()))
def test_what_comes_of_it(fault: str, column: str, position: str, outcome: str) -> None:
    pair = at(column, position)
    FAULTS[fault](pair)
    pair.settle()
    assert pair.outcome == outcome
    did = [type(each) for each in pair.source_did]
    assert did.count(src.Release) == (src.Release in did)
    if fault == "priority changes":
        rank = pair.source_rank if outcome == RESUMED else pair.destination_rank
        assert rank == HIGH
        assert pair.source_rank == HIGH or column not in ("pre_allocate", "copying")
    if fault == "all messages lost" and outcome != "moved":
        assert pair.now_s > DEFAULT_TIMING.lease_s
