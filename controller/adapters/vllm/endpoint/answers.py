"""The answers of the endpoint that differ from vLLM's: errors, and Anthropic's messages.

Each error is a small JSON object in the form that OpenAI's clients read.

    {"error": {"message": str, "type": str, "param": str | null, "code": int | str}}

`code` is the HTTP status, so that clients also find it in an error within a stream; for a bad key
it is `invalid_api_key`. `type` follows from the status: see `TYPES`.

At the paths of Anthropic's API an error has the form that clients of that API read: `{"type":
"error", "error": {...}}`, with the same four fields, but with a `type` of that API
(`ANTHROPIC_TYPES`). When an error comes within a stream, the exceptions of those clients only have
the status of the stream, so `type` alone shows what happened.

Touch points of vLLM: entrypoints/anthropic/serving.py `to_chat_completion_request`,
`messages_full_converter`, `message_stream_converter`; entrypoints/serve/engine/protocol.py
`ErrorResponse`; entrypoints/anthropic/protocol.py `AnthropicToolChoice`;
entrypoints/openai/chat_completion/serving.py `parser_cls`; parser/abstract_parser.py `Parser`,
`parse`, `_tool_parser`; tool_parsers/hermes_tool_parser.py `tool_call_start_token`,
`tool_call_end_token`.
"""

import json
import re
from collections.abc import AsyncGenerator
from http import HTTPStatus
from typing import Any

import msgspec

from controller.api.settings.vllm_options import EndpointOptions, why_refused

# The names of the exceptions of OpenAI's clients.
TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    408: "RequestTimeoutError",
    409: "ConflictError",
    410: "RequestAbortedError",
    413: "RequestTooLargeError",
    422: "UnprocessableEntityError",
    429: "RateLimitError",
    501: "NotImplementedError",
    503: "ServiceUnavailableError",
    504: "DeadlineExceededError",
    507: "InsufficientStorageError",
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

# With these limits an error stays under 8 KiB, in UTF-8 and escaped.
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
    """Makes the JSON of an error; it stays under 8 KiB, whatever the message. The message of a 500
    is not shown. The request's `path` determines the shape."""
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
    """The app's error body in our shape. `method` and `path` are those of the request."""
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
    """Puts an error within a stream into our shape. Further lines of the chunk are kept."""
    line, newline, rest = event.partition(b"\n")
    return b"data: " + error_body(*_told(line)) + newline + rest


def anthropic_event(event: bytes) -> bytes:
    """The same error as an event of Anthropic's API. The clients of that API recognise an error by
    the event's name."""
    return _anthropic_event(*_told(event.partition(b"\n")[0]))


def event_status(event: bytes) -> tuple[int, bytes]:
    """The status and the body of an error within a stream that `reshape_event` or `anthropic_event`
    made."""
    body = event.removeprefix(ANTHROPIC_EVENT_PREFIX).partition(b"\n")[0].removeprefix(b"data: ")
    return int(json.loads(body)["error"]["code"]), body


def last_events(status: int, message: str, path: str) -> bytes:
    """The last events of a stream that failed."""
    if path == ANTHROPIC_PATH:
        return _anthropic_event(status, message)
    return b"data: " + error_body(status, message) + b"\n\ndata: [DONE]\n\n"


def _told(line: bytes) -> tuple[int, str]:
    """The status and the message of an error that the app sends within a stream."""
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
# So a client whose error names `--tool-call-parser` can tell its operator a setting that exists
# here.

# The engine arguments that are named in vLLM's errors about requests. A contract test checks that
# they exist.
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


# -- tool calls ------------------------------------------------------------------------------------
# Tool calls in Anthropic's messages, whose input is always an object.
#
# vLLM decodes the arguments of each call. When `max_tokens` cut a call, its arguments could not be
# decoded, and a good request was answered with 400 and a traceback in the log. Now the cut call is
# left out, and the answer's stop reason `max_tokens` says why it ends. In a stream the arguments
# are sent as they come, and nothing decodes them.
#
# A grammar follows a tool's schema only if the tool says `strict`, which hardly any client of this
# API sets. So a model that had to call a tool could give it a string as input. Therefore a tool
# that must be called is strict unless it says otherwise. If the arguments of another call are not
# an object, they are shown as text, because no client could read the call.
#
# A model that must call tools may call one after the other until `max_tokens` is reached. The last
# call is then cut. vLLM's parsers found no call at all in such a text, and the answer was an empty
# text. Now the calls before the cut one are kept.

# Anthropic's words for "call one of the tools" and "call this tool".
FORCED = ("any", "tool")
_COMMA = re.compile(r"\s*,\s*")


