"""The session that a request says it belongs to, by the header that vLLM's own router goes by.

What a client wrote goes no further than here: the cluster knows a session by its hash.
"""

from collections.abc import Iterable
from contextvars import ContextVar
from hashlib import blake2b

HEADER = "X-Session-Id"
_HEADER = HEADER.lower().encode()
_HASH_BYTES = 8


def read_session(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The same at every frontend; empty without the header, or with an empty one."""
    given = next((value.strip() for name, value in headers if name == _HEADER), b"")
    return blake2b(given, digest_size=_HASH_BYTES).hexdigest() if given else ""


ASKED_SESSION: ContextVar[str] = ContextVar("asked_session", default="")
"""Session of the HTTP request that this task, or the task that started it, answers."""
