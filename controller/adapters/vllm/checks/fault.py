"""A request's fault: a message, the field at fault, the status of the answer."""

from http import HTTPStatus
from typing import NamedTuple


class Fault(NamedTuple):
    """The request is answered with 400."""

    message: str
    param: str | None = None


class RefusedError(Exception):
    """The request is answered with this status and message. `retry_after_s`: after 429 and 503,
    when the client may try again."""

    def __init__(
        self,
        status: HTTPStatus,
        message: str,
        param: str | None = None,
        retry_after_s: int = 1,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param = status, message, param
        self.retry_after_s = retry_after_s
