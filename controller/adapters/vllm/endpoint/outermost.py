"""The middlewares around the gate, so that they work on the gate's refusals too.

The root path is removed from paths, as the gate and vLLM's routes know only paths without it. A
request without an id gets one here, as vLLM would answer with another id than it uses. And browsers
can read a refusal only if it has the headers of CORS.
"""

from argparse import Namespace
from uuid import uuid4

from starlette.datastructures import MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

REQUEST_ID = b"x-request-id"


def around(app: ASGIApp, args: Namespace) -> ASGIApp:
    """`args` are vLLM's. `without_outermost` keeps vLLM's app from doing the same again."""
    if args.root_path:
        app = RootPath(app, args.root_path)
    if args.enable_request_id_headers:
        app = RequestIds(app)
    if args.allowed_origins:
        exposed = ["X-Request-Id"] if args.enable_request_id_headers else []
        app = CORSMiddleware(
            app,
            allow_origins=args.allowed_origins,
            allow_credentials=args.allow_credentials,
            allow_methods=args.allowed_methods,
            allow_headers=args.allowed_headers,
            expose_headers=exposed,
        )
    return app


def within(app: ASGIApp, args: Namespace) -> ASGIApp:
    """vLLM's app, behind the gate: FastAPI takes the root path away itself, and would take a second
    one away from a path that begins with the same word."""
    return RootPathAgain(app, args.root_path) if args.root_path else app


def without_outermost(args: Namespace) -> Namespace:
    """The arguments for vLLM's app within the gate."""
    inner = Namespace(**vars(args))
    inner.allowed_origins, inner.enable_request_id_headers = [], False
    return inner


class RootPath:
    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self._app = app
        self._root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if path == self._root_path or path.startswith(self._root_path + "/"):
            inner = path.removeprefix(self._root_path) or "/"
            scope = {**scope, "path": inner}
        await self._app(scope, receive, send)


class RootPathAgain:
    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self._app = app
        self._root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if "path" in scope:
            scope = {**scope, "path": self._root_path + scope["path"]}
        await self._app(scope, receive, send)


class RequestIds:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = dict(scope["headers"]).get(REQUEST_ID)
        if request_id is None:
            request_id = uuid4().hex.encode()
            scope = {**scope, "headers": [*scope["headers"], (REQUEST_ID, request_id)]}

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=list(message.get("headers", ())))
                headers["X-Request-Id"] = request_id.decode("latin-1")
                message = {**message, "headers": headers.raw}
            await send(message)

        await self._app(scope, receive, send_with_id)
