"""`llumctl top --web` under attack: the real server, real dashboards, and clients that are none of
its pages. What a browser adds is in `tests/unit/tui/test_tui_browser.py`."""

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import psutil
import pytest

from llumctl.web.server import Doors, Server, cookie_name, listening
from tests.unit import fake_controller
from tests.unit.cli_support import remember
from tests.unit.fake_controller import FakeController, until
from tests.unit.web_server import Served, secrets_of, served
from tools import synthetic_cluster as synthetic

pytestmark = pytest.mark.process

TOKEN = "control-token-5b1f0c"
LIMIT_S = 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the server runs, and so its dashboards."""
    return tmp_path_factory.mktemp("web")


def live_in(folder: Path, patch: pytest.MonkeyPatch) -> None:
    for variable in ("LLUMCTL_CLUSTER_NAME", "LLUMCTL_CONFIG", "NO_COLOR"):
        patch.delenv(variable, raising=False)
    patch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
    patch.setenv("XDG_STATE_HOME", str(folder / "state"))
    patch.setattr(fake_controller, "TOKEN", TOKEN)
    patch.chdir(folder)


@pytest.fixture(autouse=True)
def _home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live_in(folder, monkeypatch)


@pytest.fixture(scope="module")
def controller(folder: Path) -> Iterator[FakeController]:
    with pytest.MonkeyPatch.context() as patch:
        live_in(folder, patch)
        with FakeController(status=synthetic.cluster((synthetic.instance("i-0"),))) as fake:
            remember(fake.url, token=TOKEN)
            yield fake


@pytest.fixture(scope="module")
def server(controller: FakeController) -> Iterator[Served]:  # noqa: ARG001 - it must be there
    with served() as found:
        yield found


class Socket:
    """`drawn`: all that it was sent."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket
        self.drawn = ""

    async def press(self, keys: str) -> None:
        await self.socket.send_json(["stdin", keys])

    async def until_drawn(self, *texts: str) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not all(text in self.drawn for text in texts):
                message = await self.socket.receive()
                assert message.type is aiohttp.WSMsgType.BINARY, (message, self.drawn[-2000:])
                self.drawn += message.data.decode()

    async def until_closed(self) -> None:
        async with asyncio.timeout(LIMIT_S):
            async for message in self.socket:
                if message.type is aiohttp.WSMsgType.BINARY:
                    self.drawn += message.data.decode()


@asynccontextmanager
async def connected(server: Served, page: str, cookie: str) -> AsyncIterator[Socket]:
    headers = {"Cookie": cookie, "Origin": f"http://{server.host}", "Host": server.host}
    url = f"http://{server.host}{page}socket?width=100&height=30"
    async with aiohttp.ClientSession() as session, session.ws_connect(url, headers=headers) as made:
        yield Socket(made)


def test_the_page_and_all_it_loads_come_from_here_and_are_not_kept(server: Served) -> None:
    status, headers, _ = server.get(f"/?code={server.another_code()}")
    assert status == 303
    page, (cookie, *limits) = headers["location"], headers["set-cookie"].split("; ")
    assert set(limits) == {"HttpOnly", "SameSite=Strict", f"Path={page}"}
    # A page of another port may set cookies here, for all paths; they come behind ours.
    both = f"{cookie}; llumctl=theirs"
    for name in ("", "page.css", "page.js", "textual.js"):
        status, headers, body = server.get(page + name, Cookie=both)
        assert status == 200
        assert headers["cache-control"] == "no-store"
        assert headers["x-content-type-options"] == "nosniff"
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; ")
        assert "http" not in policy
        assert "*" not in policy
        assert TOKEN not in body
        assert name == "textual.js" or "://" not in body


def test_strangers_see_nothing_and_start_nothing(server: Served) -> None:
    page, cookie = server.enter()
    other_page, _ = server.enter()
    code = server.another_code()
    socket, own = f"{page}socket", f"http://{server.host}"
    for path, headers in (
        (page, {}),
        (page, {"Cookie": cookie.partition("=")[0] + "="}),
        (other_page, {"Cookie": cookie}),
        (f"{page}textual.js", {}),
        ("/", {"Cookie": cookie}),
        (f"/?code={code[:-1]}", {}),
        (f"/?code={code}", {"Host": "evil.example"}),
        (f"/?code={code}", {"Origin": "http://evil.example"}),
        (page, {"Cookie": cookie, "Host": f"evil.example:{server.port}"}),
        (page, {"Cookie": cookie, "Origin": "http://127.0.0.1:1"}),
        (socket, {"Upgrade": "websocket", "Origin": own, "Cookie": "llumctl=x"}),
        (socket, {"Upgrade": "websocket", "Cookie": cookie}),
        (socket, {"Upgrade": "websocket", "Cookie": cookie, "Origin": "http://evil.example"}),
    ):
        status, answered, body = server.get(path, **headers)
        assert status == 403, (path, headers)
        assert "frame-ancestors 'none'" in answered["content-security-policy"]
        assert "<" not in body
        assert "set-cookie" not in answered
    for path in ("nothing", "..%2f..%2fpyproject.toml", "page.html", "static/js/textual.js"):
        assert server.get(page + path, Cookie=cookie)[0] == 404, path
    for method in ("HEAD", "OPTIONS", "POST"):
        assert server.get(f"/?code={code}", method)[0] == 405, "a look ahead"
    assert server.get(f"/?code={code}")[0] == 303  # nothing of all that used it up
    status, _, body = server.get(f"/?code={code}")
    assert (status, "used already, is too old" in body) == (403, True)
    assert server.children == []


