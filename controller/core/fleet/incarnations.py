"""The state machine that numbers the processes of one member. Each new process gets the next
number, its incarnation, and the machine knows which incarnations count as dead.

    NEW     This controller has not heard from any process of the member.
    ALIVE   Its last process says Hello, or did so last.
    DEAD    Its last process is gone, or was taken for dead. In the second case it is `fenced` until
            its engine reports again, as it may be alive.

    state        event                next     instructions
    NEW, DEAD    Hello of another     ALIVE    Greet: a new incarnation
                 process (its nonce)
    ALIVE        the same             ALIVE    Died, Greet: it took the place of the one before
    DEAD         Hello of the last    ALIVE    Greet: a new incarnation, which drops what it ran,
                 process                       as its old one stays dead
    ALIVE        the same             ALIVE    Greet again, if it does not name its present
                                               incarnation, or asks for a greeting. If it still
                                               names an older one, the greeting that told it to
                                               drop its work may have been lost
    ALIVE        Gone, TakenForDead   DEAD
    ALIVE, DEAD  Reported             the same

Each incarnation is one higher than the last. A new controller adopts the incarnation that a process
names, except for one that an earlier controller took for dead or gave a successor.

At the end of the file: how soon a process that died at its start is started again, and when it is
given up. The Ray adapter uses this rule, and `up` reports it for a start that failed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class LastIncarnation(NamedTuple):
    """The latest incarnation of a member that a controller gave. `alive`: whether no controller has
    taken it for dead."""

    incarnation: int
    alive: bool


NO_INCARNATION = LastIncarnation(0, alive=False)


@dataclass(frozen=True, slots=True)
class Hello:
    """A Hello came from the process with this nonce. `named`: the incarnation that the process
    gives as its own; 0: none yet. `asks`: the process wants to be greeted even if nothing has
    changed."""

    nonce: str
    named: int
    asks: bool = False


@dataclass(frozen=True, slots=True)
class Gone:
    """The process is gone, or the connection to it is closed."""


@dataclass(frozen=True, slots=True)
class TakenForDead:
    """The process is silent and is taken for dead, although it may be alive."""


@dataclass(frozen=True, slots=True)
class Reported:
    """The process's engine makes progress."""


Event = Hello | Gone | TakenForDead | Reported


@dataclass(frozen=True, slots=True)
class Died:
    """This incarnation is dead, because another process took the place of its process."""

    incarnation: int


@dataclass(frozen=True, slots=True)
class Greet:
    """Tell the process which incarnation it is. `drops`: the process has to drop the requests that
    it ran as an earlier incarnation, unless it has been told so already."""

    incarnation: int
    drops: bool


def has_to_drop(known: int, greeted: int, *, drops: bool) -> bool:
    """Whether a process that is greeted now has to drop what it runs. `known`: the incarnation that
    the process knows as its own; 0: none yet. A greeting may be repeated. Then the process must not
    drop anything, because it may have got requests as that incarnation since the first greeting."""
    return drops and greeted != known


class Incarnations:
    """The incarnations of one member. `before`: the latest incarnation that an earlier controller
    gave."""

    __slots__ = ("_before", "alive", "fenced", "incarnation", "nonce", "num_restarts")

    def __init__(self, before: LastIncarnation = NO_INCARNATION) -> None:
        self._before = before
        self.incarnation = 0
        """The incarnation of the latest process; 0 exactly while NEW. It only grows."""
        self.nonce = ""
        """The nonce of the latest process; empty exactly while NEW."""
        self.alive = False
        self.fenced = False
        """Whether the latest process was taken for dead and its engine has not reported since. The
        process may already be `alive` again, because its event loop says Hello."""
        self.num_restarts = 0

    def handle(self, event: Event) -> Sequence[Died | Greet]:
        """Takes one event in; returns what to do now, in order. Mutates."""
        match event:
            case Hello():
                return self._hello(event)
            case Gone() if self.alive:
                self.alive = self.fenced = False
            case TakenForDead() if self.alive:
                self.alive, self.fenced = False, True
            case Reported():
                self.fenced = False
        return ()

    def _hello(self, hello: Hello) -> Sequence[Died | Greet]:
        told: list[Died | Greet] = []
        if self.nonce != hello.nonce:
            if self.alive:
                told.append(Died(self.incarnation))
            self.num_restarts += self.nonce != ""
            self.incarnation, self.fenced = self._next(hello.named), False
            told.append(Greet(self.incarnation, hello.named not in (0, self.incarnation)))
        elif not self.alive:
            self.incarnation += 1
            told.append(Greet(self.incarnation, drops=True))
        # the Greet is still under way, or was lost
        elif self.incarnation != hello.named or hello.asks:
            told.append(Greet(self.incarnation, hello.named not in (0, self.incarnation)))
        self.nonce, self.alive = hello.nonce, True
        return told

    def _next(self, named: int) -> int:
        if self.incarnation:
            return self.incarnation + 1
        last = self._before
        is_last = named == last.incarnation and last.alive
        if named and (is_last or named > last.incarnation):
            return named  # the process started before this controller
        return last.incarnation + 1

    def check(self) -> None:
        """Raises AssertionError if an invariant is broken."""
        assert bool(self.nonce) == bool(self.incarnation), "an incarnation without a process"
        assert self.nonce or not (self.alive or self.fenced), "nobody was heard of, and lives"
        assert self.incarnation == 0 or self.incarnation >= self._before.incarnation


# -- how soon a process is started again -----------------------------------------------------------


MAX_FAILED_STARTS = 4
"""How many starts in a row may fail. Further attempts help only if the cause was temporary, for
example memory that another process held."""
FIRST_DELAY_S = 0.5
FACTOR = 3.0
MAX_DELAY_S = 30.0


def delay_s(num_failed: int) -> float:
    """How many seconds to wait before the next start, after `num_failed` failed starts in a row."""
    if num_failed == 0:
        return 0.0
    exponent = min(num_failed - 1, MAX_FAILED_STARTS)  # a larger exponent may overflow
    return min(MAX_DELAY_S, FIRST_DELAY_S * FACTOR**exponent)


def is_given_up(num_failed: int, *, has_served: bool) -> bool:
    """Whether no further start is tried. An instance that has served before is started again for
    ever, because the cause may be temporary, for example a full machine."""
    return num_failed >= MAX_FAILED_STARTS and not has_served
