"""The states of a move's source, what may happen to it (events), and what it asks of its process
(instructions). `source` says what each state is and which event leads where."""

from enum import StrEnum

from controller.core.migration.machine import CancelCopy, Say, SetRank, StageLost
from controller.core.migration.protocol import MoveMessage, Verb
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
    KEPT = "kept"
    RESUMED = "resumed"
    ENDED = "ended"


_S = SourceState
BEFORE_SUSPENSION = (_S.PLANNING, _S.PRE_ALLOCATING, _S.COPYING, _S.SUSPENDING)
IN_DOUBT = (_S.COMMITTING, _S.FENCING)
OVER = (_S.MIGRATED, _S.KEPT, _S.RESUMED, _S.ENDED)


# -- Events ------------------------------------------------------------------------------


@value
class StagePlanned:
    """`num_blocks`: what the destination must hold in all before this stage."""

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
    """The request has more blocks by now than are reserved, so it was left in the batch."""


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
    """The destination's incarnation will never say anything again."""


@value
class MoveCancelled:
    """Whoever wanted the move wants it no more."""

    code: str


@value
class EpochFenced:
    """The frontend reads nothing below hop + 2 for this request. Only a source that waits in
    FENCING is told: a second answer, to a repeated question, is not passed on."""


@value
class AlreadyMoved:
    """The frontend has heard of the destination in hop + 1, so the destination owns the request."""


@value
class TimedOut:
    """The destination says nothing, or takes nothing. The machine's own `tick` finds that."""


@value
class TookTooLong:
    """The destination is not at fault: the bytes flow, but too slowly, or this engine is in a long
    step. The machine's own `tick` finds that."""


def code_of(event: object) -> str:
    """Why this event ends a move; empty for an event that does not say."""
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
    """Put the request back, emitting in `hop`; calls off a `Suspend` under way."""

    hop: int


@value
class Release:
    """Forget the suspended request and free its blocks, without an output."""


@value
class Unpin:
    pass


@value
class AskFence:
    hop: int


@value
class TellLost:
    """Tell the request's frontend that the destination died with the request: it may have died
    before its own word that it owns the request was through. `hop` is the destination's."""

    hop: int


@value
class Close:
    """The move is over: leave its record. Comes once."""

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
