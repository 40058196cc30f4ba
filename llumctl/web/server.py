"""`llumctl top --web`: the dashboard as a page on loopback, only for the operator who started it.

The address that the operator opens has a one-time code in it. The code is exchanged for a cookie,
so the address in the browser's history opens nothing. Every user of this machine can open
connections, and the server has a limited number of descriptors, so strangers cannot keep a
connection for long.

The page's script is textual-serve's. Its server is not used, because it authenticates nobody, runs
a command line through a shell for every web socket, and loads a font from elsewhere (decision
0027)."""

import asyncio
import contextlib
import hmac
import json
import os
import secrets
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import resources
from importlib.resources.abc import Traversable
from typing import cast

from aiohttp import WSCloseCode, WSMsgType, web

from controller.api.errors import RefusedError
from controller.api.hosts import is_own_host
from llumctl import output

# -- who gets in: which hosts, which origins, which codes and cookies -------------------

CODE_LIFE_S = 300.0
LOGIN_LIFE_S = 12 * 3600.0
MAX_LOGINS = 16
"""The largest number of logins. Beyond it, the oldest login is forgotten."""


def refusal(hosts: Sequence[str], origins: Sequence[str], *, is_socket: bool) -> str:
    """Why a request with these Host and Origin headers is refused; empty if it is not.

    A page whose name was pointed to this machine (DNS rebinding) sends a foreign Host; any other
    page sends a foreign Origin. Browsers send an Origin with each web socket, but not with a page.
    """
    if len(hosts) != 1 or len(origins) > 1:
        return "one Host and at most one Origin, please"
    if not is_own_host(hosts[0], ()):
        return "this Host is not the dashboard's: open it as http://127.0.0.1:PORT"
    if origins and origins[0].lower() != f"http://{hosts[0]}".lower():
        return "no page of another origin may use the dashboard"
    if is_socket and not origins:
        return "a web socket needs an Origin"
    return ""


@dataclass(frozen=True, slots=True)
class Login:
    """`room`: the first part of the paths that this login may use. The cookie is limited to these
    paths, because browsers send a cookie to all ports of a host, and so to servers of other
    users."""

    room: str
    secret: str
    until_s: float


class Doors:
    """The code that is valid now, and the logins for which codes were exchanged. They are kept in
    memory only."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._code = ""
        self._code_until_s = 0.0
        self._logins: dict[str, Login] = {}

    def new_code(self) -> str:
        """A new code, valid once and for CODE_LIFE_S. The code before it becomes invalid."""
        self._code = secrets.token_urlsafe(24)
        self._code_until_s = self._clock() + CODE_LIFE_S
        return self._code

    def enter(self, code: str) -> Login | None:
        """Exchanges the code for a login; returns None if the code is not valid."""
        now_s = self._clock()
        if not self._code or not _same(code, self._code):
            return None
        self._code = ""
        if now_s > self._code_until_s:
            return None
        login = Login(secrets.token_hex(8), secrets.token_urlsafe(32), now_s + LOGIN_LIFE_S)
        while len(self._logins) >= MAX_LOGINS:
            del self._logins[next(iter(self._logins))]
        self._logins[login.room] = login
        return login

    def admits(self, room: str, cookie: str) -> bool:
        login = self._logins.get(room)
        return login is not None and _same(cookie, login.secret) and self._clock() < login.until_s


def _same(given: str, kept: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), kept.encode())


# -- who may hold a connection to the port, and for how long ----------------------------

MAX_CONNECTIONS = 64
"""The largest number of open connections. A browser opens up to 6, in addition to its web
sockets."""
HEAD_S = 10.0
"""How long a connection may take until the head of its next request is complete."""


class Connections:
    """Makes the protocol object of each connection, and limits their number. Beyond the limit, the
    oldest connection that has shown no login is closed. So strangers push out each other, but never
    a browser that is logged in."""

    def __init__(self, server: web.Server, head_s: float) -> None:
        self._server = server
        self._head_s = head_s
        self._open: dict[Connection, None] = {}

    def __call__(self) -> "Connection":
        return Connection(self._server, self, self._head_s)

    def opened(self, connection: "Connection") -> None:
        self._open[connection] = None
        if len(self._open) > MAX_CONNECTIONS:
            stranger = next(each for each in self._open if not each.is_known)
            self.closed(stranger)
            stranger.force_close()

    def closed(self, connection: "Connection") -> None:
        self._open.pop(connection, None)


class Connection(web.RequestHandler):
    def __init__(self, server: web.Server, all_: Connections, head_s: float) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(server, loop=loop, access_log=None, keepalive_timeout=head_s)  # type: ignore[arg-type]
        self._all = all_
        self.is_known = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._all.opened(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._all.closed(self)
        super().connection_lost(exc)


def mark_known(request: web.Request) -> None:
    """Notes that the request's connection has shown a login."""
    cast(Connection, request.protocol).is_known = True


