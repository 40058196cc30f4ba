"""The fetch of a prefix, as its destination sees it: before a request is computed, its instance
copies from another one what that one has cached of the prompt. From its own host cache it copies in
the same way.

    RESERVING   the engine reserves blocks for the part that it lacks
    COPYING     the source sends this part, or what it still has of it
    VERIFYING   both sides take a digest of what was copied; not every fetch is verified
    GIVING_UP   the copy takes too long, the source is gone or not trusted any more, or the client
                has left; the blocks cannot be used before nothing touches them any more
    STORING     the engine puts what has arrived into its prefix cache, and frees the rest
    OVER        the request has entered the engine, which finds the blocks, or it has left

    state       event                     next        instructions
    -           start                     RESERVING   Reserve
    -           start, not trusted        OVER        Enter
    RESERVING   Reserved, with blocks     COPYING     Copy
    RESERVING   Reserved, without         OVER        Enter
    RESERVING   RequestLeft, Distrusted   RESERVING
    COPYING     Copied                    STORING     Store
    COPYING     Copied, to be verified    VERIFYING   Verify
    COPYING     CopyFailed                STORING     Store nothing
    COPYING     Ticked after the limit,   GIVING_UP   CancelCopy
                RequestLeft, Distrusted
    VERIFYING   Digested, the same        STORING     Store
    VERIFYING   Digested, another one     STORING     TellCorrupt, Store nothing
    VERIFYING   NoDigest, RequestLeft,    STORING     Store nothing
                Ticked after the limit
    GIVING_UP   Copied                    STORING     Store, unless it was to be verified or the
                                                      source is not trusted: then nothing
    GIVING_UP   CopyFailed                STORING     Store nothing
    STORING     Stored                    OVER        Enter, unless the request has left

A fetch that fails in any way costs time and nothing else: the engine computes what it lacks. Other
events change nothing. In particular a source that is distrusted while its copy is being verified
changes nothing: the digest tells more about this copy.
"""

from dataclasses import dataclass
from enum import StrEnum

from controller.core.value import value

HOST_BYTES_PER_S = 20e9
"""How fast blocks come back from main memory, while no instance has measured it, and in the
simulator. A PCIe 5 bus has 50 GB/s, but the blocks lie scattered at both ends, and steps use the
bus, too."""
PATIENCE_S = 0.25
"""Beyond its limit a fetch may take this much longer: a copy waits for steps of both engines, and a
short fetch must not fail for that."""


class FetchState(StrEnum):
    RESERVING = "reserving"
    COPYING = "copying"
    VERIFYING = "verifying"
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
    CORRUPT = "corrupt"
    """What arrived differs from what the source has."""
    DISTRUSTED = "distrusted"
    """Another copy from the source was corrupt, not long ago or meanwhile."""


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
class Digested:
    """Both sides have a digest of what was copied. `matches`: whether it is the same."""

    matches: bool


@value
class NoDigest:
    """One side cannot read its blocks, or the source is gone before it has told its digest."""


@value
class Distrusted:
    """Another copy from this source was corrupt."""


@value
class Stored:
    """The engine has done what `Store` says."""


@value
class RequestLeft:
    """The request is not to enter the engine: its client left, or the instance was fenced."""


@value
class Ticked:
    """Time has passed."""


Event = (
    Reserved
    | Copied
    | CopyFailed
    | Digested
    | NoDigest
    | Distrusted
    | Stored
    | RequestLeft
    | Ticked
)


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
class Verify:
    """Take a digest of the first `num_blocks` of the reserved blocks, and compare it with that of
    the source. Digested or NoDigest follows, which may come too late."""

    num_blocks: int


@value
class TellCorrupt:
    """Say that the copy is corrupt: its source is not to be trusted for a while."""


@value
class Store:
    """Cache the first `num_blocks` of the reserved blocks, and free the others."""

    num_blocks: int


@value
class Enter:
    """Hand the request to the engine."""


Instruction = Reserve | Copy | CancelCopy | Verify | TellCorrupt | Store | Enter


@dataclass(frozen=True, slots=True)
class FetchView:
    """A fetch, for people and for the request's history."""

    state: FetchState
    outcome: FetchOutcome | None
    num_blocks: int
    """The blocks that were copied."""
    took_s: float


