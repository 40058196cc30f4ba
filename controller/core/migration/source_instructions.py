"""What the source of a move asks its shell to do."""

from dataclasses import dataclass

from controller.core.migration.machine import SetRank
from controller.core.migration.protocol import Said
from controller.core.migration.source_state import SourceState


@dataclass(frozen=True, slots=True)
class PlanStage:
    stage: int


@dataclass(frozen=True, slots=True)
class Send:
    said: Said


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