def mend_calls(serving: Any) -> None:
    """Changes how vLLM treats tool calls of Anthropic's messages, as described above. `serving`:
    vLLM's AnthropicServingMessages; None if the model has no chats."""
    if serving is None:
        return
    convert, to_chat = serving.messages_full_converter, serving.to_chat_completion_request

    def converted(answer: Any) -> Any:
        for choice in answer.choices:
            _keep_readable_calls(choice)
        return convert(answer)

    def as_chat(request: Any, **options: Any) -> Any:
        chat = to_chat(request, **options)
        if request.tool_choice is not None and request.tool_choice.type in FORCED:
            for tool in chat.tools or ():
                if tool.function.strict is None:
                    tool.function.strict = True
        return chat

    if serving.parser_cls is not None:
        serving.parser_cls = _keeping_whole_calls(serving.parser_cls)
    serving.messages_full_converter = converted
    serving.to_chat_completion_request = as_chat


def _keep_readable_calls(choice: Any) -> None:
    kept, told = [], []
    for call in choice.message.tool_calls:
        try:
            arguments = msgspec.json.decode(call.function.arguments)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            continue  # this call is cut
        if isinstance(arguments, dict):
            kept.append(call)
        else:
            told.append(call.function.arguments)
    choice.message.tool_calls = kept
    if told:
        choice.message.content = "\n".join([choice.message.content or "", *told]).strip()
        if not kept and choice.finish_reason == "tool_calls":
            choice.finish_reason = "stop"


def _keeping_whole_calls(parser_cls: Any) -> Any:
    class Parser(parser_cls):  # type: ignore[misc]  # it is vLLM's, whichever the model has
        def parse(self, model_output: str, request: Any, *rest: Any, **named: Any) -> Any:
            if request.tool_choice == "required":
                marks = (
                    getattr(self._tool_parser, "tool_call_start_token", None),
                    getattr(self._tool_parser, "tool_call_end_token", None),
                )
                model_output = without_cut_call(model_output, *marks)
            return super().parse(model_output, request, *rest, **named)

    return Parser


def without_cut_call(text: str, start: str | None, end: str | None) -> str:
    """Removes the last call if it was cut. Calls stand between two marks each, or are items of a
    list. Returns the text unchanged if it has no complete call."""
    if start and end and 0 <= text.rfind(end) < text.rfind(start):
        return text[: text.rfind(start)]
    if not text.startswith("["):
        return text
    calls, at = [], 1
    while at < len(text):
        try:
            call, at = json.JSONDecoder().raw_decode(text, at)
        except (ValueError, RecursionError):
            break
        calls.append(call)
        if (comma := _COMMA.match(text, at)) is None:
            break
        at = comma.end()
    return json.dumps(calls, ensure_ascii=False) if calls else text


# -- errors within a stream ------------------------------------------------------------------------
# Sends an error within a stream of Anthropic's messages to the client as an error.
#
# vLLM makes such a stream from the chunks of a chat, and takes an error among them for a chunk that
# it cannot read. Clients then got the validation error of vLLM's own model in place of the
# failure's reason and status, and the log got a traceback. Since 0.33 vLLM passes the error on, but
# with a type only, and without the status that our errors have.

_EVENT = ANTHROPIC_EVENT_PREFIX.decode()


def tell_errors(serving: Any) -> None:
    """Makes vLLM pass on errors within streams, as described above. `serving`: vLLM's
    AnthropicServingMessages; None if the model has no chats."""
    if serving is None:
        return
    convert = serving.message_stream_converter

    async def converted(chunks: AsyncGenerator[Any, None]) -> AsyncGenerator[str, None]:
        errors: list[bytes] = []
        async for event in convert(_until_error(chunks, errors)):
            # vLLM's own error about an unreadable chunk shows internals, and has no code.
            told = anthropic_event(b"").decode() if event.startswith(_EVENT) else event
            yield told
        for chunk in errors:
            yield anthropic_event(chunk).decode()

    serving.message_stream_converter = converted


async def _until_error(
    chunks: AsyncGenerator[Any, None], errors: list[bytes]
) -> AsyncGenerator[Any, None]:
    """`chunks`: texts in vLLM 0.32, objects in 0.33."""
    from vllm.entrypoints.serve.engine.protocol import ErrorResponse

    async for chunk in chunks:
        is_error = isinstance(chunk, ErrorResponse)
        line = f"data: {chunk.model_dump_json()}" if is_error else chunk
        if is_error or (isinstance(line, str) and line.startswith(EVENT_PREFIX.decode())):
            errors.append(line.encode())
            await chunks.aclose()
            return
        yield chunk
