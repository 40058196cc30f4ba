"""What may happen to the source of a move, besides what its destination says."""

from dataclasses import dataclass

from controller.core.migration.protocol import Said, Verb


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
        case Said(verb=Verb.REFUSED, code=code) | StageNotSent(code=code):
            return code
        case CannotMove(code=code) | MoveCancelled(code=code):
            return code
    return ""
