"""Who gets in to `llumctl top --web`, for how long strangers may hold its port, and what page and
process may say: decisions, and raw sockets to a server in this process. Attacks on the whole server
are in test_web_attacks.py."""

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from llumctl.web import server
from llumctl.web.server import (
    CODE_LIFE_S,
    LOGIN_LIFE_S,
    MAX_LOGINS,
    Doors,
    Login,
    Server,
    cookie_name,
    environment,
    listening,
    refusal,
)

OWN = "127.0.0.1:8700"
LIMIT_S = 30


@pytest.mark.parametrize(
    ("hosts", "origins", "is_socket", "word"),
    [
        ([OWN], [], False, ""),
        ([OWN], [f"http://{OWN}"], True, ""),
        (["localhost:9"], ["http://localhost:9"], True, ""),
        (["evil.example:8700"], ["http://evil.example:8700"], True, "Host"),
        (["127.0.0.1.evil.example"], [], False, "Host"),
        ([], [], False, "one Host"),
        ([OWN, OWN], [], False, "one Host"),
        ([OWN], [f"http://{OWN}"] * 2, True, "one Origin"),
        ([OWN], ["http://evil.example"], False, "origin"),
        ([OWN], ["http://127.0.0.1:8701"], True, "origin"),
        ([OWN], ["http://localhost:8700"], True, "origin"),
        ([OWN], [f"https://{OWN}"], True, "origin"),
        ([OWN], [f"http://{OWN}.evil.example"], True, "origin"),
        ([OWN], ["null"], True, "origin"),
        ([OWN], [], True, "needs an Origin"),
    ],
)
def test_its_own_pages_get_in_and_strangers_do_not(
    hosts: list[str], origins: list[str], is_socket: bool, word: str
) -> None:
    found = refusal(hosts, origins, is_socket=is_socket)
    assert word in found
    assert bool(found) == bool(word)


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def entered(doors: Doors) -> Login:
    return doors.enter(doors.new_code())


def test_a_code_is_good_once_and_for_a_while() -> None:
    clock = Clock()
    doors = Doors(clock)
    assert doors.enter("") is None  # before there is any
    code = doors.new_code()
    for wrong in (code[:-1], "\udcff", ""):
        assert doors.enter(wrong) is None
    assert doors.enter(code) is not None
    assert doors.enter(code) is None
    older, newer = doors.new_code(), doors.new_code()
    assert doors.enter(older) is None
    clock.now_s += CODE_LIFE_S
    assert doors.enter(newer) is not None
    late = doors.new_code()
    clock.now_s += CODE_LIFE_S + 0.1
    assert doors.enter(late) is None


def test_a_cookie_is_good_for_its_room_only_and_not_for_ever() -> None:
    clock = Clock()
    doors = Doors(clock)
    first, second = entered(doors), entered(doors)
    assert len({first.room, second.room, first.secret, second.secret}) == 4
    clock.now_s += LOGIN_LIFE_S - 0.1
    assert doors.admits(first.room, first.secret)
    for room, secret in ((first.room, second.secret), (first.room, ""), ("", "")):
        assert not doors.admits(room, secret)
    clock.now_s += 0.1
    assert not doors.admits(first.room, first.secret)
    logins = [entered(doors) for _ in range(MAX_LOGINS + 1)]
    assert not doors.admits(logins[0].room, logins[0].secret), "the oldest is forgotten"
    assert all(doors.admits(each.room, each.secret) for each in logins[1:])


# -- raw sockets --------------------------------------------------------------------------


