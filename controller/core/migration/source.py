"""The machine of a move's source: it carries the move through, and owns the request until COMMIT is
applied.

    PLANNING        the engine is asked which blocks became full, and pins them
    PRE_ALLOCATING  the destination is asked for room for them
    COPYING         they are sent, while the request decodes on; then PLANNING again
    SUSPENDING      little is left to copy, and there is room for it: the request leaves the batch
                    at the next step boundary
    SUSPENDED       the last blocks are sent
    COMMITTING      COMMIT was sent: who owns the request is in doubt until the answer comes
    FENCING         no answer came: the frontend is asked to read nothing of the destination's hop

    MIGRATED        the destination owns the request; messages for it that come here are forwarded
    STAYED          the request never stopped here
    RESUMED         the request was stopped and runs here again, in a newer hop
    ENDED           the request finished, or its client left

Before COMMIT is sent the source may call the move off alone, as the destination emits nothing yet.
Afterwards only two others may stop the move: the destination, which refuses COMMIT and then never
applies it; or the request's frontend, which reads hop + 2 or later from then on, so that whatever
the destination does has no effect.

The source does not wait for the end of a copy that is called off, because nobody uses the bytes
that are still copied.
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


class SourceState(StrEnum):
    PLANNING = "planning"
    PRE_ALLOCATING = "pre_allocating"
    COPYING = "copying"
    SUSPENDING = "suspending"
    SUSPENDED = "suspended"
    COMMITTING = "committing"
    FENCING = "fencing"
    MIGRATED = "migrated"
    STAYED = "kept"
    RESUMED = "resumed"
    ENDED = "ended"


_S = SourceState
BEFORE_SUSPENSION = (_S.PLANNING, _S.PRE_ALLOCATING, _S.COPYING, _S.SUSPENDING)
IN_DOUBT = (_S.COMMITTING, _S.FENCING)
OVER = (_S.MIGRATED, _S.STAYED, _S.RESUMED, _S.ENDED)


# -- Events ------------------------------------------------------------------------------


@value
class StagePlanned:
    """The engine has planned the next stage. `num_blocks`: what the destination must hold in all
    before this stage."""

    num_blocks: int
    last: bool
    copy_time_s: float = 0.0
    """The least time that the copy takes under the bandwidth limit."""


@value
class CannotMove:
    code: str


@value
class RequestSuspended:
    pass


@value
class RequestOutgrew:
    """By now the request has more blocks than are reserved, so it was left in the batch."""


@value
class RequestEnded:
    """The request finished, or was aborted: the engine has freed it."""

    code: str


@value
class RequestEvicted:
    pass


@value
class PriorityChanged:
    rank: int


@value
class DestinationDied:
    """The destination's incarnation died: nothing will come from it any more."""


@value
class MoveCancelled:
    """Whoever ordered the move cancels it."""

    code: str


@value
class EpochFenced:
    """The frontend reads nothing below hop + 2 for this request. This event comes only while the
    source waits in FENCING: a second answer, to a repeated question, is not passed on."""


@value
class AlreadyMoved:
    """The frontend has heard of the destination in hop + 1, so the destination owns the request."""


@value
class TimedOut:
    """The destination says nothing, or takes no bytes. The machine's own `tick` makes this
    event."""


@value
class TookTooLong:
    """A stage took too long, and the destination is not at fault: the bytes flow, but too slowly,
    or this engine is in a long step. The machine's own `tick` makes this event."""


def code_of(event: object) -> str:
    """The code of the reason why a move ends with this event; empty for an event that has no such
    code."""
    match event:
        case DestinationDied():
            return "destination_died"
        case TimedOut():
            return "no_answer"
        case TookTooLong():
            return "too_slow"
        case RequestEvicted():
            return "evicted"
        case MoveMessage(verb=Verb.REFUSED, code=code) | StageLost(code=code):
            return code
        case CannotMove(code=code) | MoveCancelled(code=code):
            return code
    return ""


