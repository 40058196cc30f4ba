"""The endpoint's listening socket, and what its connections inherit from it."""

import socket

# What the kernel may hold back for a client that reads slowly; the kernel's own limit is 4 MB.
SEND_BUFFER_BYTES = 256 * 1024
# Connections that wait for a frontend. uvicorn sets its default later, which is the same number.
BACKLOG = 2048


def listen(host: str, port: int, write_timeout_s: float) -> socket.socket:
    """Binds the port. Without SO_REUSEPORT no other program can listen on it too.

    A client that takes nothing for `write_timeout_s`, or is gone without a word, is cut by the
    kernel; vLLM then hears that it has left, and aborts. Until then little is kept for it: the
    kernel's buffer, 64 KB in the server, and what vLLM has generated meanwhile.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.create_server((host, port), family=family, backlog=BACKLOG)
    found.setblocking(False)  # all processes share this flag, too
    set_write_timeout(found, write_timeout_s)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    return found


def set_write_timeout(listening: socket.socket, write_timeout_s: float) -> None:
    """Later connections inherit the time-out, whichever process accepts them."""
    milliseconds = round(write_timeout_s * 1000)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
