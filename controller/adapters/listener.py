"""The endpoint's listening socket: bound once, kept open, and given to every frontend.

`listen` binds the socket. A keeper gives duplicates of it to other processes over a Unix socket, so
every frontend accepts connections from the same queue. The keeper's folder is private to the user,
and both ends ask the kernel which user is at the other end. A frontend gets the socket through
`SharedListener`."""

import asyncio
import logging
import os
import socket
import struct
import threading
from pathlib import Path

log = logging.getLogger(__name__)

# How many bytes the kernel may buffer for a client that reads slowly; its own limit is 4 MB.
SEND_BUFFER_BYTES = 256 * 1024
# How many connections may wait for a frontend. uvicorn later sets its own default, which is the
# same number.
BACKLOG = 2048


def listen(host: str, port: int, write_timeout_s: float) -> socket.socket:
    """Binds the port. SO_REUSEPORT is not set, so no other program can listen on the port too.

    The kernel closes the connection of a client that takes nothing for `write_timeout_s` or has
    vanished. vLLM then sees that the client has left, and aborts the request. Until then, little is
    stored for the client: the kernel's buffer, 64 KB in the server, and what vLLM has generated
    meanwhile."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.create_server((host, port), family=family, backlog=BACKLOG)
    found.setblocking(False)  # this flag is shared by all processes
    set_write_timeout(found, write_timeout_s)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    return found


def set_write_timeout(listening: socket.socket, write_timeout_s: float) -> None:
    """Sets the time-out. Later connections inherit it, whichever process accepts them."""
    milliseconds = round(write_timeout_s * 1000)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)


HEAD = "head"


class SharedListener:
    """A frontend's access to the socket, which the head process keeps. Each frontend also keeps it
    for the others, so that a restarted frontend finds the socket even if the head has died."""

    def __init__(self, folder: Path, frontend_id: str) -> None:
        self._folder = folder
        self._frontend_id = frontend_id
        self._kept: socket.socket | None = None
        self._keeper: Keeper | None = None

    async def open(self) -> socket.socket:
        self._kept = await asyncio.to_thread(self._find)
        self._keeper = Keeper(self._kept, keeper_path(self._folder, self._frontend_id))
        return self._kept.dup()  # the server closes its copy when it drains

    def set_write_timeout(self, write_timeout_s: float) -> None:
        assert self._kept is not None
        set_write_timeout(self._kept, write_timeout_s)

    def close(self) -> None:
        if self._keeper is not None:
            self._keeper.close()

    def _find(self) -> socket.socket:
        first = keeper_path(self._folder, HEAD)
        others = sorted(path for path in self._folder.glob("*.sock") if path != first)
        for path in (first, *others):
            try:
                return receive(path)
            except OSError as error:
                log.warning("no listening socket from %s: %s", path.stem, error)
        raise ConnectionError(
            "no process has the endpoint's socket any more; run llumctl down, then llumctl up"
        )


def keeper_path(folder: Path, holder: str) -> Path:
    return folder / f"{holder}.sock"


# A keeper answers at once. After this time a keeper counts as stopped or hanging, and is skipped.
PATIENCE_S = 1.0
# A keeper that has no free descriptor can accept no connection, and tries again after this time.
AGAIN_S = 0.5
ROOT = 0


class Keeper:
    """Keeps the socket `kept` and gives it to other processes, on a thread of its own, until the
    keeper is closed."""

    def __init__(self, kept: socket.socket, path: Path) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # an earlier process of this name may have left it
        self._kept = kept
        self._closed = threading.Event()
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind(str(path))
        self._door.listen()
        self._thread = threading.Thread(target=self._serve, name="keeper", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the keeper. The duplicates that other processes have stay open."""
        self._closed.set()
        self._door.shutdown(socket.SHUT_RDWR)  # wakes the keeper's thread
        self._thread.join()
        self._kept.close()

    def _serve(self) -> None:
        is_told = False
        while not self._closed.is_set():
            try:
                caller, _ = self._door.accept()
            except OSError as error:
                if not is_told and not self._closed.is_set():
                    log.warning("the listening socket cannot be handed out now: %s", error)
                    is_told = True
                self._closed.wait(AGAIN_S)
                continue
            is_told = False
            with caller:
                try:
                    check_peer(caller)
                    socket.send_fds(caller, [b"."], [self._kept.fileno()])
                except OSError as error:
                    log.warning("the listening socket was not handed out: %s", error)
        self._door.close()


def receive(path: Path) -> socket.socket:
    """The socket that the keeper at `path` keeps. Raises OSError if the keeper hands out no
    socket."""
    with socket.socket(socket.AF_UNIX) as keeper:
        keeper.settimeout(PATIENCE_S)
        keeper.connect(str(path))
        check_peer(keeper)
        _, descriptors, _, _ = socket.recv_fds(keeper, 1, 1, socket.MSG_CMSG_CLOEXEC)
    if not descriptors:
        raise ConnectionError(f"the keeper at {path} handed out nothing")
    return socket.socket(fileno=descriptors[0])


def check_peer(connection: socket.socket) -> None:
    """Raises PermissionError unless this user, or root, is at the other end."""
    size = struct.calcsize("3i")
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    _pid, uid, _gid = struct.unpack("3i", found)
    if uid not in (os.getuid(), ROOT):
        raise PermissionError(f"user {uid} is at the other end")