class Raw:
    """A connection; `ask` leaves it open."""

    def __init__(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self.port, self.reader, self.writer = port, reader, writer

    async def ask(self, path: str, cookie: str = "", *more: str) -> tuple[int, str]:
        """Status and head. `more`: lines of the head that is sent."""
        host = f"Host: 127.0.0.1:{self.port}"
        lines = (f"GET {path} HTTP/1.1", host, f"Cookie: {cookie}", *more, "\r\n")
        self.writer.write("\r\n".join(lines).encode())
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
        await self.reader.readexactly(int(head.partition("content-length: ")[2].split()[0]))
        return int(head.split()[1]), head

    async def is_closed(self) -> bool:
        """Waits for that."""
        with contextlib.suppress(ConnectionError):
            return await self.reader.read() == b""
        return True


@asynccontextmanager
async def raw(port: int, number: int) -> AsyncIterator[list[Raw]]:
    found = [Raw(port, *await asyncio.open_connection("127.0.0.1", port)) for _ in range(number)]
    try:
        yield found
    finally:
        for each in found:
            each.writer.close()


@asynccontextmanager
async def serving(head_s: float = server.HEAD_S) -> AsyncIterator[tuple[Doors, int]]:
    doors = Doors(Clock())
    app = Server(("false",), doors, print).app()
    async with asyncio.timeout(LIMIT_S), listening(app, "127.0.0.1", 0, head_s=head_s) as port:
        yield doors, port


async def test_doubled_headers_open_nothing() -> None:
    async with serving() as (doors, port):
        path, own = f"/?code={doors.new_code()}", f"127.0.0.1:{port}"
        for more in (
            ("Host: evil.example",),
            (f"Origin: http://{own}", "Origin: http://evil.example"),
        ):
            async with raw(port, 1) as (found,):
                status, head = await found.ask(path, "", *more)
                assert status in (400, 403), more
                assert "set-cookie" not in head
        async with raw(port, 1) as (found,):
            assert (await found.ask(path))[0] == 303


async def test_whoever_sends_no_whole_request_in_time_is_cut() -> None:
    """Nothing, a head byte by byte, or nothing more behind an answer."""
    async with serving(head_s=0.3) as (_, port), raw(port, 3) as (silent, slow, answered):
        assert (await answered.ask("/"))[0] == 403
        ends = [asyncio.create_task(each.is_closed()) for each in (silent, slow, answered)]
        slow.writer.write(b"GET / HTTP/1.1\r\nX: ")
        while not all(each.done() for each in ends):
            if not slow.writer.is_closing():
                slow.writer.write(b"x")
            await asyncio.sleep(0.02)
        assert all(each.result() for each in ends)


async def test_strangers_push_out_each_other_and_no_browser(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 8)
    async with serving() as (doors, port), raw(port, 1) as (browser,):
        login = entered(doors)
        page = f"/{login.room}/", f"{cookie_name(login.room)}={login.secret}"
        assert (await browser.ask(*page))[0] == 200
        async with raw(port, 20) as strangers:
            for each in strangers[:13]:
                assert await each.is_closed()
            for each in strangers[13:]:
                assert (await each.ask("/"))[0] == 403
            assert (await browser.ask(*page))[0] == 200
            async with raw(port, 1) as (another,):
                assert (await another.ask(page[0], "a stranger's"))[0] == 403
                assert (await another.ask(*page))[0] == 200
            assert await strangers[13].is_closed()
            assert (await strangers[14].ask("/"))[0] == 403


# -- what is said -------------------------------------------------------------------------


def test_what_a_page_may_say() -> None:
    assert server.heard('["stdin", "q\\u00e9"]').packet == b"D\x00\x00\x00\x03q\xc3\xa9"
    resized = server.heard('["resize", {"width": 100000, "height": 0}]').packet
    assert json.loads(resized[5:]) == {"type": "resize", "width": 1000, "height": 1}
    assert json.loads(server.heard('["blur"]').packet[5:]) == {"type": "blur"}
    assert server.heard('["ping", "17"]') == server.Heard(reply='["pong", "17"]')
    assert server.heard('["stdin", "\\ud800"]').packet == b"D\x00\x00\x00\x01?"


@pytest.mark.parametrize(
    "message",
    [
        "", "7", "[]", "{}", '["quit"]', '["stdin"]', '["stdin", 7]', '["stdin", "a", "b"]',
        '["resize", {}]', '["resize", {"width": "9", "height": 9}]', '["ping", {}]',
        '["deliver_chunk_request", {"key": "x"}]', '["focus", 1]', "[" * 50_000, '[["stdin"], "x"]',
    ],
)  # fmt: skip
def test_what_it_may_not(message: str) -> None:
    with pytest.raises(server.ProtocolError):
        server.heard(message)


async def test_what_a_process_may_say() -> None:
    stream = asyncio.StreamReader()
    stream.feed_data(server.packet(b"D", b"hello") + b"D\xff\xff\xff\xff")
    assert await server.read(stream) == (b"D", b"hello")
    with pytest.raises(server.ProtocolError):
        await server.read(stream)
    stream.feed_eof()
    with pytest.raises(asyncio.IncompleteReadError):
        await server.read(stream)


def test_textuals_own_switches_are_left_behind() -> None:
    inherited = {"TEXTUAL": "debug,devtools", "TEXTUAL_LOG": "x", "HOME": "/h", "COLUMNS": "7"}
    found = environment(inherited, 100_000, -1)
    assert found.pop("TEXTUAL_DRIVER").endswith("web_driver:WebDriver")
    assert found == {
        "HOME": "/h", "COLUMNS": "1000", "ROWS": "1", "TERM": "xterm-256color",
        "TEXTUAL_COLOR_SYSTEM": "truecolor",
    }  # fmt: skip


# -- the terminal of the server -----------------------------------------------------------


async def test_a_terminal_that_is_gone_is_listened_to_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has news all the time, and each asking fails."""
    loop, told = asyncio.get_running_loop(), []
    loop.set_exception_handler(lambda _, context: told.append(context))
    master, slave = os.openpty()
    with os.fdopen(slave) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        with server.on_enter(lambda: None):
            os.close(master)
            for _ in range(5):
                await asyncio.sleep(0)
            assert not loop.remove_reader(stdin.fileno())
    assert not told
