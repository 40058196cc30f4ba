"""Tells systemd how far `up` is, by the protocol of sd_notify(3).

A unit with `Type=notify` names a datagram socket in $NOTIFY_SOCKET. The protocol is one datagram
of `NAME=value` lines, so this is shorter than what a library would need. Without the variable,
nothing is told."""

import contextlib
import os
import socket

SOCKET_VARIABLE = "NOTIFY_SOCKET"


class ServiceManager:
    """What started `up`, if that wants to hear how far the cluster is. It takes the variable out of
    the environment: no process of the cluster speaks for the service."""

    def __init__(self) -> None:
        self._address = os.environ.pop(SOCKET_VARIABLE, "")

    def ready(self, status: str) -> None:
        """The cluster serves."""
        self._tell("READY=1", f"STATUS={status}")

    def stopping(self, status: str) -> None:
        self._tell("STOPPING=1", f"STATUS={status}")

    def _tell(self, *lines: str) -> None:
        """A service manager that is gone does not stop a cluster, so errors are dropped."""
        if not self._address:
            return
        address = self._address
        if address.startswith("@"):
            address = "\0" + address[1:]  # a socket without a file
        text = "\n".join(" ".join(line.splitlines()) for line in lines)
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender,
        ):
            sender.setblocking(False)
            sender.sendto(text.encode(), address)
