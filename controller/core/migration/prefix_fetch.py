"""The fetch of a prefix, as its destination sees it: before a request is computed, its instance
copies from another one what that one has cached of the prompt.

    RESERVING   the engine reserves blocks for the part that it lacks
    COPYING     the source sends this part, or what it still has of it
    GIVING_UP   the copy takes too long, the source is gone, or the client has left; the blocks
                cannot be used before nothing touches them any more
    STORING     the engine puts what has arrived into its prefix cache, and frees the rest
    OVER        the request has entered the engine, which finds the blocks, or it has left

    state       event                     next        instructions
    -           start                     RESERVING   Reserve
    RESERVING   Reserved, with blocks     COPYING     Copy
    RESERVING   Reserved, without         OVER        Enter
    RESERVING   RequestLeft               RESERVING
    COPYING     Copied                    STORING     Store
    COPYING     CopyFailed                STORING     Store nothing
    COPYING     Ticked after the limit,   GIVING_UP   CancelCopy
                RequestLeft
    GIVING_UP   Copied                    STORING     Store
    GIVING_UP   CopyFailed                STORING     Store nothing
    STORING     Stored                    OVER        Enter, unless the request has left

A fetch that fails in any way costs time and nothing else: the engine computes what it lacks. Other
events change nothing.
"""

from dataclasses import dataclass
from enum import StrEnum

from controller.core.value import value

PATIENCE_S = 0.25
"""Beyond its limit a fetch may take this much longer: a copy waits for steps of both engines, and a
short fetch must not fail for that."""


class FetchState(StrEnum):
    RESERVING = "reserving"
    COPYING = "copying"
    GIVING_UP = "giving-up"
    STORING = "storing"
    OVER = "over"


class FetchOutcome(StrEnum):
    FETCHED = "fetched"
    """At least one block was copied."""
    HAD_IT = "had-it"
    """The instance lacked nothing of the prefix."""
    NO_ROOM = "no-room"
    """The instance had no blocks free for it."""
    NOT_THERE = "not-there"
    """The source had nothing more of the prefix."""
    FAILED = "failed"
    """The link failed, or the source is gone."""
    LATE = "late"
    """To compute the prefix is sooner."""
    LEFT = "left"
    """The client left."""


@value
class Reserved:
    """`num_blocks`: how many blocks were reserved. If there are none, `num_lacking` says whether
    the engine had no room for so many blocks, or lacks nothing."""

    num_blocks: int
    num_lacking: int = 0


@value
class Copied:
    """The first `num_blocks` of the reserved blocks have arrived, and no more will."""

    num_blocks: int


@value
class CopyFailed:
    """Nothing has arrived that could be used."""


@value
class Stored:
    """The engine has done what `Store` says."""


@value
class RequestLeft:
    """The request is not to enter the engine: its client left, or the instance was fenced."""


@value
class Ticked:
    """Time has passed."""


Event = Reserved | Copied | CopyFailed | Stored | RequestLeft | Ticked


@value
class Reserve:
    """Hold what the engine has of the prefix, and reserve blocks for the rest."""


@value
class Copy:
    """Ask the source for what the engine lacks."""


@value
class CancelCopy:
    """Give the copy up. Copied or CopyFailed follows when nothing touches the blocks any more."""


@value
class Store:
    """Cache the first `num_blocks` of the reserved blocks, and free the others."""

    num_blocks: int


@value
class Enter:
    """Hand the request to the engine."""


Instruction = Reserve | Copy | CancelCopy | Store | Enter


@dataclass(frozen=True, slots=True)
class FetchView:
    """A fetch, for people and for the request's history."""

    state: FetchState
    outcome: FetchOutcome | None
    num_blocks: int
    """The blocks that were copied."""
    took_s: float


class PrefixFetch:
    """`limit_s`: how long it would take to compute the prefix instead, from now on."""

    def __init__(self, limit_s: float, now_s: float) -> None:
        self.state = FetchState.RESERVING
        self.outcome: FetchOutcome | None = None
        self._began_s = self._ended_s = now_s
        self.until_s = now_s + limit_s + PATIENCE_S
        """When the copy is given up, if it is not over."""
        self._has_left = False
        self._num_reserved = 0
        self._num_copied = 0

    def start(self) -> list[Instruction]:
        return [Reserve()]

    @property
    def over(self) -> bool:
        return self.state is FetchState.OVER

    def handle(self, event: Event, now_s: float) -> list[Instruction]:
        """Takes one event in; returns what to do now. Mutates."""
        self._ended_s = self._ended_s if self.over else now_s
        match event:
            case Reserved() if self.state is FetchState.RESERVING:
                return self._on_reserved(event)
            case Copied(num_blocks) if self._copies:
                self._num_copied = num_blocks
                return self._store(FetchOutcome.FETCHED if num_blocks else FetchOutcome.NOT_THERE)
            case CopyFailed() if self._copies:
                return self._store(FetchOutcome.FAILED)
            case Stored() if self.state is FetchState.STORING:
                return self._end()
            case RequestLeft():
                self._has_left = True
                self.outcome = FetchOutcome.LEFT
                return self._give_up()
            case Ticked() if self.state is FetchState.COPYING and now_s >= self.until_s:
                self.outcome = FetchOutcome.LATE
                return self._give_up()
        return []

    def view(self) -> FetchView:
        took_s = self._ended_s - self._began_s
        return FetchView(self.state, self.outcome, self._num_copied, took_s)

    def check(self) -> None:
        """Raises AssertionError if an invariant is broken."""
        assert 0 <= self._num_copied <= self._num_reserved
        assert self.outcome is not None or self.state in (FetchState.RESERVING, FetchState.COPYING)
        assert not self._has_left or self.outcome is FetchOutcome.LEFT

    @property
    def _copies(self) -> bool:
        return self.state in (FetchState.COPYING, FetchState.GIVING_UP)

    def _on_reserved(self, event: Reserved) -> list[Instruction]:
        self._num_reserved = event.num_blocks
        if not event.num_blocks:
            lacks = event.num_lacking > 0
            self.outcome = self.outcome or (FetchOutcome.NO_ROOM if lacks else FetchOutcome.HAD_IT)
            return self._end()
        if self._has_left:
            self.state = FetchState.STORING
            return [Store(0)]
        self.state = FetchState.COPYING
        return [Copy()]

    def _give_up(self) -> list[Instruction]:
        if self.state is not FetchState.COPYING:
            return []
        self.state = FetchState.GIVING_UP
        return [CancelCopy()]

    def _store(self, outcome: FetchOutcome) -> list[Instruction]:
        self.outcome = self.outcome or outcome
        self.state = FetchState.STORING
        return [Store(self._num_copied)]

    def _end(self) -> list[Instruction]:
        self.state = FetchState.OVER
        return [] if self._has_left else [Enter()]
