"""The destination's end of a link: receives slices."""

import socket
from typing import Any

from controller.adapters.tcp.connection import Connection
from controller.adapters.tcp.expected import ExpectedStages
from controller.adapters.tcp.link import Answer, Link
from controller.adapters.tcp.proof import LinkKey, link_id
from controller.adapters.tcp.wire import HEADER_BYTES, TAKEN, NotALinkError, SliceHeader, decode
from controller.core.migration.protocol import OPEN_TIMEOUT_S, STALL_TIMEOUT_S


class ReceivingLink(Link):
    def __init__(self, *args: Any, source_secret: bytes, expected: ExpectedStages) -> None:
        super().__init__(*args)
        self._key = LinkKey(self.name, source_secret, self.secret)
        self._expected = expected
        self._superseded = False

    def invite(self) -> Answer:
        """Opens the door to the source; called before `start`."""
        door = self._ends.door
        door.expect(link_id(self.name), self._key.proof_of_source(), self.meet)
        return Answer(door.address, self.secret)

    def supersede(self) -> None:
        self._superseded = True
        self.break_off("its source opened another link")

    def _open(self) -> Connection:
        try:
            made = self._met_within(OPEN_TIMEOUT_S)
        finally:
            self._ends.door.forget(link_id(self.name))
        assert isinstance(made, socket.socket)
        connection = self._keep(Connection(made, OPEN_TIMEOUT_S))
        connection.send(self._key.proof_of_destination())
        return connection

    def _work(self, connection: Connection) -> None:
        buffer = self._ends.blocks.buffer(self._ends.slice_blocks)
        room = self._ends.blocks.writable(buffer, self._ends.slice_blocks)
        raw = bytearray(HEADER_BYTES)
        while True:
            connection.wait()
            connection.set_patience(STALL_TIMEOUT_S)
            connection.receive(raw)
            header = self._checked(decode(raw))
            if header.num_bytes:
                connection.receive(room[: header.num_bytes])
            self._expected.take(header, buffer)
            connection.send(TAKEN)

    def _checked(self, header: SliceHeader) -> SliceHeader:
        num_bytes = header.num_blocks * self._ends.blocks.block_bytes
        if header.num_blocks > self._ends.slice_blocks or header.num_bytes != num_bytes:
            raise NotALinkError(f"{header.num_blocks} blocks in {header.num_bytes} bytes")
        return header

    def _fail_all(self, why: str) -> None:
        self._expected.fail(why, only_begun=self._superseded)
