"""How many connections an inbox keeps that have not shown the cluster's key.

libzmq accepts whoever comes and gives each connection 30 KiB and a descriptor until its handshake
is over. The doorkeeper hears of every connection as it is accepted. When there are too many, it
shows the oldest out, so that a member finds the door open however many strangers stand in it.

libzmq does not say which connection has shown the key. The kernel does: before the key is shown an
inbox sends its greeting of 64 bytes and nothing else, and the answer to the key has 168 more
(ZeroMQ's RFCs 23 and 26), so the bytes that the other side has acknowledged tell them apart.
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

# A cluster has up to 1,024 instances, which may all come at once when its controller starts again.
MAX_STRANGERS = 2048
GREETING_BYTES = 64
# struct tcp_info of Linux, since 4.1: tcpi_bytes_acked.
_BYTES_ACKED = struct.Struct("=120xQ")


class Doorkeeper:
    """A thread of its own, which ends with the inbox's context. A flood that it cannot follow is
    held back: libzmq accepts no more while 1,000 of its events wait."""

    def __init__(self, max_strangers: int | None = None) -> None:
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._max_strangers = max_strangers or min(MAX_STRANGERS, max(descriptors // 4, 1))
        self._newest: deque[tuple[int, Any]] = deque()
        """Descriptor and the other side's address."""

    def watch(self, inbox: zmq.asyncio.Socket) -> None:
        """An inbox that is not yet bound."""
        address = f"inproc://accepted-{id(self)}"
        inbox.monitor(address, zmq.EVENT_ACCEPTED)
        self._events: zmq.Socket[bytes] = zmq.Context.shadow(inbox.context).socket(zmq.PAIR)
        self._events.connect(address)
        self._thread = threading.Thread(target=self._run, name="doorkeeper", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Once the context is destroyed."""
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
        """Nothing if it has left, or has shown the key. libzmq closes what is shut down."""
        with contextlib.suppress(OSError), _borrowed(descriptor) as connection:
            if connection.getpeername() == name and not has_shown_the_key(connection):
                connection.shutdown(socket.SHUT_RDWR)


def has_shown_the_key(connection: socket.socket) -> bool:
    """True also where the kernel does not tell: nobody is shown out there."""
    told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_ACKED.size)
    if len(told) < _BYTES_ACKED.size:
        return True
    return int(_BYTES_ACKED.unpack(told)[0]) > 2 * GREETING_BYTES


def _borrowed(descriptor: int) -> socket.socket:
    """A socket of libzmq's, to be looked at and closed again. Raises OSError, also where the
    descriptor has become one of a file."""
    copy = os.dup(descriptor)
    try:
        return socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise
