"""How many connections an inbox keeps that have not shown the cluster's key.

libzmq accepts every connection and gives it 30 KiB and a descriptor until its handshake is over.
The doorkeeper hears of each connection as it is accepted. When there are too many, it closes the
oldest stranger, so that members can connect however many strangers do.

libzmq does not say which connection has shown the key, but the kernel does: before the key is
shown an inbox sends only its greeting of 64 bytes, and the answer to the key has 168 more
(ZeroMQ's RFCs 23 and 26), so the number of bytes that the other side has acknowledged tells.
"""

import contextlib
import os
import resource
import socket
import struct
import threading
from collections import deque
from typing import Any

import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

# Up to 1,024 instances may connect at once when the controller starts again.
MAX_STRANGERS = 2048
GREETING_BYTES = 64
# struct tcp_info of Linux, since 4.1: tcpi_bytes_acked.
_BYTES_ACKED = struct.Struct("=120xQ")


class Doorkeeper:
    """Runs a thread, which ends with the inbox's context. A flood of connections cannot outrun it:
    libzmq accepts no more while 1,000 of its events wait."""

    def __init__(self, max_strangers: int | None = None) -> None:
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._max_strangers = max_strangers or min(MAX_STRANGERS, max(descriptors // 4, 1))
        self._newest: deque[tuple[int, Any]] = deque()
        """Descriptor and the other side's address."""

    def watch(self, inbox: zmq.asyncio.Socket) -> None:
        """Call it with an inbox that is not yet bound."""
        address = f"inproc://accepted-{id(self)}"
        inbox.monitor(address, zmq.EVENT_ACCEPTED)
        self._events: zmq.Socket[bytes] = zmq.Context.shadow(inbox.context).socket(zmq.PAIR)
        self._events.connect(address)
        self._thread = threading.Thread(target=self._run, name="doorkeeper", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Call it once the context is destroyed."""
        self._thread.join()

    def _run(self) -> None:
        with contextlib.suppress(zmq.ContextTerminated), self._events as events:
            while True:
                self._accepted(parse_monitor_message(events.recv_multipart())["value"])

    def _accepted(self, descriptor: int) -> None:
        with contextlib.suppress(OSError), _borrowed(descriptor) as connection:
            self._newest.append((descriptor, connection.getpeername()))
        if len(self._newest) > self._max_strangers:
            self._show_out(*self._newest.popleft())

    @staticmethod
    def _show_out(descriptor: int, name: Any) -> None:
        """Shuts the connection down, upon which libzmq closes it. Does nothing if the stranger
        has left or has shown the key."""
        with contextlib.suppress(OSError), _borrowed(descriptor) as connection:
            if connection.getpeername() == name and not has_shown_the_key(connection):
                connection.shutdown(socket.SHUT_RDWR)


def has_shown_the_key(connection: socket.socket) -> bool:
    """True also where the kernel does not tell: every connection stays there."""
    told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_ACKED.size)
    if len(told) < _BYTES_ACKED.size:
        return True
    return int(_BYTES_ACKED.unpack(told)[0]) > 2 * GREETING_BYTES


def _borrowed(descriptor: int) -> socket.socket:
    """A duplicate of libzmq's socket, for the caller to close. Raises OSError, also if the
    descriptor is a file's by now."""
    copy = os.dup(descriptor)
    try:
        return socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise
