"""Where a frontend's clients come from."""

import socket
from typing import Protocol


class Listener(Protocol):
    async def open(self) -> socket.socket:
        """The listening socket that all frontends share. Raises OSError."""

    def set_write_timeout(self, write_timeout_s: float) -> None:
        """Sets the time-out of connections that come from then on, to every frontend."""
