"""What may happen to the destination of a move, besides what its source says."""

from dataclasses import dataclass

from controller.core.migration.protocol import Said, Verb


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
        case Said(code=code) if code:
            return code
        case SourceDied():
            return "source_died"
        case LeaseExpired():
            return "lease_expired"
        case ClientLeft() | Said(verb=Verb.END):
            return "client_left"
        case OwnerAsked():
            return "owner_asked"
    return "aborted"
