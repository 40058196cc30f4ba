"""What is wrong with a request: the message of a 400, and the field at fault."""

from typing import NamedTuple


class Fault(NamedTuple):
    message: str
    param: str | None = None
