"""What the control API answers when it did what was asked, and by which method it was."""

from collections.abc import Callable, Coroutine
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from controller.api.wire.base import WireModel

Endpoint = Callable[[Request], Coroutine[Any, Any, Response]]


def json_answer(model: WireModel) -> Response:
    return Response(model.model_dump_json(), media_type="application/json")


def by_method(path: str, **endpoints: Endpoint) -> Route:
    """One route for all methods of a path: with a route for each, a refusal of another method named
    those of the first only."""

    async def answer(request: Request) -> Response:
        return await endpoints["GET" if request.method == "HEAD" else request.method](request)

    return Route(path, answer, methods=list(endpoints))
