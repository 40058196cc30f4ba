"""One listening socket that several server processes accept from, and what dies beside it."""

import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from controller.adapters import listener as keeper_module
from controller.adapters.listener import HEAD, Keeper, SharedListener, keeper_path, listen, receive

REQUEST = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
PATIENCE_S = 20.0
NUM_CLIENTS = 64

Start = Callable[..., "list[subprocess.Popen[str]]"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "k"  # a Unix socket's path is short


@pytest.fixture
def kept(folder: Path) -> Iterator[socket.socket]:
    kept = listen("127.0.0.1", 0, 60.0)
    keeper = Keeper(kept, keeper_path(folder, HEAD))
    yield kept
    keeper.close()


@pytest.fixture
def start(folder: Path) -> Iterator[Start]:
    """Starts server processes by name, and returns when they serve."""
    with ExitStack() as started:

        def start(*names: str) -> list[subprocess.Popen[str]]:
            command = [sys.executable, "-m", "tests.unit.endpoint.listening_process", str(folder)]
            processes = [
                subprocess.Popen([*command, name], stdout=subprocess.PIPE, text=True)
                for name in names
            ]
            for process in processes:
                started.enter_context(process)
                started.callback(process.kill)
            for process in processes:
                assert process.stdout is not None
                assert process.stdout.readline() == "serving\n"
            return processes

        yield start


def ask(kept: socket.socket) -> socket.socket:
    client = socket.create_connection(kept.getsockname(), timeout=PATIENCE_S)
    client.sendall(REQUEST)
    return client


def answer(client: socket.socket) -> str:
    """The name of the process that answered; raises OSError if none did."""
    with client:
        got = b""
        while chunk := client.recv(4096):
            got += chunk
    assert got.startswith(b"HTTP/1.1 200"), got
    return got.rpartition(b"\r\n")[2].decode()


@pytest.mark.process
@pytest.mark.parametrize("dies", [True, False], ids=["dies", "hangs"])
def test_a_frontend_that_dies_or_hangs_costs_no_connection_that_it_has_not_accepted(
    kept: socket.socket, start: Start, dies: bool
) -> None:
    hanging, _other = start("a", "b")
    hanging.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, hanging.pid, os.WSTOPPED)
    clients = [ask(kept) for _ in range(NUM_CLIENTS)]
    if dies:
        hanging.kill()
        hanging.wait()
    assert Counter(map(answer, clients)) == {"b": NUM_CLIENTS}
    hanging.send_signal(signal.SIGCONT)


@pytest.mark.process
def test_a_frontend_that_drains_costs_no_connection_and_closes_the_socket_for_itself_alone(
    kept: socket.socket, start: Start
) -> None:
    draining, other = start("a", "b")
    draining.send_signal(signal.SIGTERM)
    clients = []
    while draining.poll() is None:
        clients.append(ask(kept))
        if len(clients) > NUM_CLIENTS:  # an unread answer keeps its connection
            assert answer(clients.pop(0)) in "ab"
    assert {answer(client) for client in clients} <= {"a", "b"}
    assert Counter(map(answer, [ask(kept) for _ in range(NUM_CLIENTS)])) == {"b": NUM_CLIENTS}
    other.send_signal(signal.SIGTERM)
    assert other.wait(PATIENCE_S) == 0
    waiting = ask(kept)  # while no frontend serves
    start("c")
    assert answer(waiting) == "c"


async def test_the_socket_is_found_at_another_frontend_when_the_head_has_died(
    folder: Path, kept: socket.socket
) -> None:
    listeners = SharedListener(folder, "f-0"), SharedListener(folder, "f-1")
    first = await listeners[0].open()
    keeper_path(folder, HEAD).unlink()
    stale = keeper_path(folder, "f-1")
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(stale))
    second = await listeners[1].open()
    with first, second, receive(stale) as third:
        assert first.getsockname() == second.getsockname() == kept.getsockname()
        assert not second.get_inheritable()
        assert third.getsockname() == kept.getsockname()
    for listener in listeners:
        listener.close()


async def test_a_socket_that_nobody_keeps_is_an_error_with_a_way_out(folder: Path) -> None:
    folder.mkdir()
    with pytest.raises(ConnectionError, match="llumctl down"):
        await SharedListener(folder, "f-0").open()


@pytest.mark.usefixtures("kept")
def test_another_user_gets_no_socket(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert folder.stat().st_mode & 0o077 == 0
    monkeypatch.setattr(keeper_module, "ROOT", -1)
    monkeypatch.setattr(keeper_module.os, "getuid", lambda: 4242)
    with pytest.raises(PermissionError, match="is at the other end"):
        receive(keeper_path(folder, HEAD))
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs, pytest.raises(PermissionError):
        keeper_module.check_peer(ours)
