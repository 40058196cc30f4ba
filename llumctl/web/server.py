"""The dashboard as a page on loopback.

textual-serve gives the page's script; its server is not used: it asks nobody who they are, runs a
command line through a shell for every web socket, and loads a font from elsewhere (decision 0027).
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from importlib import resources
from importlib.resources.abc import Traversable

from aiohttp import WSCloseCode, WSMsgType, web

from llumctl.web import connections, packets
from llumctl.web.doors import Doors, refusal
from llumctl.web.session import Session

MAX_SESSIONS = 4
MAX_MESSAGE_BYTES = 64 << 10
HEARTBEAT_S = 15.0
"""A browser that does not answer for half as long as that again is gone."""
CLOSE_S = 1.0
"""How long a browser may take to close its web socket, or to read what was drawn before."""
NO_ENTRY = (
    "This address is used up or too old, or the server was started again.\n"
    "Press Enter in the terminal of `llumctl top --web` for a new one.\n"
)
FULL = f"There are {MAX_SESSIONS} sessions already: close one, then begin this one again.\r\n"

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
"""All that can be asked for: name, package, file, type."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """`command`: what runs for a session. `tell` says a line to the operator."""

    def __init__(self, command: Sequence[str], doors: Doors, tell: Callable[[str], None]) -> None:
        self._command = command
        self._doors = doors
        self._tell = tell
        self._sessions: set[Session] = set()
        self._ending = asyncio.Event()

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._guard], client_max_size=1024)
        # Without HEAD: programs that look at links before people do would use up the code.
        app.router.add_get("/", self._enter, allow_head=False)
        app.router.add_get("/{room}/socket", self._socket, allow_head=False)
        for path in ("/{room}/", "/{room}/{name}"):
            app.router.add_get(path, self._file, allow_head=False)
        app.on_shutdown.append(self._close)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Every answer has HEADERS, those to strangers too, and tells nothing of why it failed."""
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
            connections.mark_known(request)
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
        """Until the browser, the dashboard or this server ends."""
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
        """All at once, and no browser is waited for that reads nothing."""
        self._ending.set()


async def _hear(session: Session, socket: web.WebSocketResponse) -> None:
    """Hands on what the page sends, until it leaves or sends what no page of ours does."""
    async for message in socket:
        if message.type is not WSMsgType.TEXT:
            return
        try:
            found = packets.heard(message.data)
        except packets.ProtocolError:
            return
        if found.reply:
            await socket.send_str(found.reply)
        if found.packet:
            await session.send(found.packet)


def cookie_name(room: str) -> str:
    """Other servers of this host may set cookies too, but not know this name: one with the same
    name would come behind ours, and stand for it."""
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
