"""The connection between two instances: the port at which an instance receives blocks, the check of
every connection to this port, and the stream of slices.

Anyone who reaches the port can connect. Within 5 s a connection must name the link for which it
comes, and prove that it knows the link's key. Until then the connection gets no answer and costs a
socket and 48 bytes. When there are too many such strangers, the oldest is closed.

Each end of a link makes a secret for it, and tells it to the other end through the mailbox, which
is encrypted and admits only the cluster's processes. The link's key is computed from both secrets.
The key is never sent; only proofs that are computed with it are sent. A key is used for one
connection only, so a recording of another connection is useless."""

import contextlib
import hashlib
import hmac
import logging
import secrets
import selectors
import socket
import struct
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Self

log = logging.getLogger(__name__)

# -- the proofs --------------------------------------------------------------------------

SECRET_BYTES = 32
ID_BYTES = 16
PROOF_BYTES = 32


def new_secret() -> bytes:
    return secrets.token_bytes(SECRET_BYTES)


def link_id(name: str) -> bytes:
    """The id by which a connection names its link to the door. It is not secret."""
    return hashlib.blake2b(name.encode(), digest_size=ID_BYTES).digest()


class LinkKey:
    def __init__(self, name: str, source_secret: bytes, destination_secret: bytes) -> None:
        self._key = hashlib.blake2b(
            link_id(name) + source_secret + destination_secret, digest_size=SECRET_BYTES
        ).digest()

    def proof_of_source(self) -> bytes:
        return self._proof(b"source")

    def proof_of_destination(self) -> bytes:
        return self._proof(b"destination")

    def _proof(self, end: bytes) -> bytes:
        return hashlib.blake2b(end, key=self._key, digest_size=PROOF_BYTES).digest()


# -- the door ----------------------------------------------------------------------------

GREETING_BYTES = ID_BYTES + PROOF_BYTES
GREETING_TIMEOUT_S = 5.0
MAX_STRANGERS = 256
# The log mentions strangers at most this often, however many come.
TELL_EVERY_S = 60.0

Admit = Callable[[socket.socket], None]