@contextlib.asynccontextmanager
async def listening(
    app: web.Application, host: str, port: int, head_s: float = HEAD_S
) -> AsyncIterator[int]:
    """Listens, and yields the port; 0 means any free port. Raises OSError, OverflowError."""
    runner = web.AppRunner(app, handle_signals=False)
    await runner.setup()
    try:
        assert runner.server is not None
        loop = asyncio.get_running_loop()
        listener = await loop.create_server(Connections(runner.server, head_s), host, port)
        try:
            yield listener.sockets[0].getsockname()[1]
        finally:
            listener.close()
    finally:
        await runner.cleanup()


# -- sessions: a `llumctl top` for each web socket ------------------------------------------
#
# Page and process speak the protocols of textual-serve's page script and of Textual's driver for
# browsers. This server translates between the two.
#
# The page sends JSON lists, as textual-serve's page script does.
#
# The process reads and writes packets, as Textual's driver for browsers does: a letter, four bytes
# of length, and a payload. The letter is one of two:
#
# - `D`: the payload is what a terminal would read or draw.
# - `M`: the payload is JSON about the session, such as the size of the terminal.

DRIVER = "textual.drivers.web_driver:WebDriver"
LEAVE_S = 2.0
"""How long a process may take to end after it was asked to; then it is killed."""
MAX_TOLD_BYTES = 4096
_PLAIN_SCREEN = b"\x1b[?1049l\x1b[2J\x1b[H\x1b[?25h"

Draw = Callable[[bytes], Awaitable[None]]


