"""Closes the ports that vLLM's process groups leave open.

An engine in one process has process groups of one: vLLM makes some fifteen, each with a Gloo
listener. No engine connects to these, but every user of the machine can: Gloo keeps the descriptor
of each connection that does not speak its protocol for ever (118 became 2,220 within a minute), and
ends the process when no descriptor is left.

Gloo watches its listener for as long as the process lives, so the descriptor must stay open; it is
pointed to a socket that never receives anything.
"""

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

log = logging.getLogger(__name__)


@contextmanager
def closed_afterwards(*, only_if: bool) -> Iterator[None]:
    """Closes the listeners that any thread of this process opens in the `with` block."""
    before = listeners()
    yield
    if only_if:
        opened = listeners() - before
        for descriptor, _inode in opened:
            _close(descriptor)
        log.info("closed %d listeners of process groups of one", len(opened))


def listeners() -> set[tuple[int, int]]:
    """Descriptor and inode of each listening TCP socket of this process."""
    return {found for entry in Path("/proc/self/fd").iterdir() if (found := _listener(entry))}


def _listener(entry: Path) -> tuple[int, int] | None:
    with suppress(OSError):  # the descriptor is closed by now, or is no socket
        if not entry.readlink().name.startswith("socket:"):
            return None
        with socket.socket(fileno=os.dup(int(entry.name))) as found:
            if found.family in (socket.AF_INET, socket.AF_INET6) and found.getsockopt(
                socket.SOL_SOCKET, socket.SO_ACCEPTCONN
            ):
                return int(entry.name), os.fstat(found.fileno()).st_ino
    return None


def _close(descriptor: int) -> None:
    """Replaces the socket in one step, so that no other thread can get its number meanwhile."""
    with socket.socket() as silent:
        os.dup2(silent.fileno(), descriptor, inheritable=False)
