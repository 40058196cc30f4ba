"""The cells of the migration fault table that the fault of a process can make, and what each must
come to.

A cell is a place in a move, a victim and a signal. The place is a state of one side's machine; the
fault comes when the machine has entered it and has not yet done anything there. Outcomes:

    K   it never stopped at the source          R   it was stopped there and runs there again
    M   it runs at the destination              P   it is replayed by whichever instance is left
    X   its client is gone: nobody has it

A stopped process is continued when the others have done this:

    went_on   other requests got some tokens    failed    the source has given the move up
    freed     the destination holds nothing     moved     the client has tokens of the destination
    over      the source's move is over         settled   the destination has committed
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

VICTIMS = ("source", "destination", "controller", "frontend")
TABLE = """
source       pre_allocating   P K M X    KM-went_on K-failed   M-moved  M-over
destination  reserving        P K - X    K-freed    K-failed   -        M-over
source       copying          P K M X    K-freed    K-failed   M-moved  M-over
destination  receiving        P K - X    K-freed    K-failed   -        -
destination  holding          MP KR - -  KRM-freed  KR-failed  -        -
source       suspended        P R M X    R-freed    R-failed   M-moved  M-over
source       committing       P R M X    R-freed    R-failed   M-moved  M-over
destination  applying         M R M X    M-moved    R-failed   -        M-over
source       fencing          M R MR X   M-moved    R-failed   MR-over  MR-settled
destination  committed        - R - -    -          R-failed   -        -
source       migrated         M P M X    M-moved    M-went_on  M-moved  M-over
"""
"""A place in a line, with the outcomes by victim if it is killed, then if it is stopped, and until
when. None where the same is seen at another place, or, when it has committed, where nobody can come
between. More than one letter where messages of two processes race. `holding` is that of the first
stage, or of the last, where COMMIT may have come: bytes and messages take different ways."""


@dataclass(frozen=True)
class Cell:
    side: str
    state: str
    victim: str
    signal: str
    outcomes: str
    until: str = ""

    @property
    def place(self) -> str:
        return f"{self.side}-{self.state}"

    @property
    def name(self) -> str:
        return f"{self.victim}-{self.signal}-{self.place}"

    @property
    def held(self) -> tuple[str, str] | None:
        """A side and state where the move is held before it comes to its place."""
        return ("destination", "applying") if self.state == "fencing" else None

    @property
    def waits_for_a_timeout(self) -> bool:
        return self.until in ("freed", "failed") or self.held is not None


def _cells() -> dict[str, Cell]:
    found = []
    for line in TABLE.strip().splitlines():
        side, state, *outcomes = line.split()
        faults = [(v, signal) for signal in ("SIGKILL", "SIGSTOP") for v in VICTIMS]
        for fault, outcome in zip(faults, outcomes, strict=True):
            if outcome != "-":
                found.append(Cell(side, state, *fault, *outcome.split("-")))
    return {cell.name: cell for cell in found}


def parameters(ordinary: Sequence[str] = ()) -> list[Any]:
    """All cells for a test. `make test` runs the ordinary ones, in this order, and `make test-full`
    the others after them."""
    every = _cells()
    return [
        *(pytest.param(every.pop(name), id=name) for name in ordinary),
        *(pytest.param(cell, id=name, marks=pytest.mark.full) for name, cell in every.items()),
    ]
