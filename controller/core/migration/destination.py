"""The machine of a move's destination: it reserves blocks, receives them, applies COMMIT, and
remembers how the move ended.

    RESERVING   the engine is asked for blocks, and gets ready for COMMIT if the stage is the last
    RECEIVING   the blocks are reserved, and the bytes of the stage are expected
    HOLDING     all bytes of the stage have come: the next stage, or COMMIT, may follow
    APPLYING    COMMIT came: the engine takes the request in at its next step boundary
    FREEING     the move was called off; its blocks are freed when no bytes can come any more

    COMMITTED   the request lives here
    ABORTED     nothing of the request is held here, and never will be by this move

Bytes and messages take different ways, so the next stage's PRE_ALLOC, or COMMIT, may arrive before
the last bytes do. The message is `pending` until they have come.

A destination that hears nothing from its source for the time of a lease frees what it holds. If a
COMMIT comes later, the destination refuses it, and the source resumes the request. This refusal is
final, as is every answer about a move that is over. When the source has died, the frontend may ask
who owns the request. If COMMIT has not come by then, the move is called off for good, so that the
answer stays true.

A source that counts as dead may be alive: its connection broke, or it was stopped for a while. So a
destination that has the request but no acknowledgement asks the frontend to confirm that it reads
the request from this destination. Once the frontend has confirmed this, it grants the source no
fence.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from controller.core.migration.protocol import (
    DEFAULT_TIMING,
    CancelCopy,
    MoveMessage,
    MoveTiming,
    Rule,
    Say,
    SetRank,
    StageCopied,
    StageLost,
    Verb,
    follow,
)
from controller.core.value import value

# -- States ------------------------------------------------------------------------------


class DestinationState(StrEnum):
    RESERVING = "reserving"
    RECEIVING = "receiving"
    HOLDING = "holding"
    APPLYING = "applying"
    FREEING = "freeing"
    COMMITTED = "committed"
    ABORTED = "aborted"


_D = DestinationState
OVER = (_D.COMMITTED, _D.ABORTED)
LEASED = (_D.RESERVING, _D.RECEIVING, _D.HOLDING)


# -- Events ------------------------------------------------------------------------------


@value
class Reserved:
    num_cached: int = 0


@value
class NotReserved:
    code: str


@value
class CommitApplied:
    pass


@value
class CommitNotApplied:
    code: str


@value
class SourceDied:
    pass


@value
class ClientLeft:
    """The frontend itself reports that the client left. If the engine had the request, it has ended
    the request."""


@value
class OwnerAsked:
    """The source died, and the frontend asks who owns the request."""


@value
class OwnerConfirmed:
    """The frontend confirms that it reads the request from this destination, in the hop of this
    move."""


@value
class LeaseExpired:
    """The source was silent for too long. The machine's own `tick` makes this event."""


def code_of(event: object) -> str:
    """The code for a move that is called off because of this event."""
    match event:
        case MoveMessage(code=code) if code:
            return code
        case SourceDied():
            return "source_died"
        case LeaseExpired():
            return "lease_expired"
        case ClientLeft() | MoveMessage(verb=Verb.END):
            return "client_left"
        case OwnerAsked():
            return "owner_asked"
    return "aborted"


# -- Instructions ------------------------------------------------------------------------


@value
class Reserve:
    """Reserve blocks in the engine. `last`: the request stops for this stage, so everything that
    takes long before a commit must be done together with the reservation."""

    stage: int
    num_blocks: int
    last: bool


@value
class Receive:
    stage: int


@value
class Free:
    """Free all blocks that are reserved. If a `Reserve` is under way, free them after it."""


@value
class Apply:
    """Take the request in. `rank`: the new rank if the rank changed during the move, else None."""

    rank: int | None


@value
class Drop:
    """Forget the request without an output if it runs here in this hop, because another instance
    owns it. If the request runs here in a later hop, it came by another move and stays."""

    hop: int


@value
class EndRequest:
    """End the request: its client left."""


