"""A TCP connection as a stream of bytes that can be broken off from any thread.

The kernel keeps the time of what blocks, so a slice of 2 MiB is one call, without the GIL.
"""

import contextlib
import socket
import struct
from typing import Any, Self

_TIME = struct.Struct("@ll")


class ConnectionBrokenError(Exception):
    """Nothing goes through the connection any more."""


class Connection:
    """A context manager. A call that takes longer than `patience_s` fails, and the connection with
    it."""

    def __init__(self, made: socket.socket, patience_s: float) -> None:
        self._socket = made
        made.setblocking(True)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.set_patience(patience_s)

    @classmethod
    def to(cls, address: str, patience_s: float) -> Self:
        host, _, port = address.rpartition(":")
        try:
            return cls(socket.create_connection((host, int(port)), patience_s), patience_s)
        except OSError as error:
            raise ConnectionBrokenError(f"no connection: {error}") from None

    def set_patience(self, patience_s: float) -> None:
        seconds = int(patience_s)
        time = _TIME.pack(seconds, round((patience_s - seconds) * 1e6))
        for option in socket.SO_SNDTIMEO, socket.SO_RCVTIMEO:
            self._socket.setsockopt(socket.SOL_SOCKET, option, time)

    def wait(self) -> None:
        """Waits without a time-out until bytes come or the connection ends."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIME.pack(0, 0))
        self.receive(bytearray(1), socket.MSG_PEEK)

    def send(self, data: Any) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise ConnectionBrokenError(_why(error)) from None

    def receive(self, into: Any, flags: int = 0) -> None:
        """Receives until `into`, a buffer of bytes, is full."""
        try:
            num_bytes = self._socket.recv_into(into, 0, flags | socket.MSG_WAITALL)
        except OSError as error:
            raise ConnectionBrokenError(_why(error)) from None
        if num_bytes < len(into):
            why = "the other end has closed it" if not num_bytes else "it stopped within a slice"
            raise ConnectionBrokenError(why)

    def receive_some(self, at_most: int) -> int:
        """Receives and drops one or more bytes; returns how many."""
        try:
            num_bytes = len(self._socket.recv(at_most))
        except OSError as error:
            raise ConnectionBrokenError(_why(error)) from None
        if not num_bytes:
            raise ConnectionBrokenError("the other end has closed it")
        return num_bytes

    def break_off(self) -> None:
        """From any thread: calls that wait at either end fail at once."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.break_off()
        self._socket.close()


def _why(error: OSError) -> str:
    return "nothing moves" if isinstance(error, BlockingIOError) else str(error)
