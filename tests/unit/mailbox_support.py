"""Helpers of the mailbox tests: a mailbox that remembers the messages that it got."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from controller.adapters.zmq.zmq_mailbox import ClusterKey, ZmqMailbox
from controller.ports.processes import OnMessage

PATIENCE_S = 10.0


class Inbox:
    """A started mailbox and the messages that it got. `hear` sees each of them first."""

    def __init__(
        self,
        key: ClusterKey | None,
        start: bool = True,
        hear: OnMessage = lambda *_: None,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self.mailbox = ZmqMailbox(host, port, key)
        self.address = self.mailbox.address
        self.messages: list[tuple[bytes, list[bytes]]] = []
        self.lost: list[str] = []
        self._hear = hear
        self._changed = asyncio.Event()
        if start:
            self.start()

    def start(self) -> None:
        self.mailbox.start(self._on_message, self._on_lost)

    def _on_message(self, head: bytes | memoryview, payload: Sequence[memoryview]) -> None:
        self._hear(head, payload)
        self.messages.append((bytes(head), [bytes(part) for part in payload]))
        self._changed.set()

    def _on_lost(self, address: str) -> None:
        self.lost.append(address)
        self._changed.set()

    async def until(self, condition: Callable[["Inbox"], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition(self):
                self._changed.clear()
                await self._changed.wait()

    async def until_heads(self, *heads: bytes) -> None:
        await self.until(lambda _: self.heads[-len(heads) :] == [*heads])

    @property
    def heads(self) -> list[bytes]:
        return [head for head, _ in self.messages]

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])


Open = Callable[..., Inbox]


@asynccontextmanager
async def opening(default_secret: str) -> AsyncIterator[Open]:
    """Opens inboxes, with the secret that is given or with the default; the empty secret is no
    key."""
    made: list[Inbox] = []

    def make(secret: str = default_secret, **options: Any) -> Inbox:
        made.append(Inbox(ClusterKey(secret) if secret else None, **options))
        return made[-1]

    yield make
    for inbox in made:
        await inbox.mailbox.close()