@value
class TellFrontend:
    """Tell the frontend whether the request lives here. False is final."""

    moved: bool
    hop: int


Instruction = (
    Reserve | Receive | CancelCopy | Free | Apply | Drop | EndRequest | SetRank | Say | TellFrontend
)
Instructions = list[Instruction]


# -- The machine -------------------------------------------------------------------------


class DestinationMove:
    def __init__(self, now_s: float, timing: MoveTiming = DEFAULT_TIMING) -> None:
        self.state = DestinationState.RESERVING
        self.stage = 0
        self.hop = 0
        """The hop in which the request runs on this instance, once COMMIT has come."""
        self.code = ""
        """The code of the reason why the move failed."""
        self._timing = timing
        self._since_s = now_s
        self._heard_s = now_s
        self._said_s = now_s
        self._num_cached = 0
        self._pending: MoveMessage | None = None
        self._asked = False
        self._ended = False
        self._dropped = False
        self._acknowledged = False
        self._source_is_dead = False
        self._confirmed = False
        """Whether the frontend is known to read the request from this destination, or nobody reads
        it any more."""
        self._last_change = 0
        """The number of the newest change of the rank of which this machine has heard."""

    @property
    def over(self) -> bool:
        return self.state in OVER

    @property
    def receiving(self) -> bool:
        """Whether bytes from the source may still come and are wanted."""
        return self.state is _D.RECEIVING

    @property
    def is_final(self) -> bool:
        """Whether the source can no longer get the request back. Until then the request must not
        move on: if the frontend fences this hop, the next hop belongs to the source."""
        let_go = self._acknowledged or (self._source_is_dead and self._confirmed)
        return self.state is _D.ABORTED or (self.state is _D.COMMITTED and let_go)

    def forgettable(self, now_s: float) -> bool:
        """Whether the move may be forgotten: its end is final, and every message that may come late
        has come."""
        past = now_s >= self._since_s + self._timing.memory_s
        return past and self.is_final

    def start(self, message: MoveMessage) -> Instructions:
        """Takes the first PRE_ALLOC."""
        return self._reserve(message)

    def handle(self, event: object, now_s: float) -> Instructions:
        """Takes one event in; returns what to do now, in order. Mutates.

        Raises IllegalMoveError, and changes nothing, for an event that cannot come now.
        """
        before = self.state
        instructions: Instructions
        self.state, instructions = follow(TABLE, before, self, event)
        if self.state is not before:
            self._since_s = now_s
        if type(event) is MoveMessage or self.state is not before:
            self._heard_s = now_s
        for each in instructions:
            if type(each) is Say:
                self._said_s = now_s
                break
        return instructions

    def tick(self, now_s: float) -> Instructions:
        """Does what is due by now: repeats COMMITTED, refuses a stage for which the instance did
        not get ready in time, or lets the lease expire. Mutates."""
        if self.state in LEASED and now_s - self._heard_s >= self._timing.lease_s:
            return self.handle(LeaseExpired(), now_s)
        if self.state is _D.RESERVING and now_s - self._since_s >= self._timing.reserve_timeout_s:
            return self.handle(NotReserved("not_ready"), now_s)
        unanswered = self.state is _D.COMMITTED and not self.is_final
        if unanswered and now_s - self._said_s >= self._timing.retry_s:
            self._said_s = now_s
            return self._say_again()
        return []

    def _say_again(self) -> Instructions:
        return [self._committed(), *self._ask_frontend()]

    def _committed(self) -> Say:
        return Say(MoveMessage(Verb.COMMITTED, self.stage, hop=self.hop))

    # -- stages --------------------------------------------------------------------------

    def _reserved(self, event: Reserved) -> Instructions:
        self._num_cached = event.num_cached
        return [Receive(self.stage), self._allocated()]

    def _allocated(self) -> Say:
        return Say(MoveMessage(Verb.PRE_ALLOCATED, self.stage, self._num_cached))

    def _not_reserved(self, event: NotReserved) -> Instructions:
        self.code = event.code
        return [Free(), self._refused()]

    def _refused(self) -> Say:
        return Say(MoveMessage(Verb.REFUSED, self.stage, code=self.code))

    def _next_stage(self, message: MoveMessage) -> tuple[DestinationState, Instructions]:
        if message.stage > self.stage:
            return _D.RESERVING, self._reserve(message)
        return _D.HOLDING, self._same_stage(message)

    def _stage_to_come(self, message: MoveMessage) -> Instructions:
        if message.stage > self.stage:
            self._pending = self._pending if self._has_commit() else message
            return []
        return self._same_stage(message)

    def _same_stage(self, message: MoveMessage) -> Instructions:
        return [self._allocated()] if message.stage == self.stage else []

    def _reserve(self, message: MoveMessage) -> Instructions:
        self.stage = message.stage
        return [Reserve(message.stage, message.num_blocks, message.last)]

    def _received(self, _event: StageCopied) -> tuple[DestinationState, Instructions]:
        pending, self._pending = self._pending, None
        if pending is None:
            return _D.HOLDING, []
        if pending.verb is Verb.COMMIT:
            return _D.APPLYING, self._apply(pending)
        return _D.RESERVING, self._reserve(pending)

    def _lost(self, event: StageLost) -> Instructions:
        self.code, self._pending = event.code, None
        return [Free(), self._refused(), *self._tell_asker(False)]

    # -- COMMIT --------------------------------------------------------------------------

    def _hold_commit(self, message: MoveMessage) -> Instructions:
        self._pending = message
        return []

    def _apply(self, message: MoveMessage) -> Instructions:
        self.hop = message.hop
        return [Apply(message.rank)]

    def _applied(self, _event: object) -> tuple[DestinationState, Instructions]:
        if self._dropped:
            told = self._tell_asker(False)
            return _D.ABORTED, [
                Drop(self.hop),
                Say(MoveMessage(Verb.ABORTED, self.stage)),
                *told,
            ]
        self._asked = False
        end: Instructions = [EndRequest()] if self._ended else []
        return _D.COMMITTED, [self._committed(), TellFrontend(True, self.hop), *end]

    def _not_applied(self, event: CommitNotApplied) -> Instructions:
        self.code = event.code
        return [Free(), self._refused(), *self._tell_asker(False)]

    def _committed_again(self, _said: MoveMessage) -> Instructions:
        # A source that lives on asks as often as `tick` repeats: `tick` then finds nothing due.
        return self._say_again()

    def _acknowledge(self, _said: MoveMessage) -> Instructions:
        """Notes that the source has let go of the request."""
        self._acknowledged = True
        return []

    def _source_is_gone(self, _event: object) -> Instructions:
        self._source_is_dead = True
        return self._ask_frontend()

    def _ask_frontend(self) -> Instructions:
        asks = self.state is _D.COMMITTED and self._source_is_dead and not self.is_final
        return [TellFrontend(True, self.hop)] if asks else []

    def _confirm(self, _event: object) -> Instructions:
        self._confirmed = True
        return []

    # -- calling it off ------------------------------------------------------------------

    def _abort(self, event: Any) -> Instructions:
        self.code = self.code or code_of(event)
        self._pending = None
        first: Instructions = [CancelCopy()] if self.state is _D.RECEIVING else [Free()]
        return [*first, *self._reply(event), *self._tell_asker(isinstance(event, OwnerAsked))]

    def _source_died(self, event: SourceDied) -> tuple[DestinationState, Instructions]:
        """Handles the source's death. If COMMIT has come, the bytes that the source sent before may
        still be on their way, and the receiver reports whether they came."""
        if self._has_commit():
            self._source_is_dead = True
            return _D.RECEIVING, []
        return _D.FREEING, self._abort(event)

    def _has_commit(self) -> bool:
        return self._pending is not None and self._pending.verb is Verb.COMMIT

    def _owner_asked(self, event: OwnerAsked) -> tuple[DestinationState, Instructions]:
        if self._has_commit():
            self._asked = True
            return _D.RECEIVING, []
        return _D.FREEING, self._abort(event)

    def _freed(self, _event: object) -> Instructions:
        return [Free()]

    def _reply(self, event: Any) -> Instructions:
        """Answers a message about a move that is called off. The answer is always the same."""
        match event:
            case MoveMessage(verb=Verb.ABORT):
                return [Say(MoveMessage(Verb.ABORTED, self.stage))]
            case MoveMessage(verb=Verb.END):
                return [Say(MoveMessage(Verb.ENDED, self.stage))]
            case MoveMessage(verb=Verb.PRIORITY):
                return [self._priority_set(event)]
            case MoveMessage(verb=Verb.PRE_ALLOC | Verb.COMMIT):
                return [self._refused()]
        return []

    def _tell_asker(self, asked_now: bool) -> Instructions:
        asked, self._asked = self._asked or asked_now, False
        return [TellFrontend(False, self.hop)] if asked else []

    def _not_moved(self, _event: OwnerAsked) -> Instructions:
        return [TellFrontend(False, self.hop)]

    def _moved(self, _event: OwnerAsked) -> Instructions:
        return [TellFrontend(True, self.hop)]

    # -- while the request is taken in, and after that ------------------------------------------

    def _ask_later(self, _event: OwnerAsked) -> Instructions:
        self._asked = True
        return []

    def _end_later(self, event: object) -> Instructions:
        self._ended = self._confirmed = True
        return [Say(MoveMessage(Verb.ENDED, self.stage))] if isinstance(event, MoveMessage) else []

    def _drop_later(self, message: MoveMessage) -> Instructions:
        self._dropped = True
        self.code = message.code
        return []

    def _drop(self, message: MoveMessage) -> Instructions:
        self.code = message.code
        return [Drop(self.hop), Say(MoveMessage(Verb.ABORTED, self.stage))]

    def _end(self, _said: MoveMessage) -> Instructions:
        return [EndRequest(), Say(MoveMessage(Verb.ENDED, self.stage))]

    def _set_rank(self, message: MoveMessage) -> Instructions:
        assert message.rank is not None
        if message.change <= self._last_change:
            return [self._priority_set(message)]
        self._last_change = message.change
        return [SetRank(message.rank), self._priority_set(message)]

    def _priority_set(self, message: MoveMessage) -> Say:
        return Say(MoveMessage(Verb.PRIORITY_SET, self.stage, change=message.change))

    def _working(self, _said: MoveMessage) -> Instructions:
        return [Say(MoveMessage(Verb.WORKING, self.stage))]

    def _ignore(self, _event: object) -> Instructions:
        return []

    def check(self) -> None:
        """Raises AssertionError if an invariant is broken."""
        assert self._pending is None or self.state is _D.RECEIVING
        assert self.hop > 0 or self.state not in (_D.APPLYING, _D.COMMITTED)
        assert not self._asked or self.state in (_D.RECEIVING, _D.APPLYING)