async def test_a_session_looks_and_does_nothing_here(server: Served, folder: Path) -> None:
    """No change, no shell, no file; and it leaves as a dashboard in a terminal does."""
    page, cookie = server.enter()
    before = sorted(folder.iterdir())
    async with connected(server, page, cookie) as found:
        await found.until_drawn("i-0", "[READ]")
        for keys, told in (
            ("d", "this dashboard was started with --readonly"),
            ("R", "read-only: it was started with --readonly"),
            ("P", "no file is written for a browser"),
            ("\x1a", "a browser has no shell to go back to"),
        ):
            await found.press(keys)
            await found.until_drawn(told)
        (child,) = server.children
        assert child.status() != psutil.STATUS_STOPPED
        assert TOKEN not in secrets_of(child)
        await found.press("q")
        await found.until_closed()
    server.until_children(0)
    assert sorted(folder.iterdir()) == before
    assert TOKEN not in found.drawn


async def test_four_sessions_at_most_and_none_outlives_its_socket(server: Served) -> None:
    page, cookie = server.enter()
    async with contextlib.AsyncExitStack() as stack:
        sockets = [
            await stack.enter_async_context(connected(server, page, cookie)) for _ in range(4)
        ]
        await asyncio.gather(*(each.until_drawn("i-0") for each in sockets))
        children = server.children
        assert len(children) == 4
        async with connected(server, page, cookie) as fifth:
            await fifth.until_closed()
        assert "There are 4 sessions already" in fifth.drawn
        assert server.children == children
        await _cut(server, sockets[0])
        await sockets[1].socket.send_str("no message of ours")
        await sockets[1].until_closed()
        server.until_children(2)
        hung, killed = server.children
        hung.send_signal(signal.SIGSTOP)
        killed.kill()
        ending = [asyncio.create_task(each.until_closed()) for each in sockets[2:]]
        done, _ = await asyncio.wait(ending, return_when=asyncio.FIRST_COMPLETED)
        assert len(done) == 1  # that of the killed one
        assert server.children == [hung]
    server.until_children(0)
    async with connected(server, page, cookie) as again:
        await again.until_drawn("i-0")
    server.until_children(0)


async def _cut(server: Served, socket: Socket) -> None:
    """As when the browser is killed: the connection ends without a word."""
    transport = socket.socket._response.connection.transport  # type: ignore[union-attr]
    transport.abort()  # type: ignore[union-attr]
    await asyncio.to_thread(server.until_children, 3)


@pytest.mark.usefixtures("controller")
async def test_with_write_it_may_act_but_runs_nothing_and_ends_with_the_server(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = folder / "own.toml"
    config.write_text('[commands.touch]\nkey = "f9"\nrun = ["touch", "made"]\n')
    config.chmod(0o644)
    monkeypatch.setenv("LLUMCTL_CONFIG", str(config))
    with served("--write") as server:
        page, cookie = server.enter()
        async with connected(server, page, cookie) as found:
            await found.until_drawn("[WRITE]", "i-0")
            await found.press("\x1b[20~")  # F9
            await found.until_drawn("no touch now: a browser runs no commands here")
            assert not (folder / "made").exists()
            (child,) = server.children
            server.screen.press("\x03")
            await found.until_closed()
        assert server.screen.process.wait(LIMIT_S) == 0
        assert not child.is_running()
        assert TOKEN not in server.screen.text
        assert cookie.partition("=")[2] not in server.screen.text


CHATTER = """
import os, threading
write = os.fdopen(1, "wb").write
write(b"__GANGLION__\\n")
def hear():
    while os.read(0, 65536): pass
    os._exit(0)
threading.Thread(target=hear, daemon=True).start()
while True: write(b"D" + (200_000).to_bytes(4, "big") + b"x" * 200_000)
"""


async def test_it_ends_though_a_browser_reads_nothing() -> None:
    """Its Ctrl-C waited for such a browser for ever."""
    doors = Doors(time.monotonic)
    server = Server((sys.executable, "-c", CHATTER), doors, print)
    async with asyncio.timeout(LIMIT_S), listening(server.app(), "127.0.0.1", 0) as port:
        host = f"127.0.0.1:{port}"
        login = doors.enter(doors.new_code())
        reader, writer = await asyncio.open_connection(*host.split(":"), limit=1024)
        writer.write(
            f"GET /{login.room}/socket HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}\r\n"
            f"Cookie: {cookie_name(login.room)}={login.secret}\r\nConnection: Upgrade\r\n"
            "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n".encode()
        )
        await reader.readuntil(b"x" * 1000)  # and no more than that
        child = max(psutil.Process().children(), key=lambda each: each.create_time())
        await until_it_waits(child)
    assert not child.is_running()
    writer.close()


async def until_it_waits(process: psutil.Process) -> None:
    """Until all pipes and buffers on the way to the browser are full."""
    before = -1.0
    while (now := process.cpu_times().user + process.cpu_times().system) != before:
        before = now
        await asyncio.sleep(0.3)


@pytest.mark.usefixtures("controller")
async def test_no_session_outlives_a_killed_server() -> None:
    with served() as server:
        page, cookie = server.enter()
        async with connected(server, page, cookie) as found:
            await found.until_drawn("i-0")
            (child,) = server.children
            server.screen.process.kill()
            await asyncio.to_thread(until, lambda: not child.is_running())