# -- Instructions ------------------------------------------------------------------------


@value
class PlanStage:
    stage: int


@value
class AnnounceMove:
    """Tell the request's frontend that the destination may own the request soon, in `hop`."""

    hop: int


@value
class CopyStage:
    stage: int


@value
class Suspend:
    pass


@value
class Resume:
    """Put the request back into the batch or the queue, where it emits in `hop`. A `Suspend` that
    is under way is called off."""

    hop: int


@value
class Release:
    """Forget the suspended request and free its blocks. The client gets no output for that."""


@value
class Unpin:
    pass


@value
class AskFence:
    hop: int


@value
class TellLost:
    """Tell the request's frontend that the destination died with the request. The destination may
    have died before the frontend got its message that it owns the request. `hop`: the destination's
    hop."""

    hop: int


@value
class Close:
    """The move is over: make its record. This instruction comes once for each move."""

    outcome: SourceState
    code: str


Instruction = (
    PlanStage
    | Say
    | AnnounceMove
    | CopyStage
    | CancelCopy
    | Suspend
    | Resume
    | Release
    | Unpin
    | AskFence
    | TellLost
    | SetRank
    | Close
)
Instructions = list[Instruction]


# -- The clock ---------------------------------------------------------------------------

LIMIT_SLACK = 2.0
"""A stage may take this many times as long as it would take alone under the bandwidth limit,
because several copies share a link."""

_COPYING = (_S.COPYING, _S.SUSPENDED)


class SourceClock:
    """When the source repeats what it said, and when it gives up waiting. The machine sets when
    something happened last, and gives the time with each question.

    A stage that is copied while the request decodes on costs the request nothing. So the source
    waits for as long as the bytes need under the bandwidth limit, and longer. During the final copy
    the request does not run, so nothing extends the time of that copy. The destination is at fault
    only if it said nothing, or took none of the bytes that were ready for it.
    """

    def __init__(self, now_s: float, timing: MoveTiming) -> None:
        self.timing = timing
        self.since_s = now_s
        """When the move came to its state."""
        self.said_s = now_s
        """When the source last said something."""
        self.working_s = float("-inf")
        """When the destination last said that it is working on the question."""
        self.copy_time_s = 0.0
        """The least time that the copy of this stage takes under the bandwidth limit."""

    def gives_up(
        self, state: SourceState, now_s: float, stalled_s: float
    ) -> TimedOut | TookTooLong | None:
        """Whether the source gives up waiting in this state, and why. `stalled_s`: how long the
        destination has taken none of the bytes that were ready."""
        timing = self.timing
        if now_s - self.since_s < self._patience_s(state) or self._is_worked_on(state, now_s):
            return None
        flowing = state in _COPYING and stalled_s < timing.answer_timeout_s / 2
        return TookTooLong() if flowing or state is _S.SUSPENDING else TimedOut()

    def _is_worked_on(self, state: SourceState, now_s: float) -> bool:
        """Whether the destination said lately that its engine is in a long step. The source
        believes this for `stage_timeout_s`."""
        if state not in (_S.PRE_ALLOCATING, _S.COMMITTING):
            return False
        heard_lately = now_s - self.working_s < self.timing.answer_timeout_s
        return heard_lately and now_s - self.since_s < self.timing.stage_timeout_s

    def _patience_s(self, state: SourceState) -> float:
        timing = self.timing
        match state:
            case _S.PRE_ALLOCATING | _S.COMMITTING:
                return timing.answer_timeout_s
            case _S.COPYING:
                return timing.stage_timeout_s + LIMIT_SLACK * self.copy_time_s
            case _S.SUSPENDING:
                return timing.stage_timeout_s
            case _S.SUSPENDED:
                return timing.suspended_timeout_s
            case _S.STAYED | _S.ENDED:
                return timing.lease_s
        return float("inf")


# -- The machine -------------------------------------------------------------------------

_WORDS = (Say, AskFence)
_WORKING = Verb.WORKING


