"""One end of a KV link between two processes, and what the two have to say to each other.

`told` carries the transfer's own messages, which instances send by their mailboxes. All others are
for whoever waits for them.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from controller.adapters.tcp.transfer import TcpKvTransfer
from controller.ports.engine import KvBlocks
from controller.ports.kv_transfer import Peer, TransferError

HOST = "127.0.0.1"
SOURCE, DESTINATION = Peer("source", 1, ""), Peer("destination", 1, "")
TOLD, READY, EXPECT, EXPECTING, RECEIVED, FAILED = (
    "told",
    "ready",
    "expect",
    "expecting",
    "received",
    "failed",
)


class LinkEnd:
    """Made on an event loop; `close` it there."""

    def __init__(self, me: Peer, other: Peer, pipe: Connection, blocks: KvBlocks) -> None:
        self.transfer = TcpKvTransfer(lambda: me, HOST)
        self.transfer.start(blocks, self._tell)
        self._other = other
        self._pipe = pipe
        self._heard: asyncio.Queue[tuple[str, Any] | None] = asyncio.Queue()
        asyncio.get_running_loop().add_reader(pipe.fileno(), self._read)

    def say(self, kind: str, content: Any = None) -> None:
        with contextlib.suppress(OSError):  # the other end is gone, which `hear` says
            self._pipe.send((kind, content))

    async def hear(self, timeout_s: float | None = None) -> tuple[str, Any]:
        """Raises TransferError if the other end is gone, or silent for so long."""
        try:
            found = await asyncio.wait_for(self._heard.get(), timeout_s)
        except TimeoutError:
            raise TransferError(f"nothing came from the other end in {timeout_s:.0f} s") from None
        if found is None:
            raise TransferError("the process at the other end is gone")
        return found

    async def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pipe.fileno())
        await self.transfer.close()

    def _tell(self, _: Peer, frames: Sequence[Any]) -> None:
        self.say(TOLD, [bytes(frame) for frame in frames])

    def _read(self) -> None:
        try:
            while self._pipe.poll():
                kind, content = self._pipe.recv()
                if kind == TOLD:
                    self.transfer.told(self._other, content)
                else:
                    self._heard.put_nowait((kind, content))
        except (EOFError, OSError):
            asyncio.get_running_loop().remove_reader(self._pipe.fileno())
            self._heard.put_nowait(None)


def receive_all(pipe: Connection, block_bytes: int, num_blocks: int) -> None:
    """The process at the destination: it takes each stage that the source announces, until the
    source is gone."""
    from controller.adapters.vllm.worker_side import spare_blocks

    asyncio.run(_receive_all(pipe, spare_blocks(block_bytes, num_blocks)))


async def _receive_all(pipe: Connection, blocks: KvBlocks) -> None:
    end = LinkEnd(DESTINATION, SOURCE, pipe, blocks)
    end.say(READY)
    with contextlib.suppress(TransferError):
        while True:
            _, (stage_id, num_blocks) = await end.hear()
            copy = end.transfer.receive(SOURCE, stage_id, range(num_blocks))
            end.say(EXPECTING)
            try:
                await copy
            except TransferError as error:
                end.say(FAILED, str(error))
            else:
                end.say(RECEIVED)
    await end.close()