class PrefixFetch:
    """`limit_s`: how long it would take to compute the prefix instead, from now on. `verified`:
    whether what is copied is compared with what the source has."""

    def __init__(self, limit_s: float, now_s: float, *, verified: bool = False) -> None:
        self.state = FetchState.RESERVING
        self.outcome: FetchOutcome | None = None
        self.verified = verified
        self._began_s = self._ended_s = now_s
        self.until_s = now_s + limit_s + PATIENCE_S
        """When the fetch is given up if its blocks are not copied, or not verified, by then."""
        self._has_left = False
        self._trusts = True
        self._num_reserved = 0
        self._num_copied = 0
        self._num_stored = 0

    def start(self, *, trusts: bool = True) -> list[Instruction]:
        """`trusts`: whether copies from the source may be used."""
        if trusts:
            return [Reserve()]
        self._trusts = False
        self.outcome = FetchOutcome.DISTRUSTED
        return self._end()

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
                return self._on_copied(num_blocks)
            case CopyFailed() if self._copies:
                return self._store(FetchOutcome.FAILED, 0)
            case Digested(matches) if self.state is FetchState.VERIFYING:
                if matches:
                    return self._store(FetchOutcome.FETCHED, self._num_copied)
                return [TellCorrupt(), *self._store(FetchOutcome.CORRUPT, 0)]
            case NoDigest() if self.state is FetchState.VERIFYING:
                return self._store(FetchOutcome.FAILED, 0)
            case Stored() if self.state is FetchState.STORING:
                return self._end()
            case RequestLeft():
                self._has_left = True
                self.outcome = FetchOutcome.LEFT
                return self._give_up()
            case Distrusted() if self.state is not FetchState.VERIFYING and not self.over:
                return self._on_distrusted()
            case Ticked() if self._may_be_late and now_s >= self.until_s:
                self.outcome = FetchOutcome.LATE
                return self._give_up()
        return []

    def view(self) -> FetchView:
        took_s = self._ended_s - self._began_s
        return FetchView(self.state, self.outcome, self._num_copied, took_s)

    def check(self) -> None:
        """Raises AssertionError if an invariant is broken."""
        assert 0 <= self._num_stored <= self._num_copied <= self._num_reserved
        assert self.outcome is not None or self._may_be_late or self.state is FetchState.RESERVING
        assert not self._has_left or self.outcome is FetchOutcome.LEFT
        assert self.outcome is not FetchOutcome.CORRUPT or not self._num_stored

    @property
    def _copies(self) -> bool:
        return self.state in (FetchState.COPYING, FetchState.GIVING_UP)

    @property
    def _may_be_late(self) -> bool:
        return self.state in (FetchState.COPYING, FetchState.VERIFYING)

    def _on_reserved(self, event: Reserved) -> list[Instruction]:
        self._num_reserved = event.num_blocks
        if not event.num_blocks:
            lacks = event.num_lacking > 0
            self.outcome = self.outcome or (FetchOutcome.NO_ROOM if lacks else FetchOutcome.HAD_IT)
            return self._end()
        if self._has_left or not self._trusts:
            self.state = FetchState.STORING
            return [Store(0)]
        self.state = FetchState.COPYING
        return [Copy()]

    def _on_copied(self, num_blocks: int) -> list[Instruction]:
        self._num_copied = num_blocks
        if not num_blocks:
            return self._store(FetchOutcome.NOT_THERE, 0)
        if not self.verified:
            return self._store(FetchOutcome.FETCHED, num_blocks if self._trusts else 0)
        if self.state is FetchState.GIVING_UP:
            return self._store(FetchOutcome.FETCHED, 0)
        self.state = FetchState.VERIFYING
        return [Verify(num_blocks)]

    def _on_distrusted(self) -> list[Instruction]:
        self._trusts = False
        if self.state in (FetchState.RESERVING, FetchState.COPYING):
            self.outcome = self.outcome or FetchOutcome.DISTRUSTED
        return self._give_up() if self.state is FetchState.COPYING else []

    def _give_up(self) -> list[Instruction]:
        if self.state is FetchState.VERIFYING:
            self.state = FetchState.STORING
            return [Store(0)]
        if self.state is not FetchState.COPYING:
            return []
        self.state = FetchState.GIVING_UP
        return [CancelCopy()]

    def _store(self, outcome: FetchOutcome, num_blocks: int) -> list[Instruction]:
        """Stores so many blocks. `outcome` is that of the fetch, unless it was given up before."""
        self.outcome = self.outcome or outcome
        self.state = FetchState.STORING
        self._num_stored = num_blocks
        return [Store(num_blocks)]

    def _end(self) -> list[Instruction]:
        self.state = FetchState.OVER
        return [] if self._has_left else [Enter()]
