"""Who may write to a process's inbox: only holders of the cluster's key, and few others may try.

CURVE is ZeroMQ's own security: it encrypts every connection, proves the inbox to the sender
before anything is sent, and tells the inbox the sender's public key. libzmq asks a ZAP handler, a
REP socket at a fixed address in the inbox's own context, whether that key may enter. One key pair
serves the whole cluster, so the handler admits one key; while it does not answer, nobody enters.
A sender that does not know the inbox's public half (it is in the plan only) is turned away before
the handler is asked.

libzmq accepts every connection and gives it 30 KiB and a descriptor until its handshake is over.
The doorkeeper hears of each connection as it is accepted. When there are too many, it closes the
oldest stranger, so that members can connect however many strangers do.

libzmq does not say which connection has shown the key, but the kernel does: before the key is
shown an inbox sends only its greeting of 64 bytes, and the answer to the key has 168 more
(ZeroMQ's RFCs 23 and 26), so the number of bytes that the other side has acknowledged tells.
"""

import contextlib
import hmac
import logging
import os
import resource
import socket
import struct
import threading
from collections import deque
from typing import Any, NoReturn

import zmq
import zmq.asyncio
from zmq.utils import z85
from zmq.utils.monitor import parse_monitor_message

log = logging.getLogger(__name__)

ZAP_ADDRESS = "inproc://zeromq.zap.01"
ZAP_DOMAIN = "llumctl"


def new_secret_key() -> str:
    """The secret half of a new key pair; Z85, 40 characters."""
    _, secret = zmq.curve_keypair()
    return secret.decode("ascii")


class ClusterKey:
    """The key pair with this secret half. Raises zmq.ZMQError if `secret` is no key."""

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode("ascii")
        self._public = zmq.curve_public(self._secret)

    def guard(self, inbox: zmq.asyncio.Socket) -> zmq.asyncio.Socket:
        """Makes an inbox that is not yet bound refuse foreign keys; returns the socket on which
        `admit` must run."""
        inbox.setsockopt(zmq.CURVE_SERVER, 1)
        inbox.setsockopt(zmq.CURVE_SECRETKEY, self._secret)
        inbox.setsockopt_string(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
        inbox.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # without it, no handler means "admit all"
        asked: zmq.asyncio.Socket = inbox.context.socket(zmq.REP)
        asked.bind(ZAP_ADDRESS)
        return asked

    def show(self, out: "zmq.Socket[Any]") -> None:
        """Lets a socket that is not yet connected prove itself to guarded inboxes."""
        out.setsockopt(zmq.CURVE_SERVERKEY, self._public)
        out.setsockopt(zmq.CURVE_PUBLICKEY, self._public)
        out.setsockopt(zmq.CURVE_SECRETKEY, self._secret)

    async def admit(self, asked: zmq.asyncio.Socket) -> NoReturn:
        """Answers libzmq's questions (ZeroMQ's RFC 27), one per connection."""
        public = z85.decode(self._public)
        while True:
            request = await asked.recv_multipart()
            version, request_id, _, address = request[:4]
            mechanism, *credentials = request[5:]
            known = mechanism == b"CURVE" and hmac.compare_digest(b"".join(credentials), public)
            if not known:
                log.warning("a connection from %s has a foreign key", address.decode("ascii"))
            status = b"200" if known else b"400"
            await asked.send_multipart([version, request_id, status, b"", b"", b""])


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
