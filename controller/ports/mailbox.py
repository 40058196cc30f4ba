"""Messages between the cluster's processes: one inbox each, ordered per sender."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

OnMessage = Callable[[bytes | memoryview, Sequence[memoryview]], None]
OnLost = Callable[[str], None]


class Mailbox(Protocol):
    """A process's inbox and its way to the inboxes of others.

    Delivery is ordered and without loss between two live processes. A peer that goes away
    is reported once through `on_lost`; what was not delivered to it is discarded.
    """

    address: str

    def start(self, on_message: OnMessage, on_lost: OnLost) -> None: ...

    def send(
        self, address: str, frame: bytes, payload: Sequence[Any] = (), *, droppable: bool = False
    ) -> None:
        """Queue for `address`. A `droppable` message is dropped while the peer lags behind."""

    def forget(self, address: str) -> None:
        """Close the way to `address` and discard what still waits for it."""

    async def close(self) -> None: ...
