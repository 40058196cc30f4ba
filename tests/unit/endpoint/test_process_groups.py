"""Ports that vLLM opens and does not use are closed, and threads that watch them get no events."""

import select
import socket

from controller.adapters.vllm.process_setup import closed_afterwards


def accepts(port: int) -> bool:
    with socket.socket() as client:
        client.settimeout(5)
        return client.connect_ex(("127.0.0.1", port)) == 0


def test_what_was_opened_within_is_closed_and_stays_silent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as ours, select.epoll() as watcher:
        with closed_afterwards(only_if=True):
            theirs = socket.create_server(("127.0.0.1", 0))
            port = theirs.getsockname()[1]
            watcher.register(theirs.fileno(), select.EPOLLIN)
            assert accepts(port)
            assert watcher.poll(5) == [(theirs.fileno(), select.EPOLLIN)]
        with theirs:
            assert not accepts(port)
            assert accepts(ours.getsockname()[1])
            assert watcher.poll(0) == []
    with closed_afterwards(only_if=False):  # groups that somebody connects to
        theirs = socket.create_server(("127.0.0.1", 0))
    with theirs:
        assert accepts(theirs.getsockname()[1])
