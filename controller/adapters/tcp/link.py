"""One direction between two instances: a TCP connection, and a thread that works on it.

A broken link is never mended: the next stage opens a new link with a new name.
"""

import logging
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from controller.adapters.tcp.connection import Connection, ConnectionBrokenError
from controller.adapters.tcp.door import Door
from controller.adapters.tcp.proof import new_secret
from controller.adapters.tcp.wire import NotALinkError
from controller.ports.engine_moves import KvBlocks
from controller.ports.kv_transfer import Peer

log = logging.getLogger(__name__)

# Slices on their way at once: while one is scattered the next comes in and another is gathered.
DEPTH = 2


@dataclass(frozen=True, slots=True)
class Ends:
    """What all links of an instance have in common."""

    door: Door
    blocks: KvBlocks
    slice_blocks: int

    @property
    def slice_bytes(self) -> int:
        """Both ends of a link must agree on this."""
        return self.slice_blocks * self.blocks.block_bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """Where the destination waits, and its secret."""

    address: str
    secret: bytes


class LinkClosedError(Exception):
    """This end gave the link up, or the other end did not come."""


class Link(ABC):
    """`on_over` is called on the link's thread, at its very end."""

    def __init__(
        self, name: str, peer: Peer, ends: Ends, on_over: Callable[["Link"], None]
    ) -> None:
        self.name = name
        self.peer = peer
        self.secret = new_secret()
        self._ends = ends
        self._on_over = on_over
        self._met: SimpleQueue[Answer | socket.socket | None] = SimpleQueue()
        """What the source or the destination needs to open the link; None: it must not open."""
        self._connection: Connection | None = None
        self._why: str | None = None
        """Why the link must end or has ended; None while it may work."""
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"kv {name}", daemon=True)

    @property
    def over(self) -> bool:
        return self._why is not None

    def start(self) -> None:
        self._thread.start()

    def meet(self, other: Answer | socket.socket) -> None:
        """From any thread: hands over the destination's answer, or the source's connection."""
        self._met.put(other)

    def break_off(self, why: str) -> None:
        """From any thread; returns at once. The link's stages fail at once, too; its thread ends
        within three times OPEN_TIMEOUT_S if it is still opening."""
        with self._changed:
            if self._why is not None:
                return
            self._why = why
            if self._connection is not None:
                self._connection.break_off()
            self._changed.notify_all()
        self._fail_all(why)
        self._met.put(None)

    def wake(self) -> None:
        """From any thread: the link's thread looks again at what it waits for."""
        with self._changed:
            self._changed.notify_all()

    def join(self) -> None:
        """Call it after `on_over`, when the thread is about to end."""
        self._thread.join()

    def _run(self) -> None:
        why = "the link broke"
        try:
            with self._open() as connection:
                self._work(connection)
        except (ConnectionBrokenError, LinkClosedError, NotALinkError) as error:
            why = f"the link broke: {error}"
        except Exception as error:
            log.exception("link %s", self.name)
            why = f"the link broke: {error!r}"
        with self._changed:
            self._connection = None
            broken_off, self._why = self._why, self._why or why
        self._close_what_came_too_late()
        log.info("link %s is over: %s", self.name, self._why)
        if broken_off is None:
            self._fail_all(why)
        self._on_over(self)

    def _close_what_came_too_late(self) -> None:
        while not self._met.empty():
            if isinstance(met := self._met.get(), socket.socket):
                met.close()

    def _met_within(self, patience_s: float) -> Answer | socket.socket:
        try:
            met = self._met.get(timeout=patience_s)
        except Empty:
            raise LinkClosedError("the other end did not come") from None
        if met is None:
            raise LinkClosedError("it is not wanted any more")
        return met

    def _keep(self, connection: Connection) -> Connection:
        """Lets `break_off` reach the connection. Raises LinkClosedError if it came before."""
        with self._changed:
            self._connection = connection
            wanted = self._why is None
        if not wanted:
            with connection:
                raise LinkClosedError("it is not wanted any more")
        return connection

    @abstractmethod
    def _open(self) -> Connection:
        """Connects; returns when both ends have proved that they know the link's key."""

    @abstractmethod
    def _work(self, connection: Connection) -> None: ...

    @abstractmethod
    def _fail_all(self, why: str) -> None:
        """Fails the present stages; later ones may come over the next link."""
