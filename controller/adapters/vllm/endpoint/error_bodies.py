"""The one shape of all errors: a small JSON object as OpenAI's clients read it.

    {"error": {"message": str, "type": str, "param": str | null, "code": int | str}}

`code` is the HTTP status, so that an error within a stream tells it too; for a bad key it is
`invalid_api_key`. `type` follows from the status: see `TYPES`.
"""

import json
from http import HTTPStatus
from typing import Any

from controller.adapters.vllm.endpoint.flag_words import in_our_words

# Names as of the exceptions of OpenAI's clients.
TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    408: "RequestTimeoutError",
    410: "RequestAbortedError",
    413: "RequestTooLargeError",
    422: "UnprocessableEntityError",
    429: "RateLimitError",
    501: "NotImplementedError",
    503: "ServiceUnavailableError",
    504: "DeadlineExceededError",
}
OTHER_TYPES = {4: "BadRequestError", 5: "InternalServerError"}

# The longest message and param stay under 8 KiB together, in UTF-8 and escaped.
MAX_MESSAGE_CHARS = 1000
MAX_PARAM_CHARS = 100

INTERNAL = "the server failed on this request; its log says why"
EVENT_PREFIX = b'data: {"error"'
ANTHROPIC_PATH = "/v1/messages"


def error_type(status: int) -> str:
    return TYPES.get(status) or OTHER_TYPES[status // 100]


def error_body(status: int, message: str, param: str | None = None) -> bytes:
    """Under 8 KiB, whatever the message. The message of a 500 is not shown."""
    told = INTERNAL if status == HTTPStatus.INTERNAL_SERVER_ERROR else _cut(message)
    error = {
        "message": _cut(in_our_words(told)),
        "type": error_type(status),
        "param": None if param is None else _cut(param, MAX_PARAM_CHARS),
        "code": "invalid_api_key" if status == HTTPStatus.UNAUTHORIZED else status,
    }
    return json.dumps({"error": error}, ensure_ascii=False).encode("utf-8", "replace")


def reshape(status: int, body: bytes, what: str) -> bytes:
    """The app's error body in our shape; `what` is the request, such as `GET /v1/nope`."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        return error_body(status, f"{_phrase(status)}: {what}")
    error = found.get("error", found)
    if not isinstance(error, dict):
        return error_body(status, str(error))
    message = error.get("message") or f"{error.get('detail') or _phrase(status)}: {what}"
    param = error.get("param")
    return error_body(status, str(message), param if isinstance(param, str) else None)


def reshape_event(event: bytes) -> bytes:
    """Reshapes an error within a stream; the chunk's further lines are kept."""
    line, newline, rest = event.partition(b"\n")
    try:
        error: Any = json.loads(line.removeprefix(b"data: "))["error"]
        status, message = int(error["code"]), str(error["message"])
    except (ValueError, KeyError, TypeError):
        status, message = 500, INTERNAL
    return b"data: " + error_body(status, message) + newline + rest


def event_status(event: bytes) -> tuple[int, bytes]:
    """Status and body of an error within a stream, as `reshape_event` gives it."""
    body = event.partition(b"\n")[0].removeprefix(b"data: ")
    return int(json.loads(body)["error"]["code"]), body


def last_events(status: int, message: str, path: str) -> bytes:
    """The end of a stream that failed. Anthropic's clients recognize an error by its event."""
    body = error_body(status, message)
    if path == ANTHROPIC_PATH:
        return anthropic_event(body)
    return b"data: " + body + b"\n\ndata: [DONE]\n\n"


def anthropic_event(body: bytes) -> bytes:
    """An error event of Anthropic's; `body` is that of `error_body`, whose four fields are kept."""
    return b'event: error\ndata: {"type": "error", ' + body[1:] + b"\n\n"


def _cut(text: str, max_chars: int = MAX_MESSAGE_CHARS) -> str:
    return text if len(text) <= max_chars else text[: max_chars - 3] + "..."


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "error"
