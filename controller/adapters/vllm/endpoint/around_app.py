"""What stands around vLLM's app: middlewares outside of the gate, and routes that the app lacks.

The middlewares work on the gate's refusals too. The root path is removed from paths, as the gate
and vLLM's routes know only paths without it. A request without an id gets one here, as vLLM would
answer with another id than it uses. And browsers can read a refusal only if it has the headers of
CORS.

The routes are `GET /v1/models/ID`, which OpenAI's API has, and `GET /ready`. `/health` is vLLM's
own and says that this process serves: it stays 200 while live requests end. `/ready` is for load
balancers and says whether a new request would be taken.

Nothing here imports vLLM, so it is tried without it.

Touch points of vLLM: entrypoints/openai/models/serving.py `show_available_models`;
entrypoints/launchers/api_server/app_state.py `openai_serving_models`.
"""

from argparse import Namespace
from collections.abc import Callable
from http import HTTPStatus
from typing import Any
from uuid import uuid4

from fastapi import FastAPI, Request
from starlette.datastructures import MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from controller.adapters.vllm.endpoint.error_bodies import error_body

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


READY_PATH = "/ready"
# Load balancers look again by their own clock; this is for whoever reads the header.
LOOK_AGAIN_S = 1


def add_model_route(app: FastAPI) -> None:
    app.add_api_route("/v1/models/{model_id:path}", show_model, methods=["GET"])


async def show_model(model_id: str, request: Request) -> Any:
    cards = await request.app.state.openai_serving_models.show_available_models()
    for card in cards.data:
        if card.id == model_id:
            return JSONResponse(card.model_dump())
    message = f"The model `{model_id}` does not exist."
    error = {"message": message, "param": "model", "code": HTTPStatus.NOT_FOUND}
    return JSONResponse({"error": error}, HTTPStatus.NOT_FOUND)


def add_ready_route(app: FastAPI, why_not_ready: Callable[[], str]) -> None:
    """`why_not_ready`: empty while new requests are taken."""

    async def ready() -> Response:
        if why := why_not_ready():
            status = HTTPStatus.SERVICE_UNAVAILABLE
            again = {"Retry-After": str(LOOK_AGAIN_S)}
            return Response(error_body(status, why), status, again, "application/json")
        return JSONResponse({"ready": True})

    app.add_api_route(READY_PATH, ready, methods=["GET", "HEAD"], include_in_schema=False)
