"""A keeper hands out the endpoint's listening socket to other processes, over a Unix socket.

It hands out duplicates of one socket, so every frontend accepts from the same queue. The folder
is private to the user; both ends also ask the kernel which user is at the other end.
"""

import logging
import os
import socket
import struct
import threading
from pathlib import Path

log = logging.getLogger(__name__)

# A keeper answers at once; a keeper that is stopped or hangs is passed over.
PATIENCE_S = 1.0
# Without a free descriptor a keeper can accept nobody, and tries again after this.
AGAIN_S = 0.5
ROOT = 0


class Keeper:
    """Owns `kept` and hands it out, from a thread of its own, until the keeper is closed."""

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
        """Other processes' duplicates of the socket stay open."""
        self._closed.set()
        self._door.shutdown(socket.SHUT_RDWR)  # wakes its thread
        self._thread.join()
        self._kept.close()

    def _serve(self) -> None:
        is_told = False
        while not self._closed.is_set():
            try:
                caller, _ = self._door.accept()
            except OSError as error:
                if not is_told and not self._closed.is_set():
                    log.warning("nobody can ask for the listening socket now: %s", error)
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
    """The socket that the keeper at `path` keeps. Raises OSError if it hands out none."""
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
