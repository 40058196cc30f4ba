"""One instance's transfer in a process of its own, with a real mailbox; told what to do by lines.

`python -m tests.contract.tcp_peer NAME HOST SECRET NUM_BLOCKS` reads a JSON list from each line of
its input and answers with JSON lines; see `Peer` for what there is.
"""

import asyncio
import hashlib
import json
import sys
import threading
from collections.abc import Sequence
from typing import Any

import msgspec

from controller.adapters.tcp.transfer import TcpKvTransfer
from controller.adapters.zmq.zmq_mailbox import ClusterKey, ZmqMailbox
from controller.core.load.snapshot import InstanceRef
from controller.ports.engine import StageCopy, TransferError
from tests.unit.tcp.instances import ByteBlocks

BLOCK_BYTES = 64 << 10


class SayingBlocks(ByteBlocks):
    """Reports when the first slice comes after a `receive`."""

    def scatter(self, block_ids: Sequence[int], buffer: bytearray) -> None:
        if not self.touched:
            say("scattering")
        super().scatter(block_ids, buffer)


class Peer:
    def __init__(self, name: str, host: str, secret: str, num_blocks: int) -> None:
        self._mailbox = ZmqMailbox(host, key=ClusterKey(secret))
        self._mailbox.start(self._on_message, self._on_lost)
        self._me = InstanceRef(name, 1, self._mailbox.address)
        self._blocks = SayingBlocks(num_blocks, block_bytes=BLOCK_BYTES)
        self._transfer = TcpKvTransfer(lambda: self._me, host)
        self._transfer.start(self._blocks, self._tell)
        self._others: dict[str, InstanceRef] = {}
        say("ready", self._mailbox.address)

    def meet(self, name: str, address: str) -> None:
        self._others[name] = InstanceRef(name, 1, address)
        say("met", name)

    def fill(self, seed: int) -> None:
        self._blocks.number(seed)
        say("filled", seed)

    def send(self, name: str, stage_id: str, num_blocks: int) -> None:
        copy = self._transfer.send(self._others[name], stage_id, range(num_blocks))
        copy.add_done_callback(lambda done: self._on_done("sent", stage_id, done))

    def receive(self, name: str, stage_id: str, num_blocks: int) -> None:
        self._blocks.touched.clear()
        copy = self._transfer.receive(self._others[name], stage_id, range(num_blocks))
        copy.add_done_callback(lambda done: self._on_done("received", stage_id, done))
        say("expecting", stage_id)

    def cancel(self, stage_id: str) -> None:
        self._transfer.cancel(stage_id)

    def forget(self, name: str) -> None:
        self._transfer.forget(self._others[name])

    def limit(self, max_bytes_per_s: float | None) -> None:
        self._transfer.max_bytes_per_s = max_bytes_per_s

    def digest(self, num_blocks: int) -> None:
        content = self._blocks.content(range(num_blocks))
        say("digest", hashlib.sha256(content).hexdigest())

    async def close(self) -> None:
        await self._transfer.close()
        await self._mailbox.close()
        say("closed", [t.name for t in threading.enumerate() if t.name.startswith("kv ")])

    def _tell(self, peer: InstanceRef, frames: Sequence[Any]) -> None:
        self._mailbox.send(peer.address, msgspec.msgpack.encode(self._me), frames)

    def _on_message(self, head: bytes | memoryview, payload: Sequence[memoryview]) -> None:
        self._transfer.told(msgspec.msgpack.decode(head, type=InstanceRef), payload)

    def _on_lost(self, address: str) -> None:
        """Does what a llumlet would do."""
        for other in self._others.values():
            if other.address == address:
                self._transfer.forget(other)

    def _on_done(self, what: str, stage_id: str, done: "asyncio.Future[StageCopy]") -> None:
        try:
            say(what, stage_id, done.result().num_blocks)
        except TransferError as error:
            say("failed", stage_id, str(error))


def say(*content: object) -> None:
    print(json.dumps(content), flush=True)  # noqa: T201


async def main() -> None:
    name, host, secret, num_blocks = sys.argv[1:]
    lines = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    peer = Peer(name, host, secret, int(num_blocks))
    while line := await lines.readline():
        what, *arguments = json.loads(line)
        if what == "close":
            await peer.close()
            return
        getattr(peer, what)(*arguments)


if __name__ == "__main__":
    asyncio.run(main())
