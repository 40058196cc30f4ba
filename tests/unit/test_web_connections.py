"""The port of `llumctl top --web`, by raw sockets: who holds it for how long, and old codes and
cookies. The server is in this process, with a clock of the test's."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from llumctl.web import server
from llumctl.web.server import CODE_LIFE_S, LOGIN_LIFE_S, Doors, Server, cookie_name, listening

LIMIT_S = 30


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Raw:
    """A connection; `ask` leaves it open."""

    def __init__(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self.port, self.reader, self.writer = port, reader, writer

    async def ask(self, path: str, cookie: str = "", *more: str) -> tuple[int, str, str]:
        """Status, head and body. `more`: lines of the head."""
        host = f"Host: 127.0.0.1:{self.port}"
        lines = (f"GET {path} HTTP/1.1", host, f"Cookie: {cookie}", *more, "\r\n")
        self.writer.write("\r\n".join(lines).encode())
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        length = head.lower().partition("content-length: ")[2].split()[0]
        body = (await self.reader.readexactly(int(length))).decode()
        return int(head.split()[1]), head, body

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


def logged_in(doors: Doors) -> tuple[str, str]:
    """The path of the page, and its cookie."""
    login = doors.enter(doors.new_code())
    assert login is not None
    return f"/{login.room}/", f"{cookie_name(login.room)}={login.secret}"


def app(doors: Doors) -> web.Application:
    return Server(("false",), doors, print).app()


async def test_an_old_code_and_an_old_cookie_open_nothing() -> None:
    clock = Clock()
    doors = Doors(clock)
    async with listening(app(doors), "127.0.0.1", 0) as port, raw(port, 1) as (found,):
        code = doors.new_code()
        clock.now_s += CODE_LIFE_S + 0.1
        for _ in range(2):
            status, head, body = await found.ask(f"/?code={code}")
            assert (status, "set-cookie" in head.lower()) == (403, False)
            assert "used already, is too old" in body
        code = doors.new_code()
        clock.now_s += CODE_LIFE_S
        status, head, _ = await found.ask(f"/?code={code}")
        assert status == 303
        page = head.partition("Location: ")[2].split()[0]
        cookie = head.partition("Set-Cookie: ")[2].partition(";")[0]
        clock.now_s += LOGIN_LIFE_S - 0.1
        assert (await found.ask(page, cookie))[0] == 200
        clock.now_s += 0.1
        status, _, body = await found.ask(page, cookie)
        assert status == 403
        assert "used already, is too old" in body


async def test_doubled_headers_and_codes_before_the_newest_open_nothing() -> None:
    doors = Doors(Clock())
    async with listening(app(doors), "127.0.0.1", 0) as port:
        older, code = doors.new_code(), doors.new_code()
        own = f"127.0.0.1:{port}"
        for path, *more in (
            (f"/?code={code}", f"Host: {own}"),
            (f"/?code={code}", "Host: evil.example"),
            (f"/?code={code}", f"Origin: http://{own}", f"Origin: http://{own}"),
            (f"/?code={code}", f"Origin: http://{own}", "Origin: http://evil.example"),
            (f"/?code={older}",),
        ):
            async with raw(port, 1) as (found,):
                status, head, _ = await found.ask(path, "", *more)
                assert status in (400, 403), more
                assert "set-cookie" not in head.lower()
        async with raw(port, 1) as (found,):
            assert (await found.ask(f"/?code={code}"))[0] == 303


async def test_whoever_sends_no_whole_request_in_time_is_cut() -> None:
    """Nothing, a head byte by byte, or nothing more behind an answer."""
    doors = Doors(Clock())
    async with (
        asyncio.timeout(LIMIT_S),
        listening(app(doors), "127.0.0.1", 0, head_s=0.3) as port,
        raw(port, 3) as (silent, slow, answered),
    ):
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
    doors = Doors(Clock())
    async with (
        asyncio.timeout(LIMIT_S),
        listening(app(doors), "127.0.0.1", 0) as port,
        raw(port, 1) as (browser,),
    ):
        page, cookie = logged_in(doors)
        assert (await browser.ask(page, cookie))[0] == 200
        async with raw(port, 20) as strangers:
            for each in strangers[:13]:
                assert await each.is_closed()
            for each in strangers[13:]:
                assert (await each.ask("/"))[0] == 403
            assert (await browser.ask(page, cookie))[0] == 200
            async with raw(port, 1) as (another,):
                assert (await another.ask(page, cookie))[0] == 200
            assert await strangers[13].is_closed()
            assert (await strangers[14].ask("/"))[0] == 403
