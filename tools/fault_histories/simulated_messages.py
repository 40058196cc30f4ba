"""The messages of the simulated processes, and the network as the processes see it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from controller.core.emptying.relief import PastMoves
from controller.core.load.snapshot import InstanceRef
from controller.core.migration.ownership import FIRST_EPOCH, Epoch
from controller.core.migration.protocol import MoveMessage, MoveTiming
from tools.fault_histories.simulated_engine import Asked, State, Token

TIMING = MoveTiming(
    retry_s=0.5,
    answer_timeout_s=2.0,
    stage_timeout_s=4.0,
    reserve_timeout_s=3.0,
    suspended_timeout_s=2.0,
    lease_s=5.0,
    memory_s=12.0,
)
"""Shorter than in a cluster, so that a history has room for several of each."""

CONTROLLER = "controller"
"""Its address, and its name as a member: another controller listens at the same one."""


@dataclass(frozen=True, slots=True)
class Add:
    """With `outputs` of earlier attempts. `frontend`: its address."""

    asked: Asked
    frontend: str
    incarnation: int
    seq: int
    epoch: Epoch = FIRST_EPOCH
    outputs: tuple[Token, ...] = ()

    @property
    def request_id(self) -> str:
        return self.asked.request_id


@dataclass(frozen=True, slots=True)
class Abort:
    request_id: str


@dataclass(frozen=True, slots=True)
class Emitted:
    request_id: str
    epoch: Epoch
    first_index: int
    tokens: tuple[Token, ...]
    finished: bool


@dataclass(frozen=True, slots=True)
class Unread:
    request_id: str
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Missing:
    request_id: str
    first_index: int
    end_index: int


@dataclass(frozen=True, slots=True)
class Arriving:
    asked: Asked
    epoch: Epoch
    frontend: str
    past_moves: PastMoves


@dataclass(frozen=True, slots=True)
class MoveEnvelope:
    """`arriving` with the first PRE_ALLOC, `state` with COMMIT."""

    migration_id: str
    request_id: str
    source: InstanceRef
    destination: InstanceRef
    message: MoveMessage
    arriving: Arriving | None = None
    state: State | None = None


@dataclass(frozen=True, slots=True)
class Announced:
    request_id: str
    destination: InstanceRef
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Moved:
    request_id: str
    owner: InstanceRef
    epoch: Epoch
    began_index: int


@dataclass(frozen=True, slots=True)
class OwnerConfirmed:
    request_id: str
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class NotMoved:
    request_id: str
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class OwnerAsked:
    request_id: str
    epoch: Epoch
    frontend: str


@dataclass(frozen=True, slots=True)
class FenceAsked:
    request_id: str
    owner: InstanceRef
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class FenceAnswered:
    request_id: str
    epoch: Epoch
    fenced: bool


@dataclass(frozen=True, slots=True)
class LostThere:
    request_id: str
    epoch: Epoch


@dataclass(slots=True)
class Copy:
    """One stage on its way. `sent` and `received` are called once each, with how many blocks, or
    None if it failed. `read` and `write` touch the engines' blocks."""

    stage_id: str
    source: InstanceRef
    destination: InstanceRef
    num_blocks: int
    read: Callable[[], list[Any]]
    sent: Callable[[int | None], None]


@dataclass(slots=True)
class Expected:
    stage_id: str
    write: Callable[[list[Any]], None]
    received: Callable[[int | None], None]


class Network(Protocol):
    """The world as a process sees it."""

    now_s: float

    def send(
        self, sender: InstanceRef, address: str, body: Any, *, droppable: bool = False
    ) -> None:
        """`sender` as it names itself now."""

    def later(self, address: str, delay_s: float, do: Callable[[], None]) -> None:
        """By the process at that address, if it still lives then; later if it stands still."""

    def uniform(self, least: float, most: float) -> float: ...

    def machine_leaves_in_s(self, machine: str) -> float | None:
        """What a file on the machine says."""

    def copy(self, copy: Copy) -> None: ...

    def expect(self, owner: str, expected: Expected) -> None: ...

    def stalled_s(self, stage_id: str) -> float:
        """For so long nothing of this stage was taken; 0 if it is not under way."""

    def cancel(self, owner: str, stage_id: str) -> None:
        """Of a copy that this side sends or expects: it fails a little later."""

    def note(self, *what: Any) -> None:
        """For the history."""

    def ended(self, request_id: str, outcome: str, why: str = "") -> None:
        """What a client got in the end."""
