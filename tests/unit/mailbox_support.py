"""Helpers of the mailbox tests: a mailbox that remembers the messages that it got."""

import asyncio
from collections.abc import Callable, Sequence

from controller.adapters.zmq.zmq_mailbox import ClusterKey, ZmqMailbox

PATIENCE_S = 10.0


class Inbox:
    """A started mailbox and the messages that it got."""

    def __init__(self, key: ClusterKey | None, start: bool = True, host: str = "127.0.0.1") -> None:
        self.mailbox = ZmqMailbox(host, key=key)
        self.address = self.mailbox.address
        self.messages: list[tuple[bytes, list[bytes]]] = []
        self.lost: list[str] = []
        self._changed = asyncio.Event()
        if start:
            self.start()

    def start(self) -> None:
        self.mailbox.start(self.on_message, self.on_lost)

    def on_message(self, head: bytes | memoryview, payload: Sequence[memoryview]) -> None:
        self.messages.append((bytes(head), [bytes(part) for part in payload]))
        self._changed.set()

    def on_lost(self, address: str) -> None:
        self.lost.append(address)
        self._changed.set()

    async def until(self, condition: Callable[["Inbox"], bool]) -> None:
        async def holds() -> None:
            while not condition(self):
                self._changed.clear()
                await self._changed.wait()

        await asyncio.wait_for(holds(), PATIENCE_S)

    @property
    def heads(self) -> list[bytes]:
        return [head for head, _ in self.messages]