class Session:
    """The process of one web socket. It gets no secret: it finds the cluster as any `llumctl top`
    does."""

    def __init__(self, command: Sequence[str], draw: Draw) -> None:
        self._command = command
        self._draw = draw
        self._process: Process | None = None
        self._begun = False
        self._told = b""

    async def start(self, columns: int, lines: int) -> None:
        """Starts the process in a session of its own, so that Ctrl-C reaches only the server."""
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env=environment(os.environ, columns, lines),
            start_new_session=True,
        )

    async def send(self, packet: bytes) -> None:
        """Sends a packet to the process, and waits while the process does not read. If the process
        has ended, the packet is dropped."""
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(ConnectionError, RuntimeError):
            self._process.stdin.write(packet)
            await self._process.stdin.drain()

    async def show(self) -> None:
        """Passes on what the process draws until the process ends, then draws why it ended."""
        assert self._process is not None
        listening = asyncio.create_task(self._listen())
        try:
            await self._relay()
            await listening
            await self._draw(_PLAIN_SCREEN + self._last_words(await self._process.wait()))
        finally:
            listening.cancel()

    async def end(self) -> None:
        """Asks the process to end, kills it if it does not, and returns when it is gone."""
        process = self._process
        if process is None:
            return
        leaving = asyncio.create_task(self._leave(process))
        try:
            await asyncio.wait((leaving,), timeout=LEAVE_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            leaving.cancel()
            await process.wait()

    async def _leave(self, process: Process) -> None:
        """Asks the process to end. Its output is read meanwhile, because a process whose write
        blocks would not read the request to end."""
        await self.send(leave())
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        while await process.stdout.read(65536):
            pass
        await process.wait()

    async def _relay(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        stdout = self._process.stdout
        with contextlib.suppress(asyncio.IncompleteReadError, ProtocolError, ValueError):
            self._begun = await stdout.readline() == BEGUN
            while self._begun:
                kind, payload = await read(stdout)
                if kind == b"D":
                    await self._draw(payload)

    async def _listen(self) -> None:
        """Reads stderr, so that the pipe does not fill, and keeps the last bytes."""
        assert self._process is not None
        assert self._process.stderr is not None
        while text := await self._process.stderr.read(MAX_TOLD_BYTES):
            self._told = (self._told + text)[-MAX_TOLD_BYTES:]

    def _last_words(self, code: int) -> bytes:
        """What the process would leave on a terminal below the dashboard, except for a traceback.
        Textual's tracebacks have the values of variables, and the control token may be among
        these."""
        if self._begun and code:
            return f"the dashboard ended by a defect (exit code {code})\r\n".encode()
        return self._told.replace(b"\n", b"\r\n")


def environment(inherited: Mapping[str, str], columns: int, lines: int) -> dict[str, str]:
    """The environment of a session's process, without Textual's own variables, which could open a
    port or write a log."""
    kept = {key: value for key, value in inherited.items() if not key.startswith("TEXTUAL")}
    return {
        **kept,
        "TEXTUAL_DRIVER": DRIVER,
        "TEXTUAL_COLOR_SYSTEM": "truecolor",
        "TERM": "xterm-256color",
        "COLUMNS": str(within(columns, MAX_COLUMNS)),
        "ROWS": str(within(lines, MAX_LINES)),
    }


# -- messages of the page, packets of the process ---------------------------------------

MAX_COLUMNS, MAX_LINES = 1000, 500
MAX_PACKET_BYTES = 16 << 20
BEGUN = b"__GANGLION__\n"
"""The first line that Textual's driver writes."""


class ProtocolError(ValueError):
    """A message that our page never sends, or a packet that Textual's driver never writes."""


@dataclass(frozen=True, slots=True)
class Heard:
    """The result of a message of the page: bytes for the process, and a text for the page."""

    packet: bytes = b""
    reply: str = ""


def heard(message: str) -> Heard:
    """Reads a message of the page. Raises ProtocolError."""
    try:
        kind, *rest = json.loads(message)
    except (ValueError, TypeError, RecursionError) as error:
        raise ProtocolError(f"no message: {type(error).__name__}") from error
    match kind, rest:
        case "stdin", [str(keys)]:
            return Heard(packet(b"D", keys.encode("utf-8", "replace")))
        case "resize", [{"width": int(columns), "height": int(lines)}]:
            return Heard(resize(columns, lines))
        case "ping", [str(sent)]:
            return Heard(reply=json.dumps(["pong", sent]))
        case (("focus" | "blur"), []):
            return Heard(_about({"type": kind}))
    raise ProtocolError("an unknown message")


def resize(columns: int, lines: int) -> bytes:
    columns, lines = within(columns, MAX_COLUMNS), within(lines, MAX_LINES)
    return _about({"type": "resize", "width": columns, "height": lines})


def within(size: int, most: int) -> int:
    return max(1, min(size, most))


def leave() -> bytes:
    """The packet that asks the dashboard to end, like its key for leaving."""
    return _about({"type": "quit"})


def packet(kind: bytes, payload: bytes) -> bytes:
    return kind + len(payload).to_bytes(4, "big") + payload


async def read(stream: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """The letter and the payload of the next packet.

    Raises:
        asyncio.IncompleteReadError: the process has ended.
        ProtocolError: the packet is too long.
    """
    head = await stream.readexactly(5)
    size = int.from_bytes(head[1:], "big")
    if size > MAX_PACKET_BYTES:
        raise ProtocolError(f"a packet of {size} bytes")
    return head[:1], await stream.readexactly(size)


def _about(facts: dict[str, str | int]) -> bytes:
    return packet(b"M", json.dumps(facts).encode())


# -- pages and web sockets --------------------------------------------------------------

MAX_SESSIONS = 4
MAX_MESSAGE_BYTES = 64 << 10
HEARTBEAT_S = 15.0
"""How often pings go out. A browser that does not answer a ping within half of this time is
gone."""
CLOSE_S = 1.0
"""How long a browser may take to read what was drawn most recently and to close its web socket."""
NO_ENTRY = (
    "This address was used already, is too old, or belongs to a server that has ended.\n"
    "Press Enter in the terminal of `llumctl top --web` for a new one.\n"
)
FULL = f"There are {MAX_SESSIONS} sessions already: close one, then reload this page.\r\n"

HEADERS = {
    "Content-Security-Policy": "; ".join(
        (
            "default-src 'none'",
            "script-src 'self'",
            # The terminal of the page writes its own style elements.
            "style-src 'self' 'unsafe-inline'",
            "font-src 'self'",
            "img-src 'self' data:",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    ),
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "clipboard-read=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

_OURS, _THEIRS = "llumctl.web", "textual_serve"
FILES = {
    "": (_OURS, "page.html", "text/html"),
    "page.css": (_OURS, "page.css", "text/css"),
    "page.js": (_OURS, "page.js", "text/javascript"),
    "xterm.css": (_THEIRS, "static/css/xterm.css", "text/css"),
    "textual.js": (_THEIRS, "static/js/textual.js", "text/javascript"),
    "RobotoMono.ttf": (_THEIRS, "static/fonts/RobotoMono-VariableFont_wght.ttf", "font/ttf"),
}
"""All files that are served: name -> package, file, type."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """`command`: the command line of a session's process. `tell` says a line to the operator."""

    def __init__(self, command: Sequence[str], doors: Doors, tell: Callable[[str], None]) -> None:
        self._command = command
        self._doors = doors
        self._tell = tell
        self._sessions: set[Session] = set()
        self._ending = asyncio.Event()

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._guard], client_max_size=1024)
        # HEAD is not served: programs that check links before people open them would use the code.
        app.router.add_get("/", self._enter, allow_head=False)
        app.router.add_get("/{room}/socket", self._socket, allow_head=False)
        for path in ("/{room}/", "/{room}/{name}"):
            app.router.add_get(path, self._file, allow_head=False)
        app.on_shutdown.append(self._close)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Checks who asks. Every answer has HEADERS, even one to a stranger, and an error's answer
        does not tell its cause."""
        headers = request.headers
        why = refusal(
            headers.getall("Host", []),
            headers.getall("Origin", []),
            is_socket="Upgrade" in headers,
        )
        if why:
            return _said(403, f"{why}\n")
        room = request.match_info.get("room")
        if room is not None:
            cookie = request.cookies.get(cookie_name(room), "")
            if not self._doors.admits(room, cookie):
                return _said(403, NO_ENTRY)
            mark_known(request)
        try:
            return await handler(request)
        except web.HTTPException as error:
            return _said(error.status, f"{error.reason}\n")

    async def _enter(self, request: web.Request) -> web.StreamResponse:
        login = self._doors.enter(request.query.get("code", ""))
        if login is None:
            return _said(403, NO_ENTRY)
        response = web.Response(status=303, headers={**HEADERS, "Location": f"/{login.room}/"})
        response.set_cookie(
            cookie_name(login.room),
            login.secret,
            path=f"/{login.room}/",
            httponly=True,
            samesite="Strict",
        )
        return response

    async def _file(self, request: web.Request) -> web.StreamResponse:
        found = FILES.get(request.match_info.get("name", ""))
        if found is None:
            raise web.HTTPNotFound
        package, name, kind = found
        return web.Response(body=_read(package, name), content_type=kind, headers=HEADERS)

    async def _socket(self, request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(heartbeat=HEARTBEAT_S, max_msg_size=MAX_MESSAGE_BYTES)
        await socket.prepare(request)
        if len(self._sessions) >= MAX_SESSIONS:
            await socket.send_bytes(FULL.encode())
            await socket.close(code=WSCloseCode.TRY_AGAIN_LATER)
            return socket
        session = Session(self._command, socket.send_bytes)
        self._sessions.add(session)
        try:
            await self._serve(session, socket, request)
        finally:
            await asyncio.shield(self._end(session))
        return socket

    async def _serve(
        self, session: Session, socket: web.WebSocketResponse, request: web.Request
    ) -> None:
        """Serves a session until the browser, the dashboard or this server ends."""
        self._tell(f"a browser watches ({len(self._sessions)} of {MAX_SESSIONS})")
        await session.start(_size(request, "width", 80), _size(request, "height", 24))
        showing = asyncio.create_task(session.show())
        hearing = asyncio.create_task(_hear(session, socket))
        ending = asyncio.create_task(self._ending.wait())
        try:
            await asyncio.wait((showing, hearing, ending), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (showing, hearing, ending):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, ConnectionError):
                    await task
            code = WSCloseCode.GOING_AWAY if self._ending.is_set() else WSCloseCode.OK
            with contextlib.suppress(ConnectionError, TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await socket.close(code=code)

    async def _end(self, session: Session) -> None:
        await session.end()
        self._sessions.discard(session)
        self._tell(f"a browser left ({len(self._sessions)} of {MAX_SESSIONS})")

    async def _close(self, _: web.Application) -> None:
        """Ends all sessions at once, without waiting for a browser that does not read."""
        self._ending.set()


async def _hear(session: Session, socket: web.WebSocketResponse) -> None:
    """Passes on what the page sends, until it leaves or sends a message that is not ours."""
    async for message in socket:
        if message.type is not WSMsgType.TEXT:
            return
        try:
            found = heard(message.data)
        except ProtocolError:
            return
        if found.reply:
            await socket.send_str(found.reply)
        if found.packet:
            await session.send(found.packet)


def cookie_name(room: str) -> str:
    """The name of the login's cookie. Other servers on this host can set cookies too, and a cookie
    of the same name would replace ours. So the name has a part that those servers do not know."""
    return f"llumctl-{room}"


def _size(request: web.Request, name: str, otherwise: int) -> int:
    given = request.query.get(name, "")
    return int(given) if given.isdecimal() and len(given) < 5 else otherwise


def _said(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=text, headers=HEADERS)


def _read(package: str, name: str) -> bytes:
    found: Traversable = resources.files(package)
    for part in name.split("/"):
        found = found / part
    return found.read_bytes()


# -- from the first line on the terminal to the last ------------------------------------

HOST = "127.0.0.1"
BACKGROUND_S = 1.0
"""How often a job in the background checks whether it has its terminal again."""
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def serve(command: Sequence[str], port: int) -> None:
    """Serves until Ctrl-C. `port` 0 means any free port.

    The address is only printed. No browser is started with it, because everybody on this machine
    can read the arguments of processes.

    Raises:
        RefusedError: the port is not free.
    """
    asyncio.run(_serve(command, port))


async def _serve(command: Sequence[str], port: int) -> None:
    doors = Doors(time.monotonic)
    server = Server(command, doors, output.say)
    async with contextlib.AsyncExitStack() as stack:
        try:
            port = await stack.enter_async_context(listening(server.app(), HOST, port))
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise RefusedError(
                f"cannot listen on {HOST}:{port}: {reason}", "llumctl top --web --port 0"
            ) from error
        _tell_address(doors, port)
        with on_enter(partial(_tell_address, doors, port)):
            await _ended()


def _tell_address(doors: Doors, port: int) -> None:
    output.emit(f"http://{HOST}:{port}/?code={doors.new_code()}")
    output.say(
        f"the address opens once, within {CODE_LIFE_S / 60:.0f} minutes;"
        " Enter: a new one; Ctrl-C: end"
    )


async def _ended() -> None:
    ended = asyncio.Event()
    for number in ENDING:
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    await ended.wait()


@contextlib.contextmanager
def on_enter(react: Callable[[], None]) -> Iterator[None]:
    """Calls `react` for each line that is typed, if there is a terminal to type on."""
    stdin, loop = sys.stdin, asyncio.get_running_loop()
    if stdin is None or not output.is_terminal(stdin):
        yield
        return
    descriptor = stdin.fileno()
    later: asyncio.TimerHandle | None = None

    def listen() -> None:
        loop.add_reader(descriptor, typed)

    def typed() -> None:
        nonlocal later
        try:
            # A job in the background is stopped when it reads its terminal. Input that it does not
            # read would wake it all the time.
            if os.tcgetpgrp(descriptor) != os.getpgrp():
                loop.remove_reader(descriptor)
                later = loop.call_later(BACKGROUND_S, listen)
                return
            line = os.read(descriptor, 1024)
        except OSError:  # The terminal is gone, and would count as readable for ever.
            line = b""
        if b"\n" in line:
            react()
        elif not line:
            loop.remove_reader(descriptor)

    listen()
    try:
        yield
    finally:
        if later is not None:
            later.cancel()
        loop.remove_reader(descriptor)