def _table() -> Mapping[tuple[DestinationState, Any], Rule[DestinationState]]:
    def rule(act: Any, *to: DestinationState) -> Rule[DestinationState]:
        return Rule(to, act)

    move = DestinationMove
    table = {
        (_D.RESERVING, Reserved): rule(move._reserved, _D.RECEIVING),
        (_D.RESERVING, NotReserved): rule(move._not_reserved, _D.ABORTED),
        (_D.RESERVING, Verb.PRE_ALLOC): rule(move._working, _D.RESERVING),
        (_D.RECEIVING, StageCopied): rule(move._received, _D.HOLDING, _D.RESERVING, _D.APPLYING),
        (_D.RECEIVING, StageLost): rule(move._lost, _D.ABORTED),
        (_D.RECEIVING, Verb.PRE_ALLOC): rule(move._stage_to_come, _D.RECEIVING),
        (_D.RECEIVING, Verb.COMMIT): rule(move._hold_commit, _D.RECEIVING),
        (_D.RECEIVING, SourceDied): rule(move._source_died, _D.RECEIVING, _D.FREEING),
        (_D.RECEIVING, OwnerAsked): rule(move._owner_asked, _D.RECEIVING, _D.FREEING),
        (_D.HOLDING, Verb.PRE_ALLOC): rule(move._next_stage, _D.HOLDING, _D.RESERVING),
        (_D.HOLDING, Verb.COMMIT): rule(move._apply, _D.APPLYING),
        (_D.APPLYING, Verb.COMMIT): rule(move._working, _D.APPLYING),
        (_D.APPLYING, CommitApplied): rule(move._applied, _D.COMMITTED, _D.ABORTED),
        (_D.APPLYING, CommitNotApplied): rule(move._not_applied, _D.ABORTED),
        (_D.APPLYING, OwnerAsked): rule(move._ask_later, _D.APPLYING),
        (_D.APPLYING, Verb.END): rule(move._end_later, _D.APPLYING),
        (_D.APPLYING, ClientLeft): rule(move._end_later, _D.APPLYING),
        (_D.APPLYING, Verb.ABORT): rule(move._drop_later, _D.APPLYING),
        (_D.APPLYING, SourceDied): rule(move._source_is_gone, _D.APPLYING),
        (_D.FREEING, StageCopied): rule(move._freed, _D.ABORTED),
        (_D.FREEING, StageLost): rule(move._freed, _D.ABORTED),
        (_D.COMMITTED, Verb.COMMIT): rule(move._committed_again, _D.COMMITTED),
        (_D.COMMITTED, Verb.ACKNOWLEDGED): rule(move._acknowledge, _D.COMMITTED),
        (_D.COMMITTED, Verb.ABORT): rule(move._drop, _D.ABORTED),
        (_D.COMMITTED, Verb.END): rule(move._end, _D.COMMITTED),
        (_D.COMMITTED, Verb.PRIORITY): rule(move._set_rank, _D.COMMITTED),
        (_D.COMMITTED, OwnerAsked): rule(move._moved, _D.COMMITTED),
        (_D.COMMITTED, SourceDied): rule(move._source_is_gone, _D.COMMITTED),
        (_D.COMMITTED, OwnerConfirmed): rule(move._confirm, _D.COMMITTED),
        (_D.COMMITTED, ClientLeft): rule(move._confirm, _D.COMMITTED),
        (_D.ABORTED, OwnerConfirmed): rule(move._ignore, _D.ABORTED),
    }
    for state in LEASED:
        called_off = _D.FREEING if state is _D.RECEIVING else _D.ABORTED
        for off in (Verb.ABORT, Verb.END, SourceDied, ClientLeft, OwnerAsked, LeaseExpired):
            table.setdefault((state, off), rule(move._abort, called_off))
    for state in (_D.FREEING, _D.ABORTED):
        for asked in (Verb.PRE_ALLOC, Verb.COMMIT, Verb.ABORT, Verb.END, Verb.PRIORITY):
            table[state, asked] = rule(move._reply, state)
        table[state, OwnerAsked] = rule(move._not_moved, state)
        for past in (SourceDied, ClientLeft, Verb.ACKNOWLEDGED):
            table[state, past] = rule(move._ignore, state)
    for state in (_D.APPLYING, _D.COMMITTED):
        for late in (Verb.PRE_ALLOC, ClientLeft):
            table.setdefault((state, late), rule(move._ignore, state))
    for answer in _ANSWERS:
        table[_D.ABORTED, answer] = rule(move._ignore, _D.ABORTED)
    return table


_ANSWERS = (Reserved, NotReserved, StageCopied, StageLost, CommitApplied, CommitNotApplied)
"""The answers to questions that were asked before the move was called off. They come late and are
ignored."""


TABLE = _table()
