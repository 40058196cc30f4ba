"""The part of the llumlet that moves use."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from controller.core.instance_ref import InstanceRef
from controller.core.migration.ownership import Epoch
from controller.core.record.event_log import LoggedEvent
from controller.ports.engine import Engine, Frames, KvBlocks
from controller.ports.kv_transfer import KvTransfer
from controller.runtime.instance.moves.live_request import Kept, LiveRequest
from controller.runtime.messages.members import Message

T = TypeVar("T")


class MoveHost(Protocol):
    """All of it is used on the event loop's thread."""

    requests: dict[str, LiveRequest]
    transfer: KvTransfer
    blocks: KvBlocks
    fingerprint: str

    @property
    def me(self) -> InstanceRef: ...

    def now_s(self) -> float: ...

    def between_steps(
        self, work: Callable[[Engine], T], then: Callable[[T], None] | None = None
    ) -> None:
        """Runs `work` on the engine's thread before its next step, in the order of the calls;
        `then` gets the result before any output of that step."""

    def push_status(self) -> None:
        """Tells the controller of the room that the calls so far have made, before the next
        step."""

    def send(self, address: str, message: Message, payload: Sequence[Any] = ()) -> None: ...

    def tell(self, event: LoggedEvent, frontend: str) -> None:
        """Sends an event to the cluster's log and to the request's history at its frontend."""

    def prepare(self, frames: Sequence[Any], frontend: str) -> Any:
        """Raises ValueError for a request that this engine cannot take."""

    def compiling(self, prepared: Any) -> Future[Any] | None:
        """The compile of a prepared request's grammar."""

    def encode_kept(self, kept: Kept, request_id: str) -> Frames:
        """Encodes one request's part of a step's outputs for its frontend."""

    def set_rank(self, request_id: str, rank: int) -> None:
        """Sets the rank of a request that is here, also during a move."""

    def end(self, request_id: str, epoch: Epoch) -> None:
        """The client left: frees the request, or has it freed at the instance to which it moved in
        or after `epoch`. A later attempt of it that is here goes on."""
