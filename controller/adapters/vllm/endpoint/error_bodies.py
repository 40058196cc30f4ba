"""The shape of all errors: a small JSON object as OpenAI's clients read it.

    {"error": {"message": str, "type": str, "param": str | null, "code": int | str}}

`code` is the HTTP status, so that an error within a stream tells it too; for a bad key it is
`invalid_api_key`. `type` follows from the status: see `TYPES`.

At the paths of Anthropic's API it is what that API's clients read: `{"type": "error", "error":
{...}}`, with the same four fields, of which `type` is one of that API's (`ANTHROPIC_TYPES`). Within
a stream their exceptions have no other status than that of the stream, so `type` is all they tell.
"""

import json
import re
from http import HTTPStatus
from typing import Any

from controller.api.settings.vllm_options import EndpointOptions, why_refused

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
ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
OTHER_ANTHROPIC_TYPES = {4: "invalid_request_error", 5: "api_error"}

# The longest message and param stay under 8 KiB together, in UTF-8 and escaped.
MAX_MESSAGE_CHARS = 1000
MAX_PARAM_CHARS = 100

INTERNAL = "the server failed on this request; its log says why"
EVENT_PREFIX = b'data: {"error"'
ANTHROPIC_PATH = "/v1/messages"
ANTHROPIC_EVENT_PREFIX = b"event: error\n"


def is_anthropic(path: str) -> bool:
    return path == ANTHROPIC_PATH or path.startswith(f"{ANTHROPIC_PATH}/")


def error_type(status: int, path: str = "") -> str:
    if is_anthropic(path):
        return ANTHROPIC_TYPES.get(status) or OTHER_ANTHROPIC_TYPES[status // 100]
    return TYPES.get(status) or OTHER_TYPES[status // 100]


def error_body(status: int, message: str, param: str | None = None, path: str = "") -> bytes:
    """Under 8 KiB, whatever the message. The message of a 500 is not shown. The request's `path`
    says the shape."""
    told = INTERNAL if status == HTTPStatus.INTERNAL_SERVER_ERROR else _cut(message)
    error = {
        "message": _cut(in_our_words(told)),
        "type": error_type(status, path),
        "param": None if param is None else _cut(param, MAX_PARAM_CHARS),
        "code": "invalid_api_key" if status == HTTPStatus.UNAUTHORIZED else status,
    }
    shape = {"type": "error", "error": error} if is_anthropic(path) else {"error": error}
    return json.dumps(shape, ensure_ascii=False).encode("utf-8", "replace")


def reshape(status: int, body: bytes, method: str, path: str) -> bytes:
    """The app's error body in our shape; `method` and `path` are the request's."""
    what = f"{method} {path}"
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        return error_body(status, f"{_phrase(status)}: {what}", path=path)
    error = found.get("error", found)
    if not isinstance(error, dict):
        return error_body(status, str(error), path=path)
    message = error.get("message") or f"{error.get('detail') or _phrase(status)}: {what}"
    param = error.get("param")
    return error_body(status, str(message), param if isinstance(param, str) else None, path)


def reshape_event(event: bytes) -> bytes:
    """Reshapes an error within a stream; the chunk's further lines are kept."""
    line, newline, rest = event.partition(b"\n")
    return b"data: " + error_body(*_told(line)) + newline + rest


def anthropic_event(event: bytes) -> bytes:
    """The same error as an event of Anthropic's, whose clients recognize it by the event's name."""
    return _anthropic_event(*_told(event.partition(b"\n")[0]))


def event_status(event: bytes) -> tuple[int, bytes]:
    """Status and body of an error within a stream, as `reshape_event` or `anthropic_event` gives
    it."""
    body = event.removeprefix(ANTHROPIC_EVENT_PREFIX).partition(b"\n")[0].removeprefix(b"data: ")
    return int(json.loads(body)["error"]["code"]), body


def last_events(status: int, message: str, path: str) -> bytes:
    """The end of a stream that failed."""
    if path == ANTHROPIC_PATH:
        return _anthropic_event(status, message)
    return b"data: " + error_body(status, message) + b"\n\ndata: [DONE]\n\n"


def _told(line: bytes) -> tuple[int, str]:
    """Status and message of an error that the app tells within a stream."""
    try:
        error: Any = json.loads(line.removeprefix(b"data: "))["error"]
        return int(error["code"]), str(error["message"])
    except (ValueError, KeyError, TypeError):
        return 500, INTERNAL


def _anthropic_event(status: int, message: str) -> bytes:
    body = error_body(status, message, path=ANTHROPIC_PATH)
    return ANTHROPIC_EVENT_PREFIX + b"data: " + body + b"\n\n"


def _cut(text: str, max_chars: int = MAX_MESSAGE_CHARS) -> str:
    return text if len(text) <= max_chars else text[: max_chars - 3] + "..."


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "error"


# -- llumctl's words for vLLM's flags --------------------------------------------------------------
# Replaces flags of vLLM's command line in vLLM's errors by llumctl's settings and flags.
#
# So a client that is told of `--tool-call-parser` can tell its operator words that work here.

# Engine arguments that vLLM's errors about requests name (contract test: they exist).
ENGINE_FLAGS = frozenset(
    {
        "allowed_local_media_path",
        "enable_lora",
        "enable_mm_embeds",
        "enable_prompt_embeds",
        "limit_mm_per_prompt",
        "logprobs_mode",
        "max_logprobs",
        "max_lora_rank",
        "max_model_len",
        "media_io_kwargs",
        "pooler_config",
        "reasoning_config",
        "skip_tokenizer_init",
        "structured_outputs_config",
    }
)
EXAMPLES = {"tool_call_parser": " hermes", "reasoning_parser": " qwen3", "chat_template": " FILE"}
# With a tool call parser llumctl sets --enable-auto-tool-choice by default.
_BOTH = "--enable-auto-tool-choice and --tool-call-parser"
_FLAG = re.compile(r"(?<![\w-])--([a-z][a-z0-9]*(?:-[a-z0-9]+)+)(?![\w-])")


def in_our_words(message: str) -> str:
    return _FLAG.sub(_ours, message.replace(_BOTH, "--tool-call-parser"))


def _ours(found: re.Match[str]) -> str:
    name = found[1].replace("-", "_")
    if name in EndpointOptions.model_fields:
        return f"endpoint.{name} (llumctl up {found[0]}{EXAMPLES.get(name, '')})"
    if name in ENGINE_FLAGS:
        return f"engine.{name} (llumctl up --engine-arg {name}=...)"
    if why_refused(name):
        return f"{name}, which llumctl does not take,"
    return found[0]
