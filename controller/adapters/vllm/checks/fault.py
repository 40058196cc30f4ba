"""What is wrong with a request: a message, the field at fault, the status of the answer."""

from http import HTTPStatus
from typing import NamedTuple


class Fault(NamedTuple):
    """Answered with 400."""

    message: str
    param: str | None = None


class RefusedError(Exception):
    """Answered with this status and message."""

    def __init__(self, status: HTTPStatus, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param = status, message, param