class Door:
    """Accepts connections for links. `expect`, `forget` and `close` may be called from any thread;
    `Admit` is called on the door's own thread."""

    def __init__(self, host: str) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family, backlog=MAX_STRANGERS)
        self._listener.setblocking(False)
        self.address = f"{host}:{self._listener.getsockname()[1]}"
        self._wake, self._woken = socket.socketpair()
        self._expected: dict[bytes, tuple[bytes, Admit]] = {}
        self._lock = threading.Lock()
        self._strangers: OrderedDict[socket.socket, tuple[float, bytearray]] = OrderedDict()
        self._selector = selectors.DefaultSelector()
        self._num_turned_away = 0
        self._told_s = -TELL_EVERY_S
        self._thread = threading.Thread(target=self._run, name="kv door", daemon=True)
        self._thread.start()

    def expect(self, link_id: bytes, proof: bytes, admit: Admit) -> None:
        with self._lock:
            self._expected[link_id] = proof, admit

    def forget(self, link_id: bytes) -> None:
        with self._lock:
            self._expected.pop(link_id, None)

    def close(self) -> None:
        self._wake.close()
        self._thread.join()

    def _run(self) -> None:
        with self._selector as selector, self._listener, self._woken:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while True:
                ready = {key.fileobj for key, _ in selector.select(self._patience_s())}
                if self._woken in ready:
                    break
                for stranger in [each for each in self._strangers if each in ready]:
                    self._hear(stranger)
                if self._listener in ready:
                    self._accept()
                while self._strangers and self._patience_s() == 0:
                    self._turn_away(next(iter(self._strangers)))
            for stranger in self._strangers:
                stranger.close()

    def _patience_s(self) -> float | None:
        """How much time the oldest stranger has left; None if there is no stranger."""
        for came_s, _ in self._strangers.values():
            return max(0.0, came_s + GREETING_TIMEOUT_S - time.monotonic())
        return None

    def _accept(self) -> None:
        try:
            stranger, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:  # in most cases because no descriptor is left
            if self._may_tell():
                log.warning("a connection could not be accepted: %s", error)
            if self._strangers:
                self._turn_away(next(iter(self._strangers)))
            else:
                time.sleep(0.1)
            return
        stranger.setblocking(False)
        self._strangers[stranger] = time.monotonic(), bytearray()
        self._selector.register(stranger, selectors.EVENT_READ)
        if len(self._strangers) > MAX_STRANGERS:
            self._turn_away(next(iter(self._strangers)))

    def _hear(self, stranger: socket.socket) -> None:
        _, heard = self._strangers[stranger]
        try:
            said = stranger.recv(GREETING_BYTES - len(heard))
        except BlockingIOError:
            return
        except OSError:
            said = b""
        heard += said
        if not said:
            self._turn_away(stranger)
        elif len(heard) == GREETING_BYTES:
            admit = self._admitted(bytes(heard))
            if admit is None:
                self._turn_away(stranger)
            else:
                self._let_go(stranger)
                admit(stranger)

    def _admitted(self, greeting: bytes) -> Admit | None:
        """Finds the link that the greeting names, and removes it, because a link admits one
        connection only."""
        link_id, proof = greeting[:ID_BYTES], greeting[ID_BYTES:]
        with self._lock:
            wanted, admit = self._expected.get(link_id, (bytes(PROOF_BYTES), None))
            if not hmac.compare_digest(wanted, proof) or admit is None:
                return None
            del self._expected[link_id]
        return admit

    def _turn_away(self, stranger: socket.socket) -> None:
        self._let_go(stranger)
        with contextlib.suppress(OSError):
            stranger.close()
        self._num_turned_away += 1
        if self._may_tell():
            log.warning("%d connections did not know a link's key", self._num_turned_away)

    def _may_tell(self) -> bool:
        """Returns True at most once in TELL_EVERY_S."""
        if time.monotonic() - self._told_s <= TELL_EVERY_S:
            return False
        self._told_s = time.monotonic()
        return True

    def _let_go(self, stranger: socket.socket) -> None:
        del self._strangers[stranger]
        self._selector.unregister(stranger)


# -- the stream ------------------------------------------------------------------------------------

_FORMAT = struct.Struct("<16sIIQB")
HEADER_BYTES = _FORMAT.size
TAKEN = b"\x06"


class Kind(IntEnum):
    MORE = 0
    LAST = 1
    CANCELLED = 2


class NotALinkError(Exception):
    """The other end does not follow the protocol of this cluster's links."""


@dataclass(frozen=True, slots=True)
class SliceHeader:
    """The header of a slice. `first`: the index of the slice's first block in the stage."""

    kind: Kind
    stage: bytes = bytes(16)
    first: int = 0
    num_blocks: int = 0
    num_bytes: int = 0

    def encode(self) -> bytes:
        return _FORMAT.pack(self.stage, self.first, self.num_blocks, self.num_bytes, self.kind)

    @classmethod
    def decode(cls, header: bytes | bytearray) -> Self:
        """Decodes a header. Raises NotALinkError if its kind is unknown."""
        stage, first, num_blocks, num_bytes, kind = _FORMAT.unpack(header)
        if kind > max(Kind):
            raise NotALinkError(f"a slice of kind {kind}")
        return cls(Kind(kind), stage, first, num_blocks, num_bytes)


def stage_key(stage_id: str) -> bytes:
    return hashlib.blake2b(stage_id.encode(), digest_size=16).digest()


# -- the connection --------------------------------------------------------------------------------

_TIME = struct.Struct("@ll")


class ConnectionBrokenError(Exception):
    """The connection has failed and cannot be used any more."""


class Connection:
    """A context manager. If a call takes longer than `patience_s`, the call fails, and the
    connection counts as broken."""

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
        """Waits without a timeout until bytes come or the connection ends."""
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
        """Ends the connection. May be called from any thread. Calls that wait at either end fail at
        once."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.break_off()
        self._socket.close()


def _why(error: OSError) -> str:
    return "nothing moves" if isinstance(error, BlockingIOError) else str(error)
