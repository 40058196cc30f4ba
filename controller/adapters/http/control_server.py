"""The control API's listener: bearer token, JSON in and out, small errors."""

import asyncio
import hmac
import socket
import time
from collections.abc import Coroutine, Mapping
from http import HTTPStatus
from typing import Any

import uvicorn
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from controller.adapters.http.views import ClusterLabels, cluster_status
from controller.api.models import ErrorBody, StopProgress, StopRequest
from controller.runtime.controller import Controller


class ControlServer:
    def __init__(
        self, controller: Controller, labels: ClusterLabels, token: str, host: str, port: int
    ) -> None:
        self._controller = controller
        self._labels = labels
        self._started_s = time.monotonic()
        self._socket = socket.create_server((host, port), backlog=128)
        app = Starlette(
            routes=[
                Route("/v1/status", self._status, methods=["GET"]),
                Route("/v1/stop", self._stop, methods=["POST"]),
            ],
            middleware=[Middleware(TokenGuard, token=token)],
            exception_handlers={HTTPException: _http_error, ValidationError: _invalid_body},
        )
        app.router.redirect_slashes = False
        config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off")
        self._server = uvicorn.Server(config)

    async def run_beside(self, work: Coroutine[Any, Any, None]) -> None:
        """Serve while `work` runs; whichever ends or fails first ends both."""
        with self._socket:
            async with asyncio.TaskGroup() as group:
                working = group.create_task(work)
                serving = group.create_task(self._server.serve(sockets=[self._socket]))
                working.add_done_callback(lambda _: setattr(self._server, "should_exit", True))
                serving.add_done_callback(lambda _: working.cancel())

    async def _status(self, _request: Request) -> Response:
        uptime_s = time.monotonic() - self._started_s
        return _json(cluster_status(self._controller, self._labels, uptime_s))

    async def _stop(self, request: Request) -> Response:
        """Idempotent: asked again, it tells how far the stop has come."""
        order = StopRequest.model_validate_json(await request.body() or b"{}")
        self._controller.stop(order.drain, order.grace_s)
        progress = StopProgress(
            stopped=self._controller.stopped, num_live_reqs=self._controller.num_live_reqs
        )
        return _json(progress)


class TokenGuard:
    """401 without a token, 403 for a wrong one or for a browser (it names its Origin)."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = dict(scope["headers"])
        given = headers.get(b"authorization", b"")
        if not given:
            refusal = _error(401, "no_token", "the control API wants a bearer token")
        elif b"origin" in headers:
            refusal = _error(403, "foreign_origin", "the control API is not for browsers")
        elif not hmac.compare_digest(given, self._expected):
            refusal = _error(403, "bad_token", "this is not the cluster's control token")
        else:
            await self._app(scope, receive, send)
            return
        await refusal(scope, receive, send)


def _json(model: Any) -> Response:
    return Response(model.model_dump_json(), media_type="application/json")


def _error(
    status: int, code: str, message: str, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    return JSONResponse(ErrorBody(code=code, message=message).model_dump(), status, headers)


async def _http_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = HTTPStatus(error.status_code).phrase.lower().replace(" ", "_")
    return _error(error.status_code, code, error.detail, error.headers)


async def _invalid_body(_request: Request, error: Exception) -> Response:
    assert isinstance(error, ValidationError)
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return _error(400, "bad_request", f"{where}: {first['msg']}" if where else first["msg"])
