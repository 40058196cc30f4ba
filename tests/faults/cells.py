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

Stopped = tuple[str, str]
"""Outcomes, and until when."""


@dataclass(frozen=True)
class Place:
    """`killed` and `stopped`: by victim, None where the same is seen at another place. More than
    one letter where messages of two processes race."""

    phase: str
    side: str
    state: str
    killed: tuple[str | None, ...]
    stopped: tuple[Stopped | None, ...]
    held: tuple[str, str] | None = None
    """A side and state where the move is held before it comes to this place."""

    @property
    def name(self) -> str:
        return f"{self.side}-{self.state}"


GOES_ON, OVER = ("M", "moved"), ("M", "over")

PLACES = (
    Place(
        "pre-allocate",
        "source",
        "pre_allocating",
        ("P", "K", "M", "X"),
        (("KM", "went_on"), ("K", "failed"), GOES_ON, OVER),
    ),
    Place(
        "pre-allocate",
        "destination",
        "reserving",
        ("P", "K", None, "X"),
        (("K", "freed"), ("K", "failed"), None, OVER),
    ),
    Place(
        "copying",
        "source",
        "copying",
        ("P", "K", "M", "X"),
        (("K", "freed"), ("K", "failed"), GOES_ON, OVER),
    ),
    Place(
        "copying",
        "destination",
        "receiving",
        ("P", "K", None, "X"),
        (("K", "freed"), ("K", "failed"), None, None),
    ),
    Place(  # of the first stage, or of the last: bytes and messages take different ways
        "copying",
        "destination",
        "holding",
        ("P", "KR", None, None),
        (("KR", "freed"), ("KR", "failed"), None, None),
    ),
    Place(
        "suspended",
        "source",
        "suspended",
        ("P", "R", "M", "X"),
        (("R", "freed"), ("R", "failed"), GOES_ON, OVER),
    ),
    Place(
        "in doubt",
        "source",
        "committing",
        ("P", "R", "M", "X"),
        (("R", "freed"), ("R", "failed"), GOES_ON, OVER),
    ),
    Place(
        "in doubt",
        "destination",
        "applying",
        ("M", "R", "M", "X"),
        (GOES_ON, ("R", "failed"), None, OVER),
    ),
    Place(
        "in doubt",
        "source",
        "fencing",
        ("M", "R", "MR", "X"),
        (GOES_ON, ("R", "failed"), ("MR", "over"), ("MR", "settled")),
        held=("destination", "applying"),
    ),
    Place(  # what it does there nobody else can come between
        "committed",
        "destination",
        "committed",
        (None, "R", None, None),
        (None, ("R", "failed"), None, None),
    ),
    Place(
        "committed",
        "source",
        "migrated",
        ("M", "P", "M", "X"),
        (GOES_ON, ("M", "went_on"), GOES_ON, OVER),
    ),
)

QUEUED_TOO = ("source-suspended", "source-committing", "destination-applying", "source-migrated")
"""Places where a queued request is moved as well: it passes those before in no time."""


@dataclass(frozen=True)
class Cell:
    place: Place
    victim: str
    signal: str
    outcomes: str
    until: str = ""
    queued: bool = False

    @property
    def name(self) -> str:
        queued = "-queued" if self.queued else ""
        return f"{self.victim}-{self.signal}-{self.place.name}{queued}"

    @property
    def waits_for_a_timeout(self) -> bool:
        return self.until in ("freed", "failed") or self.place.held is not None


def _cells() -> list[Cell]:
    found = []
    for index, victim in enumerate(VICTIMS):
        for place in PLACES:
            killed, stopped = place.killed[index], place.stopped[index]
            if killed is not None:
                found.append(Cell(place, victim, "SIGKILL", killed))
            if stopped is not None:
                found.append(Cell(place, victim, "SIGSTOP", *stopped))
    return found


CELLS = _cells()
QUEUED_CELLS = [
    Cell(cell.place, cell.victim, cell.signal, cell.outcomes, cell.until, queued=True)
    for cell in CELLS
    if cell.place.name in QUEUED_TOO and cell.victim in ("source", "destination")
]


def parameters(ordinary: Sequence[str] = ()) -> list[Any]:
    """All cells for a test. `make test` runs the ordinary ones, in this order, and `make test-full`
    the others after them."""
    every = {cell.name: cell for cell in (*CELLS, *QUEUED_CELLS)}
    return [
        *(pytest.param(every.pop(name), id=name) for name in ordinary),
        *(pytest.param(cell, id=name, marks=pytest.mark.full) for name, cell in every.items()),
    ]