class SourceMove:
    """`hop`: the hop in which the request runs now. `start` returns the first instructions."""

    def __init__(self, hop: int, now_s: float, timing: MoveTiming = DEFAULT_TIMING) -> None:
        self.state = SourceState.PLANNING
        self.hop = hop
        self.stage = 0
        self.code = ""
        """The code of the reason why the move ended as it did."""
        self._clock = SourceClock(now_s, timing)
        self._last = False
        self._asked: MoveMessage | None = None
        """The latest PRE_ALLOC that was sent. It is repeated until it is answered, and after that
        as a sign of life."""
        self._rank: int | None = None
        self.num_rank_changes = 0
        """How many changes of the rank there were to tell the destination."""
        self._destination_dead = False
        self._unanswered: dict[Verb, MoveMessage] = {}
        """By verb, what the destination must still confirm although the move is over."""

    @property
    def over(self) -> bool:
        return self.state in OVER

    def forgettable(self, now_s: float) -> bool:
        """Whether the move may be forgotten: nothing more is to be said about it, and every message
        that may come late has come."""
        clock = self._clock
        past = now_s >= clock.since_s + clock.timing.memory_s
        return self.state in OVER and past and not self._unanswered

    def start(self) -> Instructions:
        return [PlanStage(0)]

    def handle(self, event: object, now_s: float) -> Instructions:
        """Takes one event in; returns what to do now, in order. Mutates.

        Raises IllegalMoveError, and changes nothing, for an event that cannot come now.
        """
        before = self.state
        if isinstance(event, DestinationDied):
            self._destination_dead = True
        instructions: Instructions
        self.state, instructions = follow(TABLE, before, self, event)
        if type(event) is MoveMessage and event.verb is _WORKING:
            self._clock.working_s = now_s
        if self.state is not before:
            self._clock.since_s = now_s
            if self.state in OVER:
                instructions = [*instructions, Close(self.state, self.code)]
        for each in instructions:
            if type(each) in _WORDS:
                self._clock.said_s = now_s
                break
        return instructions

    def tick(self, now_s: float, stalled_s: float = 0.0) -> Instructions:
        """Repeats messages and gives up waiting, when it is time. `stalled_s`: how long the
        destination has taken none of the bytes that were ready for it. Mutates."""
        if self.state in OVER and not self._unanswered:
            return []  # the move is only remembered for messages that come late, so nothing is due
        clock = self._clock
        # No lease ends a request that runs at the destination after COMMIT: the destination must
        # hear END.
        told = Verb.END not in self._unanswered
        up = clock.gives_up(self.state, now_s, stalled_s) if told else None
        if up is not None:
            return self.handle(up, now_s)
        silent_s = now_s - clock.said_s
        if silent_s >= clock.timing.retry_s and (repeated := self._repeat()):
            clock.said_s = now_s
            return repeated
        # If the destination heard nothing in time, its lease would run out.
        if silent_s >= clock.timing.lease_s / 4 and self._asked and not self.over:
            clock.said_s = now_s
            return [Say(self._asked)]
        return []

    def _repeat(self) -> Instructions:
        if self.state is _S.PRE_ALLOCATING and self._asked:
            return [Say(self._asked)]
        if self.state is _S.COMMITTING:
            return [Say(self._commit())]
        if self.state is _S.FENCING:
            return [AskFence(self.hop + 2)]
        return [Say(message) for message in self._unanswered.values()]

    def _commit(self) -> MoveMessage:
        return MoveMessage(Verb.COMMIT, self.stage, hop=self.hop + 1, rank=self._rank)

    def _tell(self, message: MoveMessage) -> Instructions:
        """Sends a message that `tick` repeats until the destination confirms it. Nothing is sent to
        a dead destination."""
        if self._destination_dead:
            return []
        self._unanswered[message.verb] = message
        return [Say(message)]

    # -- before the request stops --------------------------------------------------------

    def _planned(self, event: StagePlanned) -> tuple[SourceState, Instructions]:
        clock = self._clock
        clock.copy_time_s = event.copy_time_s
        if event.last and event.copy_time_s > clock.timing.suspended_timeout_s:
            # Otherwise the request would be stopped for nothing.
            return _S.STAYED, self._keep(TookTooLong())
        self._last = event.last
        self._asked = MoveMessage(Verb.PRE_ALLOC, self.stage, event.num_blocks, event.last)
        announce: Instructions = [AnnounceMove(self.hop + 1)] if event.last else []
        return _S.PRE_ALLOCATING, [*announce, Say(self._asked)]

    def _allocated(self, message: MoveMessage) -> tuple[SourceState, Instructions]:
        if message.stage < self.stage:
            return _S.PRE_ALLOCATING, []
        if self._last:
            return _S.SUSPENDING, [Suspend()]
        return _S.COPYING, [CopyStage(self.stage)]

    def _sent(self, _event: StageCopied) -> Instructions:
        self.stage += 1
        return [PlanStage(self.stage)]

    def _outgrew(self, _event: object) -> Instructions:
        self._last = False
        return [CopyStage(self.stage)]

    def _suspended(self, _event: object) -> Instructions:
        return [CopyStage(self.stage)]

    # -- calling it off ------------------------------------------------------------------

    def _keep(self, event: Any) -> Instructions:
        self.code = code_of(event)
        off: Instructions = []
        if self.state is _S.COPYING:
            off.append(CancelCopy())
        if self.state is _S.SUSPENDING:
            off.append(Resume(self.hop))
        return [*off, Unpin(), *self._abort()]

    def _abort(self) -> Instructions:
        return (
            self._tell(MoveMessage(Verb.ABORT, self.stage, code=self.code)) if self._asked else []
        )

    def _resume(self, event: Any) -> Instructions:
        """Puts the request back. Its new hop is the hop after the destination's, whether or not the
        destination's hop was used."""
        self.code = self.code or code_of(event)
        cancel: Instructions = [CancelCopy()] if self.state is _S.SUSPENDED else []
        in_doubt = self.state in IN_DOUBT
        self.hop += 2
        back: Instructions = [*cancel, Resume(self.hop), Unpin()]
        if self._rank is not None:
            back.append(SetRank(self._rank))
        if isinstance(event, MoveMessage) and event.verb is Verb.REFUSED:
            return back
        hop = self.hop if in_doubt else 0
        return [*back, *self._tell(MoveMessage(Verb.ABORT, self.stage, hop=hop, code=self.code))]

    def _end(self, event: RequestEnded) -> Instructions:
        self.code = event.code
        if self.state in IN_DOUBT:
            return [Unpin(), *self._forward_end(event)]
        off: Instructions = [CancelCopy()] if self.state in (_S.COPYING, _S.SUSPENDED) else []
        return [*off, Unpin(), *self._abort()]

    # -- handing over --------------------------------------------------------------------

    def _send_commit(self, _event: StageCopied) -> Instructions:
        return [Say(self._commit())]

    def _fence(self, event: object) -> Instructions:
        self.code = code_of(event)
        return [AskFence(self.hop + 2)]

    def _hand_over(self, _event: object) -> Instructions:
        self.code = ""
        over: Instructions = [Release(), Unpin(), *self._note(_event)]
        return over if self._rank is None else [*over, *self._tell_rank(self._rank)]

    def _note(self, _event: object) -> Instructions:
        return [Say(MoveMessage(Verb.ACKNOWLEDGED, self.stage))]

    def _forward_end(self, _event: RequestEnded) -> Instructions:
        return self._tell(MoveMessage(Verb.END, self.stage, hop=self.hop + 1))

    # -- at any time ---------------------------------------------------------------------

    def _set_rank(self, event: PriorityChanged) -> Instructions:
        self._rank = event.rank
        return [SetRank(event.rank)]

    def _queue_rank(self, event: PriorityChanged) -> Instructions:
        self._rank = event.rank
        return []

    def _forward_rank(self, event: PriorityChanged) -> Instructions:
        return self._tell_rank(event.rank)

    def _tell_rank(self, rank: int) -> Instructions:
        self.num_rank_changes += 1
        return self._tell(
            MoveMessage(Verb.PRIORITY, self.stage, rank=rank, change=self.num_rank_changes)
        )

    def _confirmed(self, message: MoveMessage) -> Instructions:
        answers = {
            Verb.ABORTED: Verb.ABORT,
            Verb.ENDED: Verb.END,
            Verb.PRIORITY_SET: Verb.PRIORITY,
            Verb.REFUSED: Verb.ABORT,
        }
        asked = self._unanswered.get(answers[message.verb])
        if asked is not None and asked.change == message.change:
            del self._unanswered[asked.verb]
        return []

    def _no_answer_needed(self, _event: object) -> Instructions:
        """Notes that no answer of the destination is needed any more, because it is dead or its
        lease is long over."""
        self._unanswered.clear()
        return []

    def _lost_there(self, event: object) -> Instructions:
        return [*self._no_answer_needed(event), TellLost(self.hop + 1)]

    def _ignore(self, _event: object) -> Instructions:
        return []

    def check(self) -> None:
        """Raises AssertionError if an invariant is broken."""
        assert self.over or not self._unanswered
        # A dead destination answers nothing: the source would wait for ever.
        assert not (self._destination_dead and self._unanswered)
        assert self._asked is not None or self.state in (_S.PLANNING, *OVER)
        assert self.state not in (*IN_DOUBT, _S.SUSPENDED) or self._last


