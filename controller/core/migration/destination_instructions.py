"""What the destination of a move asks its shell to do."""

from dataclasses import dataclass

from controller.core.migration.machine import SetRank
from controller.core.migration.protocol import Said


@dataclass(frozen=True, slots=True)
class Reserve:
    stage: int
    num_blocks: int


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
    said: Said


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
