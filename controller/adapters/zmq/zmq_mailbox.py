"""A Mailbox on ZeroMQ: one PULL socket for incoming messages, and one PUSH socket for each peer.

The PUSH sockets never drop a message and never block. They have no high-water mark, so they queue
messages, and the queue is limited by what its requests may still produce. The inbox has a mark, so
messages for a slow process queue up at their senders, which know which messages may be dropped. A
dead peer is noticed when its TCP connection closes or is refused (socket monitor). This takes 2-4
ms; Ray takes 1 to 2.4 s for an actor that it restarts. Every process except the controller binds a
fresh port, so messages for a dead peer can never reach its successor."""

import asyncio
import contextlib
import hmac
import logging
import os
import resource
import socket
import struct
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import msgspec
import zmq
import zmq.asyncio
from zmq.utils import z85
from zmq.utils.monitor import parse_monitor_message, recv_monitor_message

from controller.api.hosts import url_host
from controller.ports.processes import OnLost, OnMessage

log = logging.getLogger(__name__)

# -- who may write to an inbox ---------------------------------------------------------------------
# Only processes that have the cluster's key may write to an inbox. The number of others that may
# try is limited.
#
# CURVE is ZeroMQ's own security: it encrypts every connection, proves the inbox to the sender
# before anything is sent, and tells the inbox the sender's public key. For each connection libzmq
# asks a ZAP handler, a REP socket at a fixed address in the inbox's own context, whether that key
# may enter. The whole cluster uses one key pair, so the handler admits one key. While the handler
# does not answer, no connection is admitted. A sender that does not know the inbox's public key,
# which is only in the plan, is refused before the handler is asked.
#
# libzmq accepts every connection, and gives it 30 KiB and a descriptor until its handshake is over.
# The doorkeeper is told of each accepted connection. When there are too many, it closes the oldest
# stranger, so that members can connect however many strangers do.
#
# libzmq does not say which connection has shown the key, but the kernel does. Before the key is
# shown, an inbox sends only its greeting of 64 bytes; the answer to the key has 168 more (ZeroMQ's
# RFCs 23 and 26). So the number of bytes that the other side has acknowledged shows which it is.

ZAP_ADDRESS = "inproc://zeromq.zap.01"
ZAP_DOMAIN = "llumctl"


def new_secret_key() -> str:
    """Makes a new key pair and returns its secret half, 40 characters in Z85."""
    _, secret = zmq.curve_keypair()
    return secret.decode("ascii")