def _table() -> Mapping[tuple[SourceState, Any], Rule[SourceState]]:
    def rule(act: Any, *to: SourceState) -> Rule[SourceState]:
        return Rule(to, act)

    table = {
        (_S.PLANNING, StagePlanned): rule(SourceMove._planned, _S.PRE_ALLOCATING, _S.STAYED),
        (_S.PLANNING, CannotMove): rule(SourceMove._keep, _S.STAYED),
        (_S.PRE_ALLOCATING, Verb.PRE_ALLOCATED): rule(
            SourceMove._allocated, _S.COPYING, _S.SUSPENDING, _S.PRE_ALLOCATING
        ),
        (_S.PRE_ALLOCATING, TimedOut): rule(SourceMove._keep, _S.STAYED),
        (_S.COPYING, StageCopied): rule(SourceMove._sent, _S.PLANNING),
        (_S.COPYING, StageLost): rule(SourceMove._keep, _S.STAYED),
        (_S.COPYING, TimedOut): rule(SourceMove._keep, _S.STAYED),
        (_S.COPYING, TookTooLong): rule(SourceMove._keep, _S.STAYED),
        (_S.SUSPENDING, RequestSuspended): rule(SourceMove._suspended, _S.SUSPENDED),
        (_S.SUSPENDING, RequestOutgrew): rule(SourceMove._outgrew, _S.COPYING),
        (_S.SUSPENDING, CannotMove): rule(SourceMove._keep, _S.STAYED),
        (_S.SUSPENDING, TookTooLong): rule(SourceMove._keep, _S.STAYED),
        (_S.SUSPENDED, StageCopied): rule(SourceMove._send_commit, _S.COMMITTING),
        (_S.SUSPENDED, StageLost): rule(SourceMove._resume, _S.RESUMED),
        (_S.SUSPENDED, TimedOut): rule(SourceMove._resume, _S.RESUMED),
        (_S.SUSPENDED, TookTooLong): rule(SourceMove._resume, _S.RESUMED),
        (_S.SUSPENDED, Verb.REFUSED): rule(SourceMove._resume, _S.RESUMED),
        (_S.SUSPENDED, DestinationDied): rule(SourceMove._resume, _S.RESUMED),
        (_S.SUSPENDED, RequestEnded): rule(SourceMove._end, _S.ENDED),
        (_S.SUSPENDED, PriorityChanged): rule(SourceMove._queue_rank, _S.SUSPENDED),
        (_S.SUSPENDED, MoveCancelled): rule(SourceMove._ignore, _S.SUSPENDED),
        (_S.SUSPENDED, Verb.PRE_ALLOCATED): rule(SourceMove._ignore, _S.SUSPENDED),
        (_S.COMMITTING, Verb.COMMITTED): rule(SourceMove._hand_over, _S.MIGRATED),
        (_S.COMMITTING, TimedOut): rule(SourceMove._fence, _S.FENCING),
        (_S.COMMITTING, DestinationDied): rule(SourceMove._fence, _S.FENCING),
        (_S.FENCING, EpochFenced): rule(SourceMove._resume, _S.RESUMED),
        (_S.FENCING, AlreadyMoved): rule(SourceMove._hand_over, _S.MIGRATED),
        (_S.FENCING, Verb.COMMITTED): rule(SourceMove._ignore, _S.FENCING),
        (_S.FENCING, DestinationDied): rule(SourceMove._ignore, _S.FENCING),
        (_S.MIGRATED, Verb.COMMITTED): rule(SourceMove._note, _S.MIGRATED),
        (_S.MIGRATED, DestinationDied): rule(SourceMove._lost_there, _S.MIGRATED),
        (_S.MIGRATED, RequestEnded): rule(SourceMove._forward_end, _S.MIGRATED),
        (_S.MIGRATED, PriorityChanged): rule(SourceMove._forward_rank, _S.MIGRATED),
        (_S.ENDED, Verb.COMMITTED): rule(SourceMove._note, _S.ENDED),
        (_S.RESUMED, Verb.COMMITTED): rule(SourceMove._ignore, _S.RESUMED),
        (_S.STAYED, TimedOut): rule(SourceMove._no_answer_needed, _S.STAYED),
        (_S.ENDED, TimedOut): rule(SourceMove._no_answer_needed, _S.ENDED),
    }
    for state in BEFORE_SUSPENSION:
        for off in (Verb.REFUSED, DestinationDied, RequestEvicted, MoveCancelled):
            table[state, off] = rule(SourceMove._keep, _S.STAYED)
        table[state, RequestEnded] = rule(SourceMove._end, _S.ENDED)
        table[state, PriorityChanged] = rule(SourceMove._set_rank, state)
        table.setdefault((state, Verb.PRE_ALLOCATED), rule(SourceMove._ignore, state))
    for state in IN_DOUBT:
        table[state, Verb.REFUSED] = rule(SourceMove._resume, _S.RESUMED)
        table[state, RequestEnded] = rule(SourceMove._end, _S.ENDED)
        table[state, PriorityChanged] = rule(SourceMove._queue_rank, state)
        table[state, MoveCancelled] = rule(SourceMove._ignore, state)
        # A destination answers ABORTED if its whole incarnation was fenced. In that case the
        # frontend knows whether the destination owns the request.
        table[state, Verb.ABORTED] = rule(SourceMove._ignore, state)
        table[state, Verb.PRE_ALLOCATED] = rule(SourceMove._ignore, state)
    for state in SourceState:
        table[state, Verb.WORKING] = rule(SourceMove._ignore, state)
    for state in OVER:
        for confirmation in (Verb.ABORTED, Verb.ENDED, Verb.PRIORITY_SET, Verb.REFUSED):
            table[state, confirmation] = rule(SourceMove._confirmed, state)
        table.setdefault((state, DestinationDied), rule(SourceMove._no_answer_needed, state))
        for late in _LATE:
            table.setdefault((state, late), rule(SourceMove._ignore, state))
    return table


_LATE = (
    StagePlanned,
    CannotMove,
    StageCopied,
    StageLost,
    RequestSuspended,
    RequestOutgrew,
    RequestEnded,
    RequestEvicted,
    PriorityChanged,
    MoveCancelled,
    Verb.PRE_ALLOCATED,
)
"""Messages that may still come when a move is over: answers to questions that were asked before."""

TABLE = _table()
