"""A Mailbox on ZeroMQ: one PULL socket in, one PUSH socket per peer out.

PUSH never drops and never blocks here: without a high-water mark it queues, and a queue is
bounded by what its requests may still produce. The inbox has a mark, so that messages for a
process that lags queue up at their senders, which know what may be dropped. A dead peer is noticed
as its TCP connection closes (socket monitor), which takes 2-4 ms where Ray takes 1 to 2.4 s for an
actor that it restarts, or as it refuses a connection. Every process but the controller binds a
fresh port, so messages for a dead peer can never reach its successor.

Frames of any size travel as parts of at most 8 KiB. libzmq sets memory aside for a part before it
knows the sender's key, and its only limit holds for strangers and members alike. So members cut
what they send, and an inbox refuses longer parts: without that, 300 connections that claimed 8 GiB
took 865 MB of memory in 8 s. A part of full length goes on in the next one, which may be empty.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

from controller.adapters.zmq.inbox_access import ClusterKey, Doorkeeper
from controller.api.hosts import url_host
from controller.ports.processes import OnLost, OnMessage

MAX_PART_BYTES = 8 << 10
# CURVE wraps each part: a command's name, a nonce, flags and a tag, 33 bytes.
MAX_WIRE_BYTES = MAX_PART_BYTES + 64


def cut(frames: Iterable[Any]) -> list[bytes | memoryview]:
    """`frames`: any objects with contiguous bytes."""
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
    """Raises ValueError: the last frame has no end."""
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
        raise ValueError("a frame without an end")
    return frames


log = logging.getLogger(__name__)

# Messages: some seconds of status pushes. A peer that lags by more is not listening.
HIGH_WATER_MARK = 1000
# Messages that are delivered before everything else on the loop has its turn: 0.2 ms of statuses,
# which take 10 us each.
MAX_PER_TURN = 16
# A handshake takes some milliseconds, and more while the event loop, which must answer the ZAP
# question, lags. libzmq's own limit is 30 s.
HANDSHAKE_TIMEOUT_S = 10.0
# Plain numbers: `|` of pyzmq's enumerations, once for each part, took half the time of a message.
LAST_PART = int(zmq.NOBLOCK)
MORE_PARTS = int(zmq.NOBLOCK) | int(zmq.SNDMORE)


class ZmqMailbox:
    """Must be created and used on one running event loop. Without a `key` anybody may write to the
    mailbox, and it can write only to mailboxes without a key. `listening`: a socket on `host` that
    the inbox takes over, in the place of a new one."""

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
        self._context.setsockopt(zmq.IPV6, int(":" in host))  # of the members' addresses, too
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
        with contextlib.suppress(zmq.Again):  # the message is droppable and the peer lags
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
        """Only the first message of a turn comes through asyncio, which takes 17 us; further
        messages that have come are read directly, which takes 5 us each."""
        there: zmq.Socket[bytes] = zmq.Socket.shadow(self._inbox)
        while True:
            first = asyncio.ensure_future(self._inbox.recv_multipart(copy=False))
            if first.done():  # awaiting it would not suspend: a full inbox held up the loop
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
            log.error("message refused: %d bytes that are no message of the cluster", len(head))
        except Exception:
            log.exception("message refused")

    def _connect(self, address: str, droppable: bool) -> "_Peer":
        socket = self._context.socket(zmq.PUSH)
        socket.setsockopt(zmq.SNDHWM, HIGH_WATER_MARK if droppable else 0)
        socket.setsockopt(zmq.LINGER, 0)
        if self._key is not None:
            self._key.show(socket)
        # Only droppable messages may wait for a peer that is not there: the next controller.
        # A key that either side refuses shows as a disconnection.
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
        # This is `socket` without asyncio: a PUSH without a mark never has to wait.
        self.out: zmq.Socket[bytes] = zmq.Socket.shadow(socket)
