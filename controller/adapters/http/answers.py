"""What the control API answers: the model of what was asked, or an error, which is small and always
JSON.
"""

from collections.abc import Callable, Coroutine, Mapping
from http import HTTPStatus
from typing import Any

from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from controller.api.errors import LlumctlError
from controller.api.wire import ErrorBody, WireModel

Endpoint = Callable[[Request], Coroutine[Any, Any, Response]]


def json_answer(model: WireModel) -> Response:
    return Response(model.model_dump_json(), media_type="application/json")


def by_method(path: str, **endpoints: Endpoint) -> Route:
    """One route for all methods of a path: with a route for each, a refusal of another method named
    those of the first only."""

    async def answer(request: Request) -> Response:
        return await endpoints["GET" if request.method == "HEAD" else request.method](request)

    return Route(path, answer, methods=list(endpoints))


MAX_MESSAGE_CHARS = 500


class ApiError(Exception):
    def __init__(self, status: int, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.body = ErrorBody(code=code, message=message[:MAX_MESSAGE_CHARS], hint=hint)


def no_such_instance(instance_id: str) -> ApiError:
    return ApiError(
        404, "no_such_instance", f"there is no instance {instance_id[:64]!r}", "llumctl status"
    )


def error_response(
    status: int,
    code: str,
    message: str,
    hint: str = "",
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    body = ErrorBody(code=code, message=message[:MAX_MESSAGE_CHARS], hint=hint)
    return JSONResponse(body.model_dump(), status, headers)


async def on_api_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return JSONResponse(error.body.model_dump(), error.status)


async def on_revision_conflict(request: Request, error: Exception) -> Response:
    shown_by = "llumctl set" if request.url.path == "/v1/settings" else "llumctl status"
    return error_response(
        409, "revision_conflict", f"the cluster was changed meanwhile: {error}", shown_by
    )


async def on_failure(_request: Request, error: Exception) -> Response:
    """The operation failed before it changed anything."""
    assert isinstance(error, LlumctlError)
    return error_response(500, "failed", f"{error.message}; nothing was done", error.hint)


def unread_body(status: int, message: str) -> bytes:
    """The answer to bytes that are no request that can be read."""
    body = ErrorBody(code=_code_of(status), message=message)
    return body.model_dump_json().encode()


def _code_of(status: int) -> str:
    return HTTPStatus(status).phrase.lower().replace(" ", "_")


async def on_http_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = _code_of(error.status_code)
    return error_response(error.status_code, code, error.detail, headers=error.headers)


async def on_invalid_input(_request: Request, error: Exception) -> Response:
    """A body or a query has the wrong form; the answer does not repeat what was sent."""
    assert isinstance(error, ValidationError)
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    message = f"{where}: {first['msg']}" if where else first["msg"]
    return error_response(400, "bad_request", message)


async def on_crash(_request: Request, _error: Exception) -> Response:
    """A defect of ours: its traceback is in the controller's log, not in the answer."""
    return error_response(
        500, "internal", "the controller failed on this", "llumctl logs controller"
    )
