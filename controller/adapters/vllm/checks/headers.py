"""Checks of a request's headers, on every path, and the error by which any check or limit refuses a
request."""

from collections import Counter
from collections.abc import Collection, Iterable
from http import HTTPStatus

from controller.api.hosts import is_own_host


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


# Where a header is given twice, one reader takes the first and another the last: the gate judged
# the last X-Request-Id, vLLM used the first.
ONCE = (
    b"authorization",
    b"content-encoding",
    b"content-length",
    b"content-type",
    b"host",
    b"origin",
    b"transfer-encoding",
    b"x-api-key",
    b"x-data-parallel-rank",
    b"x-request-id",
    b"x-session-id",
    b"x-vllm-priority",
)

Headers = Iterable[tuple[bytes, bytes]]


def check_headers(headers: Headers) -> None:
    """Raises RefusedError (400)."""
    given = Counter(name for name, _ in headers)
    for name in ONCE:
        if given[name] > 1:
            shown = name.decode().title()
            raise RefusedError(HTTPStatus.BAD_REQUEST, f"{shown} is given more than once", shown)


def check_host(headers: Headers, own: Collection[str]) -> None:
    """Refuses pages in a browser on this machine an endpoint that asks for no key. A request
    without a Host comes from no browser. Raises RefusedError (403)."""
    host = next((value.decode("latin-1") for name, value in headers if name == b"host"), None)
    if host is not None and not is_own_host(host, own):
        raise RefusedError(
            HTTPStatus.FORBIDDEN,
            "this Host is not the endpoint's; list it in endpoint.allowed_hosts, or use API keys",
            "Host",
        )
