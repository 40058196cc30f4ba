"""The states of a move's source, what may happen to it (events), and what it asks of its process
(instructions). `source` says what each state is and which event leads where."""

from dataclasses import dataclass
from enum import StrEnum

from controller.core.migration.machine import SetRank
from controller.core.migration.protocol import MoveMessage, Verb

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


@dataclass(frozen=True, slots=True)
class StagePlanned:
    """`num_blocks`: what the destination must hold in all before this stage."""

    num_blocks: int
    last: bool
    copy_time_s: float = 0.0
    """Less than this the copy cannot take: by the bandwidth limit."""


@dataclass(frozen=True, slots=True)
class CannotMove:
    code: str


@dataclass(frozen=True, slots=True)
class StageSent:
    stage: int


@dataclass(frozen=True, slots=True)
class StageNotSent:
    stage: int
    code: str


@dataclass(frozen=True, slots=True)
class RequestSuspended:
    pass


@dataclass(frozen=True, slots=True)
class RequestOutgrew:
    """It has more blocks than are reserved by now, so it was left in the batch."""


@dataclass(frozen=True, slots=True)
class RequestEnded:
    """It finished, or was aborted: the engine has freed it."""

    code: str


@dataclass(frozen=True, slots=True)
class RequestEvicted:
    pass


@dataclass(frozen=True, slots=True)
class PriorityChanged:
    rank: int


@dataclass(frozen=True, slots=True)
class DestinationDied:
    """That incarnation will never say anything again."""


@dataclass(frozen=True, slots=True)
class MoveCancelled:
    """Whoever wanted the move wants it no more."""

    code: str


@dataclass(frozen=True, slots=True)
class EpochFenced:
    """The frontend reads nothing below hop + 2 for this request. For who asked, and waits: an
    answer to a question that was repeated is not passed on."""


@dataclass(frozen=True, slots=True)
class AlreadyMoved:
    """The frontend has heard of the destination in hop + 1: that one owns the request."""


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The destination says nothing, or takes nothing. By the machine's own clockwork (`tick`)."""


@dataclass(frozen=True, slots=True)
class TookTooLong:
    """The destination is not at fault: the bytes flow, but too slowly, or this engine is in a long
    step. By the clockwork too."""


def code_of(event: object) -> str:
    """Why a move ends for which this comes; empty if that says nothing."""
    match event:
        case DestinationDied():
            return "destination_died"
        case TimedOut():
            return "no_answer"
        case TookTooLong():
            return "too_slow"
        case RequestEvicted():
            return "evicted"
        case MoveMessage(verb=Verb.REFUSED, code=code) | StageNotSent(code=code):
            return code
        case CannotMove(code=code) | MoveCancelled(code=code):
            return code
    return ""


# -- Instructions ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PlanStage:
    stage: int


@dataclass(frozen=True, slots=True)
class Send:
    message: MoveMessage


@dataclass(frozen=True, slots=True)
class AnnounceMove:
    """Tell the request's frontend who may own it soon, in which hop."""

    hop: int


@dataclass(frozen=True, slots=True)
class CopyStage:
    stage: int


@dataclass(frozen=True, slots=True)
class CancelCopy:
    pass


@dataclass(frozen=True, slots=True)
class Suspend:
    pass


@dataclass(frozen=True, slots=True)
class Resume:
    """Back into the batch or the queue, emitting in `hop`; calls off a `Suspend` under way."""

    hop: int


@dataclass(frozen=True, slots=True)
class Release:
    """Forget the suspended request and free its blocks, without an output."""


@dataclass(frozen=True, slots=True)
class Unpin:
    pass


@dataclass(frozen=True, slots=True)
class AskFence:
    hop: int


@dataclass(frozen=True, slots=True)
class TellLost:
    """Tell the request's frontend that it is not here, and that the destination died with it:
    it may have died before its own word that it owns the request was through."""

    hop: int
    """The destination's."""


@dataclass(frozen=True, slots=True)
class Close:
    """The move is over: leave its record. Comes once."""

    outcome: SourceState
    code: str


Instruction = (
    PlanStage
    | Send
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
