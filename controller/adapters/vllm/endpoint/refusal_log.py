"""Makes a refused request one line in a frontend's log, not a traceback.

When vLLM finds a request wrong only once its stream has begun, it logs the exception as its own
failure: 2.9 MB in 40 minutes of `make fuzz`, among which nobody would have seen a defect. The
client gets its 400 either way. An error that may be a defect of the server keeps its traceback.

Touch points of vLLM: entrypoints/serve/exception_handling/error_response.py
`create_error_response`, which says with what status an exception is answered; the loggers named
in LOGGERS, which log with logger.exception.
"""

import logging
from http import HTTPStatus

from vllm.entrypoints.serve.exception_handling.error_response import create_error_response
from vllm.exceptions import GracefulHTTPError

LOGGERS = (
    "vllm.entrypoints.anthropic.api_router",
    "vllm.entrypoints.anthropic.serving",
    "vllm.entrypoints.openai.chat_completion.serving",
    "vllm.entrypoints.openai.completion.serving",
)
# vLLM answers these with 400 too, but no check raises them on purpose.
_DEFECTS = (TypeError, OverflowError)


def shorten_refusals() -> None:
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_shorten)


def _shorten(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, Exception) and _is_refusal(error):
        record.msg, record.args = "refused: %s", (error,)
        record.exc_info = record.exc_text = None
        record.levelno, record.levelname = logging.INFO, logging.getLevelName(logging.INFO)
    return True


def _is_refusal(error: Exception) -> bool:
    """Also true for our own answers that another process caused, such as an instance's death."""
    if isinstance(error, GracefulHTTPError):
        return True
    status = create_error_response(error).error.code
    return not isinstance(error, _DEFECTS) and status < HTTPStatus.INTERNAL_SERVER_ERROR