class ClusterKey:
    """The key pair that has this secret half. Raises zmq.ZMQError if `secret` is not a key."""

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode("ascii")
        self._public = zmq.curve_public(self._secret)

    def guard(self, inbox: zmq.asyncio.Socket) -> zmq.asyncio.Socket:
        """Makes an inbox refuse foreign keys. The inbox must not be bound yet. Returns the socket
        on which `admit` must run."""
        inbox.setsockopt(zmq.CURVE_SERVER, 1)
        inbox.setsockopt(zmq.CURVE_SECRETKEY, self._secret)
        inbox.setsockopt_string(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
        inbox.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # without it, no handler means "admit all"
        asked: zmq.asyncio.Socket = inbox.context.socket(zmq.REP)
        asked.bind(ZAP_ADDRESS)
        return asked

    def show(self, out: "zmq.Socket[Any]") -> None:
        """Lets a socket prove itself to guarded inboxes. It must not be connected yet."""
        out.setsockopt(zmq.CURVE_SERVERKEY, self._public)
        out.setsockopt(zmq.CURVE_PUBLICKEY, self._public)
        out.setsockopt(zmq.CURVE_SECRETKEY, self._secret)

    async def admit(self, asked: zmq.asyncio.Socket) -> NoReturn:
        """Answers libzmq's questions (ZeroMQ's RFC 27); there is one for each connection."""
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
# The field tcpi_bytes_acked of Linux's struct tcp_info, since 4.1.
_BYTES_ACKED = struct.Struct("=120xQ")


class Doorkeeper:
    """Limits the strangers at an inbox. It runs a thread that ends with the inbox's context. A
    flood of connections cannot outrun the thread: libzmq stops accepting while 1,000 of its events
    wait."""

    def __init__(self, max_strangers: int | None = None) -> None:
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._max_strangers = max_strangers or min(MAX_STRANGERS, max(descriptors // 4, 1))
        self._newest: deque[tuple[int, Any]] = deque()
        """For each new connection, its descriptor and the address of the other side."""

    def watch(self, inbox: zmq.asyncio.Socket) -> None:
        """Watches an inbox, which must not be bound yet."""
        address = f"inproc://accepted-{id(self)}"
        inbox.monitor(address, zmq.EVENT_ACCEPTED)
        self._events: zmq.Socket[bytes] = zmq.Context.shadow(inbox.context).socket(zmq.PAIR)
        self._events.connect(address)
        self._thread = threading.Thread(target=self._run, name="doorkeeper", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Waits for the thread to end. Must be called after the context is destroyed."""
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
        """Shuts the connection down, so that libzmq closes it. Does nothing if the stranger has
        left or has shown the key."""
        with contextlib.suppress(OSError), _borrowed(descriptor) as connection:
            if connection.getpeername() == name and not has_shown_the_key(connection):
                connection.shutdown(socket.SHUT_RDWR)


def has_shown_the_key(connection: socket.socket) -> bool:
    """Whether the sender has shown the key. Also True if the kernel does not tell; no connection is
    closed on such a kernel."""
    told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_ACKED.size)
    if len(told) < _BYTES_ACKED.size:
        return True
    return int(_BYTES_ACKED.unpack(told)[0]) > 2 * GREETING_BYTES


def _borrowed(descriptor: int) -> socket.socket:
    """A duplicate of libzmq's socket; the caller closes it. Raises OSError, for example if the
    descriptor belongs to a file by now."""
    copy = os.dup(descriptor)
    try:
        return socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise


# -- frames in parts -------------------------------------------------------------------------------
# Frames of any size travel as parts of at most 8 KiB. libzmq reserves memory for a part before it
# knows the sender's key, and its only size limit applies to strangers and members alike. So members
# cut their frames, and an inbox refuses longer parts: without that, 300 connections that claimed 8
# GiB took 865 MB of memory in 8 s. After a part of full length the frame continues in the next
# part, which may be empty.

MAX_PART_BYTES = 8 << 10
# CURVE wraps each part: a command's name, a nonce, flags and a tag, 33 bytes.
MAX_WIRE_BYTES = MAX_PART_BYTES + 64


def cut(frames: Iterable[Any]) -> list[bytes | memoryview]:
    """Cuts frames into parts. `frames`: any objects whose bytes are contiguous."""
    parts: list[bytes | memoryview] = []
    for frame in frames:
        view = memoryview(frame)
        if view.nbytes < MAX_PART_BYTES:
            parts.append(frame if isinstance(frame, bytes) else view)
            continue
        whole = view.cast("B")
        parts += [
            whole[first : first + MAX_PART_BYTES]
            for first in range(0, view.nbytes + 1, MAX_PART_BYTES)
        ]
    return parts


def joined(parts: Sequence[memoryview]) -> list[memoryview]:
    """Joins parts into frames. Raises ValueError if the last frame is incomplete."""
    if all(len(part) < MAX_PART_BYTES for part in parts):
        return list(parts)
    frames: list[memoryview] = []
    begun: list[memoryview] = []
    for part in parts:
        begun.append(part)
        if len(part) < MAX_PART_BYTES:
            frames.append(part if len(begun) == 1 else memoryview(b"".join(begun)))
            begun = []
    if begun:
        raise ValueError("the last frame is incomplete")
    return frames


# -- the mailbox -----------------------------------------------------------------------------------

# A number of messages: some seconds of status pushes. A peer that is further behind does not read
# its messages.
HIGH_WATER_MARK = 1000
# How many messages are delivered before other work on the event loop can run. For statuses, which
# take 10 us each, this is 0.2 ms.
MAX_PER_TURN = 16
# A handshake takes some milliseconds, or more while the event loop, which must answer the ZAP
# question, is slow. libzmq's own limit is 30 s.
HANDSHAKE_TIMEOUT_S = 10.0
# Plain integers, because `|` on pyzmq's enumerations, once for each part, took half the time of a
# message.
LAST_PART = int(zmq.NOBLOCK)
MORE_PARTS = int(zmq.NOBLOCK) | int(zmq.SNDMORE)


class ZmqMailbox:
    """A process's mailbox. It must be created and used on one running event loop. Without a `key`,
    anybody may write to the mailbox, and it can write only to mailboxes without a key. `listening`:
    a socket on `host` that the inbox takes over; without it the inbox makes one."""

    def __init__(
        self,
        host: str,
        port: int = 0,
        key: ClusterKey | None = None,
        listening: socket.socket | None = None,
    ) -> None:
        self._key = key
        self._tasks: set[asyncio.Task[None]] = set()
        self._context = zmq.asyncio.Context()
        self._context.setsockopt(zmq.IPV6, int(":" in host))  # members may have such addresses
        self._inbox = self._context.socket(zmq.PULL)
        self._inbox.setsockopt(zmq.RCVHWM, HIGH_WATER_MARK)
        self._inbox.setsockopt(zmq.LINGER, 0)
        self._inbox.setsockopt(zmq.MAXMSGSIZE, MAX_WIRE_BYTES)
        self._inbox.setsockopt(zmq.HANDSHAKE_IVL, int(HANDSHAKE_TIMEOUT_S * 1000))
        self._doorkeeper: Doorkeeper | None = None
        if key is not None:
            self._door = key.guard(self._inbox)
            self._spawn(key.admit(self._door))
            self._doorkeeper = Doorkeeper()
            self._doorkeeper.watch(self._inbox)
        if listening is not None:
            port = listening.getsockname()[1]
            self._inbox.setsockopt(zmq.USE_FD, listening.detach())
        self._inbox.bind(f"tcp://{url_host(host)}:{port or '*'}")
        self.address: str = self._inbox.getsockopt_string(zmq.LAST_ENDPOINT)
        self._peers: dict[tuple[str, bool], _Peer] = {}
        self._on_lost: OnLost = lambda address: None

    def start(self, on_message: OnMessage, on_lost: OnLost) -> None:
        self._on_lost = on_lost
        self._spawn(self._receive(on_message))

    def send(
        self, address: str, frame: bytes, payload: Sequence[Any] = (), *, droppable: bool = False
    ) -> None:
        peer = self._peers.get((address, droppable))
        if peer is None:
            peer = self._peers[address, droppable] = self._connect(address, droppable)
        *first, last = cut([frame, *payload])
        with contextlib.suppress(zmq.Again):  # the message may be dropped, and the peer is slow
            for part in first:
                peer.out.send(part, MORE_PARTS)
            peer.out.send(last, LAST_PART)

    def forget(self, address: str) -> None:
        for droppable in (False, True):
            if peer := self._peers.pop((address, droppable), None):
                self._close_peer(peer)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for peer in self._peers.values():
            self._close_peer(peer)
        self._peers.clear()
        self._context.destroy(linger=0)
        if self._doorkeeper is not None:
            self._doorkeeper.join()

    async def _receive(self, on_message: OnMessage) -> None:
        """Delivers messages. Only the first message of a turn is read through asyncio, which takes
        17 us. Further messages that have arrived are read directly, which takes 5 us each."""
        there: zmq.Socket[bytes] = zmq.Socket.shadow(self._inbox)
        while True:
            first = asyncio.ensure_future(self._inbox.recv_multipart(copy=False))
            if first.done():  # awaiting it would not suspend: a full inbox would block the loop
                await asyncio.sleep(0)
            self._deliver(on_message, await first)
            with contextlib.suppress(zmq.Again):
                for _ in range(MAX_PER_TURN - 1):
                    frames = there.recv_multipart(zmq.NOBLOCK, copy=False)
                    self._deliver(on_message, frames)

    @staticmethod
    def _deliver(on_message: OnMessage, frames: Sequence[zmq.Frame]) -> None:
        head = frames[0].buffer
        try:
            head, *payload = joined([frame.buffer for frame in frames])
            on_message(head, payload)
        except msgspec.DecodeError:  # the error's text, which quotes the message, is not logged
            log.error("message refused: %d bytes are not a message of the cluster", len(head))
        except Exception:
            log.exception("message refused")

    def _connect(self, address: str, droppable: bool) -> "_Peer":
        socket = self._context.socket(zmq.PUSH)
        socket.setsockopt(zmq.SNDHWM, HIGH_WATER_MARK if droppable else 0)
        socket.setsockopt(zmq.LINGER, 0)
        if self._key is not None:
            self._key.show(socket)
        # Only droppable messages may wait for a peer that is absent, such as the next controller.
        # For other messages a peer is lost as soon as its connection is refused. If either side
        # refuses a key, libzmq reports the connection as disconnected.
        gone = zmq.EVENT_DISCONNECTED | (0 if droppable else zmq.EVENT_CONNECT_RETRIED)
        monitor = socket.get_monitor_socket(gone)
        socket.connect(address)
        watch = self._spawn(self._watch(address, monitor))
        return _Peer(socket, monitor, watch)

    async def _watch(self, address: str, monitor: zmq.asyncio.Socket) -> None:
        await recv_monitor_message(monitor)
        self.forget(address)
        self._on_lost(address)

    def _close_peer(self, peer: "_Peer") -> None:
        if peer.watch is not asyncio.current_task():
            peer.watch.cancel()
        peer.socket.disable_monitor()
        peer.monitor.close(linger=0)
        peer.out.close()
        peer.socket.close(linger=0)

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class _Peer:
    def __init__(
        self, socket: zmq.asyncio.Socket, monitor: zmq.asyncio.Socket, watch: asyncio.Task[None]
    ) -> None:
        self.socket = socket
        self.monitor = monitor
        self.watch = watch
        # The same socket without asyncio: a PUSH socket without a high-water mark never has to
        # wait.
        self.out: zmq.Socket[bytes] = zmq.Socket.shadow(socket)
