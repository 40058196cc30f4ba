"""Who may hold a connection to the dashboard's port, and for how long.

Every user of this machine can open connections, and the server's descriptors have an end.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import cast

from aiohttp import web

MAX_CONNECTIONS = 64
"""A browser has up to 6 beside its web sockets."""
HEAD_S = 10.0
"""How long a connection may take to its next request's end of head."""


class Connections:
    """Makes the protocol of each connection. Beyond the limit that one is closed which is here
    longest without having shown a login: strangers push out each other, and no browser."""

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
    """Its connection has shown a login."""
    cast(Connection, request.protocol).is_known = True


@contextlib.asynccontextmanager
async def listening(
    app: web.Application, host: str, port: int, head_s: float = HEAD_S
) -> AsyncIterator[int]:
    """The port: any that is free for 0. Raises OSError, OverflowError."""
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
