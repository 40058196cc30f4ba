"""What the moves of an llumlet need of it."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from controller.core.instance_ref import InstanceRef
from controller.core.record.event_log import LoggedEvent
from controller.ports.engine import Engine
from controller.ports.frames import Frames
from controller.ports.kv_transfer import KvTransfer
from controller.ports.moves import KvBlocks
from controller.runtime.instance.moves.live_request import Kept, LiveRequest
from controller.runtime.messages.message import Message

T = TypeVar("T")


class MoveHost(Protocol):
    """Of the event loop's thread, all of it."""

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
        """Runs on the engine's thread before its next step, in the order of the calls; `then`
        gets what it returned, before any output of that step."""

    def send(self, address: str, message: Message, payload: Sequence[Any] = ()) -> None: ...

    def tell(self, event: LoggedEvent, frontend: str) -> None:
        """For the cluster's log and the request's history."""

    def prepare(self, frames: Sequence[Any], frontend: str) -> Any:
        """Raises ValueError for a request that this engine cannot take."""

    def compiling(self, prepared: Any) -> Future[Any] | None:
        """The compile of its grammar, for a request that was prepared."""

    def encode_kept(self, kept: Kept, request_id: str) -> Frames:
        """That request's part of a step's outputs, for its frontend."""

    def set_rank(self, request_id: str, rank: int) -> None:
        """Of a request that is here, whatever move it is in."""

    def end(self, request_id: str, hop: int) -> None:
        """Its client left: frees it, or has it freed where it went from here after that hop."""
