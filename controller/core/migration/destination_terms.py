"""The states of a move's destination, what may happen to it (events), and what it asks of its
process (instructions). `destination` says what each state is and which event leads where."""

from dataclasses import dataclass
from enum import StrEnum

from controller.core.migration.machine import SetRank
from controller.core.migration.protocol import MoveMessage, Verb

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


@dataclass(frozen=True, slots=True)
class Reserved:
    num_cached: int = 0


@dataclass(frozen=True, slots=True)
class NotReserved:
    code: str


@dataclass(frozen=True, slots=True)
class StageReceived:
    stage: int


@dataclass(frozen=True, slots=True)
class StageLost:
    """Its bytes will not come, or the receiver has let go of its blocks as it was told to."""

    stage: int
    code: str


@dataclass(frozen=True, slots=True)
class CommitApplied:
    pass


@dataclass(frozen=True, slots=True)
class CommitNotApplied:
    code: str


@dataclass(frozen=True, slots=True)
class SourceDied:
    pass


@dataclass(frozen=True, slots=True)
class ClientLeft:
    """The frontend says so itself; the engine has ended the request if it had it."""


@dataclass(frozen=True, slots=True)
class OwnerAsked:
    """By the frontend, whose source died."""


@dataclass(frozen=True, slots=True)
class LeaseExpired:
    """By the machine's own clockwork (`tick`)."""


def code_of(event: object) -> str:
    """Why a move is called off for which this comes."""
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


@dataclass(frozen=True, slots=True)
class Reserve:
    """`last`: the request stops for this stage, so nothing that takes its time may be left to do
    at the commit."""

    stage: int
    num_blocks: int
    last: bool


@dataclass(frozen=True, slots=True)
class Receive:
    stage: int


@dataclass(frozen=True, slots=True)
class CancelReceive:
    pass


@dataclass(frozen=True, slots=True)
class Free:
    """All that is reserved; comes after a `Reserve` under way."""


@dataclass(frozen=True, slots=True)
class Apply:
    """COMMIT. `rank`: as it was changed behind the request's back, or None."""

    rank: int | None


@dataclass(frozen=True, slots=True)
class Drop:
    """Forget the request without an output, if it runs here in this hop: another one owns it.
    In a later one it came by another move."""

    hop: int


@dataclass(frozen=True, slots=True)
class EndRequest:
    """Its client left."""


@dataclass(frozen=True, slots=True)
class Answer:
    message: MoveMessage


@dataclass(frozen=True, slots=True)
class TellFrontend:
    """Whether the request lives here. False is final."""

    moved: bool
    hop: int


Instruction = (
    Reserve
    | Receive
    | CancelReceive
    | Free
    | Apply
    | Drop
    | EndRequest
    | SetRank
    | Answer
    | TellFrontend
)
Instructions = list[Instruction]
