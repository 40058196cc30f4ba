"""The states of a move's destination, what may happen to it (events), and what it asks of its
process (instructions). `destination` says what each state is and which event leads where."""

from enum import StrEnum

from controller.core.migration.machine import CancelCopy, Say, SetRank
from controller.core.migration.protocol import MoveMessage, Verb
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
    """The frontend itself tells of it; the engine has ended the request if it had it."""


@value
class OwnerAsked:
    """The source died, and the frontend asks who owns the request."""


@value
class OwnerConfirmed:
    """The frontend reads the request from here, in the hop of this move."""


@value
class LeaseExpired:
    """The source said nothing for too long. The machine's own `tick` finds that."""


def code_of(event: object) -> str:
    """Why this event calls a move off."""
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
    """`last`: the request stops for this stage, so whatever takes long before a commit must be done
    with it."""

    stage: int
    num_blocks: int
    last: bool


@value
class Receive:
    stage: int


@value
class Free:
    """Free all that is reserved, after a `Reserve` that is under way."""


@value
class Apply:
    """Take the request in. `rank`: the new one if it changed during the move, else None."""

    rank: int | None


@value
class Drop:
    """Forget the request without an output if it runs here in this hop: another instance owns it.
    In a later hop it came by another move."""

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
